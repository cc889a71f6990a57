//! One delivery in leased mode: the claim is committed, the handler calls outside and writes late, and what its end means
//! is committed with its rows.

use std::convert::Infallible;
use std::panic::resume_unwind;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::response::Parts;
use onced_core::failure::{Answer, EarlierCall, Effect, On5xx, Rules, Settlement};
use onced_core::record::{Status, StoredResponse};
use onced_core::time::Timestamp;
use tokio::time::Instant;
use tower::Service;

use super::extract::Slot;
use super::held::Held;
use super::run::{BROKE_OFF, Came, Run, drop_tx};
use super::streamed::{self, Streamed};
use crate::guard::{EndError, OwnRecord, Permit, Standing, Store, Tries};
use crate::http::outcome;
use crate::http::respond::{self, Problem};
use crate::store::StoreErrorKind;
use crate::store::keys::Transactional;

/// What became of one run of the handler.
enum Ran<S: Transactional> {
    Answered(Response),
    /// An answer whose end is still to come.
    Streams(Streamed<S>),
    /// Its rows were rolled back for a reason that passes, and no call's outcome is lost by running it again.
    Again(Box<Permit<S>>),
}

/// Runs the handler, again where its transaction was rolled back for a reason that passes.
pub(super) async fn run<S, I>(run: Run<S>, inner: I) -> Result<Response, Infallible>
where
    S: Store + Transactional,
    S::Tx: 'static,
    I: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    I::Future: Send,
{
    let begun = run.settings.guard.begin_waiting(&run.delivery.request, run.wait()).await;
    let mut permit = match begun.map(|begun| run.decided(begun)) {
        Ok(Ok(permit)) => permit,
        Ok(Err(instead)) => return Ok(run.instead(*instead).await),
        Err(error) => return Ok(run.unavailable(&error)),
    };
    let mut tries = Tries::default();
    loop {
        permit = match run.leased(inner.clone(), permit).await {
            Ran::Answered(response) => return Ok(response),
            Ran::Streams(streamed) => return Ok(streamed::pass_on(run, streamed)),
            Ran::Again(permit) if tries.again(true).await => *permit,
            Ran::Again(permit) => {
                let failed = permit.fail("the database rolled the handler back again and again", None).await;
                if let Err(error) = failed {
                    tracing::error!(%error, "a failed attempt could not be recorded");
                }
                return Ok(run.problem(&Problem::StoreUnavailable));
            }
        };
    }
}

impl<S> Run<S>
where
    S: Store + Transactional,
    S::Tx: 'static,
{
    async fn leased<I>(&self, inner: I, permit: Permit<S>) -> Ran<S>
    where
        I: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        I::Future: Send,
    {
        let store = self.settings.guard.store();
        let own_record = permit.own_record();
        let slot = Slot::holding(Held::new(store.clone(), permit));
        let until = Instant::now() + self.limit();
        let came = self.handler(inner, &slot, self.limit()).await;
        if let Came::Streams { head, body } = came {
            return Ran::Streams(Streamed { slot, head, body, until });
        }
        let Some(Held { permit, tx, no_effect, .. }) = slot.take() else {
            if let Came::Panicked(panic) = came {
                resume_unwind(panic)
            }
            // Whoever has it goes on; the record is what it makes of it, or runs out with its lease.
            self.complain("the handler kept its right to execute: nothing is ended");
            return Ran::Answered(self.as_it_stands(&own_record).await);
        };
        let is_known = no_effect || !permit.has_unknown_call();
        let why = match came {
            Came::Answered { answer, response, stored } => {
                let answer = Answer { says_no_effect: is_known, ..answer };
                return self.end_leased(permit, tx, &answer, response, stored).await;
            }
            Came::Passes if !permit.has_unknown_call() => {
                drop_tx(store, tx).await;
                return Ran::Again(Box::new(permit));
            }
            Came::Passes => "the handler's rows could not be written, after a call that no step has recorded",
            Came::Panicked(panic) => {
                drop_tx(store, tx).await;
                self.give_up(permit, is_known, "the handler panicked").await;
                resume_unwind(panic)
            }
            Came::Streams { .. } | Came::BrokeOff => BROKE_OFF,
            Came::TookTooLong => "the handler took longer than it may",
        };
        self.complain(why);
        drop_tx(store, tx).await;
        Ran::Answered(self.give_up(permit, is_known, why).await)
    }

    /// Ends the attempt of an answer that has gone out, by what was read of its body: `None` where that is too large to be
    /// kept. Whether the record now says what the client was told.
    pub(super) async fn end_streamed(
        &self,
        slot: &Slot<Held<S>>,
        head: Parts,
        read: Result<Option<Bytes>, &'static str>,
    ) -> bool {
        let Some(Held { permit, tx, no_effect, .. }) = slot.take() else {
            self.complain("the handler kept its right to execute: nothing is ended");
            return false;
        };
        let is_known = no_effect || !permit.has_unknown_call();
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(why) => {
                self.complain(why);
                drop_tx(self.settings.guard.store(), tx).await;
                self.give_up(permit, is_known, why).await;
                return false;
            }
        };
        let stored = self.stored(&head, bytes);
        let answer = Answer { says_no_effect: is_known, ..outcome::answer(&head, &stored) };
        let mut response = Response::from_parts(head, Body::empty());
        response.extensions_mut().insert(HandlersOwn);
        match self.end_leased(permit, tx, &answer, response, stored).await {
            Ran::Answered(response) => response.extensions().get::<HandlersOwn>().is_some(),
            Ran::Streams(_) => false,
            // Its answer has gone out and cannot be taken back: the next attempt writes the rows.
            Ran::Again(permit) => {
                if let Err(error) = permit.fail("the database rolled the handler's rows back", None).await {
                    tracing::error!(%error, "a failed attempt could not be recorded");
                }
                false
            }
        }
    }

    /// After its last renewal a lease lasts once more.
    fn limit(&self) -> Duration {
        let request = &self.delivery.request;
        request.pace.max_execution.saturating_add(request.policy.lease.length)
    }

    /// Without an answer: a failed attempt where it is known that nothing happened outside. Otherwise nothing is written,
    /// and the outcome is unknown once the lease is over.
    async fn give_up(&self, permit: Permit<S>, is_known: bool, why: &str) -> Response {
        if !is_known {
            return self.problem(&Problem::OutcomeUnknown { retry_after: self.delivery.request.policy.lease.length });
        }
        let own_record = permit.own_record();
        match permit.fail(why, None).await {
            Ok(()) => self.problem(&Problem::HandlerFailed),
            Err(error) => self.not_ended(error, &own_record, None).await,
        }
    }

    /// Ends the attempt by what its answer proves.
    async fn end_leased(
        &self,
        permit: Permit<S>,
        tx: Option<S::Tx>,
        answer: &Answer,
        response: Response,
        stored: StoredResponse,
    ) -> Ran<S> {
        let rules = Rules {
            effect: Effect::External,
            final_policy: self.settings.final_policy,
            on_5xx: On5xx::Unknown,
            no_effect: Vec::new(),
        };
        let store = self.settings.guard.store();
        let (own_record, delivery, expires_at) = (permit.own_record(), permit.delivery(), permit.expires_at());
        let ended = match (rules.settle(answer, Status::PendingExternal, EarlierCall::None), tx) {
            (Settlement::Complete, Some(mut tx)) if answer.status < 400 => {
                let completed = match permit.complete_tx(&mut tx, stored).await {
                    Ok(completed) => completed,
                    Err(error) => {
                        drop_tx(store, Some(tx)).await;
                        return self.not_committed(permit, error, &own_record, response).await;
                    }
                };
                match store.commit(tx).await {
                    Ok(()) => Ok(completed.expires_at),
                    Err(source) => {
                        let error = own_record.store_error(source);
                        return self.not_committed(permit, error, &own_record, response).await;
                    }
                }
            }
            (Settlement::Complete, tx) => {
                drop_tx(store, tx).await;
                permit.complete(stored).await.map(|completed| completed.expires_at)
            }
            (Settlement::Fail, tx) => {
                drop_tx(store, tx).await;
                let words = format!("the handler answered {}", answer.status);
                permit.fail(&words, Some(stored)).await.map(|()| expires_at)
            }
            (Settlement::LeavePending, tx) => {
                drop_tx(store, tx).await;
                self.complain("the handler's answer does not say whether its call took effect: the outcome is held");
                Ok(expires_at)
            }
        };
        Ran::Answered(match ended {
            Ok(expires_at) => self.answered(delivery, expires_at, response).await,
            Err(error) => self.not_ended(error, &own_record, Some(response)).await,
        })
    }

    /// Its rows were not committed, or nobody knows: as far as no call is forgotten by it, the handler runs again.
    async fn not_committed(
        &self,
        permit: Permit<S>,
        error: EndError,
        own_record: &OwnRecord<S>,
        response: Response,
    ) -> Ran<S> {
        if error.is_transient() && !permit.has_unknown_call() {
            return Ran::Again(Box::new(permit));
        }
        let refused = matches!(&error, EndError::Store { source, .. } if source.kind() == StoreErrorKind::Refused);
        if !refused {
            return Ran::Answered(self.not_ended(error, own_record, Some(response)).await);
        }
        // The database's words may quote a row.
        self.complain("the database refused to commit what the handler wrote");
        let is_known = !permit.has_unknown_call();
        Ran::Answered(self.give_up(permit, is_known, "the database refused to commit what the handler wrote").await)
    }

    /// The handler's answer goes out only where the record turns out to hold it.
    async fn not_ended(&self, error: EndError, own_record: &OwnRecord<S>, response: Option<Response>) -> Response {
        match &error {
            EndError::Misused { what, .. } => {
                self.complain(what);
                return self
                    .problem(&Problem::OutcomeUnknown { retry_after: self.delivery.request.policy.lease.length });
            }
            EndError::ClaimLost { .. } => self.complain("lost ownership: nothing of this attempt was written"),
            EndError::Store { source, .. } => {
                tracing::error!(kind = ?source.kind(), "the outcome could not be stored: the answer is withheld");
            }
        }
        let Ok(standing) = own_record.standing().await else { return self.problem(&Problem::StoreUnavailable) };
        match (standing.status, response) {
            (Some(Status::Completed), Some(response)) if standing.is_mine => expiring(response, standing.expires_at),
            _ if matches!(error, EndError::Store { .. }) => self.problem(&Problem::StoreUnavailable),
            _ => self.standing(&standing),
        }
    }

    /// What the record says, now that the handler's own answer says nothing of it.
    async fn as_it_stands(&self, own_record: &OwnRecord<S>) -> Response {
        match own_record.standing().await {
            Ok(standing) => self.standing(&standing),
            Err(_) => self.problem(&Problem::StoreUnavailable),
        }
    }

    fn standing(&self, standing: &Standing) -> Response {
        let lease = &self.delivery.request.policy.lease;
        respond::standing(standing, &self.subject(standing.expires_at), lease).map(Body::from)
    }
}

/// Marks the handler's own answer, so that it is known from one that stands in for it.
#[derive(Clone, Copy)]
struct HandlersOwn;

fn expiring(mut response: Response, at: Option<Timestamp>) -> Response {
    respond::expires(response.headers_mut(), at);
    response
}
