//! Which headers of an answer are stored and replayed, and which belong to one connection only.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Stored with every value, in order; a route may add others.
pub const STORED: [&str; 11] = [
    "content-type",
    "content-language",
    "content-disposition",
    "content-encoding",
    "content-location",
    "location",
    "etag",
    "last-modified",
    "cache-control",
    "vary",
    "link",
];

/// Never stored, whatever a route says: they belong to one connection, one caller or one moment.
pub const NEVER_STORED: [&str; 6] =
    ["set-cookie", "www-authenticate", "date", "server", "content-length", "idempotent-replayed"];

/// Headers of one connection. What `Connection` names belongs to them too.
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "trailers",
    "transfer-encoding",
    "upgrade",
];

/// Never of one connection, whatever `Connection` says: what a request is taken for must reach who executes it.
const END_TO_END: [&str; 7] =
    ["host", "authorization", "idempotency-key", "content-type", "content-encoding", "content-length", "cookie"];

/// The headers of an answer that go into its record.
pub fn to_store(headers: &HeaderMap, also: &[HeaderName]) -> Vec<(String, Vec<u8>)> {
    let of_connection = named_by_connection(headers);
    let wanted = |name: &HeaderName| {
        let name = name.as_str();
        (STORED.contains(&name) || also.iter().any(|extra| extra.as_str() == name))
            && !NEVER_STORED.contains(&name)
            && !HOP_BY_HOP.contains(&name)
            && !of_connection.iter().any(|token| token == name)
    };
    headers
        .iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect()
}

/// Takes the headers of one connection out, in either direction.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for token in named_by_connection(headers) {
        headers.remove(token);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Takes out what only onced may say: a client cannot speak in its name.
pub fn strip_own(headers: &mut HeaderMap) {
    remove_where(headers, |name| name.starts_with("onced-"));
}

/// Takes out the client's `Idempotency-Key`, for the downstream key to stand alone.
pub fn strip_key(headers: &mut HeaderMap) {
    remove_where(headers, |name| name == "idempotency-key");
}

/// Many servers fold `_` and `-` into one: both spellings go.
fn remove_where(headers: &mut HeaderMap, unwanted: impl Fn(&str) -> bool) {
    let found: Vec<HeaderName> =
        headers.keys().filter(|name| unwanted(&name.as_str().replace('_', "-"))).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

fn named_by_connection(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|token| token.trim().to_ascii_lowercase())
        .filter(|token| !token.is_empty() && !END_TO_END.contains(&token.as_str()))
        .collect()
}

/// Stored headers as they go out again; what no longer is a header is left out.
pub(crate) fn restore(stored: &[(String, Vec<u8>)], into: &mut HeaderMap) {
    for (name, value) in stored {
        let (Ok(name), Ok(value)) = (HeaderName::try_from(name.as_str()), HeaderValue::from_bytes(value)) else {
            continue;
        };
        if !NEVER_STORED.contains(&name.as_str()) && !HOP_BY_HOP.contains(&name.as_str()) {
            into.append(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn only_the_allowed_headers_are_stored_with_every_value() {
        let mut answer = map(&[
            ("content-type", "text/plain"),
            ("set-cookie", "session=SECRET"),
            ("x-request-id", "1"),
            ("connection", "keep-alive, X-Hop"),
            ("x-hop", "1"),
            ("x-kept", "yes"),
        ]);
        answer.append("link", HeaderValue::from_static("</a>"));
        answer.append("link", HeaderValue::from_static("</b>"));
        let also = [HeaderName::from_static("x-kept"), HeaderName::from_static("x-hop"), header::SET_COOKIE];
        let mut stored: Vec<_> = to_store(&answer, &also).into_iter().map(|(name, _)| name).collect();
        stored.sort();
        assert_eq!(stored, ["content-type", "link", "link", "x-kept"]);
    }

    #[test]
    fn what_connection_names_goes_with_the_connection() {
        let mut headers = map(&[
            ("connection", "X-Hop , close"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("te", "trailers"),
            ("accept", "*/*"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn what_a_request_is_taken_for_is_not_of_one_connection() {
        let mut headers = map(&[("connection", "host, Authorization, x-hop"), ("host", "a"), ("x-hop", "1")]);
        headers.insert("authorization", HeaderValue::from_static("Bearer t"));
        headers.insert("http2-settings", HeaderValue::from_static("AAMAAABk"));
        strip_hop_by_hop(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["authorization", "host"]);
    }

    #[test]
    fn a_client_cannot_speak_in_our_name() {
        let mut headers = map(&[
            ("onced-lease-token", "x"),
            ("onced_key", "y"),
            ("once", "z"),
            ("idempotency_key", "k"),
            ("idempotency-key", "k"),
        ]);
        strip_own(&mut headers);
        assert_eq!(headers.len(), 3);
        strip_key(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["once"]);
    }
}
