//! An answer over `max_response_bytes` reaches its first caller whole, but ends there only once its outcome is stored.

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Request, send, try_send};
use testkit::{Backend, Database};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::refuse_completions;
use crate::fixture::{Gateway, LIMIT, route, sql};

const LARGE: usize = 3_000_000;
/// More than all buffers on the way hold.
const ENDLESS: usize = 40_000_000;

async fn upstream(size: usize) -> Recorder {
    let reply = Reply::ok().header("content-type", "application/pdf").header("etag", "\"1\"").body(body(size));
    let options = RecorderOptions::default().script([Rule::always(reply.with_effect())]);
    Recorder::start(options).await.unwrap()
}

fn body(size: usize) -> Vec<u8> {
    (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

fn request(key: &str) -> Request {
    Request::post("/pdf", "{}").key(key)
}

async fn ends_once_it_is_stored(backend: Backend) {
    let (database, upstream) = (Database::create(backend).await, upstream(LARGE).await);
    let gateway = Gateway::start(&database, &route("pdf", "/pdf", &upstream.url(), "external", "")).await;
    let answer = send(gateway.address, &request("whole")).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body == body(LARGE), "{} bytes, or others", answer.body.len());
    assert!(answer.header("onced-key-expires").is_some());
    // At once: whoever has the whole answer finds its outcome stored.
    let replay = send(gateway.address, &request("whole")).await;
    assert_eq!((replay.status, replay.header("onced-body"), replay.body.len()), (200, Some("omitted"), 0));
    assert_eq!((replay.header("etag"), replay.header("content-type")), (None, None));
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    assert_eq!(upstream.count(), 1);

    refuse_completions(&database).await;
    let broken = try_send(gateway.address, &request("not stored")).await.expect_err("its outcome is not stored");
    assert_eq!(broken.status, Some(200), "its head had gone out");
    assert!(broken.body.len() < LARGE, "the last piece is held back");
    assert_eq!(sql::keys_at(database.sql(), backend, "pending_external").await, 1);
}

#[tokio::test]
async fn a_large_answer_ends_once_its_outcome_is_stored_sqlite() {
    ends_once_it_is_stored(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_large_answer_ends_once_its_outcome_is_stored_postgres() {
    ends_once_it_is_stored(Backend::Postgres).await;
}

#[tokio::test]
async fn a_large_answer_ends_once_its_outcome_is_stored_mariadb() {
    ends_once_it_is_stored(Backend::MariaDb).await;
}

async fn nobody_reads(backend: Backend) {
    let (database, upstream) = (Database::create(backend).await, upstream(ENDLESS).await);
    let limits = "upstream_timeout = \"1s\"\nconnect_timeout = \"500ms\"\n";
    let gateway = Gateway::start(&database, &route("pdf", "/pdf", &upstream.url(), "external", limits)).await;
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    client
        .write_all(b"POST /pdf HTTP/1.1\r\nHost: x\r\nIdempotency-Key: deaf\r\nContent-Length: 2\r\n\r\n{}")
        .await
        .unwrap();
    gateway.process.wait_for_line(|line| line.contains("\"phase\":\"ended\""), LIMIT).await;
    assert_eq!(sql::keys_at(database.sql(), backend, "completed").await, 1);
    assert_eq!(send(gateway.address, &request("deaf")).await.header("onced-body"), Some("omitted"));
    drop(client);
}

#[tokio::test]
async fn a_client_that_stops_reading_stops_nothing_sqlite() {
    nobody_reads(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_client_that_stops_reading_stops_nothing_postgres() {
    nobody_reads(Backend::Postgres).await;
}

#[tokio::test]
async fn a_client_that_stops_reading_stops_nothing_mariadb() {
    nobody_reads(Backend::MariaDb).await;
}
