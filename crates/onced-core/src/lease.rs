//! Leases: how long an owner is presumed alive, when it may still start an outside call, and what a duplicate is told.

use std::time::Duration;

use crate::time::Timestamp;

/// How long a claim is good for, and how carefully its end is kept away from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// From the claim, or its last renewal, to the moment when others may take over.
    pub length: Duration,
    /// The smallest wait that is told to anyone, and the unit of `Retry-After`: one second. Tests count in tenths.
    pub tick: Duration,
}

impl Lease {
    /// A lease of that length that counts in seconds.
    pub const fn new(length: Duration) -> Self {
        Self { length, tick: Duration::from_secs(1) }
    }

    /// What must be left of the lease for an outside call to be started: a third of it.
    pub fn margin(&self) -> Duration {
        self.length / 3
    }

    /// Whether an outside call may still be started, by the owner's own monotonic clock: `elapsed` counts from just
    /// **before** the claim or the last successful renewal was sent, so a slow answer only shortens the time.
    pub fn may_start_call(&self, elapsed: Duration) -> bool {
        elapsed.saturating_add(self.margin()) < self.length
    }

    /// How long a duplicate is told to wait for `until`: at least one tick, at most the lease.
    pub fn wait(&self, until: Timestamp, now: Timestamp) -> Duration {
        until.since(now).clamp(self.tick, self.length.max(self.tick))
    }

    /// `wait` as the number of whole ticks in a `Retry-After`, rounded up.
    pub fn retry_after_ticks(&self, wait: Duration) -> u64 {
        let ticks = wait.as_micros().div_ceil(self.tick.as_micros().max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lease = Lease::new(Duration::from_secs(30));

    #[test]
    fn a_call_starts_only_while_a_third_of_the_lease_is_left() {
        assert!(LEASE.may_start_call(Duration::from_millis(19_999)));
        assert!(!LEASE.may_start_call(Duration::from_secs(20)));
        assert!(!LEASE.may_start_call(Duration::MAX));
    }

    #[test]
    fn a_wait_is_at_least_a_tick_and_at_most_the_lease() {
        let at = |s: i64| Timestamp::from_micros(s * 1_000_000);
        assert_eq!(LEASE.wait(at(10), at(7)), Duration::from_secs(3));
        assert_eq!(LEASE.wait(at(10), at(10)), Duration::from_secs(1));
        assert_eq!(LEASE.wait(at(100), at(7)), Duration::from_secs(30));
    }

    #[test]
    fn retry_after_is_rounded_up() {
        assert_eq!(LEASE.retry_after_ticks(Duration::from_millis(2_001)), 3);
        assert_eq!(LEASE.retry_after_ticks(Duration::ZERO), 1);
        let tenths = Lease { tick: Duration::from_millis(100), ..LEASE };
        assert_eq!(tenths.retry_after_ticks(Duration::from_millis(250)), 3);
    }
}
