//! Bounds every statement of ours by our own clock: the server's time-outs do not help where the way to it is silent.

use std::future::Future;
use std::time::Duration;

use sqlx::MySql;
use sqlx::pool::PoolConnection;

use super::error;
use crate::store::error::COMMIT;
use crate::store::{StoreError, StoreErrorKind};

/// Above the server's own bounds, which give better words.
pub(super) const LIMIT: Duration = Duration::from_secs(15);
/// How long a connection that comes back may take to be ready again.
pub(super) const READY_LIMIT: Duration = Duration::from_secs(1);

/// Runs one call that reads on a connection of its own, which is given up where the call takes too long.
macro_rules! bounded {
    ($store:ident, $conn:ident => $call:expr) => {{
        let mut $conn = $store.connection().await?;
        let result = tokio::time::timeout($crate::store::mysql::bounded::LIMIT, $call).await;
        $crate::store::mysql::bounded::settled($conn, result.ok())
    }};
}
pub(super) use bounded;

/// Runs one call that writes in a transaction of its own, which is committed where the call succeeds.
macro_rules! unit {
    ($store:ident, $tx:ident => $call:expr) => {{
        let mut $tx = $crate::store::keys::Transactional::transaction($store).await?;
        let result = tokio::time::timeout($crate::store::mysql::bounded::LIMIT, $call).await;
        $crate::store::mysql::bounded::ended($tx, result.ok()).await
    }};
}
pub(super) use unit;

/// Gives the connection back, or gives it up.
pub(super) fn settled<T>(conn: PoolConnection<MySql>, result: Option<Result<T, StoreError>>) -> Result<T, StoreError> {
    result.unwrap_or_else(|| {
        // Its answer may still come, and must not meet the next borrower.
        drop(conn.detach());
        Err(not_in_time())
    })
}

/// Commits, or rolls back to the end: a retry on another connection must not take our own locks for a rival's. After a
/// deadlock nothing is left to roll back, and nothing but that is sent.
pub(super) async fn ended<T>(
    tx: sqlx::Transaction<'static, MySql>,
    result: Option<Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match result {
        // Dropped, it is rolled back when the server answers again; the pool gives the connection up where it does not.
        None => Err(not_in_time()),
        Some(Ok(value)) => match tokio::time::timeout(LIMIT, tx.commit()).await {
            Ok(committed) => committed.map(|()| value).map_err(|source| error::of(source, COMMIT)),
            Err(_) => Err(not_in_time()),
        },
        Some(Err(error)) => {
            // What became of it changes nothing about the error.
            let _ = tokio::time::timeout(READY_LIMIT, tx.rollback()).await;
            Err(error)
        }
    }
}

/// Bounds what is part of a transaction that somebody else ends: where our clock runs out, nothing of it is committed.
pub(super) async fn within<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let late = |_| not_in_time().with_kind(StoreErrorKind::Unavailable);
    tokio::time::timeout(limit, asked).await.map_err(late)?
}

fn not_in_time() -> StoreError {
    StoreError::new(StoreErrorKind::Lost, "MariaDB did not answer in time")
}
