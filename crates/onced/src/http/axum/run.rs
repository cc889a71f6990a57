//! One delivery, whichever way its handler executes: what the handler is given, and the answers that stand in for its own.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, response};
use onced_core::failure::Answer;
use onced_core::record::StoredResponse;
use onced_core::time::Timestamp;
use std::convert::Infallible;
use tower::{Service, ServiceExt as _};
use uuid::Uuid;

use super::body::{self, Kept};
use super::extract::{Passes, Slot};
use super::layer::{Delivery, Mode, Settings};
use super::streamed;
use crate::guard::{Begun, GuardError, Store};
use crate::http::respond::{self, Instead, Problem, Subject};
use crate::http::{headers, outcome};
use crate::store::keys::Transactional;

/// Of an answer that broke off.
pub(super) const BROKE_OFF: &str = "the handler's answer broke off";

/// What a handler came to.
pub(super) enum Came {
    /// An answer, read as far as it is kept.
    Answered {
        answer: Answer,
        response: Response,
        stored: StoredResponse,
    },
    /// The head of an answer without a length, where such a one is passed on as it comes.
    Streams {
        head: response::Parts,
        body: Body,
    },
    /// No answer: its transaction was rolled back for a reason that passes.
    Passes,
    /// An answer that broke off.
    BrokeOff,
    /// Neither answer nor end within the time that it has.
    TookTooLong,
    Panicked(Box<dyn std::any::Any + Send>),
}

/// One delivery under its route's settings.
pub(super) struct Run<S> {
    pub(super) settings: Arc<Settings<S>>,
    pub(super) delivery: Delivery,
    /// Until when it waits for another's outcome.
    waits_until: Instant,
}

impl<S> Run<S>
where
    S: Store + Transactional,
    S::Tx: 'static,
{
    pub(super) fn new(settings: Arc<Settings<S>>, delivery: Delivery) -> Self {
        let waits_until = Instant::now() + delivery.wait;
        Self { settings, delivery, waits_until }
    }

    /// How long it may still wait for another's outcome.
    pub(super) fn wait(&self) -> Duration {
        self.waits_until.saturating_duration_since(Instant::now())
    }

    /// Runs the handler once, with what lies in `slot` for its argument. What takes longer than `limit` is dropped.
    pub(super) async fn handler<I, T: Send + 'static>(&self, inner: I, slot: &Slot<T>, limit: Duration) -> Came
    where
        I: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        I::Future: Send,
    {
        let mut given = Request::from_parts(self.delivery.head.clone(), Body::from(self.delivery.body.clone()));
        given.extensions_mut().insert(slot.clone());
        let ran = async {
            let Ok(response) = inner.oneshot(given).await;
            if response.extensions().get::<Passes>().is_some() {
                return Came::Passes;
            }
            let (mut head, body) = response.into_parts();
            if self.settings.mode == Mode::Leased && streamed::is_stream(&body) {
                return Came::Streams { head, body };
            }
            let Some(Kept { bytes, body }) = body::kept(body, self.settings.max_response_bytes).await else {
                return Came::BrokeOff;
            };
            let stored = self.stored(&head, bytes);
            let answer = outcome::answer(&head, &stored);
            strip(&mut head.headers);
            Came::Answered { answer, response: Response::from_parts(head, body), stored }
        };
        let ran = tokio::time::timeout(limit, AssertUnwindSafe(ran).catch_unwind()).await;
        ran.map_or(Came::TookTooLong, |ran| ran.unwrap_or_else(Came::Panicked))
    }

    pub(super) fn stored(&self, head: &response::Parts, bytes: Option<Bytes>) -> StoredResponse {
        let body_omitted = bytes.is_none();
        StoredResponse { body_omitted, ..outcome::to_store(head, bytes, &self.settings.store_headers) }
    }

    /// The handler's own answer.
    pub(super) async fn answered(
        &self,
        delivery: Option<Uuid>,
        expires_at: Option<Timestamp>,
        mut response: Response,
    ) -> Response {
        respond::expires(response.headers_mut(), expires_at);
        self.settings.guard.answered(delivery, response.status().as_u16()).await;
        response
    }

    /// The right to execute, or what others have made of the key.
    pub(super) fn decided<P>(&self, begun: Begun<P>) -> Result<P, Box<Instead>> {
        let request = &self.delivery.request;
        respond::decided(begun, &request.scope, &request.key, &request.policy.lease)
    }

    /// What a delivery gets that is not the one to execute.
    pub(super) async fn instead(&self, instead: Instead) -> Response {
        self.settings.guard.answered(instead.about.delivery, instead.response.status().as_u16()).await;
        instead.response.map(Body::from)
    }

    pub(super) fn complain(&self, words: &'static str) {
        let request = &self.delivery.request;
        tracing::error!(scope = %request.scope, key = request.key.shortened(), "{words}");
    }

    pub(super) fn unavailable(&self, error: &GuardError) -> Response {
        tracing::error!(%error, "nothing is executed under this key now");
        self.problem(&Problem::StoreUnavailable)
    }

    pub(super) fn problem(&self, problem: &Problem) -> Response {
        let request = &self.delivery.request;
        respond::problem(problem, Some(&self.subject(None)), &request.policy.lease).map(Body::from)
    }

    pub(super) fn subject(&self, expires_at: Option<Timestamp>) -> Subject {
        let request = &self.delivery.request;
        Subject { scope: request.scope.clone(), key: Some(request.key.clone()), expires_at }
    }
}

/// What these say is the record's to say.
pub(super) fn strip(headers: &mut HeaderMap) {
    headers::strip_own(headers);
    headers.remove(respond::REPLAYED);
}

/// Rolls a transaction back that may have gone already.
pub(super) async fn drop_tx<S: Transactional>(store: &S, tx: Option<S::Tx>) {
    if let Some(tx) = tx
        && let Err(error) = store.rollback(tx).await
    {
        // The connection is given up, and the database rolls back.
        tracing::debug!(%error, "a transaction could not be rolled back in words");
    }
}
