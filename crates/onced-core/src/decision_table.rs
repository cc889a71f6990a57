//! Reads `decisions.txt`, the decision table, for the tests that run its lines. Not part of the public promise.

use std::time::Duration;

use bytes::Bytes;

use crate::decision::{Decision, Enter, MismatchPolicy, NotUnderstood, OnUnknown, Policy};
use crate::fingerprint::{BodyRecipe, Fingerprint, RequestParts};
use crate::lease::Lease;
use crate::record::{CallAnswer, Found, LeaseToken, Lock, Payload, Record, Status, StoredResponse};
use crate::retention::Retention;
use crate::time::Timestamp;

const TABLE: &str = include_str!("../decisions.txt");
const SECOND: Duration = Duration::from_secs(1);

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Line {
    /// What the line is called in test output.
    pub name: String,
    status: Option<Status>,
    hash: String,
    mismatch: MismatchPolicy,
    times: String,
    attempt: u32,
    max_attempts: Option<u32>,
    on_unknown: OnUnknown,
    called: String,
    /// Whether the call's answer is recorded as a step.
    pub call_answer: CallAnswer,
    stored: bool,
    enter: Enter,
    /// What must be decided.
    pub expected: Expected,
    /// The record's status afterwards.
    pub after: Status,
}

/// What a line expects, without the waits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Expected {
    Execute { attempt: u32, resumed: bool },
    Replay,
    InProgress,
    Mismatch,
    Unknown,
    Exhausted,
    NotUnderstood,
}

impl Expected {
    /// The decision of the pure function, in these terms. A line speaks of the end: where the function says to give
    /// up, the test does so and decides once more.
    pub fn from_decided(decided: Result<&Decision, &NotUnderstood>) -> Self {
        match decided {
            Ok(Decision::Execute(e)) => Self::Execute { attempt: e.attempt, resumed: e.resumed },
            Ok(Decision::Replay) => Self::Replay,
            Ok(Decision::InProgress { .. }) => Self::InProgress,
            Ok(Decision::Mismatch) => Self::Mismatch,
            Ok(Decision::Unknown { .. }) => Self::Unknown,
            Ok(Decision::Exhausted | Decision::GiveUp) => Self::Exhausted,
            Err(_) => Self::NotUnderstood,
        }
    }
}

impl Line {
    /// What must be decided while a rival's transaction is open: only a replay, a mismatch, or that the record is
    /// not understood may be answered from what is read then.
    pub fn expected_under_rival(&self) -> Expected {
        match &self.expected {
            // Reached only by a change of the record, which a rival forbids.
            _ if self.gives_up() => Expected::InProgress,
            Expected::Replay => Expected::Replay,
            Expected::Mismatch => Expected::Mismatch,
            Expected::NotUnderstood => Expected::NotUnderstood,
            Expected::Execute { .. } | Expected::InProgress | Expected::Unknown | Expected::Exhausted => {
                Expected::InProgress
            }
        }
    }

    /// Whether the record is first marked failed and then decided afresh.
    pub fn gives_up(&self) -> bool {
        self.status == Some(Status::InProgress) && self.after == Status::Failed
    }

    /// The delivery's request.
    pub fn request(&self) -> Fingerprint {
        Fingerprint::new(parts(r#"{"amount":100}"#), BodyRecipe::All)
    }

    /// The scope's policy.
    pub fn policy(&self) -> Policy {
        Policy {
            lease: Lease::new(SECOND * 30),
            retention: Retention::default(),
            max_attempts: self.max_attempts,
            mismatch: self.mismatch,
            on_unknown: self.on_unknown,
            downstream_window: SECOND * 3600,
            enter: self.enter,
        }
    }

    /// What is found, with the claim lock got.
    pub fn found(&self, now: Timestamp) -> Found {
        Found {
            record: self.status.map(|status| self.record(status, now)),
            lock: Lock::Got,
            call_answer: self.call_answer,
            payload: Payload::NotStored,
        }
    }

    fn record(&self, status: Status, now: Timestamp) -> Record {
        let request = match self.hash.as_str() {
            "differs" => Fingerprint::new(parts(r#"{"amount":900}"#), BodyRecipe::All),
            _ => self.request(),
        };
        let version = if self.hash == "unknown" { "99:all".to_owned() } else { request.version().to_string() };
        let expired = self.times.contains("expired");
        let created_at = now.minus(SECOND * 7200);
        Record {
            request_hash: *request.hash(),
            hash_version: version,
            status,
            attempt: self.attempt,
            lease_token: (status != Status::Queued).then(|| LeaseToken::from_random([7; 16])),
            lease_until: match self.times.split('+').next() {
                Some("alive") => Some(now.plus(SECOND * 20)),
                Some("over") => Some(now.minus(SECOND * 5)),
                _ => None,
            },
            response: self.stored.then(|| StoredResponse {
                headers: vec![("content-type".to_owned(), b"application/json".to_vec())],
                body: Some(Bytes::from_static(br#"{"stored":true}"#)),
                ..StoredResponse::bare(if status == Status::Completed { 201 } else { 500 })
            }),
            downstream_key: (self.called != "-").then(|| "onced1_planted".to_owned()),
            called_at: match self.called.as_str() {
                "young" => Some(now.minus(SECOND * 60)),
                "old" => Some(now.minus(SECOND * 4000)),
                _ => None,
            },
            called_until: None,
            probe_count: 0,
            next_probe_at: None,
            held_at: None,
            error: (status == Status::Failed).then(|| "planted failure".to_owned()),
            retry_window: SECOND * 3600,
            created_at,
            updated_at: created_at,
            completed_at: (status == Status::Completed).then_some(created_at),
            expires_at: Some(if expired { now.minus(SECOND * 60) } else { now.plus(SECOND * 86_400) }),
        }
    }
}

fn parts(body: &'static str) -> RequestParts {
    RequestParts {
        method: "POST".to_owned(),
        path: "/charges".to_owned(),
        query: String::new(),
        media_type: "application/json".to_owned(),
        boundary: String::new(),
        coding: String::new(),
        body: Bytes::from_static(body.as_bytes()),
    }
}

/// All lines of the table.
///
/// # Panics
/// Where a line cannot be read: the table is part of the source.
#[allow(clippy::panic)]
pub fn lines() -> Vec<Line> {
    TABLE
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| read(line).unwrap_or_else(|| panic!("decisions.txt: cannot read this line: {line}")))
        .collect()
}

fn read(line: &str) -> Option<Line> {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let [name, status, hash, mismatch, times, attempts, unknown, called, answer, stored, enter, decision, after] =
        cells.as_slice()
    else {
        return None;
    };
    let (attempt, max) = attempts.split_once('/')?;
    let (after, resumed) = match after.split_once(' ') {
        Some((after, "resumed")) => (after, true),
        Some(_) => return None,
        None => (*after, false),
    };
    Some(Line {
        name: (*name).to_owned(),
        status: if *status == "none" { None } else { Some(Status::parse(status)?) },
        hash: (*hash).to_owned(),
        mismatch: match *mismatch {
            "reject" => MismatchPolicy::Reject,
            "note" => MismatchPolicy::Note,
            _ => return None,
        },
        times: (*times).to_owned(),
        attempt: attempt.parse().ok()?,
        max_attempts: if max == "*" { None } else { Some(max.parse().ok()?) },
        on_unknown: match *unknown {
            "retry" => OnUnknown::Retry,
            "reconcile" => OnUnknown::Reconcile,
            "hold" => OnUnknown::Hold,
            _ => return None,
        },
        called: (*called).to_owned(),
        call_answer: if *answer == "known" { CallAnswer::Known } else { CallAnswer::NotKnown },
        stored: *stored == "yes",
        enter: if *enter == "pe" { Enter::PendingExternal } else { Enter::InProgress },
        expected: match decision.split_once(' ').unwrap_or((decision, "")) {
            ("execute", attempt) => Expected::Execute { attempt: attempt.parse().ok()?, resumed },
            ("replay", "") => Expected::Replay,
            ("in-progress", "") => Expected::InProgress,
            ("mismatch", "") => Expected::Mismatch,
            ("unknown", "") => Expected::Unknown,
            ("exhausted", "") => Expected::Exhausted,
            ("not-understood", "") => Expected::NotUnderstood,
            _ => return None,
        },
        after: Status::parse(after)?,
    })
}
