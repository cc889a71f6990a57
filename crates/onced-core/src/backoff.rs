//! Backoff: how long to wait before trying again, exponential with full jitter. Chance comes in as an argument.

use std::time::Duration;

/// An exponential backoff with full jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The ceiling of the first wait.
    pub base: Duration,
    /// The ceiling of every wait.
    pub cap: Duration,
}

impl Backoff {
    /// How long to wait after `failures` failed tries (1, 2, …): somewhere between zero and the ceiling, where
    /// `unit_random` in `0.0..1.0` says.
    pub fn delay(&self, failures: u32, unit_random: f64) -> Duration {
        let doubled = self.base.checked_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
        let ceiling = doubled.unwrap_or(self.cap).min(self.cap);
        ceiling.mul_f64(unit_random.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { base: Duration::from_millis(500), cap: Duration::from_secs(30) };

    #[test]
    fn the_ceiling_doubles_up_to_the_cap() {
        let ceiling = |failures| BACKOFF.delay(failures, 1.0).as_millis();
        assert_eq!([1, 2, 3, 7, 33, u32::MAX].map(ceiling), [500, 1_000, 2_000, 30_000, 30_000, 30_000]);
    }

    #[test]
    fn jitter_reaches_down_to_zero() {
        assert_eq!(BACKOFF.delay(3, 0.0), Duration::ZERO);
        assert_eq!(BACKOFF.delay(3, 0.5), Duration::from_secs(1));
    }
}
