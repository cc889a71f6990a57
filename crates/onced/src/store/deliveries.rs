//! The facts about deliveries: what arrived when, and what was decided.

use std::future::Future;
use std::time::Duration;

use onced_core::fingerprint::RequestHash;
use onced_core::key::{Key, Scope};
use onced_core::time::Timestamp;
use uuid::Uuid;

use super::StoreError;

/// Which deliveries are written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogDeliveries {
    /// Every one.
    #[default]
    All,
    /// Those that executed.
    Executed,
    /// None.
    Off,
}

/// One delivery that did not execute.
#[derive(Clone, Debug)]
pub struct DeliveryLine {
    /// A time-ordered id, made when the delivery came in.
    pub id: Uuid,
    /// The scope.
    pub scope: Scope,
    /// The key.
    pub key: Key,
    /// How long ago it came in.
    pub age: Duration,
    /// What was decided: `replay`, `in-progress`, `mismatch`, `unknown`, `exhausted`, with `, payload differs` where
    /// that was only noted.
    pub decision: String,
    /// The status that it was answered with, where there is one.
    pub answered_status: Option<u16>,
    /// The hash of its request.
    pub request_hash: RequestHash,
    /// The record's attempt at that time.
    pub attempt: u32,
}

/// A delivery as it is read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryRead {
    /// When it came in.
    pub received_at: Timestamp,
    /// What was decided.
    pub decision: String,
    /// The status that it was answered with.
    pub answered_status: Option<u16>,
    /// The record's attempt at that time, or its own where it executed.
    pub attempt: u32,
}

/// What was decided about the deliveries of one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeats {
    /// The scope.
    pub scope: String,
    /// Each decision as it is written, and how often; the most frequent first.
    pub decisions: Vec<(String, u64)>,
    /// When the first of the deliveries came in.
    pub first: Timestamp,
    /// When the last did.
    pub last: Timestamp,
    /// The keys that were repeated most where repeats were only observed, at most five, and how often.
    pub keys: Vec<(String, u64)>,
}

impl Repeats {
    /// Gathers rows that are ordered by scope: each is a decision with its first and last time, or a key.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    pub(crate) fn gather(rows: impl Iterator<Item = Result<RepeatsRow, StoreError>>) -> Result<Vec<Self>, StoreError> {
        let mut all: Vec<Self> = Vec::new();
        for row in rows {
            let RepeatsRow { scope, what, count } = row?;
            let at = match all.iter().position(|repeats| repeats.scope == scope) {
                Some(at) => at,
                None => {
                    let (first, last) = (Timestamp::from_micros(i64::MAX), Timestamp::from_micros(i64::MIN));
                    all.push(Self { scope, decisions: Vec::new(), first, last, keys: Vec::new() });
                    all.len() - 1
                }
            };
            let Some(repeats) = all.get_mut(at) else { continue };
            match what {
                Repeated::Decision { decision, first, last } => {
                    repeats.decisions.push((decision, count));
                    repeats.first = repeats.first.min(first);
                    repeats.last = repeats.last.max(last);
                }
                Repeated::Key(key) => repeats.keys.push((key, count)),
            }
        }
        Ok(all)
    }
}

/// A row of the statement behind [`Repeats`].
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) struct RepeatsRow {
    pub(crate) scope: String,
    pub(crate) what: Repeated,
    pub(crate) count: u64,
}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) enum Repeated {
    Decision { decision: String, first: Timestamp, last: Timestamp },
    Key(String),
}

/// The deliveries of a backend.
pub trait Deliveries: Send {
    /// Writes lines, and the statuses with which executing deliveries were answered. May be run again.
    fn log(
        &mut self,
        lines: &[DeliveryLine],
        answered: &[(Uuid, u16)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The first `limit` deliveries of a key, oldest first.
    fn deliveries_of(
        &mut self,
        scope: &Scope,
        key: &Key,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<DeliveryRead>, StoreError>> + Send;

    /// What was decided about the deliveries of the time `since`, or of all that are kept, by scope.
    fn repeats(&mut self, since: Option<Duration>) -> impl Future<Output = Result<Vec<Repeats>, StoreError>> + Send;
}
