//! The ledger in MariaDB, in tables with the prefix `onced_` inside the application's database.
//!
//! Proven on MariaDB 10.11. MySQL is refused: it lacks what a claim needs to be answered at once while a rival's insert is
//! not committed (`SET STATEMENT`, a lock wait of zero), and `RETURNING`.

mod bounded;
mod deliveries;
pub(super) mod error;
mod health;
mod keys;
mod row;
mod sweep;
mod upkeep;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::pool::PoolConnection;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, MySql, MySqlConnection, Row as _};
use uuid::Uuid;

use self::bounded::{READY_LIMIT, bounded};
pub use self::keys::MySqlKeys;
use super::health::{MariaDbSettings, SchemaVersion};
use super::keys::Transactional;
use super::migrate::{self, Step};
use super::{Durability, StoreError, StoreErrorKind, StoreOptions};

const STEPS: &[Step] = &[Step { version: 1, name: "ledger", sql: include_str!("migrations/0001_ledger.sql") }];
const MIGRATIONS: &str = "onced_migrations";
const KEYS: &str = "onced_idempotency_keys";
/// The columns of the list of steps that have run, as sqlx makes them.
const MIGRATIONS_LIST: &str = "version BIGINT PRIMARY KEY, description TEXT NOT NULL, \
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, checksum BLOB NOT NULL, \
    execution_time BIGINT NOT NULL";
const SESSION: &str = include_str!("sql/session.sql");
const TABLES: &str = include_str!("sql/tables.sql");
const CREATE_LOCKS: &str = include_str!("sql/create_locks.sql");
const LOCK_MIGRATE: &str = include_str!("sql/lock_migrate.sql");
const CHECK: &str = include_str!("sql/check.sql");
const CHECK_LOG: &str = include_str!("sql/check_log.sql");
/// The driver asks a connection whether it is alive when it comes back. So soon afterwards it is not asked again, which
/// would be one round trip more for each statement.
const TRUSTED: Duration = Duration::from_millis(100);
/// In one round trip; the level is of this transaction only.
const OPENING_ELSEWHERE: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";
/// As that, on a connection of our own. After a deadlock MariaDB has undone all of a transaction: what is written then must
/// not commit statement by statement, but wait for a commit or a rollback as before.
const OPENING: &str = "SET SESSION autocommit = 0; SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";
/// What a connection that comes back is asked: single statements commit by themselves again. In this order, because
/// switching that on commits what is open.
const TIDY: &str = "ROLLBACK; SET SESSION autocommit = 1";
/// How long the steps of the schema may take together.
const MIGRATION_LIMIT: Duration = Duration::from_secs(60);
/// `SKIP LOCKED` and `JSON_TABLE`.
const OLDEST: (u32, u32) = (10, 6);

/// The ledger in a MariaDB database. Cloning shares the connections.
#[derive(Clone)]
pub struct MySqlStore {
    pool: MySqlPool,
    opening: &'static str,
    /// How many connections of our own have been opened.
    opened: Arc<AtomicU64>,
}

// The connections' settings hold a password.
impl fmt::Debug for MySqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlStore").finish_non_exhaustive()
    }
}

impl MySqlStore {
    /// Connects, and checks that commits survive. Does not migrate.
    ///
    /// # Errors
    /// Where the server cannot be reached, is not MariaDB, is a replica, or is set to lose commits silently.
    ///
    /// # Cancel safety
    /// If the future is dropped, its connections are closed.
    pub async fn open(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        let connect = MySqlConnectOptions::from_str(url).ok().filter(|connect| connect.get_database().is_some());
        let connect = connect.ok_or_else(|| {
            StoreError::refused("the MariaDB URL cannot be read; it looks like mysql://user@host:3306/database")
        })?;
        // The pool tries again until its time is over, and then says no more than that: asked once without it, the
        // server or the system says why.
        let asked = tokio::time::timeout(options.acquire_timeout, version_of(&connect)).await;
        let asked =
            asked.map_err(|_| StoreError::new(StoreErrorKind::Unavailable, "MariaDB did not answer in time"))?;
        check_kind(&asked.map_err(error::on_connecting)?)?;
        let opened = Arc::new(AtomicU64::new(0));
        let count = opened.clone();
        let pool = MySqlPoolOptions::new()
            .after_connect(move |conn, _| {
                count.fetch_add(1, Ordering::Relaxed);
                Box::pin(async move { conn.execute(SESSION).await.map(drop) })
            })
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout)
            .test_before_acquire(false)
            .before_acquire(|conn, about| {
                Box::pin(async move {
                    let answers = async { matches!(tokio::time::timeout(READY_LIMIT, conn.ping()).await, Ok(Ok(()))) };
                    Ok(about.idle_for < TRUSTED || answers.await)
                })
            })
            // A transaction that was given up may be on a connection whose server is silent.
            .after_release(|conn, _| {
                Box::pin(
                    async move { Ok(matches!(tokio::time::timeout(READY_LIMIT, conn.execute(TIDY)).await, Ok(Ok(_)))) },
                )
            })
            .connect_lazy_with(connect);
        let store = Self { opened, pool, opening: OPENING };
        if options.durability != Durability::NotAsked {
            store.check_durability(options.durability).await?;
        }
        Ok(store)
    }

    /// The ledger through an application's own pool. Does not migrate, and does not check that commits survive.
    /// Nobody says here when that pool opens a connection anew: after a failover a guard that keeps outcomes may answer
    /// with them for up to a minute.
    ///
    /// After a deadlock (1213) MariaDB has undone the whole transaction, and on a connection of such a pool the next
    /// statement commits by itself: a transaction in which a statement has failed must be given up.
    pub fn from_pool(pool: MySqlPool) -> Self {
        Self { pool, opened: Arc::default(), opening: OPENING_ELSEWHERE }
    }

    /// Brings the schema up to date. Several instances may do so at once: one works, the others wait for it. Where it is
    /// cut off, the next one goes on.
    ///
    /// # Errors
    /// Where the schema is newer than this version, or a table of that name is not ours.
    ///
    /// # Cancel safety
    /// If the future is dropped, the schema may stop in between, for what makes a table commits by itself: the next call goes on.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        bounded::within(MIGRATION_LIMIT, self.migrate_in_its_time()).await
    }

    async fn migrate_in_its_time(&self) -> Result<(), StoreError> {
        let err = |source| error::of(source, "migrate");
        let mut conn = self.pool.connect_options().connect().await.map_err(error::on_connecting)?;
        conn.execute(SESSION).await.map_err(err)?;
        // What makes tables commits by itself, so that the lock is held by another connection.
        if bounded::within(bounded::LIMIT, schema_is_current(&mut conn)).await? {
            return close(conn).await;
        }
        conn.execute(CREATE_LOCKS).await.map_err(err)?;
        let mut lock = self.transaction().await?;
        lock.execute(LOCK_MIGRATE).await.map_err(err)?;
        if !schema_is_current(&mut conn).await? {
            forget_what_was_cut_off(&mut conn).await?;
            migrate::migrator(STEPS, MIGRATIONS.to_owned(), Cow::Borrowed)
                .run_direct(None, &mut conn, false)
                .await
                .map_err(|source| migrate::failed(source, err))?;
        }
        lock.rollback().await.map_err(err)?;
        close(conn).await
    }

    /// The text of all migrations, as `migrate` would run them on an empty database.
    pub fn migrations() -> String {
        let migrator = migrate::migrator(STEPS, MIGRATIONS.to_owned(), Cow::Borrowed);
        let steps = migrate::printed(&migrator, MIGRATIONS, MIGRATIONS_LIST, |hex| format!("x'{hex}'"));
        format!("{CREATE_LOCKS}\n{steps}")
    }

    /// Refuses unless the schema is there and of the version that this binary knows.
    ///
    /// # Errors
    /// In words that say to migrate, or that the schema is newer.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        if bounded!(self, conn => schema_is_current(&mut conn))? {
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
        let err = |source| error::of(source, "check");
        let mut tx = self.transaction().await?;
        let trying = async {
            sqlx::query(CHECK).execute(&mut *tx).await.map_err(err)?;
            sqlx::query(CHECK_LOG).bind(Uuid::new_v4()).execute(&mut *tx).await.map_err(err)
        };
        bounded::within(bounded::LIMIT, trying).await?;
        self.rollback(tx).await
    }

    async fn check_durability(&self, wanted: Durability) -> Result<(), StoreError> {
        let settings = self.read_settings("check that commits survive").await?;
        check_version(&settings)?;
        if settings.read_only {
            return Err(StoreError::refused(
                "this MariaDB is read-only, as a replica is: decisions are made on the primary only",
            ));
        }
        if settings.rollback_on_timeout {
            return Err(StoreError::refused(
                "innodb_rollback_on_timeout = ON: a claim that meets a rival would undo what the application has written \
                 in the same transaction, silently. Set it to OFF",
            ));
        }
        if let Some(tables) = settings.other_engine {
            return Err(StoreError::refused(format!(
                "not in InnoDB: {tables}. Nothing can be rolled back there: ALTER TABLE … ENGINE = InnoDB"
            )));
        }
        wanted.accept(settings.risks())
    }

    pub(super) async fn connection(&self) -> Result<PoolConnection<MySql>, StoreError> {
        self.pool.acquire().await.map_err(error::on_connecting)
    }

    /// The connections, for an application that shares them: strict, in UTC, at READ COMMITTED, and with bounds on
    /// statements, on waits for locks and on transactions that idle.
    pub fn pool(&self) -> &MySqlPool {
        &self.pool
    }
}

impl Transactional for MySqlStore {
    type Tx = sqlx::Transaction<'static, MySql>;
    type InTx<'t> = MySqlKeys<'t>;

    async fn transaction(&self) -> Result<Self::Tx, StoreError> {
        let mut opening = super::open_transaction(&self.pool, self.opening);
        let limit = self.pool.options().get_acquire_timeout() + bounded::LIMIT;
        match tokio::time::timeout(limit, &mut opening).await {
            Ok(opened) => opened.unwrap_or(Err(sqlx::Error::WorkerCrashed)).map_err(error::on_connecting),
            Err(_) => {
                // A connection of our own is tidied when it comes back, or closed. In an application's pool it goes on, and
                // rolls back what it opens.
                if self.opening == OPENING {
                    opening.abort();
                }
                Err(StoreError::new(StoreErrorKind::Unavailable, "begin: MariaDB did not answer in time"))
            }
        }
    }

    fn within<'t>(&'t self, tx: &'t mut Self::Tx) -> MySqlKeys<'t> {
        MySqlKeys { conn: tx }
    }

    super::transaction_ends!(error::of);
}

impl MariaDbSettings {
    /// The settings under which commits can be lost, in words.
    pub fn risks(&self) -> impl Iterator<Item = &'static str> {
        let risks = [
            (
                self.flush_log_at_commit != 1,
                "innodb_flush_log_at_trx_commit is not 1: a crash of the machine loses commits that were confirmed, and with them the memory that a trigger took effect",
            ),
            (
                self.galera,
                "wsrep_on = ON: this is a node of a Galera cluster, whose nodes decide about a claim each for itself until it is committed, and on which onced is not proven",
            ),
            (!self.doublewrite, "innodb_doublewrite = OFF: a crash of the machine can corrupt the database"),
            (
                self.log_bin && self.sync_binlog != 1,
                "log_bin = ON with sync_binlog other than 1: after a crash of the machine MariaDB takes back commits that its binary log has lost",
            ),
        ];
        risks.into_iter().filter_map(|(is_so, risk)| is_so.then_some(risk))
    }
}

async fn version_of(connect: &MySqlConnectOptions) -> Result<String, sqlx::Error> {
    let mut conn = connect.connect().await?;
    let version = sqlx::raw_sql("SELECT VERSION()").fetch_one(&mut conn).await?.try_get(0)?;
    // It has served its purpose, however it ends.
    let _ = conn.close().await;
    Ok(version)
}

/// Before anything else is sent: what a session begins with is MariaDB's alone.
fn check_kind(version: &str) -> Result<(), StoreError> {
    if version.to_ascii_lowercase().contains("mariadb") {
        return Ok(());
    }
    Err(StoreError::refused(format!(
        "this server is MySQL {version}, which lacks what a claim needs: onced runs on MariaDB, 10.6 or newer"
    )))
}

fn check_version(settings: &MariaDbSettings) -> Result<(), StoreError> {
    if settings.release() < OLDEST {
        let version = &settings.version;
        return Err(StoreError::refused(format!("this MariaDB is {version}: onced needs 10.6 or newer")));
    }
    Ok(())
}

async fn close(conn: MySqlConnection) -> Result<(), StoreError> {
    conn.close().await.map_err(|source| error::of(source, "migrate"))
}

/// A step that did not come to its end stands in the list as such. All of its statements may be run again.
async fn forget_what_was_cut_off(conn: &mut MySqlConnection) -> Result<(), StoreError> {
    if tables(conn).await?.iter().any(|table| table == MIGRATIONS) {
        let forget = "DELETE FROM onced_migrations WHERE NOT success";
        conn.execute(forget).await.map_err(|source| error::of(source, "migrate"))?;
    }
    Ok(())
}

async fn schema_is_current(conn: &mut MySqlConnection) -> Result<bool, StoreError> {
    migrate::is_current(read_schema_version(conn).await?, KEYS)
}

async fn read_schema_version(conn: &mut MySqlConnection) -> Result<SchemaVersion, StoreError> {
    let known = migrate::newest(STEPS);
    let has = async |conn: &mut MySqlConnection, name: &str| {
        tables(conn).await.map(|tables| tables.iter().any(|table| table == name))
    };
    // The list is made before the keys, so that the keys are asked for first: between two statements, and within one of
    // the server's own tables, another instance may have made both.
    let keys = has(conn, KEYS).await?;
    if !has(conn, MIGRATIONS).await? {
        return Ok(SchemaVersion { found: None, known, foreign: keys });
    }
    let found = sqlx::query_scalar("SELECT COALESCE(MAX(version), 0) FROM onced_migrations WHERE success")
        .fetch_one(&mut *conn)
        .await
        .map_err(|source| error::of(source, "read the schema's version"))?;
    Ok(SchemaVersion { found: Some(found), known, foreign: false })
}

async fn tables(conn: &mut MySqlConnection) -> Result<Vec<String>, StoreError> {
    let names = sqlx::query_scalar(TABLES).fetch_all(&mut *conn).await;
    names.map_err(|source| error::of(source, "read the schema's version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(version: &str) -> MariaDbSettings {
        MariaDbSettings {
            version: version.to_owned(),
            flush_log_at_commit: 1,
            doublewrite: true,
            log_bin: false,
            sync_binlog: 0,
            galera: false,
            read_only: false,
            rollback_on_timeout: false,
            other_engine: None,
            max_allowed_packet: 16 << 20,
            max_connections: 151,
            used_connections: 1,
        }
    }

    #[test]
    fn servers_that_lack_what_a_claim_needs_are_refused() {
        for good in ["10.11.19-MariaDB-0+deb12u1", "10.6.0-MariaDB", "11.4.2-MariaDB-log"] {
            assert!(check_kind(good).is_ok() && check_version(&settings(good)).is_ok(), "{good}");
        }
        for other in ["8.0.36", "9.4.0-log", "8.0.36-28-Percona"] {
            assert!(check_kind(other).unwrap_err().words().contains("MySQL"), "{other}");
        }
        for old in ["10.5.29-MariaDB", "9.1.0-mariadb", "?-MariaDB"] {
            assert!(check_version(&settings(old)).unwrap_err().words().contains("10.6 or newer"), "{old}");
        }
    }

    #[test]
    fn settings_that_can_lose_commits_are_named() {
        let sound = settings("10.11.19-MariaDB");
        assert_eq!(sound.risks().count(), 0);
        let logged = MariaDbSettings { log_bin: true, sync_binlog: 1, ..sound.clone() };
        assert_eq!(logged.risks().count(), 0);
        for (weak, word) in [
            (MariaDbSettings { flush_log_at_commit: 2, ..sound.clone() }, "innodb_flush_log_at_trx_commit"),
            (MariaDbSettings { doublewrite: false, ..sound.clone() }, "innodb_doublewrite"),
            (MariaDbSettings { log_bin: true, ..sound.clone() }, "sync_binlog"),
            (MariaDbSettings { galera: true, ..sound.clone() }, "Galera"),
        ] {
            let risks: Vec<_> = weak.risks().collect();
            assert!(
                risks.len() == 1 && risks.iter().all(|risk| risk.starts_with(word) || risk.contains(word)),
                "{risks:?}"
            );
        }
    }
}
