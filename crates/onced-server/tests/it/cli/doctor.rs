//! `onced doctor`: each thing that can be brought about is wrong or doubtful once, is found, and nothing else is; the
//! words say what to do, and the exit code is 1 where something is wrong.

use std::time::Duration;

use onced_harness::{Recorder, RecorderOptions};
use serde_json::Value;
use testkit::http_client::{Request, send};
use testkit::{Backend, Database, MariaDbServer, Sql, SqlText};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{Ran, onced, onced_in};
use crate::fixture::{Gateway, route, sql};

/// What was found, as JSON, after the table for people has said the same.
struct Report {
    code: Option<i32>,
    json: Value,
}

impl Report {
    async fn of(url: &str) -> Self {
        let people = onced(&["doctor", "--store", url]).await;
        let report = Self::read(&onced(&["doctor", "--store", url, "--json"]).await);
        assert_eq!(people.code, report.code, "{people:?}");
        for finding in report.findings() {
            let row = people.out.lines().any(|line| {
                line.split_whitespace()
                    .take(2)
                    .eq([finding["verdict"].as_str(), finding["name"].as_str()].into_iter().flatten())
            });
            assert!(row, "{finding} is not in\n{}", people.out);
        }
        let to_do = report.findings().iter().filter(|finding| finding["verdict"] != "ok").count();
        assert_eq!(people.out.matches("Do: ").count(), to_do, "{}", people.out);
        report
    }

    fn read(ran: &Ran) -> Self {
        let json: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("it is JSON: {ran:?}"));
        Self { code: ran.code, json }
    }

    fn findings(&self) -> &[Value] {
        self.json["findings"].as_array().expect("there are findings")
    }

    fn finding(&self, name: &str) -> &Value {
        let found = self.findings().iter().find(|finding| finding["name"] == name);
        found.unwrap_or_else(|| panic!("no finding {name} in {:#}", self.json))
    }

    /// Every finding that is not ok, but for what depends on the machine.
    fn not_ok(&self) -> Vec<(&str, &str)> {
        self.findings()
            .iter()
            .map(|finding| {
                let word = |name: &str| finding[name].as_str().expect("it is text");
                assert!(!word("seen").is_empty() && !word("means").is_empty(), "{finding}");
                assert_eq!(word("do").is_empty(), word("verdict") == "ok", "{finding}");
                (word("name"), word("verdict"))
            })
            .filter(|(name, verdict)| *verdict != "ok" && !matches!(*name, "disk" | "connections"))
            .collect()
    }

    /// That one thing is wrong, so is the whole, and what to do about it is said in these words.
    fn is_wrong(&self, name: &str, to_do: &str) {
        assert_eq!(self.not_ok(), [(name, "wrong")], "{:#}", self.json);
        assert_eq!((self.code, &self.json["verdict"]), (Some(1), &Value::from("wrong")));
        assert!(self.finding(name)["do"].as_str().unwrap_or_default().contains(to_do), "{}", self.finding(name));
    }

    /// As [`Report::is_wrong`], for what is only doubtful.
    fn is_doubtful(&self, name: &str, to_do: &str) {
        assert_eq!(self.not_ok(), [(name, "warn")], "{:#}", self.json);
        assert_eq!((self.code, &self.json["verdict"]), (Some(0), &Value::from("warn")));
        assert!(self.finding(name)["do"].as_str().unwrap_or_default().contains(to_do), "{}", self.finding(name));
    }
}

/// A ledger with four keys of a gateway's.
async fn used(backend: Backend) -> Database {
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    let routes = route("mail", "/mail", &upstream.url(), "external", "retention = \"7days\"");
    let mut gateway = Gateway::start(&database, &routes).await;
    for key in ["a", "b", "c", "d"] {
        assert_eq!(send(gateway.address, &Request::post("/mail", "{}").key(key)).await.status, 200);
    }
    gateway.process.kill().await;
    database
}

async fn migrated(backend: Backend) -> Database {
    let database = Database::create(backend).await;
    assert_eq!(onced(&["migrate", "--store", database.url()]).await.code, Some(0));
    database
}

async fn sound(backend: Backend) {
    let database = used(backend).await;
    let report = Report::of(database.url()).await;
    assert_eq!((report.code, report.not_ok()), (Some(0), vec![]), "{:#}", report.json);
    let names: Vec<&str> = report.findings().iter().filter_map(|finding| finding["name"].as_str()).collect();
    let expected: &[&str] = match backend {
        Backend::Sqlite => {
            &["durability", "version", "writes", "disk", "clock", "schema", "unfinished", "expired", "growth"]
        }
        Backend::Postgres => &[
            "durability",
            "version",
            "writes",
            "connections",
            "clock",
            "pooler",
            "schema",
            "unfinished",
            "expired",
            "growth",
        ],
        Backend::MariaDb => &[
            "durability",
            "version",
            "writes",
            "packets",
            "connections",
            "clock",
            "schema",
            "unfinished",
            "expired",
            "growth",
        ],
    };
    assert_eq!(names, expected);
    let version = report.finding("version")["seen"].as_str().unwrap_or_default();
    let ours =
        database.sql().text(SqlText::each("SELECT sqlite_version()", "SHOW server_version", "SELECT version()")).await;
    assert!(version.ends_with(&ours[0][0]), "{version}");
    let growth = report.finding("growth");
    assert!(growth["seen"].as_str().unwrap_or_default().starts_with("4 keys, 4 of the last day; 4 deliveries, 4 of"));
    let at_the_end = "with keys kept 7days and deliveries 30days, it comes to about 28 keys, 120 deliveries and ";
    assert!(growth["means"].as_str().unwrap_or_default().contains(at_the_end), "{growth}");
}

#[tokio::test]
async fn a_sound_ledger_is_found_sound_sqlite() {
    sound(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_sound_ledger_is_found_sound_postgres() {
    sound(Backend::Postgres).await;
}

#[tokio::test]
async fn a_sound_ledger_is_found_sound_mariadb() {
    sound(Backend::MariaDb).await;
}

/// Whatever may be set for a database of PostgreSQL; a gateway that is told to accept it is told all the same.
#[tokio::test]
async fn settings_that_lose_commits_or_take_none_are_wrong() {
    for (setting, name, to_do) in [
        ("synchronous_commit = off", "durability", "set all three to on"),
        ("synchronous_commit = local", "durability", "RESET synchronous_commit"),
        ("default_transaction_read_only = on", "writes", "reset default_transaction_read_only"),
    ] {
        let database = migrated(Backend::Postgres).await;
        let alter = format!("ALTER DATABASE {} SET {setting}", name_of(&database));
        database.sql().execute(&alter).await;
        Report::of(database.url()).await.is_wrong(name, to_do);
    }
    let database = migrated(Backend::Postgres).await;
    database.sql().execute(&format!("ALTER DATABASE {} SET synchronous_commit = off", name_of(&database))).await;
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!(
        "upstream = \"http://127.0.0.1:1\"\n[store]\nurl = \"{}\"\nallow_weak_durability = true\n",
        database.url()
    );
    std::fs::write(folder.path().join("onced.toml"), text).expect("the file can be written");
    let report = Report::read(&onced_in(folder.path(), &["doctor", "--config", "onced.toml", "--json"]).await);
    report.is_wrong("durability", "set all three to on");
}

/// What is set for the whole of a MariaDB, on one of the test's own.
#[tokio::test]
async fn a_mariadb_that_loses_commits_takes_none_or_undoes_none_is_wrong() {
    let server = MariaDbServer::start(&["--log-bin", "--sync-binlog=1"]);
    let admin = sqlx::MySqlPool::connect(&server.url("")).await.expect("the server can be reached");
    let run = async |sql: &str| {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&admin).await.expect("the server can be set");
    };
    run("CREATE DATABASE shop").await;
    let url = server.url("shop");
    assert_eq!(onced(&["migrate", "--store", &url]).await.code, Some(0));
    assert_eq!(Report::of(&url).await.not_ok(), []);
    for (set, back, name, to_do) in [
        ("innodb_flush_log_at_trx_commit = 2", "innodb_flush_log_at_trx_commit = 1", "durability", "innodb_flush_log"),
        ("sync_binlog = 0", "sync_binlog = 1", "durability", "with log_bin sync_binlog = 1"),
        ("read_only = 1", "read_only = 0", "writes", "name the primary"),
    ] {
        run(&format!("SET GLOBAL {set}")).await;
        Report::of(&url).await.is_wrong(name, to_do);
        run(&format!("SET GLOBAL {back}")).await;
    }
    run("ALTER TABLE shop.onced_audit ENGINE = MyISAM").await;
    Report::of(&url).await.is_wrong("durability", "ENGINE = InnoDB");
    run("ALTER TABLE shop.onced_audit ENGINE = InnoDB; SET GLOBAL max_allowed_packet = 1048576").await;
    Report::of(&url).await.is_doubtful("packets", "raise max_allowed_packet");
}

fn name_of(database: &Database) -> &str {
    database.url().rsplit_once('/').expect("the URL names a database").1
}

/// An hour too early, by a function that stands before the server's own.
#[tokio::test]
async fn clocks_that_differ_are_doubtful() {
    let database = migrated(Backend::Postgres).await;
    let early = format!(
        "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
         $$ SELECT pg_catalog.clock_timestamp() - interval '1 hour' $$; \
         ALTER DATABASE {} SET search_path = public, pg_catalog",
        name_of(&database)
    );
    database.sql().execute(&early).await;
    let report = Report::of(database.url()).await;
    report.is_doubtful("clock", "NTP");
    let seen = report.finding("clock")["seen"].as_str().unwrap_or_default();
    assert!(seen.starts_with("the database's clock is 3") && seen.contains(" behind this machine's"), "{seen}");
}

/// Somebody else has the write lock, and keeps it.
#[tokio::test]
async fn a_file_that_takes_no_writes_is_wrong() {
    let database = migrated(Backend::Sqlite).await;
    let Sql::Sqlite(pool) = database.sql() else { panic!("it is SQLite") };
    let holder = pool.begin_with("BEGIN IMMEDIATE").await.expect("the lock is free");
    let folder = tempfile::tempdir().expect("a folder");
    let text =
        format!("upstream = \"http://127.0.0.1:1\"\n[store]\nurl = \"{}\"\nbusy_timeout = \"100ms\"\n", database.url());
    std::fs::write(folder.path().join("onced.toml"), text).expect("the file can be written");
    let args = ["doctor", "--config", "onced.toml", "--json"];
    Report::read(&onced_in(folder.path(), &args).await).is_wrong("writes", "");
    holder.rollback().await.expect("the lock can be let go");
    let report = Report::read(&onced_in(folder.path(), &args).await);
    assert_eq!((report.code, report.not_ok()), (Some(0), vec![]));
}

async fn schemas(backend: Backend) {
    let database = Database::create(backend).await;
    Report::of(database.url()).await.is_wrong("schema", "run onced migrate");
    database
        .sql()
        .execute(SqlText::each(
            "CREATE TABLE onced_idempotency_keys (id integer)",
            "CREATE SCHEMA onced; CREATE TABLE onced.idempotency_keys (id integer)",
            "CREATE TABLE onced_idempotency_keys (id integer)",
        ))
        .await;
    Report::of(database.url()).await.is_wrong("schema", "move the table away");
    let newer = migrated(backend).await;
    newer
        .sql()
        .execute(SqlText::each(
            "UPDATE onced_migrations SET version = 99 WHERE version = 1",
            "UPDATE onced.migrations SET version = 99 WHERE version = 1",
            "UPDATE onced_migrations SET version = 99 WHERE version = 1",
        ))
        .await;
    Report::of(newer.url()).await.is_wrong("schema", "run the newer onced");
    let older = migrated(backend).await;
    older
        .sql()
        .execute(SqlText::each(
            "DELETE FROM onced_migrations",
            "DELETE FROM onced.migrations",
            "DELETE FROM onced_migrations",
        ))
        .await;
    Report::of(older.url()).await.is_wrong("schema", "run onced migrate");
}

#[tokio::test]
async fn a_schema_that_is_not_this_ones_is_wrong_sqlite() {
    schemas(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_schema_that_is_not_this_ones_is_wrong_postgres() {
    schemas(Backend::Postgres).await;
}

#[tokio::test]
async fn a_schema_that_is_not_this_ones_is_wrong_mariadb() {
    schemas(Backend::MariaDb).await;
}

async fn rows(backend: Backend) {
    let hour = Duration::from_secs(3600);
    let alter = async |database: &Database, set: &str| {
        database.sql().execute(&format!("UPDATE {} SET {set} WHERE key = 'a'", sql::table(backend))).await;
    };
    let (now, ahead) = match backend {
        Backend::Sqlite => ("(SELECT now FROM onced_clock)", "(SELECT now FROM onced_clock) + 36000000000"),
        Backend::MariaDb => ("(SELECT now FROM onced_clock)", "(SELECT now FROM onced_clock) + INTERVAL 10 HOUR"),
        Backend::Postgres => ("onced.clock()", "onced.clock() + interval '10 h'"),
    };

    // Nobody knows what became of an outside call.
    let database = used(backend).await;
    alter(&database, &format!("status = 'pending_external', lease_until = {now}")).await;
    let report = Report::of(database.url()).await;
    report.is_doubtful("unfinished", "onced keys list --status pending_external");
    let seen = report.finding("unfinished")["seen"].as_str().unwrap_or_default();
    assert!(seen.starts_with("1 pending_external with the lease over"), "{seen}");

    // Somebody is at work, for hours; then has been gone for hours.
    alter(&database, &format!("status = 'in_progress', lease_until = {ahead}")).await;
    sql::put_the_clock_ahead(database.sql(), backend, hour * 5).await;
    assert_eq!(Report::of(database.url()).await.not_ok(), []);
    alter(&database, &format!("lease_until = {now}")).await;
    Report::of(database.url()).await.is_doubtful("unfinished", "ask the sender to send again");

    // What has expired is not swept: for a day that is as it should be.
    let database = used(backend).await;
    sql::put_the_clock_ahead(database.sql(), backend, hour * 24 * 8 - hour).await;
    assert_eq!(Report::of(database.url()).await.not_ok(), []);
    sql::put_the_clock_ahead(database.sql(), backend, hour * 24 * 8 + hour).await;
    Report::of(database.url()).await.is_doubtful("expired", "run onced sweep");
    let swept = onced(&["sweep", "--store", database.url()]).await;
    assert!(swept.code == Some(0) && swept.out.starts_with("4 keys "), "{swept:?}");
    assert_eq!(Report::of(database.url()).await.not_ok(), []);
}

#[tokio::test]
async fn rows_that_nobody_sees_to_are_doubtful_sqlite() {
    rows(Backend::Sqlite).await;
}

#[tokio::test]
async fn rows_that_nobody_sees_to_are_doubtful_postgres() {
    rows(Backend::Postgres).await;
}

#[tokio::test]
async fn rows_that_nobody_sees_to_are_doubtful_mariadb() {
    rows(Backend::MariaDb).await;
}

#[tokio::test]
async fn a_ledger_that_cannot_be_reached_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("none.db");
    Report::of(&format!("sqlite:{}", file.display())).await.is_wrong("reach", "name the right file");
    assert!(!file.exists(), "looking makes no ledger");

    let nobody = "postgres://me:secret@127.0.0.1:1/shop";
    let report = Report::of(nobody).await;
    report.is_wrong("reach", "see that the database runs");
    assert!(!report.json.to_string().contains("secret"), "{:#}", report.json);

    // As PgBouncer answers a client that brings settings of its own.
    let pooler = TcpListener::bind("127.0.0.1:0").await.expect("the pooler can listen");
    let url = format!("postgres://me@{}/shop?sslmode=disable", pooler.local_addr().expect("it has an address"));
    let answering = tokio::spawn(async move {
        loop {
            let (mut client, _) = pooler.accept().await.expect("a client comes");
            let length = client.read_u32().await.expect("a first message");
            let mut first = vec![0; length as usize - 4];
            client.read_exact(&mut first).await.expect("a whole message");
            let fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0";
            let length = u32::try_from(fields.len() + 4).expect("it is short");
            let answer = [b"E", &length.to_be_bytes()[..], fields].concat();
            client.write_all(&answer).await.expect("the client waits");
        }
    });
    Report::of(&url).await.is_wrong("reach", "there is a pooler in between");
    answering.abort();
}

#[tokio::test]
async fn the_help_has_examples() {
    let help = onced(&["doctor", "--help"]).await;
    assert!(help.code == Some(0) && help.out.contains("Examples:\n  onced doctor "), "{help:?}");
    assert!(help.out.contains("Exit code 1 if something is wrong"), "{}", help.out);
}
