//! Steps: work with several outside effects records each as a record of its own, `scope#step`, so that whoever takes the
//! work over goes on after the last recorded one and repeats none.
//!
//! Nobody heeds the lease of a step. Each of its moves commits together with one of the whole's record, by the owner's
//! token: that is its fence. While a step has no outcome, the whole is `pending_external`.

use std::time::Instant;

use onced_core::decision::{Enter, Taking};
use onced_core::key::{Scope, downstream_key};
use onced_core::record::{Status, StoredResponse};

use super::permit::{EndError, Permit, UNAVAILABLE_WAIT, short};
use super::{Store, Tries};
use crate::store::keys::{Basis, Claim, Claimed, InTransaction as _, Keys as _, OwnerMove, ParentMove, Transactional};
use crate::store::{StoreError, StoreErrorKind};

/// The gateway's own call, and the one that [`Permit::external`] announces.
const CALL: &str = "call";

/// What an attempt has begun outside, as far as its permit knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Calls {
    #[default]
    None,
    /// By [`Permit::external`].
    Announced,
    /// By steps, each of which has an outcome.
    Steps,
    /// By steps, the last of which has no outcome yet.
    StepUnfinished,
}

impl Calls {
    /// Why the attempt may not end now.
    pub(super) fn prevents_ending(self) -> Option<&'static str> {
        (self == Self::StepUnfinished)
            .then_some("a step has no outcome yet: complete or fail it first, or drop the permit")
    }

    pub(super) fn has_unknown(self) -> bool {
        matches!(self, Self::Announced | Self::StepUnfinished)
    }

    /// Why no outside call may be announced beside the steps.
    pub(super) fn prevents_external(self) -> Option<&'static str> {
        matches!(self, Self::Steps | Self::StepUnfinished).then_some("work with steps calls outside in steps only")
    }

    fn prevents_step(self) -> Option<&'static str> {
        match self {
            Self::None | Self::Steps => None,
            Self::Announced => Some("this attempt has announced an outside call that is no step"),
            Self::StepUnfinished => Some("the step before this one has no outcome yet"),
        }
    }
}

/// What the beginning of a step came to.
#[derive(Debug)]
pub enum Step<'p, S> {
    /// It is to be executed now.
    Execute(StepPermit<'p, S>),
    /// It has been executed, by this attempt or an earlier one: go on with its answer.
    Recorded(StoredResponse),
}

/// The right to execute one step. Spend it with [`complete`](Self::complete) or [`fail`](Self::fail).
///
/// Dropping it ends nothing: the outcome of the step counts as unknown, and with it that of the whole, once its lease is
/// over.
#[must_use = "a step that is dropped leaves the outcome of the whole unknown"]
#[derive(Debug)]
pub struct StepPermit<'p, S> {
    permit: &'p mut Permit<S>,
    claim: Claim,
    begun: Begun,
}

/// A step whose record is ours.
#[derive(Debug)]
struct Begun {
    attempt: u32,
    downstream_key: Option<String>,
}

/// A move of a step, in one transaction with that of the whole.
enum StepMove {
    Begin,
    End(OwnerMove),
}

/// What a move came to.
enum Came {
    Begun(Begun),
    Recorded(StoredResponse),
    Ended,
    /// The whole is not ours any more.
    Lost,
    /// The whole is pending for a call that is no step.
    OtherCall,
}

impl<S: Store + Transactional> Permit<S> {
    /// Begins the step of that name (1 to 30 of `A-Za-z0-9._/@-`, but not `call`), or says what it has come to. Committed
    /// before this returns; the lease begins anew. One step at a time.
    ///
    /// Where an earlier attempt was cut off in this step, its call may have happened: the next attempt gets here only
    /// where the policy says that it may be repeated under the same
    /// [downstream key](StepPermit::downstream_key).
    ///
    /// # Errors
    /// [`EndError::ClaimLost`]: do not call. [`EndError::Misused`] where the step before has no outcome yet, where
    /// [`external`](Self::external) announced a call that is no step, and where the name is none.
    ///
    /// # Cancel safety
    /// If the future is dropped, the step may have begun: this permit then begins and ends nothing more. Drop it.
    pub async fn step(&mut self, name: &str) -> Result<Step<'_, S>, EndError> {
        let scope = self.step_scope(name)?;
        if let Some(what) = self.calls.prevents_step() {
            return Err(self.misused(what));
        }
        let claim = Claim {
            scope,
            enter: Enter::PendingExternal,
            downstream_key: downstream_key(&self.claim.scope, &self.claim.key, name),
            delivery: None,
            ..self.claim.clone()
        };
        let (before, sent) = (self.calls, Instant::now());
        self.calls = Calls::StepUnfinished;
        let came = self.move_step(&claim, &StepMove::Begin).await;
        self.calls = match &came {
            Ok(Came::Begun(_)) => Calls::StepUnfinished,
            Ok(Came::Recorded(_)) => Calls::Steps,
            // Nothing was written.
            Ok(Came::Ended | Came::Lost | Came::OtherCall) => before,
            // Nobody was called, but the step may stand in the ledger: the work is not complete without it.
            Err(EndError::Store { source, .. }) if source.kind() == StoreErrorKind::Lost => {
                self.owned.was_pending = true;
                Calls::Steps
            }
            Err(_) => before,
        };
        match came? {
            Came::Begun(begun) => {
                self.own_lease.begun_anew(sent);
                Ok(Step::Execute(StepPermit { permit: self, claim, begun }))
            }
            Came::Recorded(response) => Ok(Step::Recorded(response)),
            Came::OtherCall => Err(self.misused("an earlier attempt has announced an outside call that is no step")),
            Came::Lost | Came::Ended => Err(self.claim_lost()),
        }
    }

    fn step_scope(&self, name: &str) -> Result<Scope, EndError> {
        match self.claim.scope.step(name) {
            Ok(scope) if name != CALL => Ok(scope),
            Ok(_) | Err(_) => Err(self.misused("a step is named by 1 to 30 of A-Z a-z 0-9 . _ / @ -, and not `call`")),
        }
    }

    /// Repeated for as long as its failures pass, and where a store cannot be reached, for as long as the lease lasts.
    async fn move_step(&self, step: &Claim, step_move: &StepMove) -> Result<Came, EndError> {
        let mut tries = Tries::default();
        loop {
            match self.move_step_once(step, step_move).await {
                Ok(Came::Lost) => return self.why_lost().await,
                Ok(came) => return Ok(came),
                Err(error) if error.kind() == StoreErrorKind::Lost => match self.read_step(step, step_move).await {
                    Some(came) => return Ok(came),
                    None => return Err(self.store_error(error)),
                },
                Err(error) if error.kind() == StoreErrorKind::Unavailable && self.own_lease.is_good() => {
                    tokio::time::sleep(UNAVAILABLE_WAIT).await;
                }
                Err(error) if tries.again(error.is_transient()).await => {}
                Err(error) => return Err(self.store_error(error)),
            }
        }
    }

    async fn move_step_once(&self, step: &Claim, step_move: &StepMove) -> Result<Came, StoreError> {
        let mut tx = self.store.transaction().await?;
        let came = self.move_step_within(&mut tx, step, step_move).await;
        match came {
            Ok(Came::Begun(_) | Came::Ended) => self.store.commit(tx).await?,
            Err(error) => {
                // What failed may have left nothing to roll back.
                drop(self.store.rollback(tx).await);
                // No commit was sent: nothing can have been committed.
                let was_cut = error.kind() == StoreErrorKind::Lost;
                return Err(if was_cut { error.with_kind(StoreErrorKind::Unavailable) } else { error });
            }
            Ok(Came::Recorded(_) | Came::Lost | Came::OtherCall) => self.store.rollback(tx).await?,
        }
        came
    }

    /// The whole first: its row is the lock and its token the fence.
    async fn move_step_within(&self, tx: &mut S::Tx, step: &Claim, step_move: &StepMove) -> Result<Came, StoreError> {
        let mut keys = self.store.within(tx);
        let Claim { scope, key, token, lease, .. } = &self.claim;
        match step_move {
            StepMove::Begin => {
                let begins = ParentMove::StepBegun { lease: *lease };
                if keys.parent_move(scope, key, token, begins).await?.is_none() {
                    return Ok(Came::Lost);
                }
                take_step(&mut keys, step).await
            }
            StepMove::End(owner_move) => {
                if keys.owner_move(&step.scope, key, token, None, owner_move).await?.is_none() {
                    return Ok(Came::Lost);
                }
                let ended = keys.parent_move(scope, key, token, ParentMove::StepEnded).await?;
                Ok(if ended.is_some() { Came::Ended } else { Came::Lost })
            }
        }
    }

    /// What has become of a move whose reply was lost; `None` where nobody knows.
    async fn read_step(&self, step: &Claim, step_move: &StepMove) -> Option<Came> {
        let mut tries = Tries::default();
        let record = loop {
            match self.store.clone().find(&step.scope, &step.key).await {
                Ok(seen) => break seen?.record,
                Err(error) if tries.again(error.is_transient() || error.kind() == StoreErrorKind::Lost).await => {}
                Err(_) => return None,
            }
        };
        let is_mine = record.lease_token.as_ref() == Some(&step.token);
        match (step_move, record.status) {
            _ if !is_mine => None,
            (StepMove::Begin, Status::PendingExternal) => {
                Some(Came::Begun(Begun { attempt: record.attempt, downstream_key: record.downstream_key }))
            }
            (StepMove::End(OwnerMove::Complete(_)), Status::Completed)
            | (StepMove::End(OwnerMove::Fail { .. }), Status::Failed) => Some(Came::Ended),
            _ => None,
        }
    }

    /// Where the step that an earlier attempt was cut off in has its outcome now, nothing is unknown any more. Where the
    /// record cannot be read, it stays unknown.
    async fn see_whether_all_is_known(&mut self) {
        if self.owned.was_pending
            && let Ok(standing) = self.own_record().standing().await
            && standing.is_mine
            && standing.status == Some(Status::InProgress)
        {
            self.owned.was_pending = false;
        }
    }

    async fn why_lost(&self) -> Result<Came, EndError> {
        let standing = self.own_record().standing().await?;
        let is_pending = standing.is_mine && standing.status == Some(Status::PendingExternal);
        Ok(if is_pending { Came::OtherCall } else { Came::Lost })
    }
}

/// Finds or takes the step's record. Whoever is here has the record of the whole, so nobody else can be.
async fn take_step(keys: &mut impl crate::store::keys::Keys, step: &Claim) -> Result<Came, StoreError> {
    let (claimed, downstream_key) = match keys.find(&step.scope, &step.key).await? {
        None => (keys.claim(step).await?, None),
        Some(seen) => {
            let record = seen.record;
            if record.status == Status::Completed {
                return Ok(Came::Recorded(record.response.unwrap_or_else(|| StoredResponse::bare(204))));
            }
            // After a lost reply.
            if record.status == Status::PendingExternal && record.lease_token.as_ref() == Some(&step.token) {
                let downstream_key = record.downstream_key;
                return Ok(Came::Begun(Begun { attempt: record.attempt, downstream_key }));
            }
            // As a failed one is taken, whatever its lease: who has the whole has its steps.
            let basis = Basis {
                taking: Taking::Failed,
                status: record.status,
                attempt: record.attempt,
                token: record.lease_token,
            };
            (keys.take(step, &basis).await?, record.downstream_key)
        }
    };
    match claimed {
        Claimed::Yes { attempt, .. } => Ok(Came::Begun(Begun { attempt, downstream_key })),
        // Two keys may share a claim lock, and time may be set back.
        Claimed::No | Claimed::LockMissed => {
            Err(StoreError::new(StoreErrorKind::Transient, "begin a step: its record was not free"))
        }
    }
}

impl<S: Store + Transactional> StepPermit<'_, S> {
    /// How often the step has begun, from 1.
    pub fn attempt(&self) -> u32 {
        self.begun.attempt
    }

    /// The key to send along with the step's call: the same for every attempt, and another for every step.
    pub fn downstream_key(&self) -> &str {
        self.begun.downstream_key.as_deref().unwrap_or(&self.claim.downstream_key)
    }

    /// As [`Permit::may_start_call`].
    pub fn may_start_call(&self) -> bool {
        self.permit.may_start_call()
    }

    /// Records the step with its answer: it is not executed again.
    ///
    /// # Errors
    /// [`EndError::ClaimLost`] where somebody took the whole over; [`EndError::Store`] where it is not known to be
    /// recorded.
    ///
    /// # Cancel safety
    /// If the future is dropped, the step may or may not be recorded, and the permit ends nothing more: drop it.
    pub async fn complete(self, response: StoredResponse) -> Result<(), EndError> {
        self.end(OwnerMove::Complete(response)).await
    }

    /// Records that the step's call is known not to have happened, or safe to repeat under the same downstream key: the
    /// step may begin again, in this attempt or the next.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    ///
    /// # Cancel safety
    /// As [`complete`](Self::complete).
    pub async fn fail(self, error: &str) -> Result<(), EndError> {
        self.end(OwnerMove::Fail { error: short(error), response: None }).await
    }

    async fn end(self, owner_move: OwnerMove) -> Result<(), EndError> {
        let permit = self.permit;
        match permit.move_step(&self.claim, &StepMove::End(owner_move)).await? {
            Came::Ended => {
                permit.calls = Calls::Steps;
                permit.see_whether_all_is_known().await;
                Ok(())
            }
            Came::Begun(_) | Came::Recorded(_) | Came::Lost | Came::OtherCall => Err(permit.claim_lost()),
        }
    }
}
