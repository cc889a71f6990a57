//! What the owner of an attempt may do with its record, and from where. Backends repeat this in their `WHERE`; the
//! conformance suite checks every pair.

use crate::record::Status;

/// A move of the owner, by its lease token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Store the outcome.
    Complete,
    /// Record that the attempt had no effect, or is safe to repeat.
    Fail,
    /// Say that an outside call is about to begin.
    External,
    /// Give the key back as if it had never been claimed.
    Release,
    /// Extend the lease.
    Renew,
}

impl Move {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Complete, Self::Fail, Self::External, Self::Release, Self::Renew];

    /// Whether the owner of attempt number `attempt` may make this move from `status`.
    pub fn is_allowed_from(self, status: Status, attempt: u32) -> bool {
        match (self, status) {
            (Self::Complete | Self::Fail | Self::Renew, Status::InProgress | Status::PendingExternal)
            | (Self::External, Status::InProgress) => true,
            // Never once an outside call may have happened, nor after an earlier attempt.
            (Self::Release, Status::InProgress) => attempt == 1,
            (Self::External | Self::Release, Status::PendingExternal)
            | (_, Status::Queued | Status::Completed | Status::Failed) => false,
        }
    }

    /// Where the record stands afterwards; `None` where it is gone.
    pub fn leads_to(self, status: Status) -> Option<Status> {
        match self {
            Self::Complete => Some(Status::Completed),
            Self::Fail => Some(Status::Failed),
            Self::External => Some(Status::PendingExternal),
            Self::Release => None,
            Self::Renew => Some(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_a_finished_or_queued_record() {
        for step in Move::ALL {
            for status in [Status::Queued, Status::Completed, Status::Failed] {
                assert!(!step.is_allowed_from(status, 1), "{step:?} from {status}");
            }
        }
    }

    #[test]
    fn a_key_is_released_only_by_a_first_attempt_that_called_nobody() {
        assert!(Move::Release.is_allowed_from(Status::InProgress, 1));
        assert!(!Move::Release.is_allowed_from(Status::InProgress, 2));
        assert!(!Move::Release.is_allowed_from(Status::PendingExternal, 1));
    }

    #[test]
    fn an_outside_call_is_announced_once() {
        assert!(Move::External.is_allowed_from(Status::InProgress, 3));
        assert!(!Move::External.is_allowed_from(Status::PendingExternal, 1));
    }
}
