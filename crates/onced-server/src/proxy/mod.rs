//! The gateway: takes each request through key, fingerprint, guard and upstream. What runs under a key runs in a task
//! of its own, so that a client that hangs up stops nothing.

mod body;
mod caller;
mod execute;
mod key;
mod passing;
mod prepare;
mod settle;
mod upstream;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use http::{Method, Request, Response};
use onced::core::fingerprint::Fingerprint;
use onced::core::key::{Key, Scope};
use onced::guard::{Begun, Guard, Pace};
use onced::http::respond::{self, Problem, Subject};
use onced::store::AnyStore;
use onced_core::lease::Lease;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use self::body::{AnyBody, whole};
use self::caller::{Limits, SharedKeys};
use self::prepare::{Prepared, prepare};
use self::upstream::Upstreams;
use crate::config::{Config, Match, Route};

/// What the gateway takes in.
pub(crate) type Incoming = Request<axum::body::Body>;
/// What it gives back.
pub(crate) type Outgoing = Response<AnyBody>;

/// The gateway.
pub(crate) struct Gateway {
    config: Config,
    guard: Guard<AnyStore>,
    upstreams: Upstreams,
    limits: Limits,
    shared_keys: SharedKeys,
    running: TaskTracker,
    unprotected: AtomicU64,
}

/// A request with all that is needed to execute it, more than once if need be.
pub(crate) struct Delivery {
    pub(crate) route: Route,
    pub(crate) scope: Scope,
    pub(crate) key: Key,
    pub(crate) method: Method,
    pub(crate) uri: http::Uri,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) received_at: Instant,
}

impl Gateway {
    pub(crate) fn new(config: Config, guard: Guard<AnyStore>) -> Self {
        let limits = Limits::new(config.routes.iter().chain(&config.default_route));
        let (running, unprotected) = (TaskTracker::new(), AtomicU64::new(0));
        Self {
            config,
            guard,
            upstreams: Upstreams::new(),
            limits,
            shared_keys: SharedKeys::default(),
            running,
            unprotected,
        }
    }

    pub(crate) fn guard(&self) -> &Guard<AnyStore> {
        &self.guard
    }

    /// Returns once nothing is being executed any more.
    pub(crate) async fn finish(&self) {
        self.running.close();
        self.running.wait().await;
    }

    /// Writes what is left of the log of deliveries.
    pub(crate) async fn close(&self) {
        self.guard.close().await;
    }

    /// Answers one request.
    pub(crate) async fn handle(self: &Arc<Self>, request: Incoming) -> Outgoing {
        let route = match self.config.route_for(request.method(), request.uri().path()) {
            Match::Route(route) | Match::Default(route) => route,
            Match::None => return self.refuse(&Problem::NoRoute, None, &Lease::new(self.config.tick)),
        };
        if is_safe(request.method()) || !route.is_keyed() {
            return passing::pass(&self.upstreams, route, request).await;
        }
        let received_at = Instant::now();
        let (parts, body) = request.into_parts();
        let scope = match self.admit(route, &parts.headers) {
            Ok(scope) => scope,
            Err(problem) => return self.refuse(&problem, Some(&subject_of(&route.name, None)), &route.lease),
        };
        let body = match body::read(body, route.max_request_bytes).await {
            Ok(body) => body,
            Err(problem) => return self.refuse(&problem, Some(&subject_of(&scope, None)), &route.lease),
        };
        let (key, fingerprint) = match prepare(route, &parts, &body).await {
            Ok(Prepared::Keyed(key, fingerprint)) => (key, fingerprint),
            Ok(Prepared::Pass) => {
                self.note_unprotected(route);
                return passing::pass_whole(&self.upstreams, route, parts, body).await;
            }
            Err(problem) => return self.refuse(&problem, Some(&subject_of(&scope, None)), &route.lease),
        };
        let delivery = Delivery {
            route: route.clone(),
            scope,
            key,
            method: parts.method,
            uri: parts.uri,
            headers: parts.headers,
            body,
            received_at,
        };
        let subject = subject_of(&delivery.scope, Some(&delivery.key));
        let lease = route.lease;
        let (answer, answered) = oneshot::channel();
        let gateway = self.clone();
        self.running.spawn(async move { gateway.deliver(delivery, fingerprint, answer).await });
        match answered.await {
            Ok(response) => response,
            // The task panicked: the record stays as it is, and nobody is told more than that.
            Err(_) => self.refuse(&Problem::StoreUnavailable, Some(&subject), &lease),
        }
    }

    /// Decides about one delivery, and executes it where it is this one's to execute. Nothing cancels it.
    async fn deliver(&self, delivery: Delivery, fingerprint: Fingerprint, answer: oneshot::Sender<Outgoing>) {
        let scope = &delivery.scope;
        tracing::debug!(target: "onced::phase", phase = "received", %scope, key = delivery.key.shortened());
        let request = onced::guard::Request {
            scope: scope.clone(),
            key: delivery.key.clone(),
            fingerprint,
            policy: delivery.route.policy(),
            pace: Pace { heartbeat: delivery.route.heartbeat, max_execution: delivery.route.max_execution },
        };
        let subject = |expires_at| Subject { scope: scope.clone(), key: Some(delivery.key.clone()), expires_at };
        let (response, about, word) = match self.guard.begin(&request).await {
            Ok(Begun::Execute(permit)) => return execute::execute(delivery, permit, answer).await,
            Ok(Begun::Replay { response, about }) => (respond::replayed(&response, about.expires_at), about, "replay"),
            Ok(Begun::InProgress { retry_after, about }) => {
                let problem = Problem::InProgress { retry_after };
                (
                    respond::problem(&problem, Some(&subject(about.expires_at)), &delivery.route.lease),
                    about,
                    "in-progress",
                )
            }
            Ok(Begun::Mismatch { about }) => {
                let subject = subject(about.expires_at);
                (respond::problem(&Problem::KeyReused, Some(&subject), &delivery.route.lease), about, "mismatch")
            }
            Ok(Begun::Unknown { retry_after, about }) => {
                let problem = Problem::OutcomeUnknown { retry_after };
                (respond::problem(&problem, Some(&subject(about.expires_at)), &delivery.route.lease), about, "unknown")
            }
            Ok(Begun::Exhausted { about }) => {
                let subject = subject(about.expires_at);
                (
                    respond::problem(&Problem::AttemptsExhausted, Some(&subject), &delivery.route.lease),
                    about,
                    "exhausted",
                )
            }
            Err(error) => {
                tracing::error!(target: "onced::deliver", %error, "nothing was executed");
                let _ =
                    answer.send(self.refuse(&Problem::StoreUnavailable, Some(&subject(None)), &delivery.route.lease));
                return;
            }
        };
        self.guard.answered(about.delivery, response.status().as_u16()).await;
        note(&delivery, word, 0, response.status().as_u16());
        // The client may have hung up.
        let _ = answer.send(response.map(whole));
    }

    /// The scope of a caller that is known and may send now.
    fn admit(&self, route: &Route, headers: &http::HeaderMap) -> Result<Scope, Problem> {
        let scope = caller::scope_of(route, headers)?;
        self.limits.check(route, &scope)?;
        self.shared_keys.look_at(route, headers);
        Ok(scope)
    }

    fn refuse(&self, problem: &Problem, subject: Option<&Subject>, lease: &Lease) -> Outgoing {
        let lease = Lease { tick: self.config.tick, ..*lease };
        tracing::info!(target: "onced::deliver", code = problem.code(), "refused");
        respond::problem(problem, subject, &lease).map(whole)
    }

    fn note_unprotected(&self, route: &Route) {
        let count = self.unprotected.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::warn!(target: "onced::deliver", scope = %route.name, count, "forwarded without a key: unprotected");
    }
}

/// One line in the log for each delivery under a key.
fn note(delivery: &Delivery, decision: &str, attempt: u32, status: u16) {
    tracing::info!(
        target: "onced::deliver",
        scope = %delivery.scope,
        key = delivery.key.shortened(),
        decision,
        attempt,
        status,
        millis = u64::try_from(delivery.received_at.elapsed().as_millis()).unwrap_or(u64::MAX),
        "delivery"
    );
}

fn subject_of(scope: &Scope, key: Option<&Key>) -> Subject {
    Subject { scope: scope.clone(), key: key.cloned(), expires_at: None }
}

fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method)
}
