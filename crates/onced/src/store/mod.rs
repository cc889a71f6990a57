//! The store: what stands in the database, as facts. It gives them no meaning; `onced_core::decision` does.
//!
//! One trait per table ([`keys`], [`deliveries`], [`upkeep`]), two about all of them ([`sweep`], [`health`]), one folder
//! per backend, in which files of one purpose have one name.

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub mod any;
pub mod deliveries;
mod error;
pub mod health;
pub mod keys;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod migrate;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod row;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod sweep;
pub mod upkeep;

use std::time::Duration;

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use self::any::AnyStore;
pub use self::error::{StoreError, StoreErrorKind, passes};

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// PostgreSQL: the schema of the ledger.
    pub schema: String,
    /// How many connections at most.
    pub max_connections: u32,
    /// How long to wait for a connection.
    pub acquire_timeout: Duration,
    /// SQLite: how long to wait for the write lock.
    pub busy_timeout: Duration,
    /// What to do about settings under which commits can be lost.
    pub durability: Durability,
    /// PostgreSQL: what stands before the server.
    pub pooler: Pooler,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            schema: "onced".to_owned(),
            max_connections: 10,
            acquire_timeout: Duration::from_secs(5),
            busy_timeout: Duration::from_secs(5),
            durability: Durability::Required,
            pooler: Pooler::None,
        }
    }
}

/// What stands before a PostgreSQL server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooler {
    /// Nothing, or a pooler that lends a server's connection for as long as ours lasts (PgBouncer: `pool_mode =
    /// session`).
    #[default]
    None,
    /// A pooler that lends a server's connection for one transaction (PgBouncer: `pool_mode = transaction`). Every
    /// statement is then sent without a name and within a transaction: anything else can get another client's answer
    /// there. That is up to four round trips for what is one otherwise.
    Transaction,
}

/// What to do about settings under which commits can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Refuse to open.
    Required,
    /// Warn, and go on.
    WeakAccepted,
    /// Say nothing of it, nor of whether the server is one to decide on: for whoever looks at a store and writes nothing.
    NotAsked,
}

impl Durability {
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    fn accept(self, risks: impl IntoIterator<Item = &'static str>) -> Result<(), StoreError> {
        for risk in risks {
            match self {
                Self::Required => {
                    return Err(StoreError::refused(format!(
                        "{risk}. Mend the setting, or set allow_weak_durability = true to accept that"
                    )));
                }
                Self::WeakAccepted => tracing::warn!(risk, "the store can lose commits"),
                Self::NotAsked => {}
            }
        }
        Ok(())
    }
}

/// Opens a transaction. The one place that does: a cancelled `begin` can leave a pooled connection inside an open
/// transaction, and what its next borrower writes would never be committed. So it runs in a task of its own, which
/// nobody cancels unless the connection is closed then; where the caller has gone, the transaction is dropped and rolled
/// back.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
fn open_transaction<DB: sqlx::Database>(
    pool: &sqlx::Pool<DB>,
    statement: &'static str,
) -> tokio::task::JoinHandle<Result<sqlx::Transaction<'static, DB>, sqlx::Error>> {
    let pool = pool.clone();
    tokio::spawn(async move { pool.begin_with(statement).await })
}

/// Bounds by our own clock what is asked within a transaction: the way to the database may be silent. Where it runs out
/// nothing is committed, and whoever asked rolls back.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
async fn in_time<T>(
    limit: Duration,
    doing: &'static str,
    of: fn(sqlx::Error, &'static str) -> StoreError,
    asked: impl std::future::Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, asked).await {
        Ok(done) => done.map_err(|source| of(source, doing)),
        Err(_) => {
            let words = format!("{doing}: the database did not answer in time");
            Err(StoreError::new(StoreErrorKind::Unavailable, words))
        }
    }
}

/// What [`keys::Transactional`] asks of a transaction beyond its opening, for a backend whose errors `$of` translates. All
/// of it is bounded by our own clock: the way to the database may be silent.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
macro_rules! transaction_ends {
    ($of:path) => {
        async fn commit(&self, tx: Self::Tx) -> Result<(), StoreError> {
            match tokio::time::timeout($crate::store::COMMIT_LIMIT, tx.commit()).await {
                Ok(done) => done.map_err(|source| $of(source, $crate::store::error::COMMIT)),
                Err(_) => Err(StoreError::new(StoreErrorKind::Lost, "commit: the database did not answer in time")),
            }
        }

        async fn rollback(&self, tx: Self::Tx) -> Result<(), StoreError> {
            $crate::store::in_time($crate::store::ROLLBACK_LIMIT, "roll back", $of, tx.rollback()).await
        }

        async fn set_savepoint(&self, tx: &mut Self::Tx, name: &str) -> Result<(), StoreError> {
            let set = sqlx::raw_sql(sqlx::AssertSqlSafe(format!("SAVEPOINT {name}"))).execute(&mut **tx);
            $crate::store::in_time($crate::store::COMMIT_LIMIT, "set a savepoint", $of, set).await.map(drop)
        }

        async fn undo_to_savepoint(&self, tx: &mut Self::Tx, name: &str) -> Result<(), StoreError> {
            let undo = sqlx::raw_sql(sqlx::AssertSqlSafe(format!("ROLLBACK TO SAVEPOINT {name}"))).execute(&mut **tx);
            $crate::store::in_time($crate::store::COMMIT_LIMIT, "roll back to a savepoint", $of, undo).await.map(drop)
        }
    };
}
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) use transaction_ends;

/// Above what a database takes to commit when it is well.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
const COMMIT_LIMIT: Duration = Duration::from_secs(15);

/// Whoever rolls back has somebody waiting. A connection from which nothing comes is closed, which undoes as well.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
const ROLLBACK_LIMIT: Duration = Duration::from_secs(5);
