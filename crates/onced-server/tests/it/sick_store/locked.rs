//! A ledger that somebody else has locked: another writer of the SQLite file in the middle of its transaction, and a lock
//! on the whole table in PostgreSQL (ACCESS EXCLUSIVE) and MariaDB, as a migration of the application's may hold it.

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, MySqlConnection, PgConnection, SqliteConnection};
use testkit::{Backend, Database};

use super::Illness;
use super::course::{at_the_claim, before_each_outcome_is_stored};
use crate::fixture::LIMIT;

struct LockedFile(Option<SqliteConnection>);

impl Illness for LockedFile {
    /// Where the write lock is missed a rival may be at work: nothing runs, and the client is told to come again.
    const AT_THE_CLAIM: (u16, &'static str) = (409, "in-progress");

    async fn admit() -> (Self, Database) {
        (Self(None), Database::create(Backend::Sqlite).await)
    }

    async fn strike(&mut self, database: &Database) {
        let file: SqliteConnectOptions = database.url().parse().expect("the URL of a file");
        let mut writer = file.busy_timeout(LIMIT).connect().await.expect("the file can be opened");
        writer.execute("BEGIN IMMEDIATE").await.expect("the write lock becomes free");
        self.0 = Some(writer);
    }

    async fn heal(&mut self, _: &Database) {
        self.0.take().expect("it was struck").execute("ROLLBACK").await.expect("rolled back");
    }
}

struct LockedTable(Option<PgConnection>);

impl Illness for LockedTable {
    async fn admit() -> (Self, Database) {
        (Self(None), Database::create(Backend::Postgres).await)
    }

    async fn strike(&mut self, database: &Database) {
        let mut other = PgConnection::connect(database.url()).await.expect("the database can be reached");
        let lock = "BEGIN; LOCK TABLE onced.idempotency_keys, onced.deliveries IN ACCESS EXCLUSIVE MODE";
        other.execute(sqlx::raw_sql(lock)).await.expect("the table can be locked");
        self.0 = Some(other);
    }

    async fn heal(&mut self, _: &Database) {
        self.0.take().expect("it was struck").execute("ROLLBACK").await.expect("rolled back");
    }
}

/// In MariaDB such a lock is asked for by name, or had by a change of the table.
struct LockedTables(Option<MySqlConnection>);

impl Illness for LockedTables {
    async fn admit() -> (Self, Database) {
        (Self(None), Database::create(Backend::MariaDb).await)
    }

    async fn strike(&mut self, database: &Database) {
        let mut other = MySqlConnection::connect(database.url()).await.expect("the database can be reached");
        let lock = "LOCK TABLES onced_idempotency_keys WRITE, onced_deliveries WRITE";
        other.execute(sqlx::raw_sql(lock)).await.expect("the tables can be locked");
        self.0 = Some(other);
    }

    async fn heal(&mut self, _: &Database) {
        self.0.take().expect("it was struck").execute(sqlx::raw_sql("UNLOCK TABLES")).await.expect("unlocked");
    }
}

#[tokio::test]
async fn locked_at_the_claim_sqlite() {
    at_the_claim::<LockedFile>().await;
}

#[tokio::test]
async fn locked_before_the_outcome_is_stored_sqlite() {
    before_each_outcome_is_stored::<LockedFile>().await;
}

/// Each of these mostly waits, so they are waited for side by side.
#[tokio::test]
async fn locked_postgres() {
    tokio::join!(at_the_claim::<LockedTable>(), before_each_outcome_is_stored::<LockedTable>());
}

#[tokio::test]
async fn locked_mariadb() {
    tokio::join!(at_the_claim::<LockedTables>(), before_each_outcome_is_stored::<LockedTables>());
}
