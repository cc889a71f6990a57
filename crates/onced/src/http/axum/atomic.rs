//! One delivery in atomic mode: claim, handler and answer in one transaction, with what its end means.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt as _;
use http::response;
use onced_core::failure::{EarlierCall, Effect, On5xx, Rules, Settlement};
use onced_core::record::{Status, StoredResponse};
use tower::{Service, ServiceExt as _};
use uuid::Uuid;

use super::body::{self, Kept};
use super::extract::{Passes, Slot};
use super::layer::{Delivery, Settings};
use crate::guard::{Atomic, Begun, Completed, GuardError, Store, Tries};
use crate::http::outcome;
use crate::http::respond::{self, Instead, Problem, Subject};
use crate::store::keys::Transactional;

/// What became of one run of the handler.
enum Ran {
    Answered(Response),
    /// Rolled back for a reason that passes.
    Again,
}

pub(super) async fn run<S, I>(settings: Arc<Settings<S>>, inner: I, delivery: Delivery) -> Result<Response, Infallible>
where
    S: Store + Transactional,
    S::Tx: 'static,
    I: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    I::Future: Send,
{
    let run = Run { settings, delivery };
    let mut tries = Tries::default();
    loop {
        let begun = run.settings.guard.begin_atomic(&run.delivery.request, run.delivery.wait).await;
        let atomic = match begun.map(|begun| run.decided(begun)) {
            Ok(Ok(atomic)) => atomic,
            Ok(Err(instead)) => {
                run.settings.guard.answered(instead.about.delivery, instead.response.status().as_u16()).await;
                return Ok(instead.response.map(Body::from));
            }
            Err(error) => return Ok(run.unavailable(&error)),
        };
        match run.once(inner.clone(), atomic).await {
            Ran::Answered(response) => return Ok(response),
            Ran::Again if tries.again(true).await => {}
            Ran::Again => return Ok(run.problem(&Problem::StoreUnavailable)),
        }
    }
}

struct Run<S> {
    settings: Arc<Settings<S>>,
    delivery: Delivery,
}

impl<S> Run<S>
where
    S: Store + Transactional,
    S::Tx: 'static,
{
    /// Runs the handler once.
    async fn once<I>(&self, inner: I, atomic: Atomic<S>) -> Ran
    where
        I: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        I::Future: Send,
    {
        let (guard, request) = (&self.settings.guard, &self.delivery.request);
        let (tx, rest) = atomic.lend();
        let slot = Slot::holding(tx);
        let mut given = Request::from_parts(self.delivery.head.clone(), Body::from(self.delivery.body.clone()));
        given.extensions_mut().insert(slot.clone());
        let ran = AssertUnwindSafe(async {
            let Ok(response) = inner.oneshot(given).await;
            let passes = response.extensions().get::<Passes>().is_some();
            let (head, body) = response.into_parts();
            let kept = if passes { None } else { body::kept(body, self.settings.max_response_bytes).await };
            (head, kept, passes)
        });
        let ran = ran.catch_unwind().await;
        // Whoever still has it keeps the transaction open: then nothing of it is committed.
        let tx = slot.take();
        let (head, kept, passes) = match ran {
            Ok(ran) => ran,
            Err(panic) => {
                drop_tx(guard.store(), tx).await;
                drop(rest);
                if let Err(error) = guard.record_failure(request, "the handler panicked", None).await {
                    tracing::error!(%error, "a failed attempt could not be recorded");
                }
                resume_unwind(panic)
            }
        };
        if passes {
            drop_tx(guard.store(), tx).await;
            return Ran::Again;
        }
        let Some(tx) = tx else {
            // The key stays claimed in it for as long as it is kept; then all of it is rolled back.
            self.complain("the handler kept its transaction: nothing is committed");
            return Ran::Answered(self.problem(&Problem::HandlerFailed));
        };
        let Some(Kept { bytes, body }) = kept else {
            self.complain("the handler's answer broke off: nothing is committed");
            drop_tx(guard.store(), Some(tx)).await;
            drop(rest);
            let failed = guard.record_failure(request, "the handler's answer broke off", None).await;
            return Ran::Answered(self.recorded(failed, self.problem(&Problem::HandlerFailed)));
        };
        let stored = self.stored(&head, bytes);
        self.end(rest.back(tx), head, body, stored).await
    }

    /// Ends the attempt by what its answer proves.
    async fn end(&self, atomic: Atomic<S>, head: response::Parts, body: Body, stored: StoredResponse) -> Ran {
        let rules = Rules {
            effect: Effect::SameDatabase,
            final_policy: self.settings.final_policy,
            on_5xx: On5xx::Unknown,
            no_effect: Vec::new(),
        };
        let answer = outcome::answer(&head, &stored);
        let status = head.status;
        let response = Response::from_parts(head, body);
        match rules.settle(&answer, Status::InProgress, EarlierCall::None) {
            Settlement::Complete if status.as_u16() < 400 => {
                let delivery = atomic.delivery();
                match atomic.commit(stored).await {
                    Ok(completed) => Ran::Answered(self.answered(delivery, completed, response).await),
                    Err(error) if error.is_transient() => Ran::Again,
                    Err(error) => {
                        tracing::error!(%error, "the outcome could not be stored: the answer is withheld");
                        Ran::Answered(self.problem(&Problem::StoreUnavailable))
                    }
                }
            }
            Settlement::Complete => Ran::Answered(self.recorded(atomic.refuse(stored).await, response)),
            Settlement::Fail | Settlement::LeavePending => {
                let words = format!("the handler answered {status}");
                Ran::Answered(self.recorded(atomic.fail(&words, Some(stored)).await, response))
            }
        }
    }

    async fn answered(&self, delivery: Option<Uuid>, completed: Completed, mut response: Response) -> Response {
        respond::expires(response.headers_mut(), completed.expires_at);
        self.settings.guard.answered(delivery, response.status().as_u16()).await;
        response
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

    fn decided<P>(&self, begun: Begun<P>) -> Result<P, Box<Instead>> {
        let request = &self.delivery.request;
        respond::decided(begun, &request.scope, &request.key, &request.policy.lease)
    }

    fn stored(&self, head: &response::Parts, bytes: Option<bytes::Bytes>) -> StoredResponse {
        let body_omitted = bytes.is_none();
        StoredResponse { body_omitted, ..outcome::to_store(head, bytes, &self.settings.store_headers) }
    }

    fn complain(&self, words: &'static str) {
        let request = &self.delivery.request;
        tracing::error!(scope = %request.scope, key = request.key.shortened(), "{words}");
    }

    fn unavailable(&self, error: &GuardError) -> Response {
        tracing::error!(%error, "nothing is executed under this key now");
        self.problem(&Problem::StoreUnavailable)
    }

    fn problem(&self, problem: &Problem) -> Response {
        let request = &self.delivery.request;
        let subject = Subject { scope: request.scope.clone(), key: Some(request.key.clone()), expires_at: None };
        respond::problem(problem, Some(&subject), &request.policy.lease).map(Body::from)
    }
}

async fn drop_tx<S: Transactional>(store: &S, tx: Option<S::Tx>) {
    if let Some(tx) = tx
        && let Err(error) = store.rollback(tx).await
    {
        // The connection is given up, and the database rolls back.
        tracing::debug!(%error, "a transaction could not be rolled back in words");
    }
}
