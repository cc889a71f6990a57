//! What is not guarded: safe methods, routes without keys, and requests without a key where the route lets them pass.
//! Streamed through in both directions; no record is read or made.

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use onced::http::headers;
use onced::http::respond::{self, Problem, Subject};

use super::body::{AnyBody, any, whole};
use super::upstream::{Upstreams, head};
use super::{Incoming, Outgoing};
use crate::config::Route;

/// Passes a request on as it comes in.
pub(super) async fn pass(upstreams: &Upstreams, route: &Route, request: Incoming) -> Outgoing {
    let (parts, body) = request.into_parts();
    forward(upstreams, route, parts, any(body)).await
}

/// Passes a request on whose body has been read.
pub(super) async fn pass_whole(upstreams: &Upstreams, route: &Route, mut parts: Parts, body: Bytes) -> Outgoing {
    parts.headers.remove(http::header::CONTENT_LENGTH);
    forward(upstreams, route, parts, whole(body)).await
}

async fn forward(upstreams: &Upstreams, route: &Route, parts: Parts, body: AnyBody) -> Outgoing {
    let Some(request) = head(&route.upstream, &parts.method, &parts.uri, &parts.headers) else {
        return failed(route, &Problem::NoRoute);
    };
    let sending = upstreams.pass(request.map(|()| body));
    match tokio::time::timeout(route.upstream_timeout, sending).await {
        Ok(Ok(answer)) => {
            let (mut parts, body) = answer.into_parts();
            headers::strip_hop_by_hop(&mut parts.headers);
            Response::from_parts(parts, any(body))
        }
        Ok(Err(error)) if error.is_connect() => {
            tracing::warn!(target: "onced::pass", scope = %route.name, %error, "the upstream was not reached");
            failed(route, &Problem::UpstreamUnreachable { retry_after: route.lease.tick })
        }
        Ok(Err(_)) | Err(_) => {
            tracing::warn!(target: "onced::pass", scope = %route.name, "the upstream was lost");
            failed(route, &Problem::OutcomeLost { retry_after: route.lease.tick })
        }
    }
}

fn failed(route: &Route, problem: &Problem) -> Outgoing {
    let subject = Subject { scope: route.name.clone(), key: None, expires_at: None };
    respond::problem(problem, Some(&subject), &route.lease).map(whole)
}
