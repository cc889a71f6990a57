//! Requests whose body is packed (`Content-Encoding`): they are compared by what is in them, and forwarded as they came.
//! What is too large once unpacked, or cannot be unpacked, is refused, and nothing of it is kept.

use std::io::Read;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::{GzEncoder, ZlibEncoder};
use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Answer, Request, race_same, send};
use testkit::{Backend, Database};

use crate::case_crash::{is_problem, is_replayed};
use crate::fixture::{Gateway, route, sql};

const PLAIN: &[u8] = br#"{"id":"evt_1","amount":100}"#;
const LIMIT: usize = 1 << 20;

fn gzip(plain: &[u8], level: u32) -> Vec<u8> {
    let mut packed = Vec::new();
    GzEncoder::new(plain, Compression::new(level)).read_to_end(&mut packed).unwrap();
    packed
}

fn deflate(plain: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    ZlibEncoder::new(plain, Compression::default()).read_to_end(&mut packed).unwrap();
    packed
}

struct Case {
    database: Database,
    upstream: Recorder,
    gateway: Gateway,
}

impl Case {
    async fn start(backend: Backend) -> Self {
        let database = Database::create(backend).await;
        let options = RecorderOptions::default().script([Rule::always(Reply::ok().json("{}"))]);
        let upstream = Recorder::start(options).await.expect("the upstream can listen");
        let lease = "lease = \"30s\"\n";
        let keyed = route("api.order", "/o", &upstream.url(), "external", lease);
        let pointer = format!("{lease}key = {{ from = \"pointer\", pointer = \"/id\" }}\n");
        let event = route("event", "/event", &upstream.url(), "external", &pointer);
        let optional = route("free", "/free", &upstream.url(), "external", &format!("{lease}key = \"optional\"\n"));
        let agent = "key = { from = \"agent\", conversation = { header = \"X-C\" }, step = { header = \"X-S\" }, \
                     tool = \"t\", arguments = \"/a\", within_step = \"by-arguments\" }\nmismatch = \"note\"\n";
        let agent = route("agent", "/agent", &upstream.url(), "external", &format!("{lease}{agent}"));
        let gateway = Gateway::start(&database, &format!("{keyed}{event}{optional}{agent}")).await;
        Self { database, upstream, gateway }
    }

    async fn send(&self, request: Request) -> Answer {
        send(self.gateway.address, &request).await
    }

    async fn keys(&self) -> i64 {
        self.database.sql().count(&format!("SELECT count(*) FROM {}", sql::table(self.database.backend()))).await
    }
}

fn post(path: &str, coding: &str, body: impl Into<Bytes>) -> Request {
    let request = Request::post(path, body).header("content-type", "application/json");
    if coding.is_empty() { request } else { request.header("content-encoding", coding) }
}

async fn compared_by_what_is_in_them(backend: Backend) {
    let case = Case::start(backend).await;
    let packed = gzip(PLAIN, 9);
    let first = case.send(post("/o", "gzip", packed.clone()).key("k")).await;
    assert_eq!((first.status, is_replayed(&first)), (200, false), "{first:?}");
    let call = case.upstream.calls().remove(0);
    assert_eq!((&call.body[..], call.headers.get("content-encoding").unwrap().as_bytes()), (&packed[..], &b"gzip"[..]));

    let other_clothes = br#"{ "amount": 1e2, "id": "evt_1" }"#;
    for (coding, body) in [
        ("", PLAIN.to_vec()),
        ("identity", PLAIN.to_vec()),
        ("GZIP", gzip(PLAIN, 1)),
        ("x-gzip", gzip(other_clothes, 6)),
        ("deflate", deflate(PLAIN)),
        ("deflate, gzip", gzip(&deflate(other_clothes), 6)),
    ] {
        let again = case.send(post("/o", coding, body).key("k")).await;
        assert!(is_replayed(&again), "{coding}: {again:?}");
    }
    is_problem(
        &case.send(post("/o", "gzip", gzip(br#"{"id":"evt_1","amount":101}"#, 9)).key("k")).await,
        422,
        "key-reused",
    );
    // What it says it is packed with is unknown: its bytes are compared, and are not those of a plain body.
    is_problem(&case.send(post("/o", "br", PLAIN).key("k")).await, 422, "key-reused");
    assert_eq!((case.upstream.count(), case.keys().await), (1, 1));

    for (coding, replayed) in [("br", false), ("BR", true), ("zstd", false), ("", false)] {
        let answer = case.send(post("/o", coding, "{\"n\": 1}").key("br")).await;
        match (coding, replayed) {
            ("br", _) => assert_eq!((answer.status, is_replayed(&answer)), (200, false), "{answer:?}"),
            (_, true) => assert!(is_replayed(&answer), "{answer:?}"),
            (_, false) => is_problem(&answer, 422, "key-reused"),
        }
    }
    assert_eq!(case.upstream.count(), 2);
}

async fn the_key_is_looked_up_in_what_was_packed(backend: Backend) {
    let case = Case::start(backend).await;
    let first = case.send(post("/event", "gzip", gzip(PLAIN, 6))).await;
    assert_eq!((first.status, is_replayed(&first)), (200, false), "{first:?}");
    assert!(is_replayed(&case.send(post("/event", "", PLAIN)).await));
    assert!(is_replayed(&case.send(post("/event", "deflate", deflate(PLAIN))).await));
    is_problem(&case.send(post("/event", "gzip", gzip(br#"{"n":1}"#, 6))).await, 400, "key-missing");
    // Whatever it holds: it cannot be looked up here.
    is_problem(&case.send(post("/event", "br", b"\x0b\x02\x80{}\x03".to_vec())).await, 400, "key-invalid");
    // Whoever cannot undo the coding either might read another key in it.
    is_problem(&case.send(post("/event", "br", r#"{"id":"evt_2"}"#)).await, 400, "key-invalid");
    assert_eq!((case.upstream.count(), case.keys().await), (1, 1));
    let table = sql::table(backend);
    assert_eq!(case.database.sql().text(&format!("SELECT key FROM {table}")).await, [["evt_1"]]);
}

/// The arguments of a call are a part of its key: where they cannot be read, two calls would be one.
async fn unreadable_arguments_are_no_arguments(backend: Backend) {
    let case = Case::start(backend).await;
    let call = |coding: &str, body: &str| post("/agent", coding, body.to_owned()).header("x-c", "c").header("x-s", "1");
    for (coding, body) in [("br", r#"{"a":1}"#), ("", r#"{"a":1"#), ("", r#"{"a":1,"a":2}"#), ("", "x")] {
        is_problem(&case.send(call(coding, body)).await, 400, "key-invalid");
    }
    assert_eq!((case.upstream.count(), case.keys().await), (0, 0));
    for body in [r#"{"a":1}"#, r#"{"a":2}"#, "{}"] {
        let sent = case.send(call("", body)).await;
        assert!(sent.status == 200 && !is_replayed(&sent), "{sent:?}");
    }
    // No body has no arguments, as an object without them.
    assert!(is_replayed(&case.send(call("", "")).await));
    assert_eq!((case.upstream.count(), case.keys().await), (3, 3));
}

/// A media type is read byte by byte: one that is no text is not the same as none, and two lines are not the first.
async fn odd_content_types_stay_apart(backend: Backend) {
    let case = Case::start(backend).await;
    let sent = |lines: &[&[u8]]| {
        let request = Request::post("/o", "a=1").key("odd");
        lines.iter().fold(request, |request, line| request.header("content-type", line))
    };
    let first = case.send(sent(&[b"application/x-www-form-urlencoded; x=\xe9"])).await;
    assert_eq!((first.status, is_replayed(&first)), (200, false), "{first:?}");
    for lines in [&[&b"text/plain; x=\xe9"[..]][..], &[], &[b"application/x-www-form-urlencoded", b"text/plain"]] {
        is_problem(&case.send(sent(lines)).await, 422, "key-reused");
    }
    assert!(is_replayed(&case.send(sent(&[b"application/x-www-form-urlencoded"])).await));
    assert_eq!(case.upstream.count(), 1);
}

async fn refused_and_nothing_kept(backend: Backend) {
    let case = Case::start(backend).await;
    let broken = gzip(PLAIN, 6);
    let broken = broken[..broken.len() - 3].to_vec();
    for (path, request) in [("/o", true), ("/event", false)] {
        let with_key = |request: Request, keyed: bool| if keyed { request.key("r") } else { request };
        for (coding, body) in [("gzip", broken.clone()), ("deflate", PLAIN.to_vec()), ("gzip", PLAIN.to_vec())] {
            is_problem(&case.send(with_key(post(path, coding, body), request)).await, 400, "body-unreadable");
        }
        let large = format!("{{\"id\":\"evt_1\",\"x\":\"{}\"}}", "x".repeat(LIMIT));
        for (coding, body) in [
            ("gzip", gzip(large.as_bytes(), 6)),
            ("deflate", deflate(large.as_bytes())),
            ("gzip, gzip", gzip(&gzip(large.as_bytes(), 6), 6)),
        ] {
            assert!(body.len() < 10_000);
            is_problem(&case.send(with_key(post(path, coding, body), request)).await, 413, "body-too-large");
        }
    }
    assert_eq!((case.upstream.count(), case.keys().await), (0, 0));

    // What passes without a key is not looked into.
    let passed = case.send(post("/free", "gzip", broken.clone())).await;
    assert_eq!((passed.status, case.keys().await), (200, 0), "{passed:?}");
    assert_eq!(case.upstream.calls().remove(0).body, broken);

    // The same key is free for the request that was meant.
    let meant = case.send(post("/o", "gzip", gzip(PLAIN, 6)).key("r")).await;
    assert_eq!((meant.status, is_replayed(&meant)), (200, false), "{meant:?}");
}

/// The most memory that the process has had, in KiB. The system counts it roughly, and may say less a moment later.
fn high_water(gateway: &Gateway) -> u64 {
    let id = gateway.process.id().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("Linux says so");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the high-water mark");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

async fn a_bomb_takes_no_memory(backend: Backend) {
    let case = Case::start(backend).await;
    // What a body at the limit takes, packed and plain, is no growth.
    let largest = format!("\"{}\"", "x".repeat(LIMIT - 2));
    for (key, coding, body) in [("a", "gzip", gzip(largest.as_bytes(), 6)), ("b", "", largest.clone().into_bytes())] {
        assert_eq!(case.send(post("/o", coding, body).key(key)).await.status, 200);
    }
    let before = high_water(&case.gateway);
    let zeros = gzip(&vec![0; 10 << 20], 9);
    let bombs = [("gzip", zeros.clone()), ("deflate", deflate(&vec![0; 10 << 20])), ("gzip, gzip", gzip(&zeros, 9))];
    for (coding, body) in bombs.iter().cycle().take(30) {
        is_problem(&case.send(post("/o", coding, body.clone()).key("bomb")).await, 413, "body-too-large");
    }
    let grown = high_water(&case.gateway).saturating_sub(before);
    assert!(grown < 8 * 1024, "30 bombs of 10 MiB, one after the other: {grown} KiB more");
    for answer in race_same(8, &[case.gateway.address], &post("/o", "gzip", zeros).key("bomb")).await {
        is_problem(&answer, 413, "body-too-large");
    }
    let grown = high_water(&case.gateway).saturating_sub(before);
    // At most twice the limit for each of them.
    assert!(grown < 24 * 1024, "8 bombs of 10 MiB at once: {grown} KiB more");
    assert_eq!((case.upstream.count(), case.keys().await), (2, 2), "only the two that fit");
}

#[tokio::test]
async fn packed_requests_are_compared_by_what_is_in_them_sqlite() {
    compared_by_what_is_in_them(Backend::Sqlite).await;
}

#[tokio::test]
async fn packed_requests_are_compared_by_what_is_in_them_postgres() {
    compared_by_what_is_in_them(Backend::Postgres).await;
}

#[tokio::test]
async fn packed_requests_are_compared_by_what_is_in_them_mariadb() {
    compared_by_what_is_in_them(Backend::MariaDb).await;
}

#[tokio::test]
async fn the_key_of_a_packed_request_is_looked_up_in_it_sqlite() {
    the_key_is_looked_up_in_what_was_packed(Backend::Sqlite).await;
}

#[tokio::test]
async fn the_key_of_a_packed_request_is_looked_up_in_it_postgres() {
    the_key_is_looked_up_in_what_was_packed(Backend::Postgres).await;
}

#[tokio::test]
async fn the_key_of_a_packed_request_is_looked_up_in_it_mariadb() {
    the_key_is_looked_up_in_what_was_packed(Backend::MariaDb).await;
}

#[tokio::test]
async fn unreadable_arguments_are_no_arguments_sqlite() {
    unreadable_arguments_are_no_arguments(Backend::Sqlite).await;
}

#[tokio::test]
async fn unreadable_arguments_are_no_arguments_postgres() {
    unreadable_arguments_are_no_arguments(Backend::Postgres).await;
}

#[tokio::test]
async fn unreadable_arguments_are_no_arguments_mariadb() {
    unreadable_arguments_are_no_arguments(Backend::MariaDb).await;
}

#[tokio::test]
async fn odd_content_types_stay_apart_sqlite() {
    odd_content_types_stay_apart(Backend::Sqlite).await;
}

#[tokio::test]
async fn odd_content_types_stay_apart_postgres() {
    odd_content_types_stay_apart(Backend::Postgres).await;
}

#[tokio::test]
async fn odd_content_types_stay_apart_mariadb() {
    odd_content_types_stay_apart(Backend::MariaDb).await;
}

#[tokio::test]
async fn packed_requests_that_are_refused_leave_nothing_sqlite() {
    refused_and_nothing_kept(Backend::Sqlite).await;
}

#[tokio::test]
async fn packed_requests_that_are_refused_leave_nothing_postgres() {
    refused_and_nothing_kept(Backend::Postgres).await;
}

#[tokio::test]
async fn packed_requests_that_are_refused_leave_nothing_mariadb() {
    refused_and_nothing_kept(Backend::MariaDb).await;
}

#[tokio::test]
async fn a_packed_bomb_takes_no_memory_sqlite() {
    a_bomb_takes_no_memory(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_packed_bomb_takes_no_memory_postgres() {
    a_bomb_takes_no_memory(Backend::Postgres).await;
}

#[tokio::test]
async fn a_packed_bomb_takes_no_memory_mariadb() {
    a_bomb_takes_no_memory(Backend::MariaDb).await;
}
