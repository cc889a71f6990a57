//! A store on a throw-away database, and plain SQL beside it: the same words for every backend.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onced::guard::{Begun, Guard, Pace, Request, Store};
use onced::store::deliveries::LogDeliveries;
use onced::store::health::Health;
use onced::store::keys::Transactional;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced::store::sweep::Sweep;
use onced::store::upkeep::Upkeep;
use onced::store::{Pooler, StoreError, StoreOptions};
use onced_core::decision_table::{self, Expected, Line};
use onced_core::key::{Key, Scope};
use onced_core::time::Timestamp;
use sqlx::{AssertSqlSafe, Transaction};
use testkit::{Backend, Database, Sql, with_key_quoted};

use crate::decisions::{self, Came};

/// The scope of everything that is planted.
pub(crate) const SCOPE: &str = "conf.charge";
/// Only a failure waits that long.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// What the suite needs of a backend beyond what applications get from it.
pub(crate) trait Tested:
    Store + Transactional<Tx = Transaction<'static, Self::Db>> + Upkeep + Sweep + Health + Debug
{
    type Db: sqlx::Database;
    const BACKEND: Backend;
    /// What it is called in the tally.
    const NAME: &'static str;

    fn open_at(url: &str, options: &StoreOptions) -> impl Future<Output = Result<Self, StoreError>> + Send;
    fn bring_up_to_date(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// A transaction as an application opens it that knows nothing of onced; deferred on SQLite.
    fn plain_transaction(&self) -> impl Future<Output = Self::Tx> + Send;
    /// Plain SQL in that transaction.
    fn run(tx: &mut Self::Tx, sql: &str) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Whether the caller's transaction goes on after a delivery has come to that.
    fn goes_on_after(_: &Expected) -> bool {
        true
    }

    /// What a rival in another process is told to open.
    fn url_of_rival(url: &str) -> String {
        url.to_owned()
    }

    /// A delivery in a transaction of its own, and what it came to.
    fn deliver(guard: &Guard<Self>, request: &Request) -> impl Future<Output = Came> + Send {
        decisions::by_guard(guard, request)
    }

    /// A delivery in the caller's transaction, and what it came to.
    fn deliver_tx(guard: &Guard<Self>, tx: &mut Self::Tx, request: &Request) -> impl Future<Output = Came> + Send {
        decisions::by_guard_tx(guard, tx, request)
    }
}

impl Tested for SqliteStore {
    type Db = sqlx::Sqlite;
    const BACKEND: Backend = Backend::Sqlite;
    const NAME: &'static str = "sqlite";

    async fn open_at(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        Self::open(url, options).await
    }

    async fn bring_up_to_date(&self) -> Result<(), StoreError> {
        self.migrate().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.check_schema().await
    }

    async fn plain_transaction(&self) -> Self::Tx {
        self.pool().begin().await.unwrap()
    }

    async fn run(tx: &mut Self::Tx, sql: &str) -> Result<u64, sqlx::Error> {
        Ok(sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **tx).await?.rows_affected())
    }
}

impl Tested for PgStore {
    type Db = sqlx::Postgres;
    const BACKEND: Backend = Backend::Postgres;
    const NAME: &'static str = "postgres";

    async fn open_at(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        Self::open(url, options).await
    }

    async fn bring_up_to_date(&self) -> Result<(), StoreError> {
        self.migrate().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.check_schema().await
    }

    async fn plain_transaction(&self) -> Self::Tx {
        self.pool().begin().await.unwrap()
    }

    async fn run(tx: &mut Self::Tx, sql: &str) -> Result<u64, sqlx::Error> {
        Ok(sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **tx).await?.rows_affected())
    }
}

impl Tested for MySqlStore {
    type Db = sqlx::MySql;
    const BACKEND: Backend = Backend::MariaDb;
    const NAME: &'static str = "mariadb";

    async fn open_at(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        Self::open(url, options).await
    }

    async fn bring_up_to_date(&self) -> Result<(), StoreError> {
        self.migrate().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.check_schema().await
    }

    async fn plain_transaction(&self) -> Self::Tx {
        self.pool().begin().await.unwrap()
    }

    async fn run(tx: &mut Self::Tx, sql: &str) -> Result<u64, sqlx::Error> {
        Ok(sqlx::raw_sql(AssertSqlSafe(with_key_quoted(sql))).execute(&mut **tx).await?.rows_affected())
    }
}

/// What stands around a store, beyond its backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surrounding {
    /// The database is on the PostgreSQL of the newest version, not on the system's.
    pub(crate) newest: bool,
    /// The URL by which the store comes to a database, whose own URL is given.
    pub(crate) url: fn(&str) -> String,
    /// What is between the two.
    pub(crate) pooler: Pooler,
}

impl Surrounding {
    /// Straight to the system's server.
    pub(crate) const NONE: Self = Self { newest: false, url: str::to_owned, pooler: Pooler::None };

    async fn database(self, backend: Backend) -> Database {
        if self.newest { Database::on_new_postgres().await } else { Database::create(backend).await }
    }

    async fn open<S: Tested>(self, url: &str, options: &StoreOptions) -> S {
        // Tests may ask for a pooler's ways by their options alone.
        let pooler = if self.pooler == Pooler::None { options.pooler } else { self.pooler };
        S::open_at(&(self.url)(url), &StoreOptions { pooler, ..options.clone() }).await.unwrap()
    }
}

/// One migrated database with a store and a guard on it.
pub(crate) struct Bench<S> {
    pub(crate) surrounding: Surrounding,
    pub(crate) database: Arc<Database>,
    pub(crate) store: S,
    pub(crate) guard: Guard<S>,
}

impl<S: Tested> Bench<S> {
    /// With the usual bounds.
    pub(crate) async fn new() -> Self {
        Self::with(&options()).await
    }

    pub(crate) async fn with(options: &StoreOptions) -> Self {
        Self::within(Surrounding::NONE, options).await
    }

    pub(crate) async fn within(surrounding: Surrounding, options: &StoreOptions) -> Self {
        Self::made(surrounding, surrounding.database(S::BACKEND).await, options, LogDeliveries::Executed).await
    }

    pub(crate) async fn on(database: Database, options: &StoreOptions, log: LogDeliveries) -> Self {
        Self::made(Surrounding::NONE, database, options, log).await
    }

    async fn made(surrounding: Surrounding, database: Database, options: &StoreOptions, log: LogDeliveries) -> Self {
        let store: S = surrounding.open(database.url(), options).await;
        store.bring_up_to_date().await.unwrap();
        let guard = Guard::new(store.clone(), log);
        let bench = Self { surrounding, database: Arc::new(database), store, guard };
        // A business table without a unique constraint: it would hide a second effect.
        let place = if S::BACKEND == Backend::Postgres { "public." } else { "" };
        if S::BACKEND == Backend::MariaDb {
            // The ledger needs no function of its own; the tests say `{micros}(column)`.
            let micros = "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', at)";
            bench
                .execute(&format!("CREATE FUNCTION {{micros}}(at DATETIME(6)) RETURNS BIGINT NO SQL RETURN {micros}"))
                .await;
        }
        bench.execute(&format!("CREATE TABLE {place}orders (key text NOT NULL)")).await;
        bench
    }

    pub(crate) fn sql(&self) -> &Sql {
        self.database.sql()
    }

    /// Another store and guard on the same database; `suffix` is put behind its URL.
    pub(crate) async fn beside(&self, suffix: &str, options: &StoreOptions) -> Self {
        let store: S = self.surrounding.open(&format!("{}{suffix}", self.database.url()), options).await;
        let guard = Guard::new(store.clone(), LogDeliveries::Off);
        Self { surrounding: self.surrounding, database: self.database.clone(), guard, store }
    }

    /// Another store on the same database, as another instance of the application has.
    pub(crate) async fn another_store(&self, options: &StoreOptions) -> S {
        self.surrounding.open(self.database.url(), options).await
    }

    pub(crate) async fn execute(&self, template: &str) -> u64 {
        self.sql().execute(&of_backend(S::BACKEND, template)).await
    }

    pub(crate) async fn rows(&self, template: &str) -> Vec<Vec<String>> {
        self.sql().text(&of_backend(S::BACKEND, template)).await
    }

    pub(crate) async fn count(&self, template: &str) -> i64 {
        self.sql().count(&of_backend(S::BACKEND, template)).await
    }

    /// All that stands under a key, its steps included, as text.
    pub(crate) async fn record(&self, key: &Key) -> Vec<Vec<String>> {
        self.rows(&format!("SELECT * FROM {{keys}} WHERE key = '{}' ORDER BY scope", key.as_str())).await
    }

    /// Some columns of the row of a key, or nothing where there is no row.
    pub(crate) async fn columns(&self, key: &Key, columns: &str) -> Vec<String> {
        let sql = format!("SELECT {columns} FROM {{keys}} WHERE scope = '{SCOPE}' AND key = '{}'", key.as_str());
        self.rows(&sql).await.into_iter().next().unwrap_or_default()
    }

    /// Changes the row of a key behind everybody's back.
    pub(crate) async fn alter(&self, key: &Key, set: &str) {
        let sql = format!("UPDATE {{keys}} SET {set} WHERE scope = '{SCOPE}' AND key = '{}'", key.as_str());
        assert_eq!(self.execute(&sql).await, 1);
    }

    /// What waiting for the end of a lease would do, at once.
    pub(crate) async fn let_the_lease_be_over(&self, key: &Key) {
        let over = at(S::BACKEND, self.now().await.minus(Duration::from_secs(1)));
        self.alter(key, &format!("lease_until = {over}")).await;
    }

    /// The database's clock.
    pub(crate) async fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.count("SELECT {micros}({now})").await)
    }

    /// Stops the ledger's clock, for this database alone.
    pub(crate) async fn stop_the_clock_at(&self, now: Timestamp) {
        self.set_the_clock(&at(S::BACKEND, now)).await;
    }

    /// As it ran before.
    pub(crate) async fn let_the_clock_run(&self) {
        let now = match S::BACKEND {
            Backend::Sqlite => "CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) * 1000",
            Backend::Postgres => "clock_timestamp()",
            Backend::MariaDb => "UTC_TIMESTAMP(6)",
        };
        self.set_the_clock(now).await;
    }

    async fn set_the_clock(&self, now: &str) {
        let set = match S::BACKEND {
            Backend::Sqlite => format!("DROP VIEW onced_clock; CREATE VIEW onced_clock AS SELECT {now} AS now"),
            Backend::Postgres => format!(
                "CREATE OR REPLACE FUNCTION onced.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT {now} $$"
            ),
            Backend::MariaDb => {
                format!("CREATE OR REPLACE SQL SECURITY INVOKER VIEW onced_clock AS SELECT {now} AS now")
            }
        };
        self.execute(&set).await;
    }

    pub(crate) async fn orders(&self, key: &Key) -> i64 {
        self.count(&format!("SELECT count(*) FROM orders WHERE key = '{}'", key.as_str())).await
    }
}

/// Bounds that make a rival's lock felt soon.
pub(crate) fn options() -> StoreOptions {
    StoreOptions { max_connections: 5, busy_timeout: Duration::from_millis(60), ..StoreOptions::default() }
}

/// Bounds for many at once.
pub(crate) fn patient() -> StoreOptions {
    StoreOptions { max_connections: 20, busy_timeout: Duration::from_secs(10), ..StoreOptions::default() }
}

/// A template's `{keys}`, `{deliveries}`, `{audit}`, `{migrations}`, `{now}` and `{micros}` in the words of a backend.
pub(crate) fn of_backend(backend: Backend, template: &str) -> String {
    let (prefix, now, micros) = match backend {
        Backend::Sqlite => ("onced_", "(SELECT now FROM onced_clock)", ""),
        Backend::Postgres => ("onced.", "onced.clock()", "onced.micros"),
        Backend::MariaDb => ("onced_", "(SELECT now FROM onced_clock)", "onced_test_micros"),
    };
    let mut sql = template.replace("{now}", now).replace("{micros}", micros);
    for (word, table) in [("keys", "idempotency_keys"), ("deliveries", "deliveries"), ("audit", "audit")] {
        sql = sql.replace(&format!("{{{word}}}"), &format!("{prefix}{table}"));
    }
    sql.replace("{migrations}", &format!("{prefix}migrations"))
}

/// A point in time as a backend's column holds it.
pub(crate) fn at(backend: Backend, time: Timestamp) -> String {
    let micros = time.as_micros();
    match backend {
        Backend::Sqlite => micros.to_string(),
        Backend::Postgres => format!("(timestamptz 'epoch' + {micros} * interval '1 microsecond')"),
        Backend::MariaDb => format!("(TIMESTAMP'1970-01-01 00:00:00' + INTERVAL {micros} MICROSECOND)"),
    }
}

/// A statement that fails for a reason that passes; SQLite raises nothing on demand.
pub(crate) fn conflict_of(backend: Backend) -> &'static str {
    match backend {
        Backend::MariaDb => "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213",
        Backend::Postgres | Backend::Sqlite => "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$",
    }
}

/// A key that no other case has.
pub(crate) fn fresh_key() -> Key {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Key::new(&format!("evt_{}_{count}", std::process::id())).unwrap()
}

pub(crate) fn scope() -> Scope {
    Scope::new(SCOPE).unwrap()
}

/// The line of the decision table with that name.
pub(crate) fn line(name: &str) -> Line {
    let found = decision_table::lines().into_iter().find(|line| line.name == name);
    found.unwrap_or_else(|| panic!("the decision table has no line {name}"))
}

/// A line's delivery under that key.
pub(crate) fn request_of(line: &Line, key: &Key) -> Request {
    Request {
        scope: scope(),
        key: key.clone(),
        fingerprint: line.request(),
        policy: line.policy(),
        pace: Pace::default(),
    }
}

/// A plain delivery: a new key's first, and each of its retries.
pub(crate) fn delivery(key: &Key) -> Request {
    request_of(&line("none"), key)
}

/// The right to execute, which this delivery must have come to.
pub(crate) fn executes<P: Debug>(begun: Begun<P>) -> P {
    let shown = format!("{begun:?}");
    let Begun::Execute(permit) = begun else { panic!("must execute, but came to {shown}") };
    permit
}

/// Waits for an event that only the database knows of.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.unwrap_or_else(|_| panic!("did not come within {LIMIT:?}: {what}"));
}
