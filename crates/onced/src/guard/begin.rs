//! Beginning: claim, else read, decide, take; the same steps in a transaction of our own and in the caller's.

use std::time::Duration;

use onced_core::decision::{self, Decision, Execution, NotUnderstood, Taking};
use onced_core::record::{CallAnswer, Found, Lock, Payload, Record, StoredResponse};
use onced_core::time::Timestamp;
use uuid::Uuid;

use super::{About, Begun, Request};
use crate::store::keys::{Basis, Claim, Claimed, Keys, Seen};
use crate::store::{StoreError, StoreErrorKind};

/// How often a record that keeps changing under our eyes is looked at again.
const ROUNDS: u32 = 5;

pub(super) enum Error {
    Store(StoreError),
    NotUnderstood(NotUnderstood),
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Error {
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_transient())
    }

    pub(super) fn is_unavailable(&self) -> bool {
        matches!(self, Self::Store(error) if error.kind() == StoreErrorKind::Unavailable)
    }

    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Store(error) if error.kind() == StoreErrorKind::Refused)
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Store(error) if error.kind() == StoreErrorKind::Lost)
    }
}

pub(super) enum Outcome {
    Execute(Owned),
    Answer(Answer),
}

impl Outcome {
    /// Whether somebody else is at work, as far as is known.
    pub(super) fn is_in_progress(&self) -> bool {
        match self {
            Self::Execute(_) => false,
            Self::Answer(answer) => answer.is_in_progress(),
        }
    }
}

/// The record is ours.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) attempt: u32,
    pub(super) resumed: bool,
    /// An earlier attempt's outside call may have happened.
    pub(super) was_pending: bool,
    pub(super) call_answer: Option<StoredResponse>,
    /// What earlier attempts sent along, where the record says so: its recipe may have been another version's.
    pub(super) downstream_key: Option<String>,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) payload_differs: bool,
}

impl Owned {
    /// Why the attempt may not fail: the next one would not be told of the answer, and call again.
    pub(super) fn prevents_failing(&self) -> Option<&'static str> {
        let is_known = self.call_answer.is_some();
        is_known.then_some("the answer of an earlier outside call is known: go on with it and complete, or end nothing")
    }
}

/// The record is not ours.
pub(super) struct Answer {
    decision: Decision,
    response: Option<StoredResponse>,
    pub(super) attempt: u32,
    pub(super) payload_differs: bool,
    expires_at: Option<Timestamp>,
}

impl Answer {
    /// Whether it may be given without having asked for the claim lock: whatever a rival may be doing, this stays so.
    pub(super) fn stands_whoever_has_the_lock(&self) -> bool {
        matches!(self.decision, Decision::Replay | Decision::Mismatch)
    }

    /// Whether nothing has to be taken for it.
    pub(super) fn takes_nothing(&self) -> bool {
        !matches!(self.decision, Decision::Execute(_) | Decision::GiveUp)
    }

    /// Whether it is the stored outcome.
    pub(super) fn is_replay(&self) -> bool {
        self.decision == Decision::Replay
    }

    /// Whether somebody else is at work, as far as is known.
    pub(super) fn is_in_progress(&self) -> bool {
        matches!(self.decision, Decision::InProgress { .. })
    }

    pub(super) fn words(&self) -> String {
        let word = match self.decision {
            Decision::Replay => "replay",
            Decision::InProgress { .. } => "in-progress",
            Decision::Mismatch => "mismatch",
            Decision::Unknown { .. } => "unknown",
            Decision::Exhausted | Decision::GiveUp => "exhausted",
            Decision::Execute(_) => "execute",
        };
        if self.payload_differs { format!("{word}, payload differs") } else { word.to_owned() }
    }

    pub(super) fn into_begun<P>(self, delivery: Option<Uuid>) -> Begun<P> {
        let about = About { delivery, expires_at: self.expires_at };
        match self.decision {
            Decision::Replay => {
                // An app that completes its record without a response has nothing to say again.
                Begun::Replay { response: self.response.unwrap_or_else(|| StoredResponse::bare(204)), about }
            }
            Decision::InProgress { retry_after } => Begun::InProgress { retry_after, about },
            Decision::Mismatch => Begun::Mismatch { about },
            Decision::Unknown { retry_after } => Begun::Unknown { retry_after, about },
            Decision::Exhausted => Begun::Exhausted { about },
            // A rival kept changing the record until our rounds were used up.
            Decision::Execute(_) | Decision::GiveUp => Begun::InProgress { retry_after: Duration::from_secs(1), about },
        }
    }
}

/// What this claimant has tried, so that after a lost reply it knows its own claim again.
#[derive(Default)]
pub(super) struct Memory {
    tried: Option<Execution>,
}

pub(super) async fn begin<K: Keys>(
    keys: &mut K,
    request: &Request,
    claim: &Claim,
    memory: &mut Memory,
    mut look_first: bool,
) -> Result<Outcome, Error> {
    for _ in 0..ROUNDS {
        let mut lock = Lock::Got;
        if !look_first {
            match keys.claim(claim).await? {
                Claimed::Yes { attempt, expires_at } => return Ok(ours(attempt, expires_at)),
                Claimed::No => {}
                Claimed::LockMissed => lock = Lock::Missed,
            }
        }
        // A statement of its own: only that is sure to see the record which the claim ran into.
        let Some(seen) = keys.find(&request.scope, &request.key).await? else {
            if lock == Lock::Missed {
                return under_a_rival(request).map(Outcome::Answer);
            }
            // Not there yet, or gone in between: claim.
            look_first = false;
            continue;
        };
        look_first = true;
        if let Some(outcome) = recognise(&seen, claim, memory) {
            return Ok(outcome);
        }
        if lock == Lock::Missed && keys.a_read_decides() {
            let answer = of_what_was_seen(request, &seen)?;
            if answer.takes_nothing() {
                return Ok(Outcome::Answer(answer));
            }
        }
        let answer = decide(request, &found(&seen, lock), Some(&seen))?;
        let taken = match answer.decision {
            Decision::Execute(execution) => {
                memory.tried = Some(execution);
                let taken = keys.take(claim, &basis(&seen.record, execution.taking)).await?;
                if let Claimed::Yes { attempt, expires_at } = taken {
                    return Ok(taken_over(&seen, execution, attempt, expires_at, answer.payload_differs));
                }
                taken
            }
            Decision::GiveUp => {
                let why = format!("gave up after {} starts", seen.record.attempt);
                let basis = basis(&seen.record, Taking::LeaseOver);
                match keys.give_up(&request.scope, &request.key, &basis, &why).await? {
                    true => Claimed::No,
                    false => Claimed::LockMissed,
                }
            }
            Decision::Replay
            | Decision::InProgress { .. }
            | Decision::Mismatch
            | Decision::Unknown { .. }
            | Decision::Exhausted => return Ok(Outcome::Answer(answer)),
        };
        if taken == Claimed::LockMissed {
            // What a rival has written is not visible: only a replay or a mismatch may be answered.
            let Some(seen) = keys.find(&request.scope, &request.key).await? else {
                return under_a_rival(request).map(Outcome::Answer);
            };
            return decide(request, &found(&seen, Lock::Missed), Some(&seen)).map(Outcome::Answer);
        }
    }
    under_a_rival(request).map(Outcome::Answer)
}

/// Reads the record and says what a delivery would come to, without taking anything; `None` where there is no record
/// to be seen.
pub(super) async fn look<K: Keys>(keys: &mut K, request: &Request) -> Result<Option<(Seen, Answer)>, Error> {
    match keys.find(&request.scope, &request.key).await? {
        Some(seen) => of_what_was_seen(request, &seen).map(|answer| Some((seen, answer))),
        None => Ok(None),
    }
}

/// What a delivery would come to where the record is as it was seen.
pub(super) fn of_what_was_seen(request: &Request, seen: &Seen) -> Result<Answer, Error> {
    decide(request, &found(seen, Lock::Got), Some(seen))
}

/// What a delivery comes to while somebody else's transaction is open and nothing of it can be seen.
pub(super) fn under_a_rival(request: &Request) -> Result<Answer, Error> {
    decide(request, &Found { lock: Lock::Missed, ..NOTHING }, None)
}

const NOTHING: Found =
    Found { record: None, lock: Lock::Got, call_answer: CallAnswer::NotKnown, payload: Payload::NotStored };

fn found(seen: &Seen, lock: Lock) -> Found {
    let call_answer = if seen.call_answer.is_some() { CallAnswer::Known } else { CallAnswer::NotKnown };
    Found { record: Some(seen.record.clone()), lock, call_answer, payload: Payload::NotStored }
}

fn decide(request: &Request, found: &Found, seen: Option<&Seen>) -> Result<Answer, Error> {
    let now = seen.map_or(Timestamp::from_micros(0), |seen| seen.now);
    let verdict = decision::decide(found, &request.fingerprint, &request.policy, now).map_err(Error::NotUnderstood)?;
    let record = found.record.as_ref();
    Ok(Answer {
        response: record.filter(|_| verdict.decision == Decision::Replay).and_then(|record| record.response.clone()),
        decision: verdict.decision,
        attempt: record.map_or(0, |record| record.attempt),
        payload_differs: verdict.payload_differs,
        expires_at: record.and_then(|record| record.expires_at),
    })
}

// After a lost reply: a record that carries the token we have just made is ours.
fn recognise(seen: &Seen, claim: &Claim, memory: &Memory) -> Option<Outcome> {
    if seen.record.lease_token.as_ref() != Some(&claim.token) || seen.record.status.is_finished() {
        return None;
    }
    let attempt = seen.record.attempt;
    match memory.tried {
        Some(execution) => Some(taken_over(seen, execution, attempt, seen.record.expires_at, false)),
        None => Some(ours(attempt, seen.record.expires_at)),
    }
}

fn ours(attempt: u32, expires_at: Option<Timestamp>) -> Outcome {
    Outcome::Execute(Owned {
        attempt,
        resumed: false,
        was_pending: false,
        call_answer: None,
        downstream_key: None,
        expires_at,
        payload_differs: false,
    })
}

fn taken_over(
    seen: &Seen,
    execution: Execution,
    attempt: u32,
    expires_at: Option<Timestamp>,
    payload_differs: bool,
) -> Outcome {
    Outcome::Execute(Owned {
        attempt,
        resumed: execution.resumed,
        was_pending: execution.taking == Taking::PendingLeaseOver,
        call_answer: seen.call_answer.clone().filter(|_| execution.taking == Taking::PendingLeaseOver),
        // An expired record begins a new life, with a key of its own making.
        downstream_key: seen.record.downstream_key.clone().filter(|_| execution.taking != Taking::Expired),
        expires_at,
        payload_differs,
    })
}

fn basis(record: &Record, taking: Taking) -> Basis {
    Basis { taking, status: record.status, attempt: record.attempt, token: record.lease_token.clone() }
}
