//! The SQL of the sides that know nothing of onced, once for both databases.

use std::future::Future;

use anyhow::Context;
use onced::guard::Store;
use onced::store::keys::Transactional;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Executor, Postgres, Sqlite, Transaction};

/// The business: one row, with the primary key that such a table has.
const ORDER: &str = "INSERT INTO bench_orders (key, amount) VALUES ($1, $2)";
/// The sketch's claim. `ON CONFLICT DO NOTHING` is its best form: one statement, no error to roll back, and the number
/// of rows says who was first. What is not asked for (a `RETURNING`, a look before) costs nothing.
const SKETCH_CLAIM: &str =
    "INSERT INTO bench_keys (key, status) VALUES ($1, 'in_progress') ON CONFLICT (key) DO NOTHING";
/// The sketch's ending, by the primary key alone. On PostgreSQL it changes no indexed column and finds room on its
/// page (`fillfactor`, as in the ledger), so that no index is written again.
const SKETCH_COMPLETE: &str = "UPDATE bench_keys SET status = 'completed', response_code = $2, response_headers = $3, \
    response_body = $4 WHERE key = $1";

const SQLITE_TABLES: &str = "
CREATE TABLE bench_orders (id INTEGER PRIMARY KEY, key TEXT NOT NULL, amount INTEGER NOT NULL);
CREATE TABLE bench_keys (key TEXT PRIMARY KEY, status TEXT NOT NULL, response_code INTEGER, response_headers TEXT,
                         response_body BLOB, created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP) WITHOUT ROWID;
";
const POSTGRES_TABLES: &str = "
CREATE TABLE bench_orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL, amount bigint NOT NULL);
CREATE TABLE bench_keys (key text PRIMARY KEY, status text NOT NULL, response_code integer, response_headers text,
                         response_body bytea, created_at timestamptz NOT NULL DEFAULT now()) WITH (fillfactor = 80);
";

/// A store whose database holds the business tables as well.
pub(super) trait Ledger: Store + Transactional<Tx = Transaction<'static, Self::Db>> {
    type Db: sqlx::Database;
    const NAME: &'static str;

    fn migrate_ledger(&self) -> impl Future<Output = anyhow::Result<()>> + Send;
    fn make_tables(&self) -> impl Future<Output = sqlx::Result<()>> + Send;
    fn order(tx: &mut Self::Tx, key: &str) -> impl Future<Output = sqlx::Result<()>> + Send;
    /// Whether nobody was faster.
    fn sketch_claim(tx: &mut Self::Tx, key: &str) -> impl Future<Output = sqlx::Result<bool>> + Send;
    fn sketch_complete(
        tx: &mut Self::Tx,
        key: &str,
        code: i32,
        headers: &str,
        body: &[u8],
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

macro_rules! ledger {
    ($store:ty, $database:ty, $name:literal, $tables:ident) => {
        impl Ledger for $store {
            type Db = $database;
            const NAME: &'static str = $name;

            async fn migrate_ledger(&self) -> anyhow::Result<()> {
                Ok(self.migrate().await?)
            }

            async fn make_tables(&self) -> sqlx::Result<()> {
                self.pool().execute($tables).await.map(drop)
            }

            async fn order(tx: &mut Self::Tx, key: &str) -> sqlx::Result<()> {
                sqlx::query(ORDER).bind(key).bind(4200_i64).execute(&mut **tx).await.map(drop)
            }

            async fn sketch_claim(tx: &mut Self::Tx, key: &str) -> sqlx::Result<bool> {
                Ok(sqlx::query(SKETCH_CLAIM).bind(key).execute(&mut **tx).await?.rows_affected() == 1)
            }

            async fn sketch_complete(
                tx: &mut Self::Tx,
                key: &str,
                code: i32,
                headers: &str,
                body: &[u8],
            ) -> sqlx::Result<()> {
                let update = sqlx::query(SKETCH_COMPLETE).bind(key).bind(code).bind(headers).bind(body);
                update.execute(&mut **tx).await.map(drop)
            }
        }
    };
}

ledger!(SqliteStore, Sqlite, "SQLite", SQLITE_TABLES);
ledger!(PgStore, Postgres, "PostgreSQL", POSTGRES_TABLES);

/// Another database on the server; the server goes away after the bench.
pub(crate) async fn fresh_database(server: &str) -> anyhow::Result<String> {
    let name = format!("bench_{}", uuid::Uuid::new_v4().simple());
    let mut admin = PgConnection::connect(server).await.context("PostgreSQL cannot be reached")?;
    admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
    admin.close().await?;
    let (base, _) = server.rsplit_once('/').context("the server's URL names a database")?;
    Ok(format!("{base}/{name}"))
}
