//! The one place where an outcome becomes status, headers and body. 409 and 422 are made here, and nowhere else.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use onced_core::failure::http_date;
use onced_core::key::{Key, KeyError, Scope};
use onced_core::lease::Lease;
use onced_core::record::{Status, StoredResponse};
use onced_core::time::Timestamp;

use super::headers;
use crate::guard::{About, Begun, Standing};

/// Says that an answer came from the record.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Until when a retry is safe, as an HTTP date.
pub const KEY_EXPIRES: HeaderName = HeaderName::from_static("onced-key-expires");
/// `omitted` where the stored body was too large to keep.
pub const BODY: HeaderName = HeaderName::from_static("onced-body");

/// Why a request was not answered by its handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// An attempt is running.
    InProgress {
        /// How long to wait.
        retry_after: Duration,
    },
    /// An outside call may or may not have happened, and nobody is at work on it.
    OutcomeUnknown {
        /// How long to wait.
        retry_after: Duration,
    },
    /// The upstream was lost after the request had been sent.
    OutcomeLost {
        /// How long to wait.
        retry_after: Duration,
    },
    /// The key is bound to another request.
    KeyReused,
    /// There is no key, and the route requires one.
    KeyMissing,
    /// There is a key, and it cannot be one.
    KeyInvalid(KeyError),
    /// The store could not be asked, or did not take the outcome.
    StoreUnavailable,
    /// The upstream was not reached: nothing was sent.
    UpstreamUnreachable {
        /// How long to wait.
        retry_after: Duration,
    },
    /// No attempts are left and no answer is stored.
    AttemptsExhausted,
    /// The request's body is over the route's limit.
    BodyTooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// The caller has no credential, a wrong one, or names no tenant.
    CallerUnknown,
    /// The caller sends more than its route allows.
    RateLimited {
        /// How long to wait.
        retry_after: Duration,
    },
    /// The request's body is not what its route asks for.
    BodyInvalid,
    /// The request's body broke off, or could not be read.
    BodyUnreadable,
    /// The request's body did not arrive in time.
    BodyTimeout,
    /// As many requests are executed as may be.
    Busy {
        /// How long to wait.
        retry_after: Duration,
    },
    /// The request names no host, several, or one that cannot be.
    HostInvalid,
    /// No route matches, and there is no upstream for what matches none.
    NoRoute,
    /// A handler in this process panicked, kept its transaction, or broke its answer off.
    HandlerFailed,
}

/// What the sender of a problem may do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    SameKey,
    NewKey,
    Never,
}

struct Shape {
    code: &'static str,
    status: StatusCode,
    title: &'static str,
    detail: String,
    retry: Retry,
    retry_after: Option<Duration>,
}

impl Problem {
    /// The code, stable and different for each cause.
    pub fn code(&self) -> &'static str {
        self.shape().code
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.shape().status
    }

    fn shape(&self) -> Shape {
        let shape = |code, status, title, detail: &str, retry, retry_after| Shape {
            code,
            status,
            title,
            detail: detail.to_owned(),
            retry,
            retry_after,
        };
        match self {
            Self::InProgress { retry_after } => shape(
                "in-progress",
                StatusCode::CONFLICT,
                "This request is being executed",
                "An attempt under this key is running. Send the same request again after Retry-After.",
                Retry::SameKey,
                Some(*retry_after),
            ),
            Self::OutcomeUnknown { retry_after } => shape(
                "outcome-unknown",
                StatusCode::CONFLICT,
                "The outcome is not known",
                "An earlier attempt may have taken effect. Nothing is executed again until that has been found out.",
                Retry::SameKey,
                Some(*retry_after),
            ),
            Self::OutcomeLost { retry_after } => shape(
                "outcome-unknown",
                StatusCode::GATEWAY_TIMEOUT,
                "The outcome is not known",
                "The upstream was lost after the request had been sent; it may have taken effect. Send the same request again after Retry-After.",
                Retry::SameKey,
                Some(*retry_after),
            ),
            Self::KeyReused => shape(
                "key-reused",
                StatusCode::UNPROCESSABLE_ENTITY,
                "The key belongs to another request",
                "This key was first used with another request and stays bound to it. Send a changed request under a new key.",
                Retry::NewKey,
                None,
            ),
            Self::KeyMissing => shape(
                "key-missing",
                StatusCode::BAD_REQUEST,
                "The request has no idempotency key",
                "This route requires a key. Make one for the operation, keep it, and send it with every try.",
                Retry::Never,
                None,
            ),
            Self::KeyInvalid(error) => Shape {
                code: "key-invalid",
                status: StatusCode::BAD_REQUEST,
                title: "The idempotency key cannot be used",
                detail: error.to_string(),
                retry: Retry::Never,
                retry_after: None,
            },
            Self::StoreUnavailable => shape(
                "store-unavailable",
                StatusCode::SERVICE_UNAVAILABLE,
                "The ledger cannot be used",
                "The ledger could not be asked or did not take the outcome, so the answer is withheld. Send the same request again after Retry-After.",
                Retry::SameKey,
                Some(Duration::ZERO),
            ),
            Self::UpstreamUnreachable { retry_after } => shape(
                "upstream-unreachable",
                StatusCode::BAD_GATEWAY,
                "The upstream was not reached",
                "Nothing was sent. Send the same request again after Retry-After.",
                Retry::SameKey,
                Some(*retry_after),
            ),
            Self::AttemptsExhausted => shape(
                "attempts-exhausted",
                StatusCode::CONFLICT,
                "All attempts are used up",
                "Every attempt under this key failed, and none left an answer.",
                Retry::Never,
                None,
            ),
            Self::BodyTooLarge { limit } => Shape {
                code: "body-too-large",
                status: StatusCode::PAYLOAD_TOO_LARGE,
                title: "The request's body is too large",
                detail: format!("This route takes bodies of up to {limit} bytes."),
                retry: Retry::Never,
                retry_after: None,
            },
            Self::CallerUnknown => shape(
                "caller-unknown",
                StatusCode::UNAUTHORIZED,
                "The caller is not known",
                "This route needs to know whose key it is: the request has no credential that names a tenant, or a wrong one.",
                Retry::Never,
                None,
            ),
            Self::RateLimited { retry_after } => shape(
                "rate-limited",
                StatusCode::TOO_MANY_REQUESTS,
                "Too many requests",
                "This caller sends more than the route allows. Nothing was stored. Send the same request again after Retry-After.",
                Retry::SameKey,
                Some(*retry_after),
            ),
            Self::BodyInvalid => shape(
                "body-invalid",
                StatusCode::BAD_REQUEST,
                "The request's body is not valid",
                "This route takes JSON. Nothing was stored: a corrected request may use the same key.",
                Retry::Never,
                None,
            ),
            Self::BodyUnreadable => shape(
                "body-unreadable",
                StatusCode::BAD_REQUEST,
                "The request's body could not be read",
                "The body broke off, its framing is wrong, or it is not encoded as its Content-Encoding says. Nothing was stored.",
                Retry::Never,
                None,
            ),
            Self::BodyTimeout => shape(
                "body-timeout",
                StatusCode::REQUEST_TIMEOUT,
                "The request's body did not arrive in time",
                "The body was not complete within the gateway's body_timeout. Nothing was stored. Send the same request again.",
                Retry::SameKey,
                None,
            ),
            Self::Busy { retry_after } => shape(
                "busy",
                StatusCode::SERVICE_UNAVAILABLE,
                "The gateway is busy",
                "As many requests are under way as may be. Nothing was stored. Send the same request again after Retry-After.",
                Retry::SameKey,
                Some(*retry_after),
            ),
            Self::HostInvalid => shape(
                "host-invalid",
                StatusCode::BAD_REQUEST,
                "The request's Host is not valid",
                "A request has one Host line, with a host and a port at most. Nothing was stored.",
                Retry::Never,
                None,
            ),
            Self::NoRoute => shape(
                "no-route",
                StatusCode::NOT_FOUND,
                "No route matches",
                "The gateway has no route for this path and method, and no upstream for the rest.",
                Retry::Never,
                None,
            ),
            Self::HandlerFailed => shape(
                "handler-failed",
                StatusCode::INTERNAL_SERVER_ERROR,
                "The request could not be handled",
                "The handler failed, and what it had written was rolled back. Send the same request again.",
                Retry::SameKey,
                None,
            ),
        }
    }
}

/// Whose record a response is about.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The scope.
    pub scope: Scope,
    /// The key, where there is one.
    pub key: Option<Key>,
    /// When the record expires, where there is one.
    pub expires_at: Option<Timestamp>,
}

/// What a delivery that does not execute is answered with.
#[derive(Debug)]
pub struct Instead {
    /// The answer.
    pub response: Response<Bytes>,
    /// Its line in the log of deliveries, and the expiry of its record.
    pub about: About,
    /// What was decided, in a word for logs.
    pub decision: &'static str,
}

/// The right to execute, or the answer to give instead.
///
/// # Errors
/// The answer, where it is not this delivery's to execute.
pub fn decided<P>(begun: Begun<P>, scope: &Scope, key: &Key, lease: &Lease) -> Result<P, Box<Instead>> {
    let refused = |shown: &Problem, about: About, decision| {
        let subject = Subject { scope: scope.clone(), key: Some(key.clone()), expires_at: about.expires_at };
        Instead { response: problem(shown, Some(&subject), lease), about, decision }
    };
    Err(Box::new(match begun {
        Begun::Execute(permit) => return Ok(permit),
        Begun::Replay { response, about } => {
            Instead { response: replayed(&response, about.expires_at), about, decision: "replay" }
        }
        Begun::InProgress { retry_after, about } => refused(&Problem::InProgress { retry_after }, about, "in-progress"),
        Begun::Mismatch { about } => refused(&Problem::KeyReused, about, "mismatch"),
        Begun::Unknown { retry_after, about } => refused(&Problem::OutcomeUnknown { retry_after }, about, "unknown"),
        Begun::Exhausted { about } => refused(&Problem::AttemptsExhausted, about, "exhausted"),
    }))
}

/// What an attempt is answered with that has lost its claim: the record's truth, not its own.
pub fn standing(standing: &Standing, subject: &Subject, lease: &Lease) -> Response<Bytes> {
    let retry_after = standing.retry_after;
    let shown = match standing.status {
        Some(Status::Completed) => return replayed(&standing.outcome(), standing.expires_at),
        Some(Status::PendingExternal) if !standing.lease_is_alive => Problem::OutcomeUnknown { retry_after },
        Some(Status::Queued | Status::InProgress | Status::PendingExternal | Status::Failed) | None => {
            Problem::InProgress { retry_after }
        }
    };
    problem(&shown, Some(subject), lease)
}

/// A problem as a response (RFC 9457). Never carries a stored body, SQL, or a stack.
pub fn problem(problem: &Problem, subject: Option<&Subject>, lease: &Lease) -> Response<Bytes> {
    let shape = problem.shape();
    let mut body = serde_json::json!({
        "type": format!("urn:onced:problem:{}", shape.code),
        "code": shape.code,
        "title": shape.title,
        "status": shape.status.as_u16(),
        "detail": shape.detail,
        "retry": match shape.retry {
            Retry::SameKey => "same-key",
            Retry::NewKey => "new-key",
            Retry::Never => "never",
        },
    });
    if let Some(subject) = subject {
        body["scope"] = subject.scope.as_str().into();
        if let Some(key) = &subject.key {
            body["key"] = key.as_str().into();
        }
    }
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = shape.status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if shape.status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"onced\""));
    }
    if let Some(wait) = shape.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(lease.retry_after_ticks(wait)));
    }
    expires(headers, subject.and_then(|subject| subject.expires_at));
    response
}

/// A stored outcome, told again and marked so.
pub fn replayed(stored: &StoredResponse, expires_at: Option<Timestamp>) -> Response<Bytes> {
    let mut response = from_record(stored, expires_at);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// A stored outcome as its first caller gets it, where the handler's own answer did not arrive.
pub fn from_record(stored: &StoredResponse, expires_at: Option<Timestamp>) -> Response<Bytes> {
    // A status outside HTTP's range cannot have come from a gateway; it is told as what it must have meant.
    let status = StatusCode::from_u16(stored.code).unwrap_or(StatusCode::OK);
    let bodyless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) || status.is_informational();
    let body = stored.body.clone().filter(|_| !bodyless && !stored.body_omitted).unwrap_or_default();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers::restore(&stored.headers, headers);
    if stored.body_omitted {
        // These speak of a body that is not there.
        for name in [header::ETAG, header::CONTENT_TYPE, header::CONTENT_ENCODING] {
            headers.remove(name);
        }
        headers.insert(BODY, HeaderValue::from_static("omitted"));
    }
    expires(headers, expires_at);
    response
}

/// Says until when a retry is safe.
pub fn expires(headers: &mut HeaderMap, at: Option<Timestamp>) {
    if let Some(value) = at.and_then(|at| HeaderValue::try_from(http_date(at)).ok()) {
        headers.insert(KEY_EXPIRES, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lease = Lease::new(Duration::from_secs(30));

    #[test]
    fn every_problem_has_a_status_a_code_and_a_retry_of_its_own() {
        let wait = Duration::from_millis(1500);
        let rows = [
            (Problem::InProgress { retry_after: wait }, 409, "in-progress", "same-key", Some("2")),
            (Problem::OutcomeUnknown { retry_after: wait }, 409, "outcome-unknown", "same-key", Some("2")),
            (Problem::OutcomeLost { retry_after: wait }, 504, "outcome-unknown", "same-key", Some("2")),
            (Problem::KeyReused, 422, "key-reused", "new-key", None),
            (Problem::KeyMissing, 400, "key-missing", "never", None),
            (Problem::KeyInvalid(KeyError::TooLong), 400, "key-invalid", "never", None),
            (Problem::StoreUnavailable, 503, "store-unavailable", "same-key", Some("1")),
            (Problem::UpstreamUnreachable { retry_after: wait }, 502, "upstream-unreachable", "same-key", Some("2")),
            (Problem::AttemptsExhausted, 409, "attempts-exhausted", "never", None),
            (Problem::BodyTooLarge { limit: 5 }, 413, "body-too-large", "never", None),
            (Problem::CallerUnknown, 401, "caller-unknown", "never", None),
            (Problem::RateLimited { retry_after: wait }, 429, "rate-limited", "same-key", Some("2")),
            (Problem::Busy { retry_after: wait }, 503, "busy", "same-key", Some("2")),
            (Problem::BodyTimeout, 408, "body-timeout", "same-key", None),
            (Problem::BodyInvalid, 400, "body-invalid", "never", None),
            (Problem::HostInvalid, 400, "host-invalid", "never", None),
        ];
        for (cause, status, code, retry, retry_after) in rows {
            let response = problem(&cause, None, &LEASE);
            let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(response.status().as_u16(), status, "{code}");
            assert_eq!(body["code"], code);
            assert_eq!(body["type"], format!("urn:onced:problem:{code}"));
            assert_eq!(body["retry"], retry, "{code}");
            assert_eq!(response.headers().get("retry-after").map(|v| v.to_str().unwrap()), retry_after, "{code}");
            assert_eq!(response.headers()["content-type"], "application/problem+json");
        }
    }

    #[test]
    fn a_replay_is_marked_and_invents_nothing() {
        let stored = StoredResponse { body: Some(Bytes::from_static(b"{}")), ..StoredResponse::bare(200) };
        let response = replayed(&stored, Some(Timestamp::from_micros(1_764_633_600_000_000)));
        assert_eq!(response.headers()[REPLAYED], "true");
        assert_eq!(response.headers()[KEY_EXPIRES], "Tue, 02 Dec 2025 00:00:00 GMT");
        assert_eq!(response.headers().len(), 2);
        assert_eq!(response.body().as_ref(), b"{}");
    }

    #[test]
    fn an_omitted_body_is_said_and_what_spoke_of_it_left_out() {
        let stored = StoredResponse {
            headers: vec![
                ("etag".to_owned(), b"\"1\"".to_vec()),
                ("content-type".to_owned(), b"text/plain".to_vec()),
                ("location".to_owned(), b"/x".to_vec()),
            ],
            body_omitted: true,
            ..StoredResponse::bare(200)
        };
        let response = replayed(&stored, None);
        assert_eq!(response.headers()[BODY], "omitted");
        assert!(response.body().is_empty());
        assert!(response.headers().get("etag").is_none() && response.headers().get("content-type").is_none());
        assert_eq!(response.headers()["location"], "/x");
    }

    #[test]
    fn a_204_stays_bodyless() {
        let stored = StoredResponse { body: Some(Bytes::from_static(b"x")), ..StoredResponse::bare(204) };
        assert!(from_record(&stored, None).body().is_empty());
    }
}
