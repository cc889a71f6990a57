//! What is not guarded: safe methods, routes without keys, and requests without a key where the route lets them pass.
//! Streamed through in both directions; no record is read or made.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use onced::http::headers;
use onced::http::respond::{self, Problem, Subject};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::body::{AnyBody, any, holding, whole};
use super::transport::{Answer, Reuse, SendError, Target};
use super::upgrade::{self, Asked};
use super::upstream::head;
use super::{Incoming, Outgoing, is_safe};
use crate::config::{ClientsConfig, Config, Route};
use onced_core::failure::Effect;

/// Passes requests on, so many at a time: each takes a place, until its answer has ended.
pub(super) struct Passing {
    places: Arc<Semaphore>,
    /// How long a request waits for its place.
    patience: Duration,
    tick: Duration,
}

impl Passing {
    pub(super) fn new(config: &Config) -> Self {
        let ClientsConfig { max_passed, body_timeout, .. } = config.clients;
        Self { places: Arc::new(Semaphore::new(max_passed)), patience: body_timeout, tick: config.tick }
    }

    /// Passes a request on as it comes in.
    pub(super) async fn pass(&self, target: &Target, route: &Route, mut request: Incoming) -> Outgoing {
        let asked = upgrade::asked(&mut request);
        let (parts, body) = request.into_parts();
        let Some(place) = self.place().await else { return self.busy(route) };
        send_on(target, route, parts, any(body), asked, Some(place)).await
    }

    /// Passes a request on whose body has been read. The place that was taken for reading it is held for as long as it
    /// waits: so many bodies are in memory at most.
    pub(super) async fn pass_whole(
        &self,
        target: &Target,
        route: &Route,
        parts: Parts,
        body: Bytes,
        reading: OwnedSemaphorePermit,
    ) -> Outgoing {
        let Some(place) = self.place().await else { return self.busy(route) };
        drop(reading);
        send_on(target, route, of_that_body(parts), whole(body), None, Some(place)).await
    }

    /// A place, where one becomes free in time.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        // It is never closed.
        tokio::time::timeout(self.patience, self.places.clone().acquire_owned()).await.ok()?.ok()
    }

    fn busy(&self, route: &Route) -> Outgoing {
        tracing::warn!(target: "onced::pass", scope = %route.name, "as many requests pass unguarded as may be");
        failed(route, &Problem::Busy { retry_after: self.tick })
    }
}

/// Passes a request on that is only watched, and of whose body a part may have been read. Nothing keeps it waiting.
pub(super) async fn pass_watched(target: &Target, route: &Route, parts: Parts, body: AnyBody) -> Outgoing {
    send_on(target, route, parts, body, None, None).await
}

/// As [`pass_watched`], for a body that has been read.
pub(super) async fn pass_watched_whole(target: &Target, route: &Route, parts: Parts, body: Bytes) -> Outgoing {
    pass_watched(target, route, of_that_body(parts), whole(body)).await
}

/// The length that was said is the new body's to say.
fn of_that_body(mut parts: Parts) -> Parts {
    parts.headers.remove(http::header::CONTENT_LENGTH);
    parts
}

async fn send_on(
    target: &Target,
    route: &Route,
    parts: Parts,
    body: AnyBody,
    asked: Option<Asked>,
    place: Option<OwnedSemaphorePermit>,
) -> Outgoing {
    let Some(mut request) = head(&route.upstream, &parts.method, &parts.uri, &parts.headers) else {
        return failed(route, &Problem::NoRoute);
    };
    if let Some(asked) = &asked {
        upgrade::ask(request.headers_mut(), asked);
    }
    let sending = send(target, route, request.map(|()| body));
    let failure = match tokio::time::timeout(route.upstream_timeout, sending).await {
        Ok(Ok(answer)) => return answered(answer, route, asked, place),
        Ok(Err(failure)) => failure,
        Err(_) => Failure::Lost("no answer within the upstream's timeout".to_owned()),
    };
    match failure {
        Failure::NotReached(why) => {
            tracing::warn!(target: "onced::pass", scope = %route.name, why, "the upstream was not reached");
            failed(route, &Problem::UpstreamUnreachable { retry_after: route.lease.tick })
        }
        Failure::Lost(why) => {
            tracing::warn!(target: "onced::pass", scope = %route.name, why, "the upstream was lost");
            failed(route, &Problem::OutcomeLost { retry_after: route.lease.tick })
        }
    }
}

/// The upstream's answer, which holds its place until its body is gone, or until what it has become has ended.
fn answered(
    mut answer: Response<Answer>,
    route: &Route,
    asked: Option<Asked>,
    place: Option<OwnedSemaphorePermit>,
) -> Outgoing {
    let place = Arc::new(place);
    let upgraded = asked.and_then(|asked| upgrade::agreed(asked, &mut answer, route, place.clone()));
    let (mut parts, body) = answer.into_parts();
    headers::strip_hop_by_hop(&mut parts.headers);
    parts.headers.extend(upgraded.unwrap_or_default());
    Response::from_parts(parts, holding(any(body), place))
}

enum Failure {
    NotReached(String),
    Lost(String),
}

/// Sends the request, once. Where a kept connection turns out to have ended before a byte went out, another is opened.
async fn send(target: &Target, route: &Route, request: Request<AnyBody>) -> Result<Response<Answer>, Failure> {
    let mut request = request;
    // A close that crosses what may have an effect must not look like a lost answer.
    let may_reuse = is_safe(request.method()) || !route.is_keyed() || route.effect != Effect::External;
    let mut reuse = if may_reuse { Reuse::Yes } else { Reuse::No };
    loop {
        let opened = target.open(reuse, route.connect_timeout).await;
        let connection = opened.map_err(|unsent| Failure::NotReached(unsent.why))?;
        let was_kept = connection.is_kept();
        match connection.send(request).await {
            Ok(answer) => return Ok(answer),
            Err(SendError::Unsent { request: again, .. }) if was_kept => {
                request = *again;
                reuse = Reuse::No;
            }
            Err(SendError::Unsent { why, .. }) => return Err(Failure::NotReached(why)),
            Err(SendError::Lost { why }) => return Err(Failure::Lost(why)),
        }
    }
}

fn failed(route: &Route, problem: &Problem) -> Outgoing {
    let subject = Subject { scope: route.name.clone(), key: None, expires_at: None };
    respond::problem(problem, Some(&subject), &route.lease).map(whole)
}
