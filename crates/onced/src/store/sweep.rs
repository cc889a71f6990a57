//! Cleaning up: rows that have finished and expired, and old lines of the log of deliveries, in bounded batches.

use std::future::Future;
use std::time::Duration;

use super::StoreError;

/// What came of one batch, which is one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// That many rows are gone; 0 where there are no more.
    Deleted(u64),
    /// Another process is sweeping this ledger: nothing was done.
    OtherSweeper,
}

/// What would go now, of one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The scope.
    pub scope: String,
    /// Records, those of steps included.
    pub keys: u64,
    /// Lines of the log of deliveries.
    pub deliveries: u64,
}

/// What a backend deletes.
///
/// A record goes only when it is completed or failed, has expired, is not held, and has no unfinished step. Its steps go
/// with it, in the same transaction: a step that stayed would be taken for one of the key's next life. The step of a
/// record that is there stays; one without a record goes like a record.
///
/// A line of the log goes by its age, but not while its key is unfinished.
pub trait Sweep: Send {
    /// Deletes at most `limit` records, the longest expired first, and their steps. A record that somebody else has
    /// locked is left for the next run.
    fn sweep_keys(&mut self, limit: u32) -> impl Future<Output = Result<Batch, StoreError>> + Send;

    /// Deletes at most `limit` lines of deliveries that came in longer than `keep` ago.
    fn sweep_deliveries(
        &mut self,
        keep: Duration,
        limit: u32,
    ) -> impl Future<Output = Result<Batch, StoreError>> + Send;

    /// Counts what those two would delete until nothing is left, by scope. Writes nothing.
    fn due(&mut self, keep: Duration) -> impl Future<Output = Result<Vec<Due>, StoreError>> + Send;
}
