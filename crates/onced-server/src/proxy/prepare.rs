//! What has to be known of a request before its record is looked for: its key and its fingerprint. Both come from the
//! decoded body, while the upstream gets the bytes as they were sent.

use bytes::Bytes;
use http::request::Parts;
use onced::core::fingerprint::Fingerprint;
use onced::core::key::{Key, KeyError};
use onced::http::request;
use onced::http::respond::Problem;

use super::key::{Derived, derive};
use crate::config::{BodySyntax, KeySource, Route};

/// What came of reading a request.
#[derive(Debug)]
pub(super) enum Prepared {
    /// It has a key.
    Keyed(Key, Fingerprint),
    /// It has none, and the route lets such requests pass.
    Pass,
}

/// Reads key and fingerprint.
pub(super) async fn prepare(route: &Route, head: &Parts, body: &Bytes) -> Result<Prepared, Problem> {
    if request::is_read_at_once(&head.headers, body) {
        return read(route, head, body);
    }
    let (route, head, body) = (route.clone(), head.clone(), body.clone());
    let read = tokio::task::spawn_blocking(move || read(&route, &head, &body)).await;
    // It panicked: nothing is known about the request, so nothing is executed.
    read.unwrap_or(Err(Problem::StoreUnavailable))
}

fn read(route: &Route, head: &Parts, body: &Bytes) -> Result<Prepared, Problem> {
    // What passes for want of a key in its headers is none of ours: its body is not looked into.
    let from_headers = match route.key.source {
        KeySource::Off | KeySource::Header { .. } => Some(derive(&route.key, &head.headers, body)?),
        KeySource::Pointer(_) | KeySource::Agent(_) => None,
    };
    if matches!(from_headers, Some(Derived::Pass)) {
        return Ok(Prepared::Pass);
    }
    let (body, coding) = request::decoded(&head.headers, body, route.max_request_bytes)?;
    if route.body_syntax == BodySyntax::Json && !(coding.is_empty() && is_json(&body)) {
        return Err(Problem::BodyInvalid);
    }
    // Read by somebody who can undo the coding, the body may say another key.
    if !coding.is_empty() && route.key.looks_into_body() {
        return Err(Problem::KeyInvalid(KeyError::Malformed));
    }
    let derived = match from_headers {
        Some(derived) => derived,
        None => derive(&route.key, &head.headers, &body)?,
    };
    Ok(match derived {
        Derived::Key(key) => Prepared::Keyed(key, fingerprint(route, head, body, coding)),
        Derived::Pass => Prepared::Pass,
    })
}

/// By its syntax alone (RFC 8259), without recursion however deep it is.
fn is_json(body: &[u8]) -> bool {
    std::str::from_utf8(body).is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok())
}

fn fingerprint(route: &Route, head: &Parts, body: Bytes, coding: String) -> Fingerprint {
    Fingerprint::new(request::parts(head, &head.uri, body, coding), route.fingerprint.clone())
}
