//! The layer: what a route wants, and the way of a request up to its key.

use std::convert::Infallible;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{OriginalUri, Request};
use axum::response::Response;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::HeaderName;
use http::request::Parts;
use onced_core::decision::Policy;
use onced_core::failure::FinalPolicy;
use onced_core::fingerprint::{BodyRecipe, Fingerprint};
use onced_core::key::{Key, KeyError, Scope, key_from_header_lines};
use tower::{Layer, Service, ServiceExt as _};

use super::run::Run;
use super::{atomic, body, leased};
use crate::guard::{Guard, Pace, Store};
use crate::http::respond::{self, Problem, Subject};
use crate::http::{prefer, request};
use crate::store::keys::Transactional;

const IDEMPOTENCY_KEY: &str = "idempotency-key";

type KeyOf = Arc<dyn Fn(&Parts, &Bytes) -> Result<Option<Key>, KeyError> + Send + Sync>;
type TenantOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// Makes layers over one guard. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Onced<S>(Guard<S>);

impl<S: Store + Transactional> Onced<S> {
    /// Layers over that guard.
    pub fn new(guard: Guard<S>) -> Self {
        Self(guard)
    }

    /// A layer for handlers all of whose effects are in the guard's database, written through [`Tx`](super::Tx): the key,
    /// the rows and the answer commit together or not at all. `scope` names the kind of effect; each needs its own.
    ///
    /// The handler runs in a task of its own, so that a client that hangs up stops nothing, and has the time of the
    /// policy's lease, the reading of its answer's body included: what takes longer is dropped and rolled back. Answers
    /// that go on for long belong behind [`leased`](Self::leased). Where it answers 2xx or 3xx
    /// everything is committed. Where it answers otherwise its rows are rolled back: an answer that is final (by default
    /// any 4xx but 401, 403, 407, 408, 425 and 429) is kept and replayed, any other is a failed attempt, and the next
    /// delivery runs the handler again.
    pub fn atomic(&self, scope: Scope) -> OncedLayer<S> {
        self.layer(scope, Mode::Atomic)
    }

    /// A layer for handlers that call outside, through [`Leased`](super::Leased): the claim is committed before the handler
    /// runs, renewed while it does, and no connection is held until it writes. Its rows, its answer and the end of the key
    /// commit together.
    ///
    /// Where it answers 2xx or 3xx, its rows are committed with that answer; where it answers otherwise, they are rolled
    /// back. A final answer (as for [`atomic`](Self::atomic)) is the outcome, whatever was called. Any other is a failed
    /// attempt where nothing was called, where all that was called is recorded in steps, or where the handler says
    /// [`no_effect`](super::Leased::no_effect); otherwise the outcome is unknown once the lease is over, and the policy's
    /// `on_unknown` says what then. So it is with a panic too. A duplicate meanwhile gets 409.
    ///
    /// The handler runs in a task of its own, for [`max_execution`](OncedLayer::max_execution) at most. An answer whose length is
    /// known is read whole before it is sent, as far as it is kept. One without a length (a stream of events) goes out as it comes:
    /// it has no `Onced-Key-Expires`, ends once its outcome is stored, and is broken off where it is not stored. A client that
    /// reads slowly holds it up, one that hangs up does not.
    pub fn leased(&self, scope: Scope) -> OncedLayer<S> {
        self.layer(scope, Mode::Leased)
    }

    fn layer(&self, scope: Scope, mode: Mode) -> OncedLayer<S> {
        let header = |head: &Parts, _: &Bytes| {
            key_from_header_lines(head.headers.get_all(IDEMPOTENCY_KEY).iter().map(http::HeaderValue::as_bytes))
        };
        OncedLayer(Arc::new(Settings {
            guard: self.0.clone(),
            mode,
            scope,
            tenant: None,
            key: Arc::new(header),
            key_is_optional: false,
            fingerprint: BodyRecipe::All,
            policy: Policy::default(),
            max_execution: Pace::default().max_execution,
            final_policy: FinalPolicy::Default,
            wait: Duration::ZERO,
            max_request_bytes: 1024 * 1024,
            max_response_bytes: 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            store_headers: Vec::new(),
        }))
    }
}

/// How a handler executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Atomic,
    Leased,
}

/// What a route wants.
#[derive(Clone)]
pub(super) struct Settings<S> {
    pub(super) guard: Guard<S>,
    pub(super) mode: Mode,
    scope: Scope,
    tenant: Option<TenantOf>,
    key: KeyOf,
    key_is_optional: bool,
    fingerprint: BodyRecipe,
    pub(super) policy: Policy,
    max_execution: Duration,
    pub(super) final_policy: FinalPolicy,
    wait: Duration,
    max_request_bytes: u64,
    pub(super) max_response_bytes: usize,
    body_timeout: Duration,
    pub(super) store_headers: Vec<HeaderName>,
}

/// The layer of a route. Made by [`Onced::atomic`], changed by its methods, put on by `.layer(…)`.
#[derive(Clone)]
pub struct OncedLayer<S>(Arc<Settings<S>>);

impl<S> fmt::Debug for OncedLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OncedLayer").field("scope", &self.0.scope).finish_non_exhaustive()
    }
}

impl<S: Clone> OncedLayer<S> {
    fn with(mut self, change: impl FnOnce(&mut Settings<S>)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Whose keys these are: each tenant has its own. A request for which this says `None` gets 401. Without it all
    /// callers share their keys, and can be told each other's answers.
    #[must_use]
    pub fn tenant(self, of: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.tenant = Some(Arc::new(of)))
    }

    /// Where the key comes from, instead of the `Idempotency-Key` header. The body is given decoded.
    #[must_use]
    pub fn key(self, of: impl Fn(&Parts, &Bytes) -> Result<Option<Key>, KeyError> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.key = Arc::new(of))
    }

    /// Lets requests without a key pass to the handler, unprotected and without a `Tx`. Otherwise they get 400.
    #[must_use]
    pub fn key_optional(self) -> Self {
        self.with(|settings| settings.key_is_optional = true)
    }

    /// What of the body tells two requests apart; otherwise all of it, JSON by its values.
    #[must_use]
    pub fn fingerprint(self, recipe: BodyRecipe) -> Self {
        self.with(|settings| settings.fingerprint = recipe)
    }

    /// Lease, retention, attempts, and what another payload means.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        self.with(|settings| settings.policy = policy)
    }

    /// How long a handler in leased mode may run: then its lease is renewed no more, and once that is over the handler is
    /// dropped. Otherwise 15 minutes.
    #[must_use]
    pub fn max_execution(self, time: Duration) -> Self {
        self.with(|settings| settings.max_execution = time)
    }

    /// Which answers are the outcome.
    #[must_use]
    pub fn final_answers(self, policy: FinalPolicy) -> Self {
        self.with(|settings| settings.final_policy = policy)
    }

    /// How long a duplicate of a running request waits for its outcome, where the request does not say so by
    /// `Prefer: wait`; at most a minute. Otherwise it gets 409 at once.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|settings| settings.wait = wait)
    }

    /// The largest request body, in bytes; otherwise 1 MiB. What is larger gets 413.
    #[must_use]
    pub fn max_request_bytes(self, bytes: u64) -> Self {
        self.with(|settings| settings.max_request_bytes = bytes)
    }

    /// The largest answer body that is kept, in bytes; otherwise 1 MiB. What is larger reaches the first caller whole, and
    /// a duplicate gets status and headers with `Onced-Body: omitted`.
    #[must_use]
    pub fn max_response_bytes(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_response_bytes = bytes)
    }

    /// Headers of the answer that are kept beside the usual ones.
    #[must_use]
    pub fn store_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|settings| settings.store_headers = names.into_iter().collect())
    }
}

impl<S, I> Layer<I> for OncedLayer<S> {
    type Service = OncedService<S, I>;

    fn layer(&self, inner: I) -> Self::Service {
        OncedService { settings: self.0.clone(), inner }
    }
}

/// A handler behind a layer.
pub struct OncedService<S, I> {
    settings: Arc<Settings<S>>,
    inner: I,
}

impl<S, I: Clone> Clone for OncedService<S, I> {
    fn clone(&self) -> Self {
        Self { settings: self.settings.clone(), inner: self.inner.clone() }
    }
}

impl<S, I> fmt::Debug for OncedService<S, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OncedService").field("scope", &self.settings.scope).finish_non_exhaustive()
    }
}

impl<S, I> Service<Request> for OncedService<S, I>
where
    S: Store + Transactional,
    S::Tx: 'static,
    I: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    I::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    // The handler is asked each time that it is run.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let Self { settings, inner } = self.clone();
        Box::pin(answer(settings, inner, request))
    }
}

/// A request with all that is needed to run its handler, more than once if need be.
pub(super) struct Delivery {
    pub(super) head: Parts,
    pub(super) body: Bytes,
    pub(super) request: crate::guard::Request,
    pub(super) wait: Duration,
}

async fn answer<S, I>(settings: Arc<Settings<S>>, inner: I, request: Request) -> Result<Response, Infallible>
where
    S: Store + Transactional,
    S::Tx: 'static,
    I: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    I::Future: Send,
{
    if request::is_safe(request.method()) {
        return inner.oneshot(request).await;
    }
    let (head, body) = request.into_parts();
    let Some(scope) = settings.scope_of(&head) else {
        return Ok(settings.refuse(&Problem::CallerUnknown, &settings.scope));
    };
    let read = async {
        let body = body::whole(body, settings.max_request_bytes, settings.body_timeout).await?;
        let key = prepare(&settings, &head, &body).await?;
        Ok((body, key))
    };
    let (body, keyed) = match read.await {
        Ok(read) => read,
        Err(problem) => return Ok(settings.refuse(&problem, &scope)),
    };
    let Some((key, fingerprint)) = keyed else {
        return inner.oneshot(Request::from_parts(head, Body::from(body))).await;
    };
    let heartbeat = Pace::default().heartbeat.min(settings.policy.lease.length / 3);
    let request = crate::guard::Request {
        policy: settings.policy.clone(),
        pace: Pace { heartbeat, max_execution: settings.max_execution },
        ..crate::guard::Request::new(scope, key, fingerprint)
    };
    let wait = prefer::wait_or(&head.headers, settings.wait);
    let delivery = Delivery { head, body, request, wait };
    let (mode, run) = (settings.mode, Run::new(settings, delivery));
    // In a task of its own: a client that hangs up does not stop it.
    let answering = match mode {
        Mode::Atomic => tokio::spawn(atomic::run(run, inner)),
        Mode::Leased => tokio::spawn(leased::run(run, inner)),
    };
    match answering.await {
        Ok(answered) => answered,
        // The handler panicked. What stands around this layer deals with that as with any panic.
        Err(failed) if failed.is_panic() => resume_unwind(failed.into_panic()),
        // Nobody cancels it but a runtime that is shutting down.
        Err(_) => std::future::pending().await,
    }
}

impl<S> Settings<S> {
    fn scope_of(&self, head: &Parts) -> Option<Scope> {
        match &self.tenant {
            None => Some(self.scope.clone()),
            Some(tenant) => Scope::with_tenant(&tenant(head)?, &self.scope).ok(),
        }
    }

    fn refuse(&self, problem: &Problem, scope: &Scope) -> Response {
        let subject = Subject { scope: scope.clone(), key: None, expires_at: None };
        respond::problem(problem, Some(&subject), &self.policy.lease).map(Body::from)
    }
}

/// Key and fingerprint; `None` where a request without a key may pass.
async fn prepare<S: Store>(
    settings: &Arc<Settings<S>>,
    head: &Parts,
    body: &Bytes,
) -> Result<Option<(Key, Fingerprint)>, Problem> {
    if request::is_read_at_once(&head.headers, body) {
        return identify(settings, head, body);
    }
    let (settings, head, body) = (settings.clone(), head.clone(), body.clone());
    let read = tokio::task::spawn_blocking(move || identify(&settings, &head, &body)).await;
    // It panicked: nothing is known about the request, so nothing is executed.
    read.unwrap_or(Err(Problem::StoreUnavailable))
}

fn identify<S>(settings: &Settings<S>, head: &Parts, body: &Bytes) -> Result<Option<(Key, Fingerprint)>, Problem> {
    let (body, coding) = request::decoded(&head.headers, body, settings.max_request_bytes)?;
    let key = match (settings.key)(head, &body).map_err(Problem::KeyInvalid)? {
        Some(key) => key,
        None if settings.key_is_optional => return Ok(None),
        None => return Err(Problem::KeyMissing),
    };
    // A nested router takes its prefix off: what the client sent counts.
    let uri = head.extensions.get::<OriginalUri>().map_or(&head.uri, |original| &original.0);
    let parts = request::parts(head, uri, body, coding);
    Ok(Some((key, Fingerprint::new(parts, settings.fingerprint.clone()))))
}
