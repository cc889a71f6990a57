//! Bounds every statement of ours by our own clock: the server's time-outs do not help where the way to it is silent,
//! nor while a commit waits for a standby.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Connection, Postgres};

use crate::store::{StoreError, StoreErrorKind};

/// Above the server's own bounds, which give better words.
pub(super) const LIMIT: Duration = Duration::from_secs(15);
const PING_LIMIT: Duration = Duration::from_secs(1);

/// Runs one call on a connection of its own, which is given up where the call takes too long.
macro_rules! bounded {
    ($store:ident, $conn:ident => $call:expr) => {{
        let mut $conn = $store.connection().await?;
        let result = tokio::time::timeout($crate::store::postgres::bounded::LIMIT, $call).await;
        $crate::store::postgres::bounded::settled($conn, result.ok()).await
    }};
}
pub(super) use bounded;

/// Gives the connection back, or gives it up.
pub(super) async fn settled<T>(
    mut conn: PoolConnection<Postgres>,
    result: Option<Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let Some(result) = result else {
        // Its answer may still come, and must not meet the next borrower.
        drop(conn.detach());
        return Err(StoreError::new(StoreErrorKind::Lost, "PostgreSQL did not answer in time"));
    };
    // PostgreSQL tells of an error before it lets go of the transaction's locks: until it is ready again, a retry on
    // another connection would take our own claim lock for a rival's.
    if result.as_ref().is_err_and(StoreError::is_transient)
        && !matches!(tokio::time::timeout(PING_LIMIT, conn.ping()).await, Ok(Ok(())))
    {
        drop(conn.detach());
    }
    result
}
