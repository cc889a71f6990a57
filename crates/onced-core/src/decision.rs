//! The decision: what a delivery means, given what was found under its key. One pure function; this is the place
//! where a duplicate becomes a replay, a 409 or a 422. Its lines stand in `decisions.txt`, as data, and are run
//! against this function and against every backend.

use std::time::Duration;

use crate::fingerprint::{Comparison, Fingerprint};
use crate::lease::Lease;
use crate::record::{CallAnswer, Found, Lock, Payload, Record, Status};
use crate::retention::Retention;
use crate::time::Timestamp;

/// What a scope wants done with its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The lease of each attempt.
    pub lease: Lease,
    /// How long keys are remembered.
    pub retention: Retention,
    /// How often execution may begin; `None` for no limit.
    pub max_attempts: Option<u32>,
    /// What a foreign payload under a known key means.
    pub mismatch: MismatchPolicy,
    /// What an outside call without a known outcome means.
    pub on_unknown: OnUnknown,
    /// How long the downstream remembers its key, from the first call on. Only read under [`OnUnknown::Retry`].
    pub downstream_window: Duration,
    /// What the claim writes.
    pub enter: Enter,
}

impl Default for Policy {
    /// What an API wants that says nothing else: a lease of 30 s, seven days of retention, five attempts, another payload
    /// refused, unknown outcomes reconciled, nobody outside called before that is announced.
    fn default() -> Self {
        Self {
            lease: Lease::new(Duration::from_secs(30)),
            retention: Retention::default(),
            max_attempts: Some(5),
            mismatch: MismatchPolicy::Reject,
            on_unknown: OnUnknown::Reconcile,
            downstream_window: Duration::from_hours(24),
            enter: Enter::InProgress,
        }
    }
}

/// What a foreign payload under a known key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MismatchPolicy {
    /// Another request: refused. For API calls and agents.
    Reject,
    /// The same trigger, altered on its way: noted, then treated as equal. For senders that cannot mend it.
    Note,
}

/// What an outside call without a known outcome means, once its owner is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnknown {
    /// The downstream deduplicates by its key: call again.
    Retry,
    /// A probe is asked.
    Reconcile,
    /// A person is asked.
    Hold,
}

/// What the claim writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enter {
    /// `in_progress`: nobody outside is called before that is announced.
    InProgress,
    /// `pending_external`: the caller is about to call out.
    PendingExternal,
}

impl Enter {
    /// The status that the claim writes.
    pub fn status(self) -> Status {
        match self {
            Self::InProgress => Status::InProgress,
            Self::PendingExternal => Status::PendingExternal,
        }
    }
}

/// What a delivery means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Run it, once the record has been taken.
    Execute(Execution),
    /// The record is out of attempts, or past the downstream's memory: mark it failed, then decide afresh. No caller of a
    /// guard ever sees this.
    GiveUp,
    /// Answer from the record.
    Replay,
    /// An attempt is running.
    InProgress {
        /// How long to wait before asking again.
        retry_after: Duration,
    },
    /// The key is bound to another request.
    Mismatch,
    /// An outside call may or may not have happened.
    Unknown {
        /// How long to wait before asking again.
        retry_after: Duration,
    },
    /// No attempts are left and no answer is stored.
    Exhausted,
}

/// The right to execute, as far as the facts go: it is real once the record has been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// Whether an earlier attempt was cut off, so that its work may be half done.
    pub resumed: bool,
    /// How the record is to be taken.
    pub taking: Taking,
}

/// How a record is taken. The taking repeats, in its `WHERE`, everything that was decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// There is none: insert it.
    Insert,
    /// It is finished and expired: replace it.
    Expired,
    /// It is queued.
    Queued,
    /// It is in progress and its lease is over.
    LeaseOver,
    /// It is pending and its lease is over; it stays pending.
    PendingLeaseOver,
    /// It failed.
    Failed,
}

/// Facts that this version cannot give a meaning: nothing is executed and nothing replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record was fingerprinted under rules that this version does not know ({hash_version})")]
pub struct NotUnderstood {
    /// The rules that the record names.
    pub hash_version: String,
}

/// A decision, and whether the payload differed though the policy only notes that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What the delivery means.
    pub decision: Decision,
    /// A foreign payload came in under `mismatch = note`: to be logged.
    pub payload_differs: bool,
}

/// Gives the facts their meaning.
///
/// # Errors
/// [`NotUnderstood`] where the record was written under rules that this version does not know.
pub fn decide(found: &Found, request: &Fingerprint, policy: &Policy, now: Timestamp) -> Result<Verdict, NotUnderstood> {
    let plain = |decision| Ok(Verdict { decision, payload_differs: false });
    let record = match (&found.record, found.lock) {
        (None, Lock::Got) => return plain(execute(1, false, Taking::Insert)),
        (Some(record), Lock::Got) if record.is_expired(now) => return plain(execute(1, false, Taking::Expired)),
        // A rival's transaction is open: what it has written is not visible, what is visible it may be replacing.
        (None, Lock::Missed) => return plain(rival_is_at_work(policy)),
        (Some(record), Lock::Missed) if record.is_expired(now) => return plain(rival_is_at_work(policy)),
        (Some(record), _) => record,
    };
    let differs = match request.compare(&record.hash_version, &record.request_hash) {
        Comparison::Same => false,
        Comparison::Differs => true,
        Comparison::UnknownVersion => return Err(NotUnderstood { hash_version: record.hash_version.clone() }),
    };
    // Before everything else: a foreign payload never sees a stored response.
    if differs && policy.mismatch == MismatchPolicy::Reject {
        return plain(Decision::Mismatch);
    }
    let decided = of_record(record, found, differs, policy, now);
    let decision = match found.lock {
        Lock::Missed if decided != Decision::Replay => rival_is_at_work(policy),
        Lock::Missed | Lock::Got => decided,
    };
    Ok(Verdict { decision, payload_differs: differs })
}

fn of_record(record: &Record, found: &Found, differs: bool, policy: &Policy, now: Timestamp) -> Decision {
    let attempts_left = policy.max_attempts.is_none_or(|max| record.attempt < max);
    let next = record.attempt.saturating_add(1);
    // Past the downstream's memory the same key would be a new call.
    let downstream_remembers = record.called_at.is_none_or(|at| now.since(at) < policy.downstream_window);
    // Also where the attempt that called has failed, and a later one was cut off before it announced a call.
    let may_begin_again = attempts_left && (policy.on_unknown != OnUnknown::Retry || downstream_remembers);
    match record.status {
        Status::Completed => Decision::Replay,
        Status::Queued => execute(1, false, Taking::Queued),
        Status::InProgress | Status::PendingExternal if record.lease_is_alive(now) => running(record, policy, now),
        Status::InProgress if may_begin_again => execute(next, true, Taking::LeaseOver),
        Status::InProgress => Decision::GiveUp,
        // The downstream key is bound to the first payload, which nobody has any more.
        Status::PendingExternal if differs && found.payload == Payload::NotStored => unknown(record, policy, now),
        Status::PendingExternal if found.call_answer == CallAnswer::Known => {
            execute(next, true, Taking::PendingLeaseOver)
        }
        Status::PendingExternal if policy.on_unknown == OnUnknown::Retry && attempts_left && downstream_remembers => {
            execute(next, true, Taking::PendingLeaseOver)
        }
        Status::PendingExternal => unknown(record, policy, now),
        Status::Failed if may_begin_again => execute(next, false, Taking::Failed),
        Status::Failed if record.response.is_some() => Decision::Replay,
        Status::Failed => Decision::Exhausted,
    }
}

fn execute(attempt: u32, resumed: bool, taking: Taking) -> Decision {
    Decision::Execute(Execution { attempt, resumed, taking })
}

fn running(record: &Record, policy: &Policy, now: Timestamp) -> Decision {
    Decision::InProgress { retry_after: policy.lease.wait(record.lease_until.unwrap_or(now), now) }
}

fn unknown(record: &Record, policy: &Policy, now: Timestamp) -> Decision {
    let retry_after = record.next_probe_at.map_or(policy.lease.length, |at| policy.lease.wait(at, now));
    Decision::Unknown { retry_after }
}

fn rival_is_at_work(policy: &Policy) -> Decision {
    Decision::InProgress { retry_after: policy.lease.tick }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision_table::{self, Expected, Line};

    #[test]
    fn every_line_of_the_table_is_decided_as_it_says() {
        let lines = decision_table::lines();
        assert!(lines.len() >= 40, "the table has shrunk to {} lines", lines.len());
        for line in &lines {
            check(line, Lock::Got, &line.expected);
        }
    }

    #[test]
    fn under_a_rivals_open_transaction_only_replay_and_mismatch_are_answered() {
        for line in decision_table::lines() {
            check(&line, Lock::Missed, &line.expected_under_rival());
        }
    }

    fn check(line: &Line, lock: Lock, expected: &Expected) {
        let now = Timestamp::from_micros(1_000_000_000_000);
        let mut found = Found { lock, ..line.found(now) };
        let decide = |found: &Found| decide(found, &line.request(), &line.policy(), now).map(|v| v.decision);
        let mut decided = decide(&found);
        if line.gives_up() && lock == Lock::Got {
            assert_eq!(decided, Ok(Decision::GiveUp), "line {}", line.name);
            if let Some(record) = &mut found.record {
                record.status = Status::Failed;
                record.lease_until = None;
            }
            decided = decide(&found);
        }
        assert_eq!(&Expected::from_decided(decided.as_ref()), expected, "line {}, lock {lock:?}", line.name);
    }

    #[test]
    fn the_bounds_themselves_are_over() {
        let line = |name: &str| decision_table::lines().into_iter().find(|l| l.name == name).unwrap();
        let now = Timestamp::from_micros(1_000_000_000_000);
        let running = line("in-progress-alive");
        let mut found = running.found(now);
        let at = |found: &Found, line: &Line| decide(found, &line.request(), &line.policy(), now).unwrap().decision;
        if let Some(record) = &mut found.record {
            record.lease_until = Some(now.plus(Duration::from_micros(1)));
        }
        assert_eq!(at(&found, &running), Decision::InProgress { retry_after: Duration::from_secs(1) });
        if let Some(record) = &mut found.record {
            record.lease_until = Some(now);
        }
        assert_eq!(at(&found, &running), execute(2, true, Taking::LeaseOver));

        let done = line("completed");
        let mut found = done.found(now);
        if let Some(record) = &mut found.record {
            record.expires_at = Some(now.plus(Duration::from_micros(1)));
        }
        assert_eq!(at(&found, &done), Decision::Replay);
        if let Some(record) = &mut found.record {
            record.expires_at = Some(now);
        }
        assert_eq!(at(&found, &done), execute(1, false, Taking::Expired));
    }

    #[test]
    fn a_stored_payload_lets_a_noted_foreign_one_resume() {
        // No backend stores payloads yet, so this line is not in the table.
        let line = decision_table::lines().into_iter().find(|l| l.name == "note-pending-over").unwrap();
        let now = Timestamp::from_micros(1_000_000_000_000);
        let found = Found { payload: Payload::Stored, ..line.found(now) };
        let policy = Policy { on_unknown: OnUnknown::Retry, ..line.policy() };
        let verdict = decide(&found, &line.request(), &policy, now).unwrap();
        assert_eq!(verdict.decision, execute(2, true, Taking::PendingLeaseOver));
        assert!(verdict.payload_differs);
    }

    #[test]
    fn a_held_record_says_when_the_next_probe_is_due() {
        let line = decision_table::lines().into_iter().find(|l| l.name == "pending-over-reconcile").unwrap();
        let now = Timestamp::from_micros(1_000_000_000_000);
        let mut found = line.found(now);
        if let Some(record) = &mut found.record {
            record.next_probe_at = Some(now.plus(Duration::from_secs(4)));
        }
        let verdict = decide(&found, &line.request(), &line.policy(), now).unwrap();
        assert_eq!(verdict.decision, Decision::Unknown { retry_after: Duration::from_secs(4) });
    }
}
