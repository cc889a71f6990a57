//! One delivery in atomic mode: claim, handler and answer in one transaction, with what its end means.

use std::convert::Infallible;
use std::panic::resume_unwind;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use onced_core::failure::{Answer, EarlierCall, Effect, On5xx, Rules, Settlement};
use onced_core::record::{Status, StoredResponse};
use tower::Service;

use super::extract::Slot;
use super::run::{BROKE_OFF, Came, Run, drop_tx};
use crate::guard::{Atomic, Begun, Completed, EndError, GuardError, Store, Tries};
use crate::http::respond::{self, Problem};
use crate::store::StoreErrorKind;
use crate::store::keys::Transactional;

/// What became of one run of the handler.
enum Ran {
    Answered(Response),
    /// Rolled back for a reason that passes.
    Again,
}

/// Runs the handler, again where the database rolled it back for a reason that passes.
pub(super) async fn run<S, I>(run: Run<S>, inner: I) -> Result<Response, Infallible>
where
    S: Store + Transactional,
    S::Tx: 'static,
    I: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    I::Future: Send,
{
    let mut tries = Tries::default();
    loop {
        let begun = run.settings.guard.begin_atomic(&run.delivery.request, run.wait()).await;
        let atomic = match begun.map(|begun| run.decided(begun)) {
            Ok(Ok(atomic)) => atomic,
            Ok(Err(instead)) => return Ok(run.instead(*instead).await),
            Err(error) => return Ok(run.unavailable(&error)),
        };
        match run.atomically(inner.clone(), atomic).await {
            Ran::Answered(response) => return Ok(response),
            Ran::Again if tries.again(true).await => {}
            // It counts: what never passes must not run without end.
            Ran::Again => {
                let failed = run.failed("the database rolled the handler back again and again", None).await;
                return Ok(run.recorded(failed, run.problem(&Problem::StoreUnavailable)));
            }
        }
    }
}

impl<S> Run<S>
where
    S: Store + Transactional,
    S::Tx: 'static,
{
    async fn atomically<I>(&self, inner: I, atomic: Atomic<S>) -> Ran
    where
        I: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        I::Future: Send,
    {
        let store = self.settings.guard.store();
        let (tx, rest) = atomic.lend();
        let slot = Slot::holding(tx);
        // Nobody takes over from a transaction: it has the time of a lease.
        let came = self.handler(inner, &slot, self.delivery.request.policy.lease.length).await;
        // Whoever still has it keeps the transaction open: then nothing of it is committed.
        let tx = slot.take();
        let why = match came {
            Came::Passes => {
                drop_tx(store, tx).await;
                return Ran::Again;
            }
            Came::Answered { answer, response, stored } => match tx {
                Some(tx) => return self.end(rest.back(tx), &answer, response, stored).await,
                None => {
                    // The key stays claimed in it for as long as it is kept; then all of it is rolled back.
                    self.complain("the handler kept its transaction: nothing is committed");
                    return Ran::Answered(self.problem(&Problem::HandlerFailed));
                }
            },
            Came::Panicked(panic) => {
                drop_tx(store, tx).await;
                drop(rest);
                if let Err(error) = self.failed("the handler panicked", None).await {
                    tracing::error!(%error, "a failed attempt could not be recorded");
                }
                resume_unwind(panic)
            }
            // An answer in atomic mode is read to its end.
            Came::Streams { .. } | Came::BrokeOff => BROKE_OFF,
            Came::TookTooLong => "the handler took longer than its lease",
        };
        self.complain(why);
        drop_tx(store, tx).await;
        drop(rest);
        let failed = self.failed(why, None).await;
        Ran::Answered(self.recorded(failed, self.problem(&Problem::HandlerFailed)))
    }

    /// Ends the attempt by what its answer proves.
    async fn end(&self, atomic: Atomic<S>, answer: &Answer, response: Response, stored: StoredResponse) -> Ran {
        let rules = Rules {
            effect: Effect::SameDatabase,
            final_policy: self.settings.final_policy,
            on_5xx: On5xx::Unknown,
            no_effect: Vec::new(),
        };
        let status = response.status();
        match rules.settle(answer, Status::InProgress, EarlierCall::None) {
            Settlement::Complete if status.as_u16() < 400 => self.commit(atomic, response, stored).await,
            Settlement::Complete => Ran::Answered(self.recorded(atomic.refuse(stored).await, response)),
            Settlement::Fail | Settlement::LeavePending => {
                let words = format!("the handler answered {status}");
                Ran::Answered(self.recorded(atomic.fail(&words, Some(stored)).await, response))
            }
        }
    }

    async fn commit(&self, atomic: Atomic<S>, response: Response, stored: StoredResponse) -> Ran {
        let delivery = atomic.delivery();
        let kind = match atomic.commit(stored).await {
            Ok(completed) => {
                return Ran::Answered(self.answered(delivery, completed.expires_at, response).await);
            }
            Err(error) if error.is_transient() => return Ran::Again,
            Err(EndError::Store { source, .. }) => source.kind(),
            // Nobody else can have it: the handler has ended the transaction.
            Err(EndError::ClaimLost { .. } | EndError::Misused { .. }) => StoreErrorKind::Refused,
        };
        // Only the kind: the database's words may quote a row.
        tracing::error!(?kind, "the outcome could not be stored: the answer is withheld");
        if kind != StoreErrorKind::Refused {
            return Ran::Answered(self.problem(&Problem::StoreUnavailable));
        }
        // A constraint that is checked at the end, or a statement whose failure the handler passed over: what it wrote was
        // rolled back by its own doing.
        let failed = self.failed("the database refused to commit what the handler wrote", None).await;
        Ran::Answered(self.recorded(failed, self.problem(&Problem::HandlerFailed)))
    }

    async fn failed(&self, why: &str, response: Option<StoredResponse>) -> Result<Begun<Completed>, GuardError> {
        self.settings.guard.record_failure(&self.delivery.request, why, response).await
    }

    /// The handler's answer where it could be recorded; otherwise what others have made of the key meanwhile.
    fn recorded(&self, recorded: Result<Begun<Completed>, GuardError>, mut response: Response) -> Response {
        match recorded.map(|begun| self.decided(begun)) {
            Ok(Ok(completed)) => {
                respond::expires(response.headers_mut(), completed.expires_at);
                response
            }
            Ok(Err(instead)) => instead.response.map(Body::from),
            Err(error) => self.unavailable(&error),
        }
    }
}
