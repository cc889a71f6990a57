//! Points in time as whole microseconds since the Unix epoch: what the databases hand over and what every decision
//! is made with. Nothing here asks a clock.

use std::time::Duration;

/// A point in time, in microseconds since 1970-01-01T00:00:00Z.
///
/// It always comes from a database's clock, never from the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The point in time that many microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded down.
    #[must_use]
    pub const fn as_seconds(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// How long it is from `earlier` to `self`; zero where `earlier` is the later one.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// `self` moved later by `by`, at most to the end of the representable time.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }

    /// `self` moved earlier by `by`, at least to the beginning of the representable time.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros(by)))
    }
}

/// A duration as whole microseconds, the unit of the databases; capped at what an `i64` holds.
#[must_use]
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_never_go_below_zero() {
        let (early, late) = (Timestamp::from_micros(10), Timestamp::from_micros(25));
        assert_eq!(late.since(early), Duration::from_micros(15));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(early.plus(Duration::from_micros(15)), late);
        assert_eq!(late.minus(Duration::from_micros(15)), early);
    }

    #[test]
    fn far_away_is_capped_not_wrapped() {
        assert_eq!(Timestamp::from_micros(i64::MAX).plus(Duration::MAX).as_micros(), i64::MAX);
        assert_eq!(Timestamp::from_micros(-1).as_seconds(), -1);
    }
}
