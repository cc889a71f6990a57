//! The one way of the store's own statements to PostgreSQL: a connection is lent, and statements are run on a
//! [`Session`]. Straight to the server that is a connection in autocommit, and statements are prepared once under a
//! name. Behind a pooler that lends a server's connection for one transaction, it is a transaction that commits when
//! it is given back, and statements have no names: anything else could get another client's answer there.
//!
//! Nobody else in this backend sees a connection of the pool, so no statement can forget it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgPool, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Connection as _, Either, Execute, Executor, PgConnection, Postgres, SqlStr};
use tokio::time::{Instant, timeout, timeout_at};

use super::bounded::{LIMIT, PING_LIMIT, late};
use super::error;
use crate::store::error::COMMIT;
use crate::store::{Pooler, StoreError, StoreErrorKind};

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// A pooler passes no settings of a session on, so each transaction has them for itself.
const BEGIN_WITH_BOUNDS: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '5s'; \
    SET LOCAL statement_timeout = '10s'; SET LOCAL idle_in_transaction_session_timeout = '30s'";

/// The pool, and how its connections may be used. Clones share it.
#[derive(Clone)]
pub(super) struct Connections {
    pool: PgPool,
    pooler: Pooler,
    /// How many connections of our own have been opened.
    opened: Arc<AtomicU64>,
    /// Of the pool that closes what is doubted; `None` where it is an application's.
    doubt: Option<Doubt>,
}

/// That a connection which comes back may be inside a transaction that the driver does not know of: for a while after a
/// beginning was cancelled none is lent again. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Doubt(Arc<Mutex<Option<Instant>>>);

impl Doubt {
    /// Far above what a connection takes to come back once it is dropped.
    const LASTS: Duration = Duration::from_secs(5);

    fn raise(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + Self::LASTS);
    }

    fn is_raised(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| Instant::now() < until)
    }

    /// Whether a connection that comes back can be lent again; otherwise it is closed. Where an answer is still to come,
    /// above all that to the rollback of a transaction that was dropped, it is not waited for without bound: the pool itself
    /// would.
    pub(super) async fn clears(&self, conn: &mut PgConnection) -> bool {
        // Does nothing where nothing is to come.
        !self.is_raised() && matches!(timeout(PING_LIMIT, conn.flush()).await, Ok(Ok(())))
    }
}

impl Connections {
    pub(super) fn new(pool: PgPool, pooler: Pooler, opened: Arc<AtomicU64>, doubt: Option<Doubt>) -> Self {
        Self { pool, pooler, opened, doubt }
    }

    pub(super) fn behind(self, pooler: Pooler) -> Self {
        Self { pooler, ..self }
    }

    pub(super) fn pooler(&self) -> Pooler {
        self.pooler
    }

    pub(super) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Another number whenever there may be another server. A pooler does not say when it goes to another one, so behind
    /// one no two calls agree.
    pub(super) fn epoch(&self) -> u64 {
        match self.pooler {
            Pooler::None => self.opened.load(Ordering::Relaxed),
            Pooler::Transaction => self.opened.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// For one statement, or for several of which each may stand alone.
    pub(super) async fn lend(&self) -> Result<Lent, StoreError> {
        match self.pooler {
            Pooler::None => self.connection().await,
            Pooler::Transaction => self.lend_transaction().await,
        }
    }

    /// For statements that belong together: a transaction in any case.
    pub(super) async fn lend_transaction(&self) -> Result<Lent, StoreError> {
        let mut lent = self.connection().await?;
        lent.begin(self.opening()).await?;
        Ok(lent)
    }

    /// For whoever opens and ends transactions by statements of its own: closed afterwards, unless
    /// [said to be as it was](Lent::is_as_it_was).
    pub(super) async fn lend_bare(&self) -> Result<Lent, StoreError> {
        let mut lent = self.connection().await?;
        lent.is_open = true;
        Ok(lent)
    }

    /// A transaction for an application, which ends it.
    pub(super) async fn transaction(&self) -> Result<sqlx::Transaction<'static, Postgres>, StoreError> {
        let mut opening = crate::store::open_transaction(&self.pool, self.opening());
        let limit = self.pool.options().get_acquire_timeout() + LIMIT;
        match timeout(limit, &mut opening).await {
            Ok(opened) => opened.unwrap_or(Err(sqlx::Error::WorkerCrashed)).map_err(error::on_connecting),
            Err(_) => {
                // In an application's pool it goes on until the system gives the connection up: nobody there would
                // know that a transaction may be open on it.
                if let Some(doubt) = &self.doubt {
                    doubt.raise();
                    opening.abort();
                }
                Err(late().with_kind(StoreErrorKind::Unavailable))
            }
        }
    }

    /// A session in an application's transaction.
    pub(super) fn session<'c>(&self, conn: &'c mut PgConnection) -> Session<'c> {
        Session { conn, pooler: self.pooler }
    }

    fn opening(&self) -> &'static str {
        match self.pooler {
            Pooler::None => BEGIN,
            Pooler::Transaction => BEGIN_WITH_BOUNDS,
        }
    }

    async fn connection(&self) -> Result<Lent, StoreError> {
        let conn = self.pool.acquire().await.map_err(error::on_connecting)?;
        Ok(Lent { conn, pooler: self.pooler, is_open: false, until: Instant::now() + LIMIT })
    }
}

/// A connection of the pool until it is given back by [`Lent::back`] or [`Lent::commit`], or is said to be as it was. Where its transaction has not
/// ended in order, above all where whoever waited for it was cancelled, it is closed instead: the next borrower must not
/// come into an open transaction.
pub(super) struct Lent {
    conn: PoolConnection<Postgres>,
    pooler: Pooler,
    /// A transaction of ours may be open on it.
    is_open: bool,
    until: Instant,
}

impl Lent {
    pub(super) fn session(&mut self) -> Session<'_> {
        Session { conn: &mut self.conn, pooler: self.pooler }
    }

    /// The connection itself, for what has to be asked outside of any session.
    pub(super) fn bare(&mut self) -> &mut PgConnection {
        &mut self.conn
    }

    /// Every transaction on it has ended in order, and every answer has come.
    pub(super) fn is_as_it_was(&mut self) {
        self.is_open = false;
    }

    /// When its time is over.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Nothing of the caller's has been sent before this, so whatever goes wrong leaves nothing in doubt.
    async fn begin(&mut self, opening: &'static str) -> Result<(), StoreError> {
        // Before it is sent: from then on it may be open.
        self.is_open = true;
        match timeout_at(self.until, self.conn.execute(opening)).await {
            Ok(begun) => begun.map(drop).map_err(error::on_connecting),
            Err(_) => Err(late().with_kind(StoreErrorKind::Unavailable)),
        }
    }

    /// Gives it back with what came of the call; `None` where that took too long. What went well is committed, and only
    /// then said to have gone well: an error of the commit is the call's.
    pub(super) async fn back<T>(mut self, result: Option<Result<T, StoreError>>) -> Result<T, StoreError> {
        let Some(result) = result else {
            // Its answer may still come, and must not meet the next borrower.
            self.conn.close_on_drop();
            return Err(late());
        };
        if self.is_open {
            if result.is_ok() {
                let until = self.until;
                self.end_by(until).await?;
            } else {
                self.undo().await;
            }
            return result;
        }
        // PostgreSQL tells of an error before it lets go of the transaction's locks: until it is ready again, a retry on
        // another connection would take our own claim lock for a rival's.
        if result.as_ref().is_err_and(StoreError::is_transient)
            && !matches!(timeout(PING_LIMIT, self.conn.ping()).await, Ok(Ok(())))
        {
            self.conn.close_on_drop();
        }
        result
    }

    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        self.end_by(Instant::now() + LIMIT).await
    }

    pub(super) async fn rollback(mut self) {
        self.undo().await;
    }

    async fn end_by(&mut self, until: Instant) -> Result<(), StoreError> {
        match timeout_at(until, self.conn.execute("COMMIT")).await {
            Ok(Ok(_)) => {
                self.is_open = false;
                Ok(())
            }
            // Where the reply was lost it may have been committed, and the kind says so.
            Ok(Err(source)) => Err(error::of(source, COMMIT)),
            Err(_) => Err(late()),
        }
    }

    /// Waits for it, as in [`Lent::back`], but not for long: where nothing comes the connection is closed, which undoes
    /// as well.
    async fn undo(&mut self) {
        if matches!(timeout(PING_LIMIT, self.conn.execute("ROLLBACK")).await, Ok(Ok(_))) {
            self.is_open = false;
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.is_open {
            self.conn.close_on_drop();
        }
    }
}

/// What the store's statements run on.
pub(super) struct Session<'c> {
    conn: &'c mut PgConnection,
    pooler: Pooler,
}

impl Session<'_> {
    /// The same session, for a while.
    pub(super) fn reborrow(&mut self) -> Session<'_> {
        Session { conn: &mut *self.conn, pooler: self.pooler }
    }

    fn prepared<Q>(&self, query: Q) -> Prepared<Q> {
        Prepared { query, pooler: self.pooler }
    }
}

impl fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("pooler", &self.pooler).finish_non_exhaustive()
    }
}

impl<'s> Executor<'s> for &'s mut Session<'_> {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        's: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let query = self.prepared(query);
        (&mut *self.conn).fetch_many(query)
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        's: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let query = self.prepared(query);
        (&mut *self.conn).fetch_optional(query)
    }

    /// Not by the store: a statement that is kept has a name.
    fn prepare_with<'e>(self, _: SqlStr, _: &'e [PgTypeInfo]) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        's: 'e,
    {
        Box::pin(std::future::ready(Err(sqlx::Error::InvalidArgument("the store keeps no statements".to_owned()))))
    }
}

/// A query that gets a name only where a name is safe.
struct Prepared<Q> {
    query: Q,
    pooler: Pooler,
}

impl<'q, Q: Execute<'q, Postgres>> Execute<'q, Postgres> for Prepared<Q> {
    fn sql(self) -> SqlStr {
        self.query.sql()
    }

    fn statement(&self) -> Option<&PgStatement> {
        self.query.statement()
    }

    fn take_arguments(&mut self) -> Result<Option<sqlx::postgres::PgArguments>, sqlx::error::BoxDynError> {
        self.query.take_arguments()
    }

    fn persistent(&self) -> bool {
        self.pooler == Pooler::None && self.query.persistent()
    }
}
