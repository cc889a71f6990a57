//! Permits: the right to execute, to be spent by exactly one ending.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onced_core::decision::Enter;
use onced_core::key::{Key, Scope};
use onced_core::record::{LeaseToken, Status, StoredResponse};
use onced_core::time::Timestamp;
use uuid::Uuid;

use super::begin::Owned;
use super::delivery_log::DeliveryLog;
use super::heartbeat::{Heartbeat, OwnLease};
use super::step::Calls;
use super::{Request, Store, Tries};
use crate::store::keys::{Claim, Keys, Moved, OwnerMove, Transactional};
use crate::store::{StoreError, StoreErrorKind};

/// How long an ending waits before it asks a store again that could not be reached.
pub(super) const UNAVAILABLE_WAIT: Duration = Duration::from_millis(200);

/// Why an ending was not written.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The record is no longer the caller's: somebody took over, or it has ended. The caller's transaction must roll
    /// back; nothing was written.
    #[error("the claim of scope {scope}, key {key} was lost: attempt {attempt} may write nothing")]
    ClaimLost {
        /// The scope.
        scope: Scope,
        /// The key, shortened.
        key: String,
        /// Whose claim.
        attempt: u32,
    },
    /// The caller is at fault: nothing was asked of the store, and nothing written.
    #[error("scope {scope}, key {key}: {what}")]
    Misused {
        /// The scope.
        scope: Scope,
        /// The key, shortened.
        key: String,
        /// What is out of turn.
        what: &'static str,
    },
    /// The store failed, or its reply was lost and the record does not show the ending.
    #[error("ending attempt {attempt} of scope {scope}, key {key} failed: {source}")]
    Store {
        /// The scope.
        scope: Scope,
        /// The key, shortened.
        key: String,
        /// Whose attempt.
        attempt: u32,
        /// What the store said.
        source: StoreError,
    },
}

impl EndError {
    /// Whether the transaction was rolled back for a reason that passes: the whole may be run again.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Store { source, .. } if source.is_transient())
    }
}

/// An outcome that is stored.
#[derive(Clone, Copy, Debug)]
pub struct Completed {
    /// Until when it is replayed.
    pub expires_at: Option<Timestamp>,
}

/// How the record stands, read by its owner.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Its status; `None` where there is no record any more.
    pub status: Option<Status>,
    /// Whether the last claim is still the caller's.
    pub is_mine: bool,
    /// The stored outcome.
    pub response: Option<StoredResponse>,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
    /// Whether its owner is presumed alive.
    pub lease_is_alive: bool,
    /// How long another delivery would be told to wait.
    pub retry_after: Duration,
}

impl Standing {
    /// The stored outcome. Where the record was completed without a response, there is nothing to say again: a 204.
    pub fn outcome(&self) -> StoredResponse {
        self.response.clone().unwrap_or_else(|| StoredResponse::bare(204))
    }
}

/// The owner's view of its record, which outlives the permit: to read how the record stands after an ending that was
/// not written, or after a call whose outcome is unknown.
#[derive(Clone, Debug)]
pub struct OwnRecord<S> {
    store: S,
    log: DeliveryLog,
    claim: Claim,
    attempt: u32,
    lease: onced_core::lease::Lease,
}

impl<S: Store> OwnRecord<S> {
    /// Reads how the record stands: an application that ends it in its own transaction tells the truth there,
    /// whatever happened to its answer.
    ///
    /// # Errors
    /// Where the store cannot be asked.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn standing(&self) -> Result<Standing, EndError> {
        let mut keys = self.store.clone();
        let mut tries = Tries::default();
        let seen = loop {
            match keys.find(&self.claim.scope, &self.claim.key).await {
                Ok(seen) => break seen,
                Err(error) if tries.again(error.is_transient() || error.kind() == StoreErrorKind::Lost).await => {}
                Err(error) => return Err(store_error(&self.claim, self.attempt, error)),
            }
        };
        let Some(seen) = seen else {
            return Ok(Standing {
                status: None,
                is_mine: false,
                response: None,
                expires_at: None,
                lease_is_alive: false,
                retry_after: self.lease.tick,
            });
        };
        let record = seen.record;
        Ok(Standing {
            lease_is_alive: record.lease_is_alive(seen.now),
            status: Some(record.status),
            is_mine: record.lease_token.as_ref() == Some(&self.claim.token),
            retry_after: self.lease.wait(record.lease_until.unwrap_or(seen.now), seen.now),
            response: record.response,
            expires_at: record.expires_at,
        })
    }

    pub(crate) fn store_error(&self, source: StoreError) -> EndError {
        store_error(&self.claim, self.attempt, source)
    }

    /// Says with which status this delivery was answered, for the log of deliveries.
    ///
    /// # Cancel safety
    /// If the future is dropped, the status may be missing from the log.
    pub async fn answered(&self, status: u16) {
        self.log.answered(self.claim.delivery, status).await;
    }
}

/// The right to execute one attempt, leased: the claim is committed, and renewed for as long as the permit lives.
///
/// Spend it with [`complete`](Self::complete), [`fail`](Self::fail) or [`release`](Self::release). Dropping it ends
/// nothing: the lease runs out, which is right where the outcome of a call is unknown.
#[must_use = "a permit that is dropped leaves its key claimed until the lease is over"]
#[derive(Debug)]
pub struct Permit<S> {
    pub(super) store: S,
    log: DeliveryLog,
    pub(super) claim: Claim,
    pub(super) owned: Owned,
    pub(super) own_lease: Arc<OwnLease>,
    lease: onced_core::lease::Lease,
    from: Option<Status>,
    pub(super) calls: Calls,
    _heartbeat: Heartbeat,
}

impl<S: Store> Permit<S> {
    pub(super) fn new(
        store: S,
        log: DeliveryLog,
        request: &Request,
        claim: Claim,
        owned: Owned,
        asked_at: Instant,
    ) -> Self {
        let own_lease = Arc::new(OwnLease::new(request.policy.lease, asked_at));
        let heartbeat = Heartbeat::start(store.clone(), claim.clone(), own_lease.clone(), request.pace, asked_at);
        // Where the answer of a call is known, it was one that is no step.
        let announced = claim.enter == Enter::PendingExternal || owned.call_answer.is_some();
        let calls = if announced { Calls::Announced } else { Calls::None };
        let lease = request.policy.lease;
        Self { store, log, claim, owned, own_lease, lease, from: None, calls, _heartbeat: heartbeat }
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.owned.attempt
    }

    /// Whether an earlier attempt was cut off, so that its work may be half done.
    pub fn is_resumed(&self) -> bool {
        self.owned.resumed
    }

    /// Whether an earlier attempt's outside call may have happened: then a call of this one that was not even sent
    /// proves nothing. No longer once each step of an earlier attempt has an outcome.
    pub fn earlier_call_is_unknown(&self) -> bool {
        self.owned.was_pending
    }

    /// Whether an outside call may have taken effect whose outcome the record does not hold: then an answer that is no
    /// outcome leaves the whole unknown.
    pub fn has_unknown_call(&self) -> bool {
        self.owned.was_pending || self.calls.has_unknown()
    }

    /// The answer of the outside call, where an earlier attempt or a reconciler recorded it: do not call again.
    pub fn call_answer(&self) -> Option<&StoredResponse> {
        self.owned.call_answer.as_ref()
    }

    /// The fencing token of this attempt.
    pub fn lease_token(&self) -> &LeaseToken {
        &self.claim.token
    }

    /// The key to send along with outside calls: the same for every attempt.
    pub fn downstream_key(&self) -> &str {
        self.owned.downstream_key.as_deref().unwrap_or(&self.claim.downstream_key)
    }

    /// The executing delivery's line in the log.
    pub fn delivery(&self) -> Option<Uuid> {
        self.claim.delivery
    }

    /// Until when a retry of the sender is safe.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.owned.expires_at
    }

    /// Whether an outside call may still be started: a margin of the lease must be left, by this process's own clock.
    /// Ask right before the first byte; where it says no, send nothing and drop the permit.
    pub fn may_start_call(&self) -> bool {
        self.own_lease.may_start_call()
    }

    /// Announces an outside call, committed before the first byte is sent; the lease begins anew. Also where an earlier
    /// attempt has announced one: whoever calls announces first, whatever was before.
    ///
    /// # Errors
    /// [`EndError::ClaimLost`]: do not call. [`EndError::Misused`] beside steps.
    ///
    /// # Cancel safety
    /// If the future is dropped, the announcement may stand: the record then counts as unknown once its lease is over.
    pub async fn external(&mut self) -> Result<(), EndError> {
        if let Some(what) = self.calls.prevents_external() {
            return Err(self.misused(what));
        }
        let sent = Instant::now();
        let lease = self.claim.lease;
        // What was taken over pending stands announced: it stays so, and the lease begins anew.
        let announces = match self.owned.was_pending {
            true => OwnerMove::Renew { lease },
            false => OwnerMove::External { lease },
        };
        self.end(announces).await?;
        self.calls = Calls::Announced;
        self.own_lease.begun_anew(sent);
        Ok(())
    }

    /// Ends the record only from that status. For an owner that decides how to end it by how it stands, while an
    /// application may still be changing it.
    pub fn only_from(mut self, status: Status) -> Self {
        self.from = Some(status);
        self
    }

    /// Stores the outcome and ends the lease, in a transaction of its own.
    ///
    /// # Errors
    /// [`EndError::ClaimLost`] where somebody took over; [`EndError::Store`] where it is not known to be stored;
    /// [`EndError::Misused`] where a step has no outcome.
    ///
    /// # Cancel safety
    /// If the future is dropped, the outcome may or may not be stored. The key stays leased until `lease_until`; a
    /// later delivery then sees one of both, never a second effect.
    pub async fn complete(self, response: StoredResponse) -> Result<Completed, EndError> {
        let moved = self.end(OwnerMove::Complete(response)).await?;
        Ok(Completed { expires_at: moved.expires_at })
    }

    /// Records a failed attempt: known not to have had an effect, or safe to repeat under the same downstream key.
    /// `response` is replayed once attempts are used up. A failure that will never pass is an outcome: complete it.
    ///
    /// # Errors
    /// As [`complete`](Self::complete); [`EndError::Misused`] also where a [`call_answer`](Self::call_answer) is known:
    /// the next attempt would call again. It stays pending, and the next attempt has the same answer.
    ///
    /// # Cancel safety
    /// As [`complete`](Self::complete).
    pub async fn fail(self, error: &str, response: Option<StoredResponse>) -> Result<(), EndError> {
        if let Some(what) = self.owned.prevents_failing() {
            return Err(self.misused(what));
        }
        self.end(OwnerMove::Fail { error: short(error), response }).await.map(|_| ())
    }

    /// Gives the key back as if it had never been claimed: only by a first attempt that has called nobody.
    ///
    /// # Errors
    /// As [`complete`](Self::complete); [`EndError::ClaimLost`] too where the key must stay.
    ///
    /// # Cancel safety
    /// As [`complete`](Self::complete).
    pub async fn release(self) -> Result<(), EndError> {
        self.end(OwnerMove::Release).await.map(|_| ())
    }

    /// The owner's view of the record, to be kept beyond the permit.
    pub fn own_record(&self) -> OwnRecord<S> {
        OwnRecord {
            store: self.store.clone(),
            log: self.log.clone(),
            claim: self.claim.clone(),
            attempt: self.owned.attempt,
            lease: self.lease,
        }
    }

    pub(crate) fn misused(&self, what: &'static str) -> EndError {
        misused(&self.claim, what)
    }

    pub(super) fn claim_lost(&self) -> EndError {
        claim_lost(&self.claim, self.owned.attempt)
    }

    pub(super) fn store_error(&self, source: StoreError) -> EndError {
        store_error(&self.claim, self.owned.attempt, source)
    }

    /// Why the work may not be complete: where it is made of steps, what an earlier attempt began is one of them.
    fn prevents_completing(&self) -> Option<&'static str> {
        (self.calls == Calls::Steps && self.owned.was_pending)
            .then_some("a step that an earlier attempt was cut off in has no outcome yet: begin it again first")
    }

    async fn end(&self, owner_move: OwnerMove) -> Result<Moved, EndError> {
        let completes = matches!(owner_move, OwnerMove::Complete(_));
        let prevents = self.calls.prevents_ending().or_else(|| self.prevents_completing().filter(|_| completes));
        if let Some(what) = prevents {
            return Err(self.misused(what));
        }
        let mut keys = self.store.clone();
        let Claim { scope, key, token, .. } = &self.claim;
        let mut tries = Tries::default();
        loop {
            match keys.owner_move(scope, key, token, self.from, &owner_move).await {
                Ok(Some(moved)) => return Ok(moved),
                Ok(None) => return Err(self.claim_lost()),
                // Whether it was committed is not known. Nothing more is written: the record tells.
                Err(error) if error.kind() == StoreErrorKind::Lost => {
                    return self.read_after_lost_reply(&owner_move, error).await;
                }
                // Nothing was sent: what is known is worth waiting for the store, while the lease lasts.
                Err(error) if error.kind() == StoreErrorKind::Unavailable && self.own_lease.is_good() => {
                    tokio::time::sleep(UNAVAILABLE_WAIT).await;
                }
                Err(error) if tries.again(error.is_transient()).await => {}
                Err(error) => return Err(self.store_error(error)),
            }
        }
    }

    async fn read_after_lost_reply(&self, owner_move: &OwnerMove, lost: StoreError) -> Result<Moved, EndError> {
        // Where it cannot be read either, it is still lost: nobody knows.
        let Ok(standing) = self.own_record().standing().await else { return Err(self.store_error(lost)) };
        let ended = match owner_move {
            OwnerMove::Complete(_) => standing.status == Some(Status::Completed) && standing.is_mine,
            OwnerMove::Fail { .. } => standing.status == Some(Status::Failed) && standing.is_mine,
            OwnerMove::External { .. } => standing.status == Some(Status::PendingExternal) && standing.is_mine,
            OwnerMove::Release => standing.status.is_none(),
            OwnerMove::Renew { .. } => false,
        };
        if ended { Ok(Moved { expires_at: standing.expires_at }) } else { Err(self.store_error(lost)) }
    }
}

impl<S: Store + Transactional> Permit<S> {
    /// Stores the outcome in the caller's transaction, together with the caller's rows: commit it afterwards, and
    /// roll it back on any error.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn complete_tx(&self, tx: &mut S::Tx, response: StoredResponse) -> Result<Completed, EndError> {
        if let Some(what) = self.calls.prevents_ending().or_else(|| self.prevents_completing()) {
            return Err(self.misused(what));
        }
        let mut keys = self.store.within(tx);
        end_within(&mut keys, &self.claim, self.owned.attempt, OwnerMove::Complete(response)).await
    }
}

/// The right to execute within the caller's transaction: claim, rows and outcome commit or roll back together.
///
/// Spend it with [`complete`](Self::complete) or [`fail`](Self::fail), then commit. Where it is dropped, roll back.
#[must_use = "a permit that is dropped leaves its key claimed, should the transaction commit"]
#[derive(Debug)]
pub struct TxPermit<S> {
    record: OwnRecord<S>,
    owned: Owned,
}

impl<S: Store + Transactional> TxPermit<S> {
    pub(super) fn new(store: S, log: DeliveryLog, request: &Request, claim: Claim, owned: Owned) -> Self {
        let record = OwnRecord { store, log, claim, attempt: owned.attempt, lease: request.policy.lease };
        Self { record, owned }
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.owned.attempt
    }

    /// Whether an earlier attempt was cut off, so that its work may be half done.
    pub fn is_resumed(&self) -> bool {
        self.owned.resumed
    }

    /// As [`Permit::earlier_call_is_unknown`].
    pub fn earlier_call_is_unknown(&self) -> bool {
        self.owned.was_pending
    }

    /// As [`Permit::call_answer`]: go on with it, and complete.
    pub fn call_answer(&self) -> Option<&StoredResponse> {
        self.owned.call_answer.as_ref()
    }

    /// The key to send along with outside calls: the same for every attempt.
    pub fn downstream_key(&self) -> &str {
        self.owned.downstream_key.as_deref().unwrap_or(&self.record.claim.downstream_key)
    }

    /// The fencing token of this attempt.
    pub fn lease_token(&self) -> &LeaseToken {
        &self.record.claim.token
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.record.claim.key
    }

    /// The executing delivery's line in the log, once the transaction is committed.
    pub fn delivery(&self) -> Option<Uuid> {
        self.record.claim.delivery
    }

    /// Stores the outcome, in the same transaction as the caller's rows. Commit afterwards.
    ///
    /// # Errors
    /// [`EndError`]: roll back.
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn complete(self, tx: &mut S::Tx, response: StoredResponse) -> Result<Completed, EndError> {
        let mut keys = self.record.store.within(tx);
        end_within(&mut keys, &self.record.claim, self.owned.attempt, OwnerMove::Complete(response)).await
    }

    /// Records a failed attempt in the same transaction, which may run again while attempts are left. `response` is
    /// replayed once they are used up. Commit afterwards.
    ///
    /// Whatever the caller has written commits beside the failure. Where it is not to, work behind a
    /// [`savepoint`](Self::savepoint), or drop the permit, roll the transaction back and use
    /// [`Guard::record_failure`](super::Guard::record_failure).
    ///
    /// # Errors
    /// [`EndError`]: roll back. [`EndError::Misused`] where a [`call_answer`](Self::call_answer) is known.
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn fail(self, tx: &mut S::Tx, error: &str, response: Option<StoredResponse>) -> Result<(), EndError> {
        self.fail_until(tx, error, response).await.map(drop)
    }

    /// As [`fail`](Self::fail); says until when the failure is remembered.
    pub(super) async fn fail_until(
        self,
        tx: &mut S::Tx,
        error: &str,
        response: Option<StoredResponse>,
    ) -> Result<Completed, EndError> {
        self.may_fail()?;
        let mut keys = self.record.store.within(tx);
        let failed = OwnerMove::Fail { error: short(error), response };
        end_within(&mut keys, &self.record.claim, self.owned.attempt, failed).await
    }

    pub(super) fn may_fail(&self) -> Result<(), EndError> {
        match self.owned.prevents_failing() {
            Some(what) => Err(misused(&self.record.claim, what)),
            None => Ok(()),
        }
    }

    pub(super) fn store(&self) -> &S {
        &self.record.store
    }

    pub(super) fn store_error(&self, source: StoreError) -> EndError {
        self.record.store_error(source)
    }

    /// The owner's view of the record, to be read once the transaction has ended: where the reply of its commit was
    /// lost, the record tells.
    pub fn own_record(&self) -> OwnRecord<S> {
        self.record.clone()
    }
}

async fn end_within(
    keys: &mut impl Keys,
    claim: &Claim,
    attempt: u32,
    owner_move: OwnerMove,
) -> Result<Completed, EndError> {
    match keys.owner_move(&claim.scope, &claim.key, &claim.token, None, &owner_move).await {
        Ok(Some(moved)) => Ok(Completed { expires_at: moved.expires_at }),
        Ok(None) => Err(claim_lost(claim, attempt)),
        Err(source) => Err(store_error(claim, attempt, source)),
    }
}

fn store_error(claim: &Claim, attempt: u32, source: StoreError) -> EndError {
    EndError::Store { scope: claim.scope.clone(), key: claim.key.shortened(), attempt, source }
}

fn misused(claim: &Claim, what: &'static str) -> EndError {
    EndError::Misused { scope: claim.scope.clone(), key: claim.key.shortened(), what }
}

fn claim_lost(claim: &Claim, attempt: u32) -> EndError {
    EndError::ClaimLost { scope: claim.scope.clone(), key: claim.key.shortened(), attempt }
}

/// At most 200 characters of an error, without control characters: it goes into a column that people read.
pub(super) fn short(error: &str) -> String {
    error.chars().filter(|c| !c.is_control()).take(200).collect()
}
