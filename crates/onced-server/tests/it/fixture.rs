//! What every end-to-end test stands on: a throw-away database, gateways in front of a scripted upstream, and time
//! that runs at a tenth of its length but in the soak.

/// Makes of each case a test on each backend.
macro_rules! on_all {
    ($($case:ident: $sqlite:ident, $postgres:ident, $mariadb:ident;)+) => { $(
        #[tokio::test]
        async fn $sqlite() {
            $case(Backend::Sqlite).await;
        }

        #[tokio::test]
        async fn $postgres() {
            $case(Backend::Postgres).await;
        }

        #[tokio::test]
        async fn $mariadb() {
            $case(Backend::MariaDb).await;
        }
    )+ };
}
pub(crate) use on_all;

use std::net::SocketAddr;
use std::time::Duration;

use testkit::process::{Process, free_port};
use testkit::{Backend, Database};

/// A time of a case, as it is written there: at full length in the soak, else a tenth of it.
pub(crate) fn time(full: Duration) -> Duration {
    if testkit::soaking() { full } else { full / 10 }
}

/// As [`time`], in seconds.
pub(crate) fn secs(full: f64) -> Duration {
    time(Duration::from_secs_f64(full))
}

/// A duration as it is written in a configuration file.
pub(crate) fn written(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

/// How often a concurrent case is run.
pub(crate) fn repeats() -> usize {
    if testkit::soaking() { 20 } else { 3 }
}

/// How long a test waits for something that must come.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A running gateway: the real binary.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    pub(crate) process: Process,
    folder: tempfile::TempDir,
    env: Vec<(String, String)>,
}

/// A route of a configuration file, with the settings that nearly every case uses.
pub(crate) fn route(name: &str, path: &str, upstream: &str, effect: &str, more: &str) -> String {
    let lease = written(secs(5.0));
    let lease = if more.contains("lease =") { String::new() } else { format!("lease = \"{lease}\"\n") };
    format!(
        "[[route]]\nname = \"{name}\"\npath = \"{path}\"\nupstream = \"{upstream}\"\neffect = \"{effect}\"\n{lease}{more}\n"
    )
}

impl Gateway {
    /// Starts a gateway on that database with those routes, and waits until it listens.
    pub(crate) async fn start(database: &Database, routes: &str) -> Self {
        Self::start_with(database, "", "", routes).await
    }

    /// As [`Gateway::start`], with more top-level settings and more settings of the store.
    pub(crate) async fn start_with(database: &Database, top: &str, store: &str, routes: &str) -> Self {
        Self::start_among(database, top, store, routes, &[]).await
    }

    /// As [`Gateway::start_with`], with more variables of the environment.
    pub(crate) async fn start_among(
        database: &Database,
        top: &str,
        store: &str,
        routes: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        Self::start_on(database.url(), top, store, routes, variables).await
    }

    /// As [`Gateway::start_among`], on the ledger of that URL.
    pub(crate) async fn start_on(url: &str, top: &str, store: &str, routes: &str, variables: &[(&str, &str)]) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let folder = tempfile::tempdir().expect("a folder for the configuration");
        // It would come at a time of its own choosing.
        let sweep = if routes.contains("[sweep]") { "" } else { "[sweep]\nevery = \"off\"\n" };
        let text = format!(
            "listen = \"{address}\"\n{top}\n[store]\nurl = \"{url}\"\n{store}\n[log]\nformat = \"json\"\nlevel = \"debug\"\n\n{sweep}\n{routes}"
        );
        std::fs::write(folder.path().join("onced.toml"), text).expect("the configuration can be written");
        let mut env: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        if !testkit::soaking() {
            env.push(("ONCED_TEST_TENTHS".to_owned(), "1".to_owned()));
        }
        let process = Self::spawn(folder.path(), &env).await;
        Self { address, process, folder, env }
    }

    /// Starts the same gateway again, at the same address, after it was killed or has ended.
    pub(crate) async fn restart(&mut self) {
        self.process = Self::spawn(self.folder.path(), &self.env).await;
    }

    async fn spawn(folder: &std::path::Path, env: &[(String, String)]) -> Process {
        let config = folder.join("onced.toml");
        let config = config.to_str().expect("a path of plain characters");
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let process = Process::spawn(env!("CARGO_BIN_EXE_onced"), ["serve", "--config", config], env);
        process.wait_for_line(|line| line.contains("listening"), LIMIT).await;
        process
    }

    /// Waits until an attempt under that key has ended, its outcome stored or not.
    pub(crate) async fn ended(&self, key: &str) {
        let key = format!("\"key\":\"{key}\"");
        self.process.wait_for_line(|line| line.contains("\"phase\":\"ended\"") && line.contains(&key), LIMIT).await;
    }

    /// The address as a URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// The statements that count and look, for every backend, past our code.
pub(crate) mod sql {
    use testkit::Sql;

    /// How many keys stand at that status.
    pub(crate) async fn keys_at(sql: &Sql, backend: super::Backend, status: &str) -> i64 {
        sql.count(&format!("SELECT count(*) FROM {} WHERE status = '{status}'", table(backend))).await
    }

    /// The table of the records.
    pub(crate) fn table(backend: super::Backend) -> &'static str {
        match backend {
            super::Backend::Sqlite | super::Backend::MariaDb => "onced_idempotency_keys",
            super::Backend::Postgres => "onced.idempotency_keys",
        }
    }

    /// Ends the lease of every unfinished record now, as if that much time had passed: the shifted clock of the tests.
    pub(crate) async fn let_leases_run_out(sql: &Sql, backend: super::Backend) {
        let text = match backend {
            super::Backend::Sqlite | super::Backend::MariaDb => {
                "UPDATE onced_idempotency_keys SET lease_until = (SELECT now FROM onced_clock) WHERE lease_until IS NOT NULL"
            }
            super::Backend::Postgres => {
                "UPDATE onced.idempotency_keys SET lease_until = onced.clock() WHERE lease_until IS NOT NULL"
            }
        };
        sql.execute(text).await;
    }

    /// Puts the ledger's clock ahead, as if that much time had passed since the test began.
    pub(crate) async fn put_the_clock_ahead(sql: &Sql, backend: super::Backend, by: std::time::Duration) {
        let seconds = by.as_secs();
        let text = match backend {
            super::Backend::Sqlite => format!(
                "BEGIN IMMEDIATE; DROP VIEW onced_clock; CREATE VIEW onced_clock AS \
                 SELECT CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) * 1000 + {seconds} * 1000000 AS now; \
                 COMMIT"
            ),
            super::Backend::Postgres => format!(
                "CREATE OR REPLACE FUNCTION onced.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
                 $$ SELECT clock_timestamp() + interval '{seconds} s' $$"
            ),
            super::Backend::MariaDb => format!(
                "CREATE OR REPLACE SQL SECURITY INVOKER VIEW onced_clock AS \
                 SELECT UTC_TIMESTAMP(6) + INTERVAL {seconds} SECOND AS now"
            ),
        };
        sql.execute(&text).await;
    }
}
