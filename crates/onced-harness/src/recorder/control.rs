//! The control endpoints: the counts and the look-up, for programs that cannot call the handle.

use std::collections::BTreeMap;

use http::{Method, Response, StatusCode, Uri};
use http_body_util::Full;
use serde_json::{Value, json};

use super::Lookup;
use super::handle::Shared;
use super::log::Log;

/// Answers where the path is one of the recorder's own.
pub(super) fn answer(shared: &Shared, method: &Method, uri: &Uri) -> Option<Response<Full<bytes::Bytes>>> {
    let name = uri.path().strip_prefix("/_recorder/")?;
    let (status, body) = match (method, name) {
        (&Method::GET, "log") => (StatusCode::OK, counts(&shared.book.snapshot())),
        (&Method::GET, "lookup") => look_up(shared, uri.query().unwrap_or_default()),
        (_, "log" | "lookup") => (StatusCode::METHOD_NOT_ALLOWED, json!({ "error": "only GET" })),
        (_, _) => (StatusCode::NOT_FOUND, json!({ "error": "there are /_recorder/log and /_recorder/lookup?key=" })),
    };
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    Some(response)
}

fn counts(log: &Log) -> Value {
    let mut calls_by_key: BTreeMap<String, usize> = BTreeMap::new();
    for key in log.entries().iter().filter_map(|entry| entry.call.key.clone()) {
        *calls_by_key.entry(key).or_default() += 1;
    }
    let effects = log.effects_by_key();
    let with_key: usize = calls_by_key.values().sum();
    let keys: BTreeMap<_, _> = calls_by_key
        .into_iter()
        .map(|(key, calls)| {
            let effects = effects.get(&key).copied().unwrap_or_default();
            (key, json!({ "calls": calls, "effects": effects }))
        })
        .collect();
    json!({
        "calls": log.count(),
        "effects": log.effects(),
        "calls_without_key": log.count() - with_key,
        "keys": keys,
    })
}

fn look_up(shared: &Shared, query: &str) -> (StatusCode, Value) {
    let Some(key) = query.split('&').find_map(|pair| pair.strip_prefix("key=")).map(percent_decoded) else {
        return (StatusCode::BAD_REQUEST, json!({ "error": "say which: ?key=" }));
    };
    let log = shared.book.snapshot();
    let mut found = log.entries().iter().filter(|entry| {
        let visible = shared.lookup() == Lookup::Truthful && entry.effect_at.is_some();
        visible && entry.call.key.as_deref() == Some(&key)
    });
    match found.next() {
        None => (StatusCode::NOT_FOUND, json!({ "key": key, "effects": 0 })),
        Some(first) => {
            let body = String::from_utf8_lossy(&first.body);
            let effects = 1 + found.count();
            (StatusCode::OK, json!({ "key": key, "effects": effects, "seq": first.call.seq, "body": body }))
        }
    }
}

/// Malformed escapes stay as they are.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| first == b'%').and_then(|pair| {
            let pair = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok()
        });
        match (escaped, first) {
            (Some(byte), _) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (None, b'+') => {
                bytes.push(b' ');
                rest = after;
            }
            (None, _) => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
