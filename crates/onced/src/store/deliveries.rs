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
}
