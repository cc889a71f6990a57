//! One transaction that the guard opens itself: the claim, the caller's rows and the outcome commit together or not at
//! all, with the waiting, the retries and the reading of a lost commit that a caller of `begin_tx` has to do alone.

use std::fmt;
use std::time::{Duration, Instant};

use onced_core::record::{Status, StoredResponse};
use uuid::Uuid;

use super::begin::{self, Answer, Outcome, Owned};
use super::retry::random_unit;
use super::running::Mark;
use super::wait::pause;
use super::{Begun, Completed, EndError, Guard, GuardError, Request, Store, Tries, TxPermit, describe};
use crate::store::keys::{Claim, Transactional};
use crate::store::{StoreError, StoreErrorKind};

/// The right to execute in a transaction that the guard has opened.
///
/// Write through [`tx`](Self::tx), then spend it with [`commit`](Self::commit), [`refuse`](Self::refuse) or
/// [`fail`](Self::fail). Dropping it rolls everything back, the claim included: the next delivery executes.
#[must_use = "dropped, it rolls everything back"]
pub struct Atomic<S: Store + Transactional> {
    guard: Guard<S>,
    request: Request,
    tx: S::Tx,
    permit: TxPermit<S>,
    mark: Option<Mark>,
}

/// What is left of an [`Atomic`] whose transaction somebody else holds.
#[cfg(feature = "axum")]
pub(crate) struct WithoutTx<S> {
    guard: Guard<S>,
    request: Request,
    permit: TxPermit<S>,
    mark: Option<Mark>,
}

#[cfg(feature = "axum")]
impl<S: Store + Transactional> WithoutTx<S> {
    pub(crate) fn back(self, tx: S::Tx) -> Atomic<S> {
        let Self { guard, request, permit, mark } = self;
        Atomic { guard, request, tx, permit, mark }
    }
}

impl<S: Store + Transactional> fmt::Debug for Atomic<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Atomic").field("attempt", &self.permit.attempt()).finish_non_exhaustive()
    }
}

/// How an attempt ends whose rows have been rolled back.
enum WithoutRows {
    Complete(StoredResponse),
    Fail { error: String, response: Option<StoredResponse> },
}

impl WithoutRows {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Complete(response) => Some(response.code),
            Self::Fail { response, .. } => response.as_ref().map(|response| response.code),
        }
    }
}

/// How long the locks of a transaction may stay that was refused at its commit: PostgreSQL says so before it lets go.
const LOCKS_GO: Duration = Duration::from_millis(500);

/// What one look came to.
enum Asked<Tx> {
    Mine { tx: Tx, claim: Claim, owned: Owned, mark: Option<Mark> },
    Other { claim: Claim, answer: Answer },
}

impl<S: Store + Transactional> Guard<S> {
    /// As [`Guard::begin_tx`], in a transaction that is opened here. A claim that fails for a reason that passes is run
    /// again; where an attempt is running this waits up to `wait` for it to end and then begins afresh, with neither a
    /// connection nor a transaction held between two looks (see [`Guard::begin_waiting`]).
    ///
    /// Where the backend cannot see a rival's transaction (SQLite), a duplicate of what another process is executing waits
    /// for the write lock, for `busy_timeout` at most, and then comes to [`Begun::InProgress`]; one of what this guard is
    /// executing does so at once.
    ///
    /// # Errors
    /// [`GuardError`] where the store could not be asked or understood: nothing must be executed then.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is claimed.
    pub async fn begin_atomic(&self, request: &Request, wait: Duration) -> Result<Begun<Atomic<S>>, GuardError> {
        let (since, mut looks) = (Instant::now(), 0);
        loop {
            let (claim, answer) = match self.ask_atomic(request).await? {
                Asked::Mine { tx, claim, owned, mark } => {
                    super::note_other_payload(request, owned.payload_differs);
                    let permit = self.tx_permit(request, claim, owned);
                    let (guard, request) = (self.clone(), request.clone());
                    return Ok(Begun::Execute(Atomic { guard, request, tx, permit, mark }));
                }
                Asked::Other { claim, answer } => (claim, answer),
            };
            let left = wait.saturating_sub(since.elapsed());
            if left.is_zero() || !answer.is_in_progress() {
                return Ok(self.hand_answer(request, &claim, answer, since).await);
            }
            tokio::time::sleep(pause(looks, random_unit()).min(left)).await;
            looks += 1;
        }
    }

    /// Records a failed attempt whose transaction has been rolled back, in a transaction of its own: it claims again, and
    /// records only where that comes to [`Begun::Execute`]. Every other answer says what others have made of the key
    /// meanwhile, and nothing was recorded.
    ///
    /// # Errors
    /// [`GuardError`] where the store could not be asked, or its reply was lost: whether it was recorded is not known. Of the
    /// kind [`Refused`](StoreErrorKind::Refused), and nothing recorded, where the answer of an earlier attempt's outside call
    /// is known: the next attempt would call again.
    ///
    /// # Cancel safety
    /// If the future is dropped, the failure is recorded or not; nothing else is changed.
    pub async fn record_failure(
        &self,
        request: &Request,
        error: &str,
        response: Option<StoredResponse>,
    ) -> Result<Begun<Completed>, GuardError> {
        self.record(request, &WithoutRows::Fail { error: error.to_owned(), response }).await
    }

    /// Stores an outcome that has no rows, in a transaction of its own, as [`record_failure`](Self::record_failure) does
    /// a failure: for an attempt that ends in a refusal, and whose transaction has been rolled back.
    ///
    /// # Errors
    /// As [`record_failure`](Self::record_failure).
    ///
    /// # Cancel safety
    /// As [`record_failure`](Self::record_failure).
    pub async fn record_refusal(
        &self,
        request: &Request,
        response: StoredResponse,
    ) -> Result<Begun<Completed>, GuardError> {
        self.record(request, &WithoutRows::Complete(response)).await
    }

    async fn record(&self, request: &Request, ending: &WithoutRows) -> Result<Begun<Completed>, GuardError> {
        let mut tries = Tries::default();
        loop {
            let Atomic { mut tx, permit, mark: _mark, .. } = match self.begin_atomic(request, LOCKS_GO).await? {
                Begun::Execute(atomic) => atomic,
                other @ (Begun::Replay { .. }
                | Begun::InProgress { .. }
                | Begun::Mismatch { .. }
                | Begun::Unknown { .. }
                | Begun::Exhausted { .. }) => return Ok(other.map(|_| Completed { expires_at: None })),
            };
            let (own_record, delivery) = (permit.own_record(), permit.delivery());
            let ended = match ending {
                WithoutRows::Complete(response) => permit.complete(&mut tx, response.clone()).await,
                WithoutRows::Fail { error, response } => permit.fail_until(&mut tx, error, response.clone()).await,
            };
            let wanted = match ending {
                WithoutRows::Complete(_) => Status::Completed,
                WithoutRows::Fail { .. } => Status::Failed,
            };
            match self.close_tx(tx, ended, wanted, &own_record).await {
                Ok(completed) => {
                    if let Some(code) = ending.code() {
                        self.answered(delivery, code).await;
                    }
                    return Ok(Begun::Execute(completed));
                }
                Err(error) if tries.again(error.is_transient()).await => {}
                Err(error) => return Err(of_ending(request, error)),
            }
        }
    }

    /// Commits what was ended, or rolls it back where the ending failed. Where the reply of the commit is lost, the
    /// record tells.
    async fn close_tx(
        &self,
        tx: S::Tx,
        ended: Result<Completed, EndError>,
        wanted: Status,
        own_record: &super::OwnRecord<S>,
    ) -> Result<Completed, EndError> {
        let completed = match ended {
            Ok(completed) => completed,
            Err(error) => {
                // Where this fails the connection is given up, and the database rolls back.
                let _ = self.store.rollback(tx).await;
                return Err(error);
            }
        };
        match self.store.commit(tx).await {
            Ok(()) => Ok(completed),
            Err(lost) if lost.kind() == StoreErrorKind::Lost => {
                // Where it cannot be read either, it is still lost: nobody knows.
                match own_record.standing().await {
                    Ok(standing) if standing.is_mine && standing.status == Some(wanted) => {
                        Ok(Completed { expires_at: standing.expires_at })
                    }
                    Ok(_) | Err(_) => Err(own_record.store_error(lost)),
                }
            }
            Err(error) => Err(own_record.store_error(error)),
        }
    }

    /// One look: a transaction is left open only where the key is ours.
    async fn ask_atomic(&self, request: &Request) -> Result<Asked<S::Tx>, GuardError> {
        let (mut keys, mut tries) = (self.store.clone(), Tries::of_a_claim());
        if let Some(answer) = self.answered_before(&mut keys, request).await? {
            return Ok(Asked::Other { claim: self.claim(request), answer });
        }
        let mut mark = None;
        if keys.a_read_decides() {
            // What needs no writing does not wait for the one writer, and nobody waits for what this process does.
            if let Some(answer) = self.read_answer(&mut keys, request).await? {
                return Ok(Asked::Other { claim: self.claim(request), answer });
            }
            mark = self.running.mark(&request.scope, &request.key);
            if mark.is_none() {
                return self.rival(request);
            }
        }
        loop {
            let mut tx = match self.store.transaction().await {
                Ok(tx) => tx,
                // There is one writer for all, and somebody else has been it for as long as this may wait.
                Err(error) if error.is_transient() && keys.a_read_decides() => {
                    return match self.read_answer(&mut keys, request).await? {
                        Some(answer) => Ok(Asked::Other { claim: self.claim(request), answer }),
                        None => self.rival(request),
                    };
                }
                Err(error) if tries.again(error.is_transient()).await => continue,
                Err(error) => return Err(describe(request, error.into())),
            };
            let asked = self.ask_within(&mut tx, request).await;
            if asked.is_ok() {
                self.known.note(&request.scope, &request.key);
            }
            let asked = match asked {
                Ok((claim, Outcome::Execute(owned))) => return Ok(Asked::Mine { tx, claim, owned, mark }),
                Ok((claim, Outcome::Answer(answer))) => Ok(Asked::Other { claim, answer }),
                Err(error) => Err(error),
            };
            // What was marked on the way (a record that is out of attempts) stays; a look leaves nothing to commit.
            let closed = match asked {
                Ok(_) => self.store.commit(tx).await,
                Err(_) => self.store.rollback(tx).await,
            };
            match (asked, closed) {
                (Ok(asked), Ok(())) => return Ok(asked),
                (Err(error), _) if tries.again(error.is_transient()).await => {}
                (Err(error), _) => return Err(describe(request, error)),
                (Ok(_), Err(error)) if tries.again(error.is_transient()).await => {}
                (Ok(_), Err(error)) => return Err(describe(request, error.into())),
            }
        }
    }
}

impl<S: Store + Transactional> Guard<S> {
    /// What is answered from a read where nothing has to be taken for it.
    async fn read_answer(&self, keys: &mut S, request: &Request) -> Result<Option<Answer>, GuardError> {
        let looked = begin::look(keys, request).await.map_err(|error| describe(request, error))?;
        Ok(looked.map(|(_, answer)| answer).filter(Answer::takes_nothing))
    }

    fn rival(&self, request: &Request) -> Result<Asked<S::Tx>, GuardError> {
        let answer = begin::under_a_rival(request).map_err(|error| describe(request, error))?;
        Ok(Asked::Other { claim: self.claim(request), answer })
    }
}

impl<S: Store + Transactional> Atomic<S> {
    /// The transaction: what is written through it commits with the outcome. Ending it is left to this.
    ///
    /// Let no statement in it roll the whole back where the database offers that (SQLite: `ON CONFLICT ROLLBACK`,
    /// `RAISE(ROLLBACK)`): what is written afterwards would stand alone. [`commit`](Self::commit) then says so, and can undo
    /// nothing of it. After an error of a full disk, write nothing more.
    pub fn tx(&mut self) -> &mut S::Tx {
        &mut self.tx
    }

    #[cfg(feature = "axum")]
    pub(crate) fn lend(self) -> (S::Tx, WithoutTx<S>) {
        let Self { guard, request, tx, permit, mark } = self;
        (tx, WithoutTx { guard, request, permit, mark })
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.permit.attempt()
    }

    /// Whether an earlier attempt was cut off, so that its work may be half done.
    pub fn is_resumed(&self) -> bool {
        self.permit.is_resumed()
    }

    /// As [`Permit::earlier_call_is_unknown`](super::Permit::earlier_call_is_unknown).
    pub fn earlier_call_is_unknown(&self) -> bool {
        self.permit.earlier_call_is_unknown()
    }

    /// As [`Permit::call_answer`](super::Permit::call_answer): go on with it, and complete. Such an attempt cannot
    /// [`fail`](Self::fail).
    pub fn call_answer(&self) -> Option<&StoredResponse> {
        self.permit.call_answer()
    }

    /// The executing delivery's line in the log.
    pub fn delivery(&self) -> Option<Uuid> {
        self.permit.delivery()
    }

    /// Stores the outcome and commits it with the caller's rows. Where the reply of the commit is lost, the record is
    /// read: it tells.
    ///
    /// # Errors
    /// [`EndError::ClaimLost`], and [`EndError::Store`] where nothing was committed. Where its kind is
    /// [`Transient`](StoreErrorKind::Transient) the whole may be run again, from `begin_atomic` on; where it is
    /// [`Lost`](StoreErrorKind::Lost) nobody knows: answer that the sender may come again with the same key. Where it is
    /// [`Refused`](StoreErrorKind::Refused) the ledger is well, and the database does not take these rows: a constraint that
    /// is checked at the commit, or a statement that had failed before. The next attempt meets the same:
    /// [`Guard::record_failure`] or [`Guard::record_refusal`] keeps that.
    ///
    /// # Cancel safety
    /// If the future is dropped, either all of it is committed or nothing.
    pub async fn commit(self, response: StoredResponse) -> Result<Completed, EndError> {
        let Self { guard, mut tx, permit, mark: _mark, .. } = self;
        let own_record = permit.own_record();
        let ended = permit.complete(&mut tx, response).await;
        guard.close_tx(tx, ended, Status::Completed, &own_record).await
    }

    /// Rolls the caller's rows back and stores the answer as the outcome: a refusal that stays one. As
    /// [`Guard::record_refusal`].
    ///
    /// # Errors
    /// As [`Guard::record_refusal`].
    ///
    /// # Cancel safety
    /// As [`Guard::record_refusal`]; the rows are rolled back either way.
    pub async fn refuse(self, response: StoredResponse) -> Result<Begun<Completed>, GuardError> {
        let (guard, request) = self.undone().await;
        guard.record_refusal(&request, response).await
    }

    /// Rolls the caller's rows back and records a failed attempt, which may run again while attempts are left. As
    /// [`Guard::record_failure`].
    ///
    /// # Errors
    /// As [`Guard::record_failure`].
    ///
    /// # Cancel safety
    /// As [`Guard::record_failure`]; the rows are rolled back either way.
    pub async fn fail(self, error: &str, response: Option<StoredResponse>) -> Result<Begun<Completed>, GuardError> {
        let (guard, request) = self.undone().await;
        guard.record_failure(&request, error, response).await
    }

    /// Rolls back; afterwards the key can be claimed anew.
    async fn undone(self) -> (Guard<S>, Request) {
        let Self { guard, request, tx, permit: _, mark } = self;
        if let Err(error) = guard.store.rollback(tx).await {
            // The connection is given up, and the database rolls back.
            tracing::debug!(%error, "a transaction could not be rolled back in words");
        }
        drop(mark);
        (guard, request)
    }
}

fn of_ending(request: &Request, error: EndError) -> GuardError {
    let source = match error {
        EndError::Store { source, .. } => source,
        EndError::ClaimLost { .. } => {
            StoreError::new(StoreErrorKind::Refused, "the claim was lost within its own transaction")
        }
        EndError::Misused { what, .. } => StoreError::new(StoreErrorKind::Refused, what),
    };
    GuardError::Store { scope: request.scope.clone(), key: request.key.shortened(), source }
}
