//! Fresh databases on the throw-away MariaDB server that `cargo xtask test` starts.

use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor};

use crate::postgres::unique_name;

/// The variable by which the server is passed to the tests.
pub const SERVER_VARIABLE: &str = "ONCED_TEST_MARIADB";

/// One database of its own, dropped at the end.
#[derive(Debug)]
pub struct Database {
    name: String,
    url: String,
}

impl Database {
    /// Creates an empty database with a name that no other test has.
    ///
    /// # Panics
    /// Without a server: that is a failure, not a reason to skip.
    pub async fn create() -> Self {
        let server = server_url();
        let name = unique_name();
        let mut admin = MySqlConnection::connect(&server).await.expect("the test MariaDB cannot be reached");
        let statement = format!("CREATE DATABASE {name} CHARACTER SET utf8mb4");
        admin.execute(AssertSqlSafe(statement)).await.expect("the test database cannot be created");
        admin.close().await.ok();
        let (base, _) = server.rsplit_once('/').expect("the server URL ends with a slash");
        Self { url: format!("{base}/{name}"), name }
    }

    /// `mysql://…` of this database.
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
    pub async fn pool(&self) -> MySqlPool {
        let options = MySqlPoolOptions::new().max_connections(4);
        options.connect(&self.url).await.expect("the test database cannot be reached")
    }
}

impl Drop for Database {
    /// Best effort: the whole server goes away after the run. Sessions that are still in the database are ended first:
    /// whoever drops it would wait for their transactions.
    fn drop(&mut self) {
        let name = self.name.clone();
        // A thread of its own, as the runtime of the test cannot be blocked on from within.
        let dropper = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut admin = MySqlConnection::connect(&server_url()).await.map_err(std::io::Error::other)?;
                let theirs = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE db = ?";
                let theirs: Vec<i64> = sqlx::query_scalar(theirs)
                    .bind(&name)
                    .fetch_all(&mut admin)
                    .await
                    .map_err(std::io::Error::other)?;
                for session in theirs {
                    // It may have gone by itself.
                    admin.execute(AssertSqlSafe(format!("KILL {session}"))).await.ok();
                }
                let statement = format!("DROP DATABASE IF EXISTS {name}");
                admin.execute(AssertSqlSafe(statement)).await.map_err(std::io::Error::other)
            })
        });
        drop(dropper.join());
    }
}

/// The server of this test run, `mysql://USER@HOST:PORT/`.
///
/// # Panics
/// Where the variable is missing.
#[must_use]
pub fn server_url() -> String {
    std::env::var(SERVER_VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{SERVER_VARIABLE} is not set, so there is no MariaDB to test on. \
             Run the tests by `cargo xtask test`: it starts a throw-away server."
        )
    })
}
