//! Bounds every statement of ours by our own clock: the server's time-outs do not help where the way to it is silent,
//! nor while a commit waits for a standby.

use std::time::Duration;

use crate::store::{StoreError, StoreErrorKind};

/// Above the server's own bounds, which give better words.
pub(super) const LIMIT: Duration = Duration::from_secs(15);
pub(super) const PING_LIMIT: Duration = Duration::from_secs(1);

/// Runs one call on a session of its own, committed when it returns; the connection is given up where that takes too
/// long.
macro_rules! bounded {
    ($store:ident, $session:ident => $call:expr) => {{
        let mut lent = $store.connections.lend().await?;
        let until = lent.until();
        let result = {
            let mut $session = lent.session();
            tokio::time::timeout_at(until, $call).await
        };
        lent.back(result.ok()).await
    }};
}
pub(super) use bounded;

/// Bounds what is part of a transaction that somebody else ends: where our clock runs out, nothing of it is committed.
pub(super) async fn within<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let late = |_| late().with_kind(StoreErrorKind::Unavailable);
    tokio::time::timeout(limit, asked).await.map_err(late)?
}

/// What is said where our own clock has run out: whether anything was committed is not known.
pub(super) fn late() -> StoreError {
    StoreError::new(StoreErrorKind::Lost, "PostgreSQL did not answer in time")
}
