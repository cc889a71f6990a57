//! The guard: takes a request to the store, has the core decide, and hands out the right to execute as a permit that
//! must be spent. Every door of onced goes through here.
//!
//! ```text
//! match guard.begin(&request).await? {
//!     Begun::Execute(permit)          => run, then permit.complete(response).await?,
//!     Begun::Replay { response, .. }  => answer with it,
//!     Begun::InProgress { .. } | Begun::Mismatch { .. } | Begun::Unknown { .. } | Begun::Exhausted { .. } => say so,
//! }
//! ```

mod atomic;
mod begin;
mod cache;
mod delivery_log;
mod heartbeat;
mod known;
mod permit;
mod retry;
mod running;
mod step;
mod wait;
mod work;

use std::time::{Duration, Instant};

use onced_core::decision::{NotUnderstood, Policy};
use onced_core::fingerprint::Fingerprint;
use onced_core::key::{Key, Scope, downstream_key};
use onced_core::record::{LeaseToken, StoredResponse};
use onced_core::time::Timestamp;
use uuid::Uuid;

pub use self::atomic::Atomic;
use self::begin::{Answer, Outcome};
use self::cache::Outcomes;
use self::delivery_log::DeliveryLog;
use self::known::Known;
pub use self::permit::{Completed, EndError, OwnRecord, Permit, Standing, TxPermit};
use self::retry::CLAIM_TIME;
pub use self::retry::Tries;
use self::running::Running;
pub use self::step::{Step, StepPermit};
pub use self::work::Work;
use crate::store::StoreError;
use crate::store::deliveries::{Deliveries, DeliveryLine, LogDeliveries};
use crate::store::keys::{Claim, Keys, Transactional};

/// How often a claim is asked for again whose reply was lost, and how much longer it waits each time.
const LOST_TRIES: u32 = 5;
const LOST_WAIT: Duration = Duration::from_millis(100);

/// A store that a guard can work with on its own.
pub trait Store: Keys + Deliveries + Clone + Send + Sync + 'static {}
impl<S: Keys + Deliveries + Clone + Send + Sync + 'static> Store for S {}

/// One delivery, as the guard sees it.
#[derive(Clone, Debug)]
pub struct Request {
    /// What kind of effect, and for whom.
    pub scope: Scope,
    /// The sender's id, or a derived one.
    pub key: Key,
    /// What identifies the request.
    pub fingerprint: Fingerprint,
    /// What the scope wants.
    pub policy: Policy,
    /// How the owner stays alive.
    pub pace: Pace,
}

impl Request {
    /// A delivery under the default [`Policy`] and [`Pace`].
    pub fn new(scope: Scope, key: Key, fingerprint: Fingerprint) -> Self {
        Self { scope, key, fingerprint, policy: Policy::default(), pace: Pace::default() }
    }
}

/// How an owner stays alive while it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How often the lease is renewed; at most a third of it.
    pub heartbeat: Duration,
    /// After that long the lease is renewed no more.
    pub max_execution: Duration,
}

impl Default for Pace {
    /// Every 10 s, for 15 minutes.
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(10), max_execution: Duration::from_secs(15 * 60) }
    }
}

/// What a delivery came to.
#[derive(Debug)]
pub enum Begun<P> {
    /// It is this caller's to execute.
    Execute(P),
    /// It has an outcome: answer with that.
    Replay {
        /// The stored outcome.
        response: StoredResponse,
        /// What else there is to say.
        about: About,
    },
    /// An attempt is running.
    InProgress {
        /// How long to wait before asking again.
        retry_after: Duration,
        /// What else there is to say.
        about: About,
    },
    /// The key is bound to another request.
    Mismatch {
        /// What else there is to say.
        about: About,
    },
    /// An outside call may or may not have happened.
    Unknown {
        /// How long to wait before asking again.
        retry_after: Duration,
        /// What else there is to say.
        about: About,
    },
    /// No attempts are left and no answer is stored.
    Exhausted {
        /// What else there is to say.
        about: About,
    },
}

impl<P> Begun<P> {
    /// The same with another right to execute.
    pub fn map<Q>(self, of: impl FnOnce(P) -> Q) -> Begun<Q> {
        match self {
            Self::Execute(permit) => Begun::Execute(of(permit)),
            Self::Replay { response, about } => Begun::Replay { response, about },
            Self::InProgress { retry_after, about } => Begun::InProgress { retry_after, about },
            Self::Mismatch { about } => Begun::Mismatch { about },
            Self::Unknown { retry_after, about } => Begun::Unknown { retry_after, about },
            Self::Exhausted { about } => Begun::Exhausted { about },
        }
    }
}

/// What else there is to say about a delivery that did not execute.
#[derive(Clone, Copy, Debug, Default)]
pub struct About {
    /// Its line in the log of deliveries.
    pub delivery: Option<Uuid>,
    /// Until when a retry is safe; `None` where no record is visible.
    pub expires_at: Option<Timestamp>,
}

/// Why nothing was decided. Nothing was executed either.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The store could not be asked.
    #[error("claim failed for scope {scope}, key {key}: {source}")]
    Store {
        /// The scope.
        scope: Scope,
        /// The key, shortened.
        key: String,
        /// What the store said.
        source: StoreError,
    },
    /// The record was written by rules that this version does not know.
    #[error("the record of scope {scope}, key {key} is not understood: {source}")]
    NotUnderstood {
        /// The scope.
        scope: Scope,
        /// The key, shortened.
        key: String,
        /// Which rules.
        source: NotUnderstood,
    },
}

/// What a claim has come to, before anybody is told.
struct Asked {
    claim: Claim,
    /// When it was sent.
    asked_at: Instant,
    outcome: Outcome,
}

/// The guard over one store. Cloning shares it.
#[derive(Clone)]
pub struct Guard<S> {
    store: S,
    log: DeliveryLog,
    known: Known,
    outcomes: Outcomes,
    running: Running,
    observes: bool,
}

impl<S> std::fmt::Debug for Guard<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("observes", &self.observes).finish_non_exhaustive()
    }
}

impl<S: Store> Guard<S> {
    /// A guard over that store. Needs a tokio runtime, for the log of deliveries.
    pub fn new(store: S, log_deliveries: LogDeliveries) -> Self {
        let log = DeliveryLog::start(store.clone(), log_deliveries);
        Self {
            store,
            log,
            known: Known::new(),
            outcomes: Outcomes::new(0),
            running: Running::default(),
            observes: false,
        }
    }

    /// The same guard with so many bytes of memory for outcomes that were lately replayed: [`Guard::begin`] answers with
    /// them without asking the database. Only completed records are kept, as they were read after their commit; each for
    /// a minute at most, never beyond its expiry, and none beyond the opening of a new connection to the database, which
    /// may be another one by then. Zero, as at first: none are kept.
    #[must_use]
    pub fn keeping_outcomes(self, bytes: u64) -> Self {
        Self { outcomes: Outcomes::new(bytes), ..self }
    }

    /// The same guard for a caller that executes whatever is decided: what it would have stopped stands in the log of
    /// deliveries as `observed: replay`, `observed: in-progress` and so on.
    #[must_use]
    pub fn observing(&self) -> Self {
        Self { observes: true, ..self.clone() }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Finds or takes the record of a request, each step committed on its own, and says what the delivery came to.
    ///
    /// # Errors
    /// [`GuardError`] where the store could not be asked or understood: nothing must be executed then.
    ///
    /// # Cancel safety
    /// If the future is dropped, the record may be claimed with nobody to execute it. It is then taken over once its
    /// lease is over, or, where the claim announced an outside call, counts as unknown.
    pub async fn begin(&self, request: &Request) -> Result<Begun<Permit<S>>, GuardError> {
        let asked = self.ask(request).await?;
        Ok(self.tell(request, asked, Instant::now()).await)
    }

    /// Says with which status an executing or answered delivery was answered, for the log of deliveries.
    ///
    /// # Cancel safety
    /// If the future is dropped, the status may be missing from the log.
    pub async fn answered(&self, delivery: Option<Uuid>, status: u16) {
        self.log.answered(delivery, status).await;
    }

    /// Writes what is left of the log of deliveries.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is written all the same, as long as the runtime lives.
    pub async fn close(&self) {
        self.log.flush().await;
    }

    /// Claims, or reads and decides. Nothing is logged but what commits with a claim.
    async fn ask(&self, request: &Request) -> Result<Asked, GuardError> {
        let claim = self.claim(request);
        let mut memory = begin::Memory::default();
        let (mut keys, mut tries, mut lost) = (self.store.clone(), Tries::of_a_claim(), 0);
        if let Some(answer) = self.answered_before(&mut keys, request).await? {
            return Ok(Asked { claim, asked_at: Instant::now(), outcome: Outcome::Answer(answer) });
        }
        // The clock of the lease starts before the claim is sent.
        let mut asked_at = Instant::now();
        let outcome = loop {
            match begin::begin(&mut keys, request, &claim, &mut memory, false).await {
                Ok(outcome) => break outcome,
                // A ledger that takes no writes may still say what has been.
                Err(error) if error.is_refused() => match begin::look(&mut keys, request).await {
                    Ok(Some((_, answer))) if answer.stands_whoever_has_the_lock() => break Outcome::Answer(answer),
                    _ => return Err(describe(request, error)),
                },
                // It may have been committed, so the clock runs on: ask again, and recognise our own token.
                Err(error) if error.is_lost() || lost > 0 && (error.is_unavailable() || error.is_transient()) => {
                    lost += 1;
                    if lost > LOST_TRIES {
                        return Err(describe(request, error));
                    }
                    tokio::time::sleep(LOST_WAIT * lost).await;
                }
                Err(error) if tries.again(error.is_transient()).await => {
                    if lost == 0 {
                        asked_at = Instant::now();
                    }
                }
                Err(error) => return Err(describe(request, error)),
            }
        };
        self.known.note(&request.scope, &request.key);
        Ok(Asked { claim, asked_at, outcome })
    }

    /// The answer to a repetition, from memory or by one read; `None` where it takes a claim to say.
    async fn answered_before(&self, keys: &mut S, request: &Request) -> Result<Option<Answer>, GuardError> {
        if !self.known.has(&request.scope, &request.key) {
            return Ok(None);
        }
        let (asked_at, epoch) = (Instant::now(), keys.epoch());
        if let Some(answer) = self.outcomes.replay(request, epoch) {
            return Ok(Some(answer));
        }
        let (seen, answer) = match begin::look(keys, request).await {
            Ok(Some(found)) => found,
            // It has waited in vain, and a claim would wait for the same.
            Err(error) if error.is_transient() && asked_at.elapsed() >= CLAIM_TIME => {
                return Err(describe(request, error));
            }
            // Any other error is for the claim to meet.
            Ok(None) | Err(_) => return Ok(None),
        };
        if !(answer.stands_whoever_has_the_lock() || keys.a_read_decides() && answer.takes_nothing()) {
            return Ok(None);
        }
        // What was read in a time that is over may have come from another database.
        if answer.is_replay() && keys.epoch() == epoch {
            self.outcomes.keep(request, seen, asked_at, epoch);
        }
        Ok(Some(answer))
    }

    /// The last word about a delivery: its line in the log, and the permit where it executes. `received` is when it was
    /// first decided upon.
    async fn tell(&self, request: &Request, asked: Asked, received: Instant) -> Begun<Permit<S>> {
        let Asked { claim, asked_at, outcome } = asked;
        let permit = |owned| Permit::new(self.store.clone(), self.log.clone(), request, claim.clone(), owned, asked_at);
        self.hand_out(request, &claim, outcome, received, permit).await
    }

    fn claim(&self, request: &Request) -> Claim {
        Claim {
            scope: request.scope.clone(),
            key: request.key.clone(),
            request_hash: *request.fingerprint.hash(),
            hash_version: request.fingerprint.version().to_string(),
            token: new_token(),
            enter: request.policy.enter,
            // Whatever was computed, a claim has a lease that somebody can see.
            lease: request.policy.lease.length.max(request.policy.lease.tick),
            keep: request.policy.retention.keep,
            retry_window: request.policy.retention.retry_window,
            downstream_key: downstream_key(&request.scope, &request.key, "call"),
            delivery: self.log.id_for_execution(),
        }
    }

    async fn hand_out<P>(
        &self,
        request: &Request,
        claim: &Claim,
        outcome: Outcome,
        received: Instant,
        permit: impl FnOnce(begin::Owned) -> P,
    ) -> Begun<P> {
        match outcome {
            Outcome::Execute(owned) => {
                note_other_payload(request, owned.payload_differs);
                Begun::Execute(permit(owned))
            }
            Outcome::Answer(answer) => self.hand_answer(request, claim, answer, received).await,
        }
    }

    async fn hand_answer<P>(&self, request: &Request, claim: &Claim, answer: Answer, received: Instant) -> Begun<P> {
        note_other_payload(request, answer.payload_differs);
        let line = DeliveryLine {
            id: Uuid::now_v7(),
            scope: claim.scope.clone(),
            key: claim.key.clone(),
            age: Duration::ZERO,
            decision: if self.observes { format!("observed: {}", answer.words()) } else { answer.words() },
            answered_status: None,
            request_hash: claim.request_hash,
            attempt: answer.attempt,
        };
        let delivery = self.log.note(line, received).await;
        answer.into_begun(delivery)
    }
}

impl<S: Store + Transactional> Guard<S> {
    /// As [`Guard::begin`], within the caller's transaction: the claim, the caller's writes and the outcome commit or
    /// roll back together. Call it before any savepoint and before the caller's own writes. Where the transaction is
    /// not bounded yet (PostgreSQL: `idle_in_transaction_session_timeout`, `statement_timeout`; MariaDB:
    /// `idle_write_transaction_timeout`), it is bounded by the lease from here on. What [`Atomic::tx`] says of statements
    /// that roll the whole back holds here too.
    ///
    /// # Errors
    /// [`GuardError`] where the store could not be asked or understood: roll back then. Where its source is transient,
    /// the whole transaction may be run again.
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn begin_tx(&self, tx: &mut S::Tx, request: &Request) -> Result<Begun<TxPermit<S>>, GuardError> {
        let (claim, outcome) = self.ask_within(tx, request).await.map_err(|error| describe(request, error))?;
        let permit = |owned| self.tx_permit(request, claim.clone(), owned);
        Ok(self.hand_out(request, &claim, outcome, Instant::now(), permit).await)
    }

    async fn ask_within(&self, tx: &mut S::Tx, request: &Request) -> Result<(Claim, Outcome), begin::Error> {
        let claim = self.claim(request);
        let mut memory = begin::Memory::default();
        let mut keys = self.store.within(tx);
        let look_first = keys.a_read_decides();
        let outcome = begin::begin(&mut keys, request, &claim, &mut memory, look_first).await?;
        Ok((claim, outcome))
    }

    fn tx_permit(&self, request: &Request, claim: Claim, owned: begin::Owned) -> TxPermit<S> {
        TxPermit::new(self.store.clone(), self.log.clone(), request, claim, owned)
    }
}

fn note_other_payload(request: &Request, differs: bool) {
    if differs {
        tracing::warn!(scope = %request.scope, key = request.key.shortened(), "known key, other payload: noted, as the scope says");
    }
}

fn describe(request: &Request, error: begin::Error) -> GuardError {
    let (scope, key) = (request.scope.clone(), request.key.shortened());
    match error {
        begin::Error::Store(source) => GuardError::Store { scope, key, source },
        begin::Error::NotUnderstood(source) => GuardError::NotUnderstood { scope, key, source },
    }
}

fn new_token() -> LeaseToken {
    LeaseToken::from_random(*Uuid::new_v4().as_bytes())
}
