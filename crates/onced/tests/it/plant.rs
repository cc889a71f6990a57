//! Planting records by the test's own SQL, so that no product code stands between the table and the database.

use std::fmt::Write as _;

use bytes::Bytes;
use onced_core::decision_table::Line;
use onced_core::key::Key;
use onced_core::record::{CallAnswer, Record, StoredResponse};
use onced_core::time::{Timestamp, micros};
use testkit::Backend;

use crate::bench::{Bench, SCOPE, Tested, at};

/// The answer that the step of an outside call records.
pub(crate) fn call_answer() -> StoredResponse {
    StoredResponse {
        headers: vec![("content-type".to_owned(), b"application/json".to_vec())],
        body: Some(Bytes::from_static(br#"{"id":"ch_1"}"#)),
        ..StoredResponse::bare(201)
    }
}

/// Plants what a line of the table says, and returns the record.
pub(crate) async fn line<S: Tested>(bench: &Bench<S>, line: &Line, key: &Key) -> Option<Record> {
    let now = bench.now().await;
    let record = line.found(now).record?;
    self::record(bench, SCOPE, key, &record).await;
    if line.call_answer == CallAnswer::Known {
        step(bench, key, "call", &record).await;
    }
    Some(record)
}

/// Plants a recorded step beside the record of its work.
pub(crate) async fn step<S: Tested>(bench: &Bench<S>, key: &Key, name: &str, parent: &Record) {
    let step = Record {
        status: onced_core::record::Status::Completed,
        lease_until: None,
        response: Some(call_answer()),
        completed_at: Some(parent.updated_at),
        ..parent.clone()
    };
    record(bench, &format!("{SCOPE}#{name}"), key, &step).await;
}

/// Plants one row.
pub(crate) async fn record<S: Tested>(bench: &Bench<S>, scope: &str, key: &Key, record: &Record) {
    let (backend, response) = (S::BACKEND, record.response.as_ref());
    let time = |value: Option<Timestamp>| value.map_or("NULL".to_owned(), |value| at(backend, value));
    let retry_window = match backend {
        Backend::Sqlite | Backend::MariaDb => micros(record.retry_window).to_string(),
        Backend::Postgres => format!("{} * interval '1 microsecond'", micros(record.retry_window)),
    };
    let columns = [
        ("scope", text(Some(scope))),
        ("key", text(Some(key.as_str()))),
        ("request_hash", bytes(backend, Some(record.request_hash.as_bytes()))),
        ("hash_version", text(Some(&record.hash_version))),
        ("status", text(Some(record.status.as_str()))),
        ("attempt", record.attempt.to_string()),
        ("lease_token", text(record.lease_token.as_ref().map(|token| token.as_str()))),
        ("lease_until", time(record.lease_until)),
        ("response_code", response.map_or("NULL".to_owned(), |stored| stored.code.to_string())),
        ("response_headers", text(response.map(|stored| headers(&stored.headers)).as_deref())),
        ("response_body", bytes(backend, response.and_then(|stored| stored.body.as_deref()))),
        ("downstream_key", text(record.downstream_key.as_deref())),
        ("called_at", time(record.called_at)),
        ("called_until", time(record.called_until)),
        ("error", text(record.error.as_deref())),
        ("retry_window", retry_window),
        ("held_at", time(record.held_at)),
        ("created_at", time(Some(record.created_at))),
        ("updated_at", time(Some(record.updated_at))),
        ("completed_at", time(record.completed_at)),
        ("expires_at", time(record.expires_at)),
    ];
    let names = columns.each_ref().map(|(name, _)| *name).join(", ");
    let values = columns.map(|(_, value)| value).join(", ");
    assert_eq!(bench.execute(&format!("INSERT INTO {{keys}} ({names}) VALUES ({values})")).await, 1);
}

/// Writes a line of the log; its id is of its time, as the gateway makes them.
pub(crate) async fn delivery<S: Tested>(
    bench: &Bench<S>,
    scope: &str,
    key: &str,
    decision: &str,
    received_at: Timestamp,
    attempt: u32,
) {
    let millis = u64::try_from(received_at.as_micros() / 1000).unwrap();
    let random = uuid::Uuid::new_v4().into_bytes();
    let id = uuid::Builder::from_unix_timestamp_millis(millis, random.first_chunk().unwrap()).into_uuid();
    let (at, hash) = (at(S::BACKEND, received_at), bytes(S::BACKEND, Some(&[0; 32])));
    let id = match S::BACKEND {
        Backend::Sqlite | Backend::Postgres => format!("'{id}'"),
        Backend::MariaDb => format!("x'{}'", id.simple()),
    };
    let insert = format!(
        "INSERT INTO {{deliveries}} (id, scope, key, received_at, decision, request_hash, attempt) \
         VALUES ({id}, '{scope}', '{key}', {at}, '{decision}', {hash}, {attempt})"
    );
    assert_eq!(bench.execute(&insert).await, 1);
}

/// The `response_headers` column as it is documented: pairs in JSON. Written by hand, for plain values only.
fn headers(headers: &[(String, Vec<u8>)]) -> String {
    let pairs = headers.iter().map(|(name, value)| format!("[\"{name}\",\"{}\"]", String::from_utf8_lossy(value)));
    format!("[{}]", pairs.collect::<Vec<_>>().join(","))
}

fn text(value: Option<&str>) -> String {
    value.map_or("NULL".to_owned(), |value| format!("'{}'", value.replace('\'', "''")))
}

fn bytes(backend: Backend, value: Option<&[u8]>) -> String {
    let Some(value) = value else { return "NULL".to_owned() };
    let hex = value.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    });
    match backend {
        Backend::Sqlite | Backend::MariaDb => format!("x'{hex}'"),
        Backend::Postgres => format!("'\\x{hex}'::bytea"),
    }
}
