//! What an answer proves: which answers are the outcome, what the others leave behind, and how long `Retry-After` says
//! to wait. The rules of `final`, `effect`, `on_5xx` and `no_effect` are decided here and nowhere else.

use std::time::{Duration, UNIX_EPOCH};

use crate::decision::{Enter, OnUnknown};
use crate::record::Status;
use crate::time::Timestamp;

/// What an upstream is, as its route states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It writes its rows and ends the record in one transaction of the database that holds the record.
    SameDatabase,
    /// It deduplicates by the downstream key.
    Idempotent,
    /// Neither: an unknown outcome is held.
    External,
}

impl Effect {
    /// The word in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameDatabase => "same-database",
            Self::Idempotent => "idempotent",
            Self::External => "external",
        }
    }

    /// What the claim writes for such an upstream.
    pub fn enter(self) -> Enter {
        match self {
            Self::SameDatabase => Enter::InProgress,
            Self::Idempotent | Self::External => Enter::PendingExternal,
        }
    }

    /// What an unknown outcome means for such an upstream; `otherwise` is the route's own word where it has a choice.
    pub fn on_unknown(self, otherwise: OnUnknown) -> OnUnknown {
        match self {
            Self::Idempotent => OnUnknown::Retry,
            Self::SameDatabase | Self::External => otherwise,
        }
    }
}

impl std::fmt::Display for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which answers are the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalPolicy {
    /// 2xx, 3xx and 4xx, except those that say "not now" or "not you".
    Default,
    /// Whatever was answered.
    Everything,
    /// Only 2xx.
    Success,
}

/// What a 5xx of the upstream says about the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On5xx {
    /// Nothing.
    Unknown,
    /// That everything was rolled back; 502 and 504 are never believed, they need not be the upstream's word.
    Failed,
}

/// The rules of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// What the upstream is.
    pub effect: Effect,
    /// Which answers are the outcome.
    pub final_policy: FinalPolicy,
    /// What a 5xx says.
    pub on_5xx: On5xx,
    /// Statuses that say that there was no effect.
    pub no_effect: Vec<u16>,
}

/// Statuses that say that there was no effect, unless a route says otherwise.
pub const NO_EFFECT: [u16; 5] = [401, 403, 407, 425, 429];

/// What matters of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// It is a 409 with `Retry-After` or an `in-progress` problem: another ledger says "still running".
    pub says_still_running: bool,
    /// It carries `Onced-Effect: none`.
    pub says_no_effect: bool,
}

/// Whether a call of an earlier attempt may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierCall {
    /// There was none, or it is known to have had no effect.
    None,
    /// Its outcome is not known.
    Unknown,
}

/// What an answer leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It is the outcome.
    Complete,
    /// The attempt is known to have had no effect, or is safe to repeat.
    Fail,
    /// Nobody knows: the record stays pending until it is reconciled or resolved.
    LeavePending,
}

impl Rules {
    /// Whether the answer is the outcome.
    pub fn is_final(&self, answer: &Answer) -> bool {
        match self.final_policy {
            FinalPolicy::Everything => true,
            FinalPolicy::Success => (200..300).contains(&answer.status),
            FinalPolicy::Default => match answer.status {
                401 | 403 | 407 | 408 | 425 | 429 => false,
                409 => !answer.says_still_running,
                status => (200..500).contains(&status),
            },
        }
    }

    /// What the answer leaves behind in a record that stands at `status` and is still the attempt's own. `earlier` says
    /// whether an earlier attempt's call may have taken effect.
    pub fn settle(&self, answer: &Answer, status: Status, earlier: EarlierCall) -> Settlement {
        match (self.effect, status) {
            // The app itself announced an outside call and has not ended the record: only its reconciling can.
            (Effect::SameDatabase, Status::PendingExternal) => Settlement::LeavePending,
            _ if self.is_final(answer) => Settlement::Complete,
            (Effect::SameDatabase, _) => Settlement::Fail,
            (Effect::Idempotent, _) => settle_idempotent(*answer, earlier),
            (Effect::External, _) => self.settle_external(*answer),
        }
    }

    fn settle_external(&self, answer: Answer) -> Settlement {
        let rolled_back =
            self.on_5xx == On5xx::Failed && (500..600).contains(&answer.status) && !matches!(answer.status, 502 | 504);
        if answer.says_no_effect || self.no_effect.contains(&answer.status) || rolled_back {
            Settlement::Fail
        } else {
            Settlement::LeavePending
        }
    }
}

// "Failed" must be the downstream's own word for this key, and cover every attempt. What stands between (a balancer,
// a rate limiter) knows nothing of an earlier call; pending costs no more than the rest of the lease.
fn settle_idempotent(answer: Answer, earlier: EarlierCall) -> Settlement {
    let says_not_now = matches!(answer.status, 408 | 503) || NO_EFFECT.contains(&answer.status);
    match earlier {
        _ if matches!(answer.status, 502 | 504) => Settlement::LeavePending,
        EarlierCall::Unknown if says_not_now && !answer.says_no_effect => Settlement::LeavePending,
        EarlierCall::Unknown | EarlierCall::None => Settlement::Fail,
    }
}

/// What a `Retry-After` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfter {
    /// To wait that long; zero for a date in the past.
    Wait(Duration),
    /// An absurd wait, cut to the cap.
    Capped(Duration),
    /// Nothing that can be read: negative, or neither seconds nor a date.
    Ignored,
}

impl RetryAfter {
    /// Reads the value of a `Retry-After` header, in whole seconds or as an HTTP date.
    pub fn parse(value: &str, now: Timestamp, cap: Duration) -> Self {
        let value = value.trim();
        let wait = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
            value.parse().map_or(Duration::MAX, Duration::from_secs)
        } else if let Ok(date) = httpdate::parse_http_date(value) {
            let at = date.duration_since(UNIX_EPOCH).unwrap_or_default();
            Timestamp::from_micros(crate::time::micros(at)).since(now)
        } else {
            return Self::Ignored;
        };
        if wait > cap { Self::Capped(cap) } else { Self::Wait(wait) }
    }
}

/// An HTTP date, such as `Onced-Key-Expires` carries.
pub fn http_date(at: Timestamp) -> String {
    let since_epoch = Duration::from_secs(u64::try_from(at.as_seconds()).unwrap_or(0));
    // The year 9999 is the end of HTTP dates.
    httpdate::fmt_http_date(UNIX_EPOCH + since_epoch.min(Duration::from_secs(253_402_300_799)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(effect: Effect, final_policy: FinalPolicy) -> Rules {
        Rules { effect, final_policy, on_5xx: On5xx::Unknown, no_effect: NO_EFFECT.to_vec() }
    }

    fn answer(status: u16) -> Answer {
        Answer { status, says_still_running: false, says_no_effect: false }
    }

    #[test]
    fn the_default_takes_what_says_not_now_for_no_outcome() {
        let rules = rules(Effect::Idempotent, FinalPolicy::Default);
        for status in [200, 204, 304, 400, 402, 404, 409, 410, 422] {
            assert!(rules.is_final(&answer(status)), "{status}");
        }
        for status in [401, 403, 407, 408, 425, 429, 500, 502, 503, 504, 599] {
            assert!(!rules.is_final(&answer(status)), "{status}");
        }
        assert!(!rules.is_final(&Answer { says_still_running: true, ..answer(409) }));
    }

    #[test]
    fn the_other_policies_take_everything_or_only_success() {
        assert!(rules(Effect::External, FinalPolicy::Everything).is_final(&answer(500)));
        assert!(rules(Effect::External, FinalPolicy::Success).is_final(&answer(201)));
        assert!(!rules(Effect::External, FinalPolicy::Success).is_final(&answer(404)));
    }

    #[test]
    fn what_is_not_final_proves_what_the_effect_says() {
        let same = rules(Effect::SameDatabase, FinalPolicy::Default);
        let idempotent = rules(Effect::Idempotent, FinalPolicy::Default);
        let external = rules(Effect::External, FinalPolicy::Default);
        let pending = Status::PendingExternal;
        assert_eq!(same.settle(&answer(500), Status::InProgress, EarlierCall::None), Settlement::Fail);
        assert_eq!(same.settle(&answer(500), pending, EarlierCall::None), Settlement::LeavePending);
        assert_eq!(same.settle(&answer(200), pending, EarlierCall::None), Settlement::LeavePending);
        assert_eq!(same.settle(&answer(429), pending, EarlierCall::None), Settlement::LeavePending);
        assert_eq!(idempotent.settle(&answer(500), pending, EarlierCall::None), Settlement::Fail);
        assert_eq!(idempotent.settle(&answer(502), pending, EarlierCall::None), Settlement::LeavePending);
        assert_eq!(idempotent.settle(&answer(429), pending, EarlierCall::None), Settlement::Fail);
        assert_eq!(idempotent.settle(&answer(429), pending, EarlierCall::Unknown), Settlement::LeavePending);
        assert_eq!(idempotent.settle(&answer(500), pending, EarlierCall::Unknown), Settlement::Fail);
        assert_eq!(idempotent.settle(&answer(200), pending, EarlierCall::Unknown), Settlement::Complete);
        assert_eq!(external.settle(&answer(500), pending, EarlierCall::None), Settlement::LeavePending);
        assert_eq!(external.settle(&answer(408), pending, EarlierCall::None), Settlement::LeavePending);
        assert_eq!(external.settle(&answer(429), pending, EarlierCall::None), Settlement::Fail);
        assert_eq!(
            external.settle(&Answer { says_no_effect: true, ..answer(500) }, pending, EarlierCall::None),
            Settlement::Fail
        );
        assert_eq!(external.settle(&answer(404), pending, EarlierCall::None), Settlement::Complete);
    }

    #[test]
    fn a_route_may_vouch_for_its_5xx_but_not_for_a_proxys() {
        let rules = Rules { on_5xx: On5xx::Failed, ..rules(Effect::External, FinalPolicy::Default) };
        assert_eq!(rules.settle(&answer(500), Status::PendingExternal, EarlierCall::None), Settlement::Fail);
        assert_eq!(rules.settle(&answer(503), Status::PendingExternal, EarlierCall::None), Settlement::Fail);
        assert_eq!(rules.settle(&answer(502), Status::PendingExternal, EarlierCall::None), Settlement::LeavePending);
        assert_eq!(rules.settle(&answer(504), Status::PendingExternal, EarlierCall::None), Settlement::LeavePending);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let (cap, now) = (Duration::from_secs(30), Timestamp::from_micros(1_764_633_600_000_000));
        let parse = |value: &str| RetryAfter::parse(value, now, cap);
        assert_eq!(parse("5"), RetryAfter::Wait(Duration::from_secs(5)));
        assert_eq!(parse("Tue, 02 Dec 2025 00:00:07 GMT"), RetryAfter::Wait(Duration::from_secs(7)));
        assert_eq!(parse("Fri, 02 Jan 2015 00:00:00 GMT"), RetryAfter::Wait(Duration::ZERO));
        assert_eq!(parse("9999999999"), RetryAfter::Capped(cap));
        assert_eq!(parse("99999999999999999999999"), RetryAfter::Capped(cap));
        for ignored in ["-5", "", "soon", "1.5", "+3"] {
            assert_eq!(parse(ignored), RetryAfter::Ignored, "{ignored}");
        }
        assert_eq!(http_date(now), "Tue, 02 Dec 2025 00:00:00 GMT");
    }
}
