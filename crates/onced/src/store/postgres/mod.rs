//! The ledger in PostgreSQL, in a schema of its own inside the application's database.

mod bounded;
mod deliveries;
mod error;
mod health;
mod keys;
mod row;
mod sql;
mod sweep;
mod upkeep;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, Postgres, Row};

pub use self::keys::PgKeys;
use self::keys::Place;
use self::sql::Statements;
use super::health::SchemaVersion;
use super::keys::Transactional;
use super::migrate::{self, Step};
use super::{Durability, StoreError, StoreErrorKind, StoreOptions};

const STEPS: &[Step] = &[
    Step { version: 1, name: "ledger", sql: include_str!("migrations/0001_ledger.sql") },
    Step { version: 2, name: "functions", sql: include_str!("migrations/0002_functions.sql") },
];
/// The driver asks a connection whether it is alive when it comes back. So soon afterwards it is not asked again, which
/// would be one round trip more for each statement.
const TRUSTED: Duration = Duration::from_millis(100);
/// The columns of the list of steps that have run, as sqlx makes them.
const MIGRATIONS_LIST: &str = "version BIGINT PRIMARY KEY, description TEXT NOT NULL, \
    installed_on TIMESTAMPTZ NOT NULL DEFAULT now(), success BOOLEAN NOT NULL, checksum BYTEA NOT NULL, \
    execution_time BIGINT NOT NULL";

/// The ledger in a PostgreSQL database. Cloning shares the connections.
#[derive(Clone)]
pub struct PgStore {
    pool: PgPool,
    sql: Arc<Statements>,
    schema: Arc<str>,
    /// How many connections of our own have been opened.
    opened: Arc<AtomicU64>,
}

// The connections' settings hold a password.
impl fmt::Debug for PgStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStore").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl PgStore {
    /// Connects, and checks that commits survive. Does not migrate.
    ///
    /// # Errors
    /// Where the server cannot be reached, is a standby, or is set to lose commits silently.
    pub async fn open(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        check_schema_name(&options.schema)?;
        let connect = PgConnectOptions::from_str(url)
            .map_err(|_| {
                StoreError::refused(
                    "the PostgreSQL URL cannot be read; it looks like postgres://user@host:5432/database",
                )
            })?
            .application_name("onced")
            // Bounds every wait for a lock; what is left waiting is answered "in progress" or 503, never executed.
            .options([
                ("lock_timeout", "5s"),
                ("statement_timeout", "10s"),
                ("idle_in_transaction_session_timeout", "30s"),
            ])
            .options([("tcp_keepalives_idle", "30"), ("tcp_keepalives_interval", "5"), ("tcp_keepalives_count", "3")]);
        // The pool tries again until its time is over, and then says no more than that: asked once without it, the
        // server or the system says why.
        let first = tokio::time::timeout(options.acquire_timeout, connect.connect()).await;
        let first =
            first.map_err(|_| StoreError::new(StoreErrorKind::Unavailable, "PostgreSQL did not answer in time"))?;
        // It has served its purpose, however it ends.
        let _ = first.map_err(error::on_connecting)?.close().await;
        let opened = Arc::new(AtomicU64::new(0));
        let count = opened.clone();
        let pool = PgPoolOptions::new()
            .after_connect(move |_, _| {
                count.fetch_add(1, Ordering::Relaxed);
                Box::pin(std::future::ready(Ok(())))
            })
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout)
            .test_before_acquire(false)
            .before_acquire(|conn, about| {
                Box::pin(async move { Ok(about.idle_for < TRUSTED || conn.ping().await.is_ok()) })
            })
            .connect_lazy_with(connect);
        let store = Self { opened, ..Self::from_pool(pool, &options.schema)? };
        store.check_durability(options.durability).await?;
        Ok(store)
    }

    /// The ledger through an application's own pool. Does not migrate. Nobody says here when that pool opens a connection
    /// anew: after a failover a guard that keeps outcomes may answer with them for up to a minute.
    ///
    /// # Errors
    /// Where the schema's name would need quotes.
    pub fn from_pool(pool: PgPool, schema: &str) -> Result<Self, StoreError> {
        check_schema_name(schema)?;
        Ok(Self { pool, sql: Arc::new(Statements::new(schema)), schema: schema.into(), opened: Arc::default() })
    }

    /// Brings the schema up to date. Several instances may do so at once: one works, the others wait for it.
    ///
    /// # Errors
    /// Where the schema is newer than this version, or a table of that name is not ours.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let err = |source| error::of(source, "migrate");
        let mut tx = self.transaction().await?;
        let schema = &self.schema;
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('onced migrate ' || $1, 0))")
            .bind(schema.as_ref())
            .execute(&mut *tx)
            .await
            .map_err(err)?;
        if self.schema_is_current(&mut tx).await? {
            return Ok(());
        }
        let create = format!("CREATE SCHEMA IF NOT EXISTS {schema}");
        sqlx::query(sqlx::AssertSqlSafe(create)).execute(&mut *tx).await.map_err(err)?;
        migrate::migrator(STEPS, format!("{schema}.migrations"), |text| sql::in_schema(text, schema))
            .run_direct(None, &mut *tx, false)
            .await
            .map_err(|source| migrate::failed(source, err))?;
        tx.commit().await.map_err(err)
    }

    /// Lets a role call the functions for applications, and nothing else. May be run again.
    ///
    /// # Errors
    /// Where there is no such role, or the connection's own may not grant.
    pub async fn grant(&self, role: &str) -> Result<(), StoreError> {
        // PostgreSQL reads these as everybody and nobody, quoted or not.
        if matches!(role, "" | "public" | "none") || role.contains('\0') {
            return Err(StoreError::refused("grant to a role of its own name: `public` would be everybody"));
        }
        let err = |source| error::of(source, "grant");
        let quoted = format!("\"{}\"", role.replace('"', "\"\""));
        let sql = sql::in_schema(include_str!("sql/grant.sql"), &self.schema).replace(":role", &quoted);
        let mut tx = self.transaction().await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await.map_err(err)?;
        tx.commit().await.map_err(err)
    }

    /// The text of all migrations, as `migrate` would run them on an empty database.
    pub fn migrations(schema: &str) -> String {
        let table = format!("{schema}.migrations");
        let migrator = migrate::migrator(STEPS, table.clone(), |text| sql::in_schema(text, schema));
        let steps = migrate::printed(&migrator, &table, MIGRATIONS_LIST, |hex| format!("'\\x{hex}'"));
        format!("CREATE SCHEMA IF NOT EXISTS {schema};\n\n{steps}")
    }

    /// Refuses unless the schema is there and of the version that this binary knows.
    ///
    /// # Errors
    /// In words that say to migrate, or that the schema is newer.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        let mut conn = self.connection().await?;
        if self.schema_is_current(&mut conn).await? {
            return Ok(());
        }
        Err(StoreError::refused("the database has no up-to-date onced schema: run `onced migrate`"))
    }

    /// Refuses unless keys can be read and written.
    ///
    /// # Errors
    /// In words that say what is wrong.
    pub async fn check_ready(&self) -> Result<(), StoreError> {
        self.check_schema().await?;
        let err = |source| error::of(source, "check");
        let mut tx = self.transaction().await?;
        // Whoever asks waits for two seconds; by then the connection must be free again.
        sqlx::raw_sql("SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '1500ms'")
            .execute(&mut *tx)
            .await
            .map_err(err)?;
        sqlx::query(self.sql.check.clone()).execute(&mut *tx).await.map_err(err)?;
        tx.rollback().await.map_err(err)
    }

    async fn schema_is_current(&self, conn: &mut PgConnection) -> Result<bool, StoreError> {
        let version = self.read_schema_version(conn).await?;
        migrate::is_current(version, &format!("{}.idempotency_keys", self.schema))
    }

    async fn read_schema_version(&self, conn: &mut PgConnection) -> Result<SchemaVersion, StoreError> {
        let err = |source| error::of(source, "read the schema's version");
        // By one snapshot, which to_regclass does not keep to: another instance may be making both.
        let (migrations, keys): (bool, bool) = sqlx::query_as(
            "SELECT coalesce(bool_or(c.relname = 'migrations'), false), \
                    coalesce(bool_or(c.relname = 'idempotency_keys'), false) \
               FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1",
        )
        .bind(self.schema.as_ref())
        .fetch_one(&mut *conn)
        .await
        .map_err(err)?;
        let known = migrate::newest(STEPS);
        if !migrations {
            return Ok(SchemaVersion { found: None, known, foreign: keys });
        }
        let version = format!("SELECT coalesce(max(version), 0) FROM {}.migrations", self.schema);
        let found = sqlx::query_scalar(sqlx::AssertSqlSafe(version)).fetch_one(&mut *conn).await.map_err(err)?;
        Ok(SchemaVersion { found: Some(found), known, foreign: false })
    }

    async fn check_durability(&self, wanted: Durability) -> Result<(), StoreError> {
        let err = |source| error::of(source, "check that commits survive");
        let mut conn = self.connection().await?;
        let row = sqlx::query(
            "SELECT pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('fsync'), \
             current_setting('full_page_writes')",
        )
        .fetch_one(&mut *conn)
        .await
        .map_err(err)?;
        if row.try_get::<bool, _>(0).map_err(err)? {
            return Err(StoreError::refused("this PostgreSQL is a standby: decisions are made on the primary only"));
        }
        let setting = |n: usize| row.try_get::<String, _>(n).map_err(err);
        let risks = [
            (
                !matches!(setting(1)?.as_str(), "on" | "remote_apply"),
                "synchronous_commit is below on: a crash of the server, or a failover, loses commits that were confirmed, and with them the memory that a trigger took effect",
            ),
            (setting(2)? == "off", "fsync = off: a crash of the machine can lose commits and corrupt the database"),
            (setting(3)? == "off", "full_page_writes = off: a crash of the machine can corrupt the database"),
        ];
        wanted.accept(risks.into_iter().filter_map(|(is_so, risk)| is_so.then_some(risk)))
    }

    pub(super) async fn connection(&self) -> Result<PoolConnection<Postgres>, StoreError> {
        self.pool.acquire().await.map_err(error::on_connecting)
    }

    pub(super) fn keys_on<'t>(&'t self, conn: &'t mut PgConnection) -> PgKeys<'t> {
        PgKeys { conn, sql: &self.sql, place: Place::Alone }
    }

    /// The connections, for an application that shares them.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }
}

impl Transactional for PgStore {
    type Tx = sqlx::Transaction<'static, Postgres>;
    type InTx<'t> = PgKeys<'t>;

    async fn transaction(&self) -> Result<Self::Tx, StoreError> {
        super::open_transaction(&self.pool, "BEGIN ISOLATION LEVEL READ COMMITTED").await.map_err(error::on_connecting)
    }

    fn within<'t>(&'t self, tx: &'t mut Self::Tx) -> PgKeys<'t> {
        PgKeys { place: Place::Within, ..self.keys_on(tx) }
    }
}

fn check_schema_name(schema: &str) -> Result<(), StoreError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit();
    let first = schema.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if first && schema.len() <= 48 && schema.bytes().all(plain) {
        Ok(())
    } else {
        Err(StoreError::refused("a schema's name is 1 to 48 of a-z, 0-9 and _, and does not begin with a digit"))
    }
}
