//! Whole-transaction retries of errors that pass. The one helper for it: what it runs must be one transaction, which
//! has been rolled back when a transient error comes out.

use std::time::Duration;

use onced_core::backoff::Backoff;
use tokio::time::Instant;

/// How often a transaction is tried.
const TRIES: u32 = 5;
/// How long a claim is run again. Less than a statement waits for a lock: what has waited in vain once is not to wait
/// five times, while the sender could have come again.
pub(super) const CLAIM_TIME: Duration = Duration::from_secs(4);
const BACKOFF: Backoff = Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(500) };

/// The tries of one transaction: five, up to half a second apart.
///
/// ```text
/// let mut tries = Tries::default();
/// loop {
///     match transaction().await {
///         Err(error) if tries.again(error.is_transient()).await => {}
///         result => break result,
///     }
/// }
/// ```
#[derive(Debug, Default)]
pub struct Tries {
    failures: u32,
    until: Option<Instant>,
}

impl Tries {
    /// The tries of a claim, which begin now: after four seconds it is not run again.
    pub(super) fn of_a_claim() -> Self {
        Self { failures: 0, until: Some(Instant::now() + CLAIM_TIME) }
    }

    /// Whether to run the transaction again, after a wait. Never unless the caller may: an error that is
    /// transient says that the transaction was rolled back, whole; after others only what is harmless twice is run again.
    ///
    /// # Cancel safety
    /// Only waits.
    pub async fn again(&mut self, may: bool) -> bool {
        let is_late = self.until.is_some_and(|until| Instant::now() >= until);
        if !may || self.failures + 1 >= TRIES || is_late {
            return false;
        }
        self.failures += 1;
        tracing::debug!(failures = self.failures, "the transaction is run again");
        tokio::time::sleep(BACKOFF.delay(self.failures, random_unit())).await;
        true
    }
}

pub(super) fn random_unit() -> f64 {
    let mut bytes = [0_u8; 4];
    // Without randomness the full delay is as good as any.
    if getrandom::fill(&mut bytes).is_err() {
        return 1.0;
    }
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JUST: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_transaction_is_tried_five_times_and_only_where_it_was_rolled_back() {
        let mut tries = Tries::default();
        let mut runs = 1;
        while tries.again(true).await {
            runs += 1;
        }
        assert_eq!(runs, 5);
        assert!(!Tries::default().again(false).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_took_long_is_not_run_again() {
        for (took, again) in [(Duration::ZERO, true), (CLAIM_TIME - JUST, true), (CLAIM_TIME, false)] {
            let mut tries = Tries::of_a_claim();
            tokio::time::advance(took).await;
            assert_eq!(tries.again(true).await, again, "{took:?}");
            assert!(!tries.again(false).await);
        }
    }
}
