//! The gateway: takes each request through key, fingerprint, guard and upstream. What runs under a key runs in a task
//! of its own, so that a client that hangs up stops nothing.

mod body;
mod caller;
mod cors;
mod execute;
mod host;
mod key;
mod observe;
mod passing;
mod prepare;
mod receive;
mod settle;
mod transport;
mod upgrade;
mod upstream;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, Version};
use onced::core::fingerprint::Fingerprint;
use onced::core::key::{Key, Scope};
use onced::guard::{About, Guard, Pace};
use onced::http::respond::{self, Instead, Problem, Subject};
use onced::http::{prefer, request::is_safe};
use onced::store::AnyStore;
use onced_core::lease::Lease;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::body::Read;
pub(crate) use self::body::{AnyBody, BodyError, whole};
use self::caller::{Limits, SharedKeys};
use self::cors::Cors;
use self::passing::Passing;
use self::prepare::{Prepared, prepare};
use self::transport::{Target, Targets};
use crate::config::{Config, Match, Route};

/// What the gateway takes in.
pub(crate) type Incoming = Request<hyper::body::Incoming>;
/// What it gives back.
pub(crate) type Outgoing = Response<AnyBody>;

/// The gateway.
pub(crate) struct Gateway {
    config: Config,
    guard: Guard<AnyStore>,
    targets: Targets,
    limits: Limits,
    cors: Cors,
    shared_keys: SharedKeys,
    /// One for each request with a key that is read, executed or answered. An execution outlives its client, and a client
    /// of HTTP/2 can leave many answers unread, so that the number of clients does not bound it.
    places: Arc<Semaphore>,
    /// One for each of them that may wait for another's outcome: half, so that there is room for others.
    waiting: Semaphore,
    passing: Passing,
    running: TaskTracker,
    stopping: CancellationToken,
    unprotected: AtomicU64,
}

/// A request with all that is needed to execute it, more than once if need be.
pub(crate) struct Delivery {
    pub(crate) route: Route,
    pub(crate) scope: Scope,
    pub(crate) key: Key,
    pub(crate) method: Method,
    pub(crate) uri: http::Uri,
    pub(crate) version: Version,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) received_at: Instant,
}

impl Gateway {
    /// Fails where an upstream cannot be spoken to as its route says.
    pub(crate) fn new(config: Config, guard: Guard<AnyStore>) -> anyhow::Result<Self> {
        let routes = || config.routes.iter().chain(&config.default_route);
        let (targets, limits, cors) = (Targets::new(routes())?, Limits::new(routes()), Cors::new(routes()));
        let (running, unprotected) = (TaskTracker::new(), AtomicU64::new(0));
        let (shared_keys, stopping) = (SharedKeys::default(), CancellationToken::new());
        let most = config.clients.max_connections;
        let (places, waiting) = (Arc::new(Semaphore::new(most)), Semaphore::new(most.div_ceil(2)));
        let passing = Passing::new(&config);
        Ok(Self {
            config,
            guard,
            targets,
            limits,
            cors,
            shared_keys,
            places,
            waiting,
            passing,
            running,
            stopping,
            unprotected,
        })
    }

    pub(crate) fn guard(&self) -> &Guard<AnyStore> {
        &self.guard
    }

    /// Nobody waits for another's outcome any more.
    pub(crate) fn end_waiting(&self) {
        self.stopping.cancel();
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

    /// Answers one request; [`Gateway::handle`] stands around it.
    async fn answer(self: &Arc<Self>, request: Incoming) -> Outgoing {
        let route = match self.config.route_for(request.method(), request.uri().path()) {
            // A tunnel to wherever the client likes is nobody's route.
            _ if request.method() == Method::CONNECT => return self.no_route(),
            Match::Route(route) | Match::Default(route) => route,
            Match::None => return self.no_route(),
        };
        // Every route has one.
        let Some(target) = self.targets.of(route) else { return self.no_route() };
        if is_safe(request.method()) || !route.is_keyed() {
            return self.passing.pass(target, route, request).await;
        }
        let received_at = Instant::now();
        let (parts, mut body) = request.into_parts();
        let mut read = Read::default();
        let (scope, prepared, place) = match self.look_at(route, &parts, &mut body, &mut read).await {
            Ok(found) => found,
            Err((problem, scope)) => {
                if route.observe && !read.is_broken {
                    let rest = body::resumed(read.bytes, body);
                    return observe::pass_refused(target, route, &problem, parts, rest).await;
                }
                return self.refuse(&problem, Some(&subject_of(&scope, None)), &route.lease);
            }
        };
        let (key, fingerprint) = match prepared {
            Prepared::Keyed(key, fingerprint) => (key, fingerprint),
            Prepared::Pass => {
                self.note_unprotected(route);
                return self.passing.pass_whole(target, route, parts, read.bytes, place).await;
            }
        };
        let delivery = Delivery {
            route: route.clone(),
            scope,
            key,
            method: parts.method,
            uri: parts.uri,
            version: parts.version,
            headers: parts.headers,
            body: read.bytes,
            received_at,
        };
        let subject = subject_of(&delivery.scope, Some(&delivery.key));
        let lease = route.lease;
        let (answer, answered) = oneshot::channel();
        let gateway = self.clone();
        let target = target.clone();
        // Whoever reads slowly holds a place for the answer, and whoever has hung up one for the execution.
        let place = Arc::new(place);
        let of_answer = place.clone();
        self.running.spawn(async move {
            let _place = place;
            gateway.deliver(delivery, fingerprint, &target, answer).await;
        });
        match answered.await {
            Ok(response) => response.map(|body| body::holding(body, of_answer)),
            // The task panicked: the record stays as it is, and nobody is told more than that.
            Err(_) => self.refuse(&Problem::StoreUnavailable, Some(&subject), &lease),
        }
    }

    /// What has to be known of a request before its record is looked for; or why it is refused, and in which scope.
    /// What has been read of its body is in `read` either way.
    async fn look_at(
        &self,
        route: &Route,
        parts: &Parts,
        body: &mut hyper::body::Incoming,
        read: &mut Read,
    ) -> Result<(Scope, Prepared, OwnedSemaphorePermit), (Problem, Scope)> {
        let scope = self.admit(route, &parts.headers).map_err(|problem| (problem, route.name.clone()))?;
        let timeout = self.config.clients.body_timeout;
        // What is only watched does not wait.
        let patience = if route.observe { Duration::ZERO } else { timeout };
        let place = tokio::time::timeout(patience, self.places.clone().acquire_owned()).await;
        // It is never closed.
        let Ok(Ok(place)) = place else { return Err((Problem::Busy { retry_after: self.config.tick }, scope)) };
        let reading = async {
            body::read(body, read, route.max_request_bytes, timeout).await?;
            prepare(route, parts, &read.bytes).await
        };
        match reading.await {
            Ok(prepared) => Ok((scope, prepared, place)),
            Err(problem) => Err((problem, scope)),
        }
    }

    /// Until the client has hung up, or the gateway is told to stop: then nobody waits for another's outcome.
    async fn gone(&self, answer: &mut oneshot::Sender<Outgoing>) {
        tokio::select! {
            () = answer.closed() => {}
            () = self.stopping.cancelled() => {}
        }
    }

    /// The scope of a caller that is known and may send now.
    fn admit(&self, route: &Route, headers: &http::HeaderMap) -> Result<Scope, Problem> {
        let scope = caller::scope_of(route, headers)?;
        self.limits.check(route, &scope)?;
        self.shared_keys.look_at(route, headers);
        Ok(scope)
    }

    /// Decides about one delivery, and executes it where it is this one's to execute. Nothing cancels it.
    async fn deliver(
        &self,
        delivery: Delivery,
        fingerprint: Fingerprint,
        target: &Target,
        mut answer: oneshot::Sender<Outgoing>,
    ) {
        tracing::debug!(target: "onced::phase", phase = "received", scope = %delivery.scope, key = delivery.key.shortened());
        let route = &delivery.route;
        let request = onced::guard::Request {
            scope: delivery.scope.clone(),
            key: delivery.key.clone(),
            fingerprint,
            policy: route.policy(),
            pace: Pace { heartbeat: route.heartbeat, max_execution: route.max_execution },
        };
        let guard = if route.observe { self.guard.observing() } else { self.guard.clone() };
        // So many may wait for another's outcome; whoever is beyond that is told at once.
        let waiting = self.waiting.try_acquire();
        let wait = if waiting.is_ok() { longest_wait(&delivery.headers, route) } else { Duration::ZERO };
        let begun = guard.begin_waiting_unless(&request, wait, self.gone(&mut answer)).await;
        drop(waiting);
        let decided = begun.map(|begun| respond::decided(begun, &delivery.scope, &delivery.key, &route.lease));
        let Instead { response, about, decision } = match decided {
            Ok(Ok(permit)) => return execute::execute(delivery, permit, target, answer).await,
            Ok(Err(instead)) => *instead,
            Err(error) => {
                tracing::error!(target: "onced::deliver", %error, "nothing is executed under this key now");
                let subject = subject_of(&delivery.scope, Some(&delivery.key));
                let response = respond::problem(&Problem::StoreUnavailable, Some(&subject), &route.lease);
                Instead { response, about: About::default(), decision: "store-unavailable" }
            }
        };
        let (response, word) = match route.observe {
            true => (observe::pass_on(target, &delivery).await, format!("observed: {decision}")),
            false => (response.map(whole), decision.to_owned()),
        };
        self.guard.answered(about.delivery, response.status().as_u16()).await;
        note(&delivery, &word, 0, response.status().as_u16());
        // The client may have hung up.
        let _ = answer.send(response);
    }

    fn host_invalid(&self) -> Outgoing {
        self.refuse(&Problem::HostInvalid, None, &Lease::new(self.config.tick))
    }

    fn no_route(&self) -> Outgoing {
        self.refuse(&Problem::NoRoute, None, &Lease::new(self.config.tick))
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

/// How long a duplicate waits for the outcome at most; not at all where it is only watched.
fn longest_wait(headers: &http::HeaderMap, route: &Route) -> Duration {
    if route.observe {
        return Duration::ZERO;
    }
    prefer::wait_or(headers, route.wait)
}
