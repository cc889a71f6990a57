//! What of a handler's answer matters: what goes into the record, and what it says about its effect.

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{StatusCode, response};
use onced_core::failure::Answer;
use onced_core::fingerprint::media_type_of;
use onced_core::record::StoredResponse;

use super::headers;

const EFFECT: HeaderName = HeaderName::from_static("onced-effect");

/// What of an answer goes into the record; `also` are the headers that are stored beside the usual ones.
pub fn to_store(head: &response::Parts, body: Option<Bytes>, also: &[HeaderName]) -> StoredResponse {
    StoredResponse {
        code: head.status.as_u16(),
        headers: headers::to_store(&head.headers, also),
        body: body.filter(|body| !body.is_empty()),
        body_omitted: false,
    }
}

/// What it says about its effect, for [`Rules::settle`](onced_core::failure::Rules::settle).
pub fn answer(head: &response::Parts, stored: &StoredResponse) -> Answer {
    let value_is = |name: &HeaderName, wanted: &str| {
        head.headers.get(name).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(wanted.as_bytes()))
    };
    let media_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(media_type_of);
    let is_problem = media_type.as_deref() == Some("application/problem+json");
    // An encoded problem cannot be read here; to store "still running" for good would be the worse mistake.
    let may_say_so = head.headers.contains_key(header::CONTENT_ENCODING)
        || stored.body.as_deref().is_some_and(is_in_progress_problem);
    Answer {
        status: head.status.as_u16(),
        says_still_running: head.status == StatusCode::CONFLICT
            && (head.headers.contains_key(header::RETRY_AFTER) || is_problem && may_say_so),
        says_no_effect: value_is(&EFFECT, "none"),
    }
}

fn is_in_progress_problem(body: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(body).is_ok_and(|problem| {
        let ends_so = |member: &str| problem[member].as_str().is_some_and(|text| text.ends_with("in-progress"));
        ends_so("code") || ends_so("type")
    })
}
