//! The sweeper: deletes keys that have finished and expired, and old lines of the log of deliveries, batch by batch.
//!
//! Each batch is a transaction of its own, and between two there is a pause as long as the last one took: on SQLite,
//! where others wait for the write lock meanwhile, that is their turn.

use std::time::{Duration, Instant};

use onced::guard::Tries;
use onced::store::sweep::{Batch, Sweep};
use onced::store::{AnyStore, StoreError, StoreErrorKind};
use tokio::sync::watch;
use uuid::Uuid;

/// The most rows that one transaction deletes.
pub(crate) const BATCH: u32 = 10_000;
const FIRST_BATCH: u32 = 1_000;
const SMALLEST_BATCH: u32 = 50;
/// A batch that took longer is followed by a smaller one: nobody is to wait long for its locks.
const LONG: Duration = Duration::from_millis(60);
/// A batch that took less is followed by a larger one.
const SHORT: Duration = Duration::from_millis(20);
/// The first run comes within this, so that gateways that start together do not sweep together.
const FIRST_WITHIN: Duration = Duration::from_secs(60);

/// What a run has done so far, as far as it was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) keys: u64,
    pub(crate) deliveries: u64,
    pub(crate) batches: u64,
    /// Another process was sweeping the same ledger, so this run ended there.
    pub(crate) elsewhere: bool,
}

/// Whether a run goes on after a batch.
pub(crate) enum Next {
    GoOn,
    Stop,
}

/// Deletes what is due.
pub(crate) struct Sweeper<S = AnyStore> {
    pub(crate) store: S,
    pub(crate) keep_deliveries: Duration,
    /// The size of every batch; paced by how long they take where it is not said.
    pub(crate) batch: Option<u32>,
}

#[derive(Clone, Copy)]
enum What {
    Keys,
    Deliveries,
}

impl<S: Sweep> Sweeper<S> {
    /// Deletes everything that is due by the database's clock. `after_batch` is told of each batch.
    ///
    /// # Errors
    /// Where the store fails, or a batch fails again and again; what was reported before is gone all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped, the batch under way may or may not be deleted, whole.
    pub(crate) async fn run_once(
        &mut self,
        mut after_batch: impl FnMut(&Report) -> Next,
    ) -> Result<Report, StoreError> {
        let mut report = Report::default();
        for what in [What::Keys, What::Deliveries] {
            let mut size = self.batch.unwrap_or(FIRST_BATCH);
            let (mut tries, mut lost) = (Tries::default(), None);
            loop {
                let began = Instant::now();
                let batch = match (self.batch(what, size).await, lost.take()) {
                    // It may be our own, at which the server is still working: how that ended is still not known.
                    (Ok(Batch::OtherSweeper), Some(error)) => Err(error),
                    (batch, _) => batch,
                };
                let deleted = match batch {
                    Ok(Batch::Deleted(0)) => break,
                    Ok(Batch::Deleted(count)) => count,
                    Ok(Batch::OtherSweeper) => return Ok(Report { elsewhere: true, ..report }),
                    // Rolled back, or deleted without our being told: what is due is picked anew. It may have been too much
                    // for the time that a statement or a transaction has.
                    Err(error) => {
                        if !tries.again(may_run_again(&error)).await {
                            return Err(error);
                        }
                        lost = Some(error).filter(|error| error.kind() == StoreErrorKind::Lost);
                        size = self.batch.unwrap_or((size / 4).max(SMALLEST_BATCH));
                        continue;
                    }
                };
                let took = began.elapsed();
                tries = Tries::default();
                report.batches += 1;
                match what {
                    What::Keys => report.keys += deleted,
                    What::Deliveries => report.deliveries += deleted,
                }
                if let Next::Stop = after_batch(&report) {
                    return Ok(report);
                }
                size = self.batch.unwrap_or_else(|| paced(size, took));
                tokio::time::sleep(took).await;
            }
        }
        Ok(report)
    }

    async fn batch(&mut self, what: What, size: u32) -> Result<Batch, StoreError> {
        match what {
            What::Keys => self.store.sweep_keys(size).await,
            What::Deliveries => self.store.sweep_deliveries(self.keep_deliveries, size).await,
        }
    }

    /// Sweeps again and again until told to stop. An error is logged, and the next run comes as if there had been none.
    pub(crate) async fn run(mut self, every: Duration, mut stop: watch::Receiver<bool>) {
        let mut wait = every.min(FIRST_WITHIN).mul_f64(chance());
        loop {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // An error means that the gateway is gone.
                _ = stop.wait_for(|stop| *stop) => return,
            }
            let stopping = stop.clone();
            let go_on = |_: &Report| if *stopping.borrow() { Next::Stop } else { Next::GoOn };
            match self.run_once(go_on).await {
                Ok(Report { keys: 0, deliveries: 0, elsewhere, .. }) => {
                    tracing::debug!(target: "onced::sweep", elsewhere, "nothing was swept");
                }
                Ok(report) => tracing::info!(
                    target: "onced::sweep",
                    keys = report.keys,
                    deliveries = report.deliveries,
                    batches = report.batches,
                    "swept what had expired"
                ),
                Err(error) => {
                    tracing::warn!(target: "onced::sweep", %error, "sweeping failed; it is tried again later")
                }
            }
            // Gateways that run together drift apart.
            wait = every.mul_f64(0.9 + 0.2 * chance());
        }
    }
}

/// A batch deletes what is due, and nothing else, however often it is run.
fn may_run_again(error: &StoreError) -> bool {
    error.is_transient() || error.kind() == StoreErrorKind::Lost
}

fn paced(size: u32, took: Duration) -> u32 {
    if took > LONG {
        (size / 2).max(SMALLEST_BATCH)
    } else if took < SHORT {
        size.saturating_mul(2).min(BATCH)
    } else {
        size
    }
}

/// From 0 to 1.
fn chance() -> f64 {
    let [a, b, c, d, ..] = Uuid::new_v4().into_bytes();
    f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onced::store::sweep::Due;

    #[test]
    fn batches_grow_while_they_are_short_and_shrink_when_they_are_long() {
        assert_eq!(paced(1_000, Duration::from_millis(5)), 2_000);
        assert_eq!(paced(8_000, Duration::from_millis(5)), BATCH);
        assert_eq!(paced(1_000, Duration::from_millis(40)), 1_000);
        assert_eq!(paced(1_000, Duration::from_millis(70)), 500);
        assert_eq!(paced(60, Duration::from_secs(9)), SMALLEST_BATCH);
    }

    /// What becomes of each batch, in turn, and how large they were.
    struct Scripted(std::vec::IntoIter<Result<Batch, StoreErrorKind>>, Vec<u32>);

    impl Sweep for Scripted {
        async fn sweep_keys(&mut self, limit: u32) -> Result<Batch, StoreError> {
            self.1.push(limit);
            self.0.next().unwrap_or(Ok(Batch::Deleted(0))).map_err(|kind| StoreError::new(kind, "sweep"))
        }

        async fn sweep_deliveries(&mut self, _: Duration, _: u32) -> Result<Batch, StoreError> {
            Ok(Batch::Deleted(0))
        }

        async fn due(&mut self, _: Duration) -> Result<Vec<Due>, StoreError> {
            Ok(Vec::new())
        }
    }

    async fn run(script: Vec<Result<Batch, StoreErrorKind>>) -> (Result<Report, StoreErrorKind>, Vec<u32>) {
        let store = Scripted(script.into_iter(), Vec::new());
        let mut sweeper = Sweeper { store, keep_deliveries: Duration::ZERO, batch: None };
        let report = sweeper.run_once(|_| Next::GoOn).await.map_err(|error| error.kind());
        (report, sweeper.store.1)
    }

    #[tokio::test]
    async fn a_batch_whose_end_is_not_known_is_run_again_and_smaller() {
        use StoreErrorKind::{Lost, Refused, Transient, Unavailable};
        for kind in [Lost, Transient] {
            let (report, sizes) = run(vec![Err(kind), Ok(Batch::Deleted(3))]).await;
            assert_eq!(
                (report.map(|report| (report.keys, report.batches)), sizes[..2].to_vec()),
                (Ok((3, 1)), vec![1000, 250])
            );
        }
        for kind in [Refused, Unavailable] {
            assert_eq!(run(vec![Err(kind)]).await, (Err(kind), vec![1000]));
        }
    }

    /// Our own batch holds the sweeper's lock for as long as the server works at it.
    #[tokio::test]
    async fn another_sweeper_after_a_lost_batch_may_be_that_batch() {
        let lost = || Err(StoreErrorKind::Lost);
        let (report, sizes) = run(vec![lost(), Ok(Batch::OtherSweeper), Ok(Batch::Deleted(3))]).await;
        assert_eq!(
            (report.map(|report| (report.keys, report.elsewhere)), sizes[..3].to_vec()),
            (Ok((3, false)), vec![1000, 250, 62])
        );
        let waits = (0..9).map(|_| Ok(Batch::OtherSweeper));
        assert_eq!(run([lost()].into_iter().chain(waits).collect()).await.0, Err(StoreErrorKind::Lost));
        let (report, _) = run(vec![Ok(Batch::OtherSweeper)]).await;
        assert_eq!(report.map(|report| report.elsewhere), Ok(true));
    }

    #[test]
    fn chance_stays_within_its_bounds() {
        for _ in 0..1000 {
            assert!((0.0..=1.0).contains(&chance()));
        }
    }
}
