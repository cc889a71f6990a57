//! The ledger in PostgreSQL, in a schema of its own inside the application's database.

mod bounded;
mod deliveries;
pub(super) mod error;
mod health;
mod keys;
mod lent;
mod pooler;
mod row;
mod sql;
mod steps;
mod sweep;
mod upkeep;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, Postgres, Row};

use self::bounded::bounded;
pub use self::keys::PgKeys;
use self::keys::Place;
use self::lent::{Connections, Doubt, Session};
use self::sql::Statements;
use super::health::SchemaVersion;
use super::keys::Transactional;
use super::migrate::{self, Step};
use super::{Durability, Pooler, StoreError, StoreErrorKind, StoreOptions};

const STEPS: &[Step] = &[
    Step { version: 1, name: "ledger", sql: include_str!("migrations/0001_ledger.sql") },
    Step { version: 2, name: "functions", sql: include_str!("migrations/0002_functions.sql") },
];
/// The driver asks a connection whether it is alive when it comes back. So soon afterwards it is not asked again, which
/// would be one round trip more for each statement.
const TRUSTED: Duration = Duration::from_millis(100);

/// How long the steps of the schema may take together.
const MIGRATION_LIMIT: Duration = Duration::from_secs(60);

/// What a session is given that lost it on its way.
const SET_BOUNDS: &str = "SET lock_timeout = '5s'; SET statement_timeout = '10s'; \
    SET idle_in_transaction_session_timeout = '30s'";

/// What became of the bounds that a connection is opened with.
#[derive(Clone, Copy, Debug)]
enum Bounds {
    /// They hold; or, behind a pooler, each transaction has its own.
    Kept,
    /// A pooler that lends by session has dropped them.
    Dropped,
}

/// The ledger in a PostgreSQL database. Cloning shares the connections.
#[derive(Clone)]
pub struct PgStore {
    connections: Connections,
    sql: Arc<Statements>,
    schema: Arc<str>,
}

// The connections' settings hold a password.
impl fmt::Debug for PgStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStore").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl PgStore {
    /// Connects, and checks that commits survive and that no pooler is in the way which `options` do not say. Does not
    /// migrate.
    ///
    /// # Errors
    /// Where the server cannot be reached, is a standby, or is set to lose commits silently; where what stands before it
    /// is not what `options` say.
    ///
    /// # Cancel safety
    /// If the future is dropped, its connections are closed.
    pub async fn open(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        check_schema_name(&options.schema)?;
        let connect = connect_options(url, options.pooler)?;
        let bounds = look_before(&connect, options).await?;
        let opened = Arc::new(AtomicU64::new(0));
        let (count, doubt) = (opened.clone(), Doubt::default());
        let doubted = doubt.clone();
        let pool = PgPoolOptions::new()
            .after_connect(move |conn, _| {
                count.fetch_add(1, Ordering::Relaxed);
                Box::pin(async move {
                    match bounds {
                        Bounds::Kept => Ok(()),
                        Bounds::Dropped => conn.execute(SET_BOUNDS).await.map(drop),
                    }
                })
            })
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout)
            .test_before_acquire(false)
            .before_acquire(|conn, about| {
                Box::pin(async move { Ok(about.idle_for < TRUSTED || conn.ping().await.is_ok()) })
            })
            .after_release(move |conn, _| {
                let doubt = doubted.clone();
                Box::pin(async move { Ok(doubt.clears(conn).await) })
            })
            .connect_lazy_with(connect);
        let store = Self::over(Connections::new(pool, options.pooler, opened, Some(doubt)), &options.schema);
        if options.durability != Durability::NotAsked {
            store.check_durability(options.durability).await?;
        }
        Ok(store)
    }

    /// The ledger through an application's own pool. Does not migrate. Nobody says here when that pool opens a connection
    /// anew: after a failover a guard that keeps outcomes may answer with them for up to a minute. Nor is anything known
    /// about what stands before the server: say it with [`PgStore::behind`], and have it checked by
    /// [`PgStore::check_pooler`].
    ///
    /// # Errors
    /// Where the schema's name would need quotes.
    pub fn from_pool(pool: PgPool, schema: &str) -> Result<Self, StoreError> {
        check_schema_name(schema)?;
        Ok(Self::over(Connections::new(pool, Pooler::None, Arc::default(), None), schema))
    }

    /// The same ledger, behind what is said to stand before the server. It holds for the store's own statements, in the
    /// application's transactions as well; the application's other statements are its own to see to.
    #[must_use]
    pub fn behind(self, pooler: Pooler) -> Self {
        Self { connections: self.connections.behind(pooler), ..self }
    }

    /// Looks for a pooler before the server, over two connections of the pool.
    ///
    /// # Errors
    /// In words that say what to do, where it is not what this store was told.
    ///
    /// # Cancel safety
    /// If the future is dropped, the two connections are closed.
    pub async fn check_pooler(&self) -> Result<(), StoreError> {
        let mut first = self.connections.lend_bare().await?;
        let mut second = self.connections.lend_bare().await?;
        let checked = pooler::check(self.connections.pooler(), first.bare(), second.bare(), bounded::LIMIT).await;
        if checked.is_ok() {
            first.is_as_it_was();
            second.is_as_it_was();
        }
        checked
    }

    fn over(connections: Connections, schema: &str) -> Self {
        Self { connections, sql: Arc::new(Statements::new(schema)), schema: schema.into() }
    }

    /// Brings the schema up to date. Several instances may do so at once: one works, the others wait for it.
    ///
    /// # Errors
    /// Where the schema is newer than this version, or a table of that name is not ours.
    ///
    /// # Cancel safety
    /// If the future is dropped, the schema is as it was, or up to date.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let mut lent = self.connections.lend_transaction().await?;
        let migrated = self.migrate_in(&mut lent.session()).await;
        if migrated.is_ok() {
            return lent.commit().await;
        }
        lent.rollback().await;
        migrated
    }

    async fn migrate_in(&self, session: &mut Session<'_>) -> Result<(), StoreError> {
        let err = |source| error::of(source, "migrate");
        let schema = &self.schema;
        let looking = async {
            sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('onced migrate ' || $1, 0))")
                .bind(schema.as_ref())
                .execute(&mut *session)
                .await
                .map_err(err)?;
            self.schema_is_current(session).await
        };
        if bounded::within(bounded::LIMIT, looking).await? {
            return Ok(());
        }
        let migrating = async {
            let create = format!("CREATE SCHEMA IF NOT EXISTS {schema}");
            sqlx::query(sqlx::AssertSqlSafe(create)).execute(&mut *session).await.map_err(err)?;
            migrate::migrator(STEPS, format!("{schema}.migrations"), |text| sql::in_schema(text, schema))
                .run_direct(None, session, false)
                .await
                .map_err(|source| migrate::failed(source, err))
        };
        bounded::within(MIGRATION_LIMIT, migrating).await
    }

    /// Lets a role call the functions for applications, and nothing else. May be run again.
    ///
    /// # Errors
    /// Where there is no such role, or the connection's own may not grant.
    ///
    /// # Cancel safety
    /// If the future is dropped, the role has all of these rights or none.
    pub async fn grant(&self, role: &str) -> Result<(), StoreError> {
        // PostgreSQL reads these as everybody and nobody, quoted or not.
        if matches!(role, "" | "public" | "none") || role.contains('\0') {
            return Err(StoreError::refused("grant to a role of its own name: `public` would be everybody"));
        }
        let err = |source| error::of(source, "grant");
        let quoted = format!("\"{}\"", role.replace('"', "\"\""));
        let sql = sql::in_schema(include_str!("sql/grant.sql"), &self.schema).replace(":role", &quoted);
        let mut tx = self.transaction().await?;
        let grant = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *tx);
        bounded::within(bounded::LIMIT, async { grant.await.map_err(err) }).await?;
        self.commit(tx).await
    }

    /// The text of all migrations, as `migrate` would run them on an empty database.
    pub fn migrations(schema: &str) -> String {
        let table = format!("{schema}.migrations");
        let migrator = migrate::migrator(STEPS, table.clone(), |text| sql::in_schema(text, schema));
        let steps = migrate::printed(&migrator, &table, steps::LIST, |hex| format!("'\\x{hex}'"));
        format!("CREATE SCHEMA IF NOT EXISTS {schema};\n\n{steps}")
    }

    /// Refuses unless the schema is there and of the version that this binary knows.
    ///
    /// # Errors
    /// In words that say to migrate, or that the schema is newer.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        if bounded!(self, session => self.schema_is_current(&mut session))? {
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
        let mut lent = self.connections.lend_transaction().await?;
        let written = bounded::within(bounded::LIMIT, self.try_to_write(&mut lent.session())).await;
        lent.rollback().await;
        written
    }

    async fn try_to_write(&self, session: &mut Session<'_>) -> Result<(), StoreError> {
        let err = |source| error::of(source, "check");
        // Whoever asks waits for two seconds; by then the connection must be free again.
        sqlx::raw_sql("SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '1500ms'")
            .execute(&mut *session)
            .await
            .map_err(err)?;
        sqlx::query(self.sql.check.clone()).execute(session).await.map_err(err).map(drop)
    }

    async fn schema_is_current(&self, session: &mut Session<'_>) -> Result<bool, StoreError> {
        let version = self.read_schema_version(session).await?;
        migrate::is_current(version, &format!("{}.idempotency_keys", self.schema))
    }

    async fn read_schema_version(&self, session: &mut Session<'_>) -> Result<SchemaVersion, StoreError> {
        let err = |source| error::of(source, "read the schema's version");
        // By one snapshot, which to_regclass does not keep to: another instance may be making both.
        let (migrations, keys): (bool, bool) = sqlx::query_as(
            "SELECT coalesce(bool_or(c.relname = 'migrations'), false), \
                    coalesce(bool_or(c.relname = 'idempotency_keys'), false) \
               FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1",
        )
        .bind(self.schema.as_ref())
        .fetch_one(&mut *session)
        .await
        .map_err(err)?;
        let known = migrate::newest(STEPS);
        if !migrations {
            return Ok(SchemaVersion { found: None, known, foreign: keys });
        }
        let version = format!("SELECT coalesce(max(version), 0) FROM {}.migrations", self.schema);
        let found = sqlx::query_scalar(sqlx::AssertSqlSafe(version)).fetch_one(&mut *session).await.map_err(err)?;
        Ok(SchemaVersion { found: Some(found), known, foreign: false })
    }

    async fn check_durability(&self, wanted: Durability) -> Result<(), StoreError> {
        let err = |source| error::of(source, "check that commits survive");
        let query = sqlx::query(
            "SELECT pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('fsync'), \
             current_setting('full_page_writes')",
        );
        let row = bounded!(self, session => async { query.fetch_one(&mut session).await.map_err(err) })?;
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

    fn keys_on<'t>(&'t self, session: Session<'t>) -> PgKeys<'t> {
        PgKeys { session, sql: &self.sql, place: Place::Alone }
    }

    /// The connections, for an application that shares them.
    pub fn pool(&self) -> &PgPool {
        self.connections.pool()
    }
}

impl Transactional for PgStore {
    type Tx = sqlx::Transaction<'static, Postgres>;
    type InTx<'t> = PgKeys<'t>;

    async fn transaction(&self) -> Result<Self::Tx, StoreError> {
        self.connections.transaction().await
    }

    fn within<'t>(&'t self, tx: &'t mut Self::Tx) -> PgKeys<'t> {
        PgKeys { place: Place::Within, ..self.keys_on(self.connections.session(tx)) }
    }

    super::transaction_ends!(error::of);
}

fn connect_options(url: &str, pooler: Pooler) -> Result<PgConnectOptions, StoreError> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| {
            StoreError::refused("the PostgreSQL URL cannot be read; it looks like postgres://user@host:5432/database")
        })?
        .application_name("onced");
    Ok(match pooler {
        Pooler::None => options
            // Bounds every wait for a lock; what is left waiting is answered "in progress" or 503, never executed.
            // SET_BOUNDS says the same.
            .options([
                ("lock_timeout", "5s"),
                ("statement_timeout", "10s"),
                ("idle_in_transaction_session_timeout", "30s"),
            ])
            .options([("tcp_keepalives_idle", "30"), ("tcp_keepalives_interval", "5"), ("tcp_keepalives_count", "3")]),
        // It refuses settings of a session; and no statement has a name under which it could be kept.
        Pooler::Transaction => options.extra_float_digits(None).statement_cache_capacity(0),
    })
}

/// Connects twice, and looks what is there. The pool tries again until its time is over, and then says no more than
/// that: asked once without it, the server or the system says why.
async fn look_before(connect: &PgConnectOptions, options: &StoreOptions) -> Result<Bounds, StoreError> {
    let connected = async || {
        let connected = tokio::time::timeout(options.acquire_timeout, connect.connect()).await;
        let late = |_| StoreError::new(StoreErrorKind::Unavailable, "PostgreSQL did not answer in time");
        connected.map_err(late)?.map_err(pooler::on_connecting)
    };
    let mut first = connected().await?;
    let mut second = connected().await?;
    pooler::check(options.pooler, &mut first, &mut second, options.acquire_timeout).await?;
    let bounds = match options.pooler {
        Pooler::None if pooler::drops_settings(&mut first, options.acquire_timeout).await? => Bounds::Dropped,
        Pooler::None | Pooler::Transaction => Bounds::Kept,
    };
    // They have served their purpose, however they end.
    let _ = first.close().await;
    let _ = second.close().await;
    Ok(bounds)
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
