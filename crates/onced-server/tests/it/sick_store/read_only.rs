//! A ledger that takes no writes: a SQLite file that may not be changed any more, a PostgreSQL database whose sessions are
//! read-only, as after a failover to a standby that nobody was told of, and a MariaDB user who has lost the right to write.

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use testkit::{Backend, Database};

use super::course::{at_the_claim, before_each_outcome_is_stored};
use super::disk::Frozen;
use super::{Illness, SHORT_LEASE};

struct ReadOnlyFile(Option<Frozen>);

impl Illness for ReadOnlyFile {
    async fn admit() -> (Self, Database) {
        (Self(None), Database::create(Backend::Sqlite).await)
    }

    async fn strike(&mut self, database: &Database) {
        self.0 = Some(Frozen::database_in(database.folder().expect("SQLite has a folder")));
    }

    async fn heal(&mut self, _: &Database) {
        self.0.take().expect("it was struck").thaw();
    }
}

struct ReadOnlyDatabase;

/// Says how new sessions of that database begin, and ends all others.
pub(super) async fn set_read_only(database: &Database, setting: &str) {
    let name = database.url().rsplit_once('/').expect("the URL names a database").1;
    let mut admin = PgConnection::connect(&testkit::postgres::server_url()).await.expect("the server can be reached");
    let all = format!(
        "ALTER DATABASE {name} {setting}; \
         SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'"
    );
    admin.execute(sqlx::raw_sql(AssertSqlSafe(all))).await.expect("the database can be changed");
}

impl Illness for ReadOnlyDatabase {
    const LEASE: &str = SHORT_LEASE;

    async fn admit() -> (Self, Database) {
        (Self, Database::create(Backend::Postgres).await)
    }

    async fn strike(&mut self, database: &Database) {
        set_read_only(database, "SET default_transaction_read_only = on").await;
    }

    async fn heal(&mut self, database: &Database) {
        set_read_only(database, "RESET default_transaction_read_only").await;
    }
}

/// A user of MariaDB's who may write to the database, and then may not: whether a server takes writes is a setting of the
/// whole server, which other tests share.
pub(super) struct ReadOnlyUser;

/// What is needed to run and to migrate.
const ALL: &str = "ALL PRIVILEGES";

impl ReadOnlyUser {
    /// Has the user's rights set, and all of its sessions ended.
    pub(super) async fn may(database: &Database, rights: &str) {
        let user = name_of(database);
        let all = format!(
            "CREATE USER IF NOT EXISTS {user}@'%'; REVOKE ALL PRIVILEGES, GRANT OPTION FROM {user}@'%'; \
             GRANT {rights} ON {user}.* TO {user}@'%'; KILL USER {user}"
        );
        database.sql().execute(&all).await;
    }

    /// The URL by which that user comes to the database.
    pub(super) fn url(database: &Database) -> String {
        let (_, place) = database.url().rsplit_once('@').expect("the URL names a user");
        format!("mysql://{}@{place}", name_of(database))
    }
}

/// The name of the database, which is its user's as well.
fn name_of(database: &Database) -> &str {
    database.url().rsplit_once('/').expect("the URL names a database").1
}

impl Illness for ReadOnlyUser {
    const LEASE: &str = SHORT_LEASE;

    async fn admit() -> (Self, Database) {
        let database = Database::create(Backend::MariaDb).await;
        Self::may(&database, ALL).await;
        (Self, database)
    }

    fn url(&self, database: &Database) -> String {
        Self::url(database)
    }

    async fn strike(&mut self, database: &Database) {
        Self::may(database, "SELECT").await;
    }

    async fn heal(&mut self, database: &Database) {
        Self::may(database, ALL).await;
    }
}

#[tokio::test]
async fn read_only_at_the_claim_sqlite() {
    at_the_claim::<ReadOnlyFile>().await;
}

#[tokio::test]
async fn read_only_at_the_claim_postgres() {
    at_the_claim::<ReadOnlyDatabase>().await;
}

#[tokio::test]
async fn read_only_at_the_claim_mariadb() {
    at_the_claim::<ReadOnlyUser>().await;
}

#[tokio::test]
async fn read_only_before_the_outcome_is_stored_mariadb() {
    before_each_outcome_is_stored::<ReadOnlyUser>().await;
}

#[tokio::test]
async fn read_only_before_the_outcome_is_stored_sqlite() {
    before_each_outcome_is_stored::<ReadOnlyFile>().await;
}

#[tokio::test]
async fn read_only_before_the_outcome_is_stored_postgres() {
    before_each_outcome_is_stored::<ReadOnlyDatabase>().await;
}
