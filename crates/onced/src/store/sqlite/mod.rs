//! The ledger in a SQLite file: the embedded default.

mod deliveries;
pub(super) mod error;
mod health;
mod identity;
mod keys;
mod row;
mod sweep;
mod upkeep;
mod writer;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection as _, Sqlite, SqliteConnection};

use self::identity::Watched;
pub use self::keys::SqliteKeys;
use self::writer::Writer;
use super::health::SchemaVersion;
use super::keys::Transactional;
use super::migrate::{self, Step};
use super::{Durability, StoreError, StoreErrorKind, StoreOptions};

const STEPS: &[Step] = &[Step { version: 1, name: "ledger", sql: include_str!("migrations/0001_ledger.sql") }];
const MIGRATIONS: &str = "onced_migrations";
/// Its columns, as sqlx makes them.
const MIGRATIONS_LIST: &str = "version BIGINT PRIMARY KEY, description TEXT NOT NULL, \
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, checksum BLOB NOT NULL, \
    execution_time BIGINT NOT NULL";

/// How long to wait before a file that is being made is opened again.
const BETWEEN_OPENINGS: Duration = Duration::from_millis(10);

/// The ledger in a SQLite file. Cloning shares the connections.
///
/// Where the path leads to another file than the one that was opened, or to none, nothing is committed and no
/// transaction is opened: the error is of the kind `Unavailable`, until the file is back. It is looked at before each
/// commit of the store's own, and where [`transaction`](Transactional::transaction) opens one; a file that is replaced
/// later than that, or while a caller's transaction is open, is seen the next time.
#[derive(Clone)]
pub struct SqliteStore {
    file: Watched,
    readers: SqlitePool,
    writer: Writer,
    /// For transactions that a caller shares: each gets a connection of its own.
    shared: SqlitePool,
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the file of a `sqlite:PATH` URL, made if it is missing, and checks that commits survive. Does not migrate.
    ///
    /// # Errors
    /// Where the file cannot be opened, lies where WAL does not work, or the library has the WAL-reset fault.
    ///
    /// # Cancel safety
    /// If the future is dropped, its connections are closed; a file that was missing may have been made.
    pub async fn open(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        let connect = SqliteConnectOptions::from_str(url)
            .map_err(|_| StoreError::refused("the SQLite URL cannot be read; it looks like sqlite:onced.db"))?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(options.busy_timeout);
        let mut conn = open_first(&connect, options.busy_timeout).await?;
        check_durability(&mut conn, options.durability).await?;
        let (file, connect) = Watched::start(&mut conn, connect).await?;
        if file.is_a_file() {
            // The path may have begun to lead elsewhere since it was opened: the writer's connection is of what is watched.
            let watched = writer::open_anew(&connect, &file).await?;
            // It was one more of several.
            let _ = std::mem::replace(&mut conn, watched).close().await;
        }
        let pool = || {
            let file = file.clone();
            let pool = SqlitePoolOptions::new().acquire_timeout(options.acquire_timeout);
            // A connection is a thread of this process: it was alive when it came back, and still is.
            let pool = pool.test_before_acquire(false).after_connect(move |conn, _| {
                let file = file.clone();
                Box::pin(async move {
                    file.check_opened(conn).await.map_err(|error| sqlx::Error::Configuration(error.into()))
                })
            });
            pool.after_release(|conn, _| Box::pin(is_outside(conn)))
        };
        let readers = pool().max_connections(options.max_connections).connect_lazy_with(connect.clone());
        let shared = pool().max_connections(options.max_connections).connect_lazy_with(connect.clone());
        let writer = Writer::start(conn, connect, file.clone());
        Ok(Self { file, readers, writer, shared })
    }

    /// Brings the schema up to date. Several instances may do so at once: one works, the others wait for it.
    ///
    /// # Errors
    /// Where the schema is newer than this version, or a table of that name is not ours.
    ///
    /// # Cancel safety
    /// If the future is dropped, the schema is as it was, or up to date.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let err = |source| error::of(source, "migrate");
        // Where nothing is to be done, no write lock is asked for.
        if schema_is_current(&mut *self.reader().await?).await? {
            return Ok(());
        }
        let mut tx = self.transaction().await?;
        if schema_is_current(&mut tx).await? {
            return Ok(());
        }
        migrate::migrator(STEPS, MIGRATIONS.to_owned(), Cow::Borrowed)
            .run_direct(None, &mut *tx, false)
            .await
            .map_err(|source| migrate::failed(source, err))?;
        tx.commit().await.map_err(err)
    }

    /// The text of all migrations, as `migrate` would run them on an empty file.
    pub fn migrations() -> String {
        let migrator = migrate::migrator(STEPS, MIGRATIONS.to_owned(), Cow::Borrowed);
        migrate::printed(&migrator, MIGRATIONS, MIGRATIONS_LIST, |hex| format!("x'{hex}'"))
    }

    /// Refuses unless the schema is there and of the version that this binary knows.
    ///
    /// # Errors
    /// In words that say to migrate, or that the schema is newer.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        if schema_is_current(&mut *self.reader().await?).await? {
            return Ok(());
        }
        Err(StoreError::refused("the database has no up-to-date onced schema: run `onced migrate`"))
    }

    /// Refuses unless keys can be read and written.
    ///
    /// # Errors
    /// In words that say what is wrong.
    ///
    /// # Cancel safety
    /// If the future is dropped, what it has written is taken back all the same.
    pub async fn check_ready(&self) -> Result<(), StoreError> {
        self.check_schema().await?;
        let written = self.writer.write("check", |conn| {
            Box::pin(async move {
                let check = sqlx::raw_sql(include_str!("sql/check.sql")).execute(conn).await;
                check.map(|_| ()).map_err(|source| error::of(source, "check"))
            })
        });
        written.await
    }

    async fn reader(&self) -> Result<PoolConnection<Sqlite>, StoreError> {
        // An open connection keeps to its file, and what it reads was true: only a new one is worth a look.
        if let Some(idle) = self.readers.try_acquire() {
            return Ok(idle);
        }
        self.file.check()?;
        self.readers.acquire().await.map_err(cannot_open)
    }

    /// Connections to the same file with the same settings, for an application that shares them. Whether the file is
    /// still in its place is looked at when one is opened, not for each transaction on it.
    pub fn pool(&self) -> &SqlitePool {
        &self.shared
    }
}

impl Transactional for SqliteStore {
    type Tx = sqlx::Transaction<'static, Sqlite>;
    type InTx<'t> = SqliteKeys<'t>;

    async fn transaction(&self) -> Result<Self::Tx, StoreError> {
        // So that no connection is opened to another file, and the caller learns why.
        self.file.check()?;
        let tx = super::open_transaction(&self.shared, "BEGIN IMMEDIATE").await;
        let tx = tx.unwrap_or(Err(sqlx::Error::WorkerCrashed)).map_err(|source| error::of(source, "begin"))?;
        // The write lock may have been long in coming.
        self.file.check()?;
        Ok(tx)
    }

    fn within<'t>(&'t self, tx: &'t mut Self::Tx) -> SqliteKeys<'t> {
        SqliteKeys { conn: tx, place: keys::Place::Within }
    }

    super::transaction_ends!(error::of);
}

/// Opens the first connection. Where several make a file at the same time, SQLite does not wait for the one that is
/// changing it to WAL, but says at once that it is locked: the others ask again, for as long as they would have waited.
async fn open_first(connect: &SqliteConnectOptions, patience: Duration) -> Result<SqliteConnection, StoreError> {
    let until = Instant::now() + patience;
    loop {
        match connect.connect().await {
            Err(source) if error::is_write_lock_missed(&source) && Instant::now() < until => {
                tokio::time::sleep(BETWEEN_OPENINGS).await;
            }
            opened => return opened.map_err(cannot_open),
        }
    }
}

/// Whether a connection that comes back can be lent again. Where SQLite has rolled back by itself, the driver still believes
/// that it is inside the transaction, and would refuse to begin another.
async fn is_outside(conn: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    if !conn.is_in_transaction() {
        return Ok(true);
    }
    // A transaction that was dropped is rolled back before this is answered.
    conn.ping().await?;
    Ok(!conn.is_in_transaction())
}

fn cannot_open(source: sqlx::Error) -> StoreError {
    error::of(source, "open the SQLite file").with_kind(StoreErrorKind::Unavailable)
}

async fn schema_is_current(conn: &mut SqliteConnection) -> Result<bool, StoreError> {
    migrate::is_current(read_schema_version(conn).await?, "onced_idempotency_keys")
}

async fn read_schema_version(conn: &mut SqliteConnection) -> Result<SchemaVersion, StoreError> {
    let err = |source| error::of(source, "read the schema's version");
    // In one statement: between two, another instance may have made both.
    let (migrations, keys): (bool, bool) = sqlx::query_as(
        "SELECT count(*) FILTER (WHERE name = ?1) > 0, count(*) FILTER (WHERE name = ?2) > 0 FROM sqlite_schema",
    )
    .bind(MIGRATIONS)
    .bind("onced_idempotency_keys")
    .fetch_one(&mut *conn)
    .await
    .map_err(err)?;
    let known = migrate::newest(STEPS);
    if !migrations {
        return Ok(SchemaVersion { found: None, known, foreign: keys });
    }
    let found = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM onced_migrations")
        .fetch_one(&mut *conn)
        .await
        .map_err(err)?;
    Ok(SchemaVersion { found: Some(found), known, foreign: false })
}

async fn check_durability(conn: &mut SqliteConnection, wanted: Durability) -> Result<(), StoreError> {
    let err = |source| error::of(source, "check that commits survive");
    let version: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&mut *conn).await.map_err(err)?;
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *conn).await.map_err(err)?;
    let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *conn).await.map_err(err)?;
    let mut risks = Vec::new();
    if !has_wal_reset_fix(&version) {
        risks.push("this SQLite has the WAL-reset fault (before 3.51.3): a writer that races a checkpoint can lose committed pages");
    }
    if mode != "wal" {
        risks.push("this file cannot be put into WAL mode (a network file system, or in memory?): readers and writers block each other, and the ledger's bounds do not hold");
    }
    if synchronous < 2 {
        risks.push("synchronous is below FULL: a crash of the machine loses commits that were confirmed");
    }
    wanted.accept(risks)
}

// The fix is in 3.51.3 and later, and was carried back to 3.50.7 and 3.44.6.
fn has_wal_reset_fix(version: &str) -> bool {
    let parts: Vec<u32> = version.split('.').map(|part| part.parse().unwrap_or(0)).collect();
    match parts.as_slice() {
        [3, 44, patch, ..] => *patch >= 6,
        [3, 50, patch, ..] => *patch >= 7,
        [3, 51, patch, ..] => *patch >= 3,
        [3, minor, ..] => *minor > 51,
        [major, ..] => *major > 3,
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_without_the_wal_reset_fix_are_known() {
        for good in ["3.51.3", "3.53.0", "3.50.7", "3.44.6", "4.0.0"] {
            assert!(has_wal_reset_fix(good), "{good}");
        }
        for bad in ["3.51.2", "3.50.6", "3.44.5", "3.45.9", "3.7.0", ""] {
            assert!(!has_wal_reset_fix(bad), "{bad}");
        }
    }
}
