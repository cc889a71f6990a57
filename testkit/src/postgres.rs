//! Fresh databases on the throw-away PostgreSQL server that `cargo xtask test` starts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor};

/// The variable by which the server is passed to the tests.
pub const SERVER_VARIABLE: &str = "ONCED_TEST_POSTGRES";
/// The variable by which a server of the newest version is passed to the tests.
pub const NEW_SERVER_VARIABLE: &str = "ONCED_TEST_POSTGRES_NEW";

/// One database of its own, dropped at the end.
#[derive(Debug)]
pub struct Database {
    name: String,
    url: String,
    server: String,
}

impl Database {
    /// Creates an empty database with a name that no other test has.
    ///
    /// # Panics
    /// Without a server: that is a failure, not a reason to skip.
    pub async fn create() -> Self {
        Self::create_on(server_url()).await
    }

    /// As [`Database::create`], on the server of that URL.
    ///
    /// # Panics
    /// Where it cannot be reached.
    pub async fn create_on(server: String) -> Self {
        let name = unique_name();
        let mut admin = PgConnection::connect(&server).await.expect("the test PostgreSQL cannot be reached");
        // template0 allows no sessions, so no other test's session can be in the way.
        let statement = format!("CREATE DATABASE {name} TEMPLATE template0");
        admin.execute(AssertSqlSafe(statement)).await.expect("the test database cannot be created");
        admin.close().await.ok();
        let (base, _) = server.rsplit_once('/').expect("the server URL names a database");
        Self { url: format!("{base}/{name}"), name, server }
    }

    /// `postgres://…` of this database.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The name of the database on its server.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A pool of at most four connections, for SQL that knows nothing of onced.
    ///
    /// # Panics
    /// Where it cannot connect.
    pub async fn pool(&self) -> PgPool {
        let options = PgPoolOptions::new().max_connections(4);
        options.connect(&self.url).await.expect("the test database cannot be reached")
    }
}

impl Drop for Database {
    /// Best effort: the whole server goes away after the run.
    fn drop(&mut self) {
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let server = std::mem::take(&mut self.server);
        // A thread of its own, as the runtime of the test cannot be blocked on from within.
        let dropper = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut admin = PgConnection::connect(&server).await.map_err(std::io::Error::other)?;
                admin.execute(AssertSqlSafe(statement)).await.map_err(std::io::Error::other)
            })
        });
        drop(dropper.join());
    }
}

/// The server of this test run, `postgres://USER@HOST:PORT/DATABASE`.
///
/// # Panics
/// Where the variable is missing.
#[must_use]
pub fn server_url() -> String {
    url_in(SERVER_VARIABLE)
}

/// The server of the newest version, in the same form.
///
/// # Panics
/// Where the variable is missing.
#[must_use]
pub fn new_server_url() -> String {
    url_in(NEW_SERVER_VARIABLE)
}

fn url_in(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set, so there is no PostgreSQL to test on. \
             Run the tests by `cargo xtask test`: it starts a throw-away server."
        )
    })
}

pub(crate) fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_nanos());
    format!("t_{}_{nanos:x}_{count}", std::process::id())
}
