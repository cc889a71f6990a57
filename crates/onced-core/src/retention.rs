//! Retention: how long a key is remembered, so that no retry of its sender can outlive it.

use std::time::Duration;

use crate::time::Timestamp;

const DAY: Duration = Duration::from_hours(24);

/// How long records of a scope are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// From the first claim to the expiry.
    pub keep: Duration,
    /// From an ending to the expiry at least, so that an attempt that ends late is still replayed.
    pub retry_window: Duration,
}

impl Retention {
    /// Keeps records that long, and half of it after an ending.
    pub fn new(keep: Duration) -> Self {
        Self { keep, retry_window: keep / 2 }
    }

    /// What a sender that retries for `window` needs: twice that, rounded up to whole days.
    pub fn for_sender_retrying(window: Duration) -> Self {
        let days = window.saturating_mul(2).as_secs_f64() / DAY.as_secs_f64();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let days = days.ceil().clamp(1.0, 36_500.0) as u32;
        Self::new(DAY * days)
    }

    /// When a record that ends `now` expires: an ending only ever moves the expiry later.
    pub fn expiry_after_ending(expires_at: Timestamp, now: Timestamp, retry_window: Duration) -> Timestamp {
        expires_at.max(now.plus(retry_window))
    }
}

impl Default for Retention {
    /// Seven days, for senders of whom nothing is known.
    fn default() -> Self {
        Self::new(DAY * 7)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_senders_window_is_doubled_and_rounded_up_to_days() {
        let hours = |h: u64| Duration::from_secs(h * 3600);
        assert_eq!(Retention::for_sender_retrying(hours(72)).keep, DAY * 6);
        assert_eq!(Retention::for_sender_retrying(hours(4)).keep, DAY);
        assert_eq!(Retention::for_sender_retrying(hours(13)).keep, DAY * 2);
        assert_eq!(Retention::default().retry_window, hours(84));
    }

    #[test]
    fn an_ending_moves_the_expiry_only_later() {
        let at = Timestamp::from_micros;
        let window = Duration::from_micros(10);
        assert_eq!(Retention::expiry_after_ending(at(100), at(50), window), at(100));
        assert_eq!(Retention::expiry_after_ending(at(100), at(95), window), at(105));
    }
}
