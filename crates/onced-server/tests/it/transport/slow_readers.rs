//! Clients that read too slowly: who takes nothing is given up, and the outcome is stored all the same; who takes a
//! little at a time gets everything.

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use hyper::client::conn::http2::Builder;
use hyper_util::rt::TokioExecutor;
use testkit::http_client::send;
use testkit::{Backend, Database};

use super::app::App;
use super::h2_client::{self, Client};
use super::raw_client::Raw;
use super::{any_database, post, records_at};
use crate::fixture::{Gateway, LIMIT, route};

/// More than all buffers on the way hold.
const ENDLESS: usize = 40_000_000;
/// More than the buffers of the system hold for a client that has little room.
const LARGE: usize = 12_000_000;
/// Stored whole, and more than a client of HTTP/2 takes unasked.
const WHOLE: usize = 900_000;
/// Longer than any test takes: nothing else gives a client up.
const PATIENT: &str = "upstream_timeout = \"10min\"\nmax_execution = \"10min\"\nmax_response_bytes = \"16MiB\"\n";

async fn start(database: &Database, app: &App, clients: &str) -> Gateway {
    let route = route("pay", "/pay", &app.url(), "external", PATIENT);
    Gateway::start(database, &format!("[clients]\n{clients}\n\n{route}")).await
}

fn bytes(size: usize) -> Bytes {
    (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect::<Vec<_>>().into()
}

fn raw_post(key: &str) -> String {
    format!("POST /pay HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nContent-Length: 2\r\n\r\n{{}}")
}

/// A connection of HTTP/2 on which little is sent that has not been asked for.
async fn narrow_h2(gateway: &Gateway) -> Client {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    Client::connect_with(gateway.address, &builder).await
}

/// One on which each answer is sent as far as it is asked for, and does not keep others back.
async fn slow_streams(gateway: &Gateway) -> Client {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(65_535);
    Client::connect_with(gateway.address, &builder).await
}

async fn nothing_is_read(backend: Backend) {
    let (database, app) = (Database::create(backend).await, App::answering(bytes(ENDLESS)).await);
    let gateway = start(&database, &app, "write_timeout = \"300ms\"").await;
    let ended = |line: &str| line.contains("\"phase\":\"ended\"");

    let mut client = Raw::connect(gateway.address).await;
    client.write(raw_post("h1")).await;
    gateway.process.wait_for_line(|line| ended(line) && line.contains("h1"), LIMIT).await;
    assert_eq!(records_at(&database, "completed").await, 1);
    assert!(client.rest().await.len() < ENDLESS, "it was given up in the middle");

    let client = narrow_h2(&gateway).await;
    let unread = client.open(h2_client::post("/pay", "h2")).await.unwrap();
    assert_eq!(unread.status(), 200);
    gateway.process.wait_for_line(|line| ended(line) && line.contains("h2"), LIMIT).await;
    assert!(unread.into_body().collect().await.is_err(), "it was given up in the middle");
    assert_eq!(records_at(&database, "completed").await, 2);
    assert_eq!(send(gateway.address, &post("/pay", "h2")).await.header("idempotent-replayed"), Some("true"));
    assert_eq!(app.count(), 2);
}

#[tokio::test]
async fn who_takes_nothing_of_an_answer_is_given_up_sqlite() {
    nothing_is_read(Backend::Sqlite).await;
}

#[tokio::test]
async fn who_takes_nothing_of_an_answer_is_given_up_postgres() {
    nothing_is_read(Backend::Postgres).await;
}

#[tokio::test]
async fn who_takes_nothing_of_an_answer_is_given_up_mariadb() {
    nothing_is_read(Backend::MariaDb).await;
}

/// It takes a place until then, and no more than its own stream ends.
async fn nothing_of_a_replay_is_read(backend: Backend) {
    let (database, app) = (Database::create(backend).await, App::answering(bytes(WHOLE)).await);
    let clients = "max_connections = 1\nbody_timeout = \"10min\"\nwrite_timeout = \"300ms\"\nhead_timeout = \"10min\"";
    let gateway = start(&database, &app, clients).await;
    assert!(send(gateway.address, &post("/pay", "k")).await.body == bytes(WHOLE));
    let client = slow_streams(&gateway).await;
    let unread = client.open(h2_client::post("/pay", "k")).await.unwrap();
    // There is one place, for which this waits.
    assert!(client.send(h2_client::post("/pay", "k2")).await.body == bytes(WHOLE));
    assert!(unread.into_body().collect().await.is_err(), "it was given up in the middle");
}

#[tokio::test]
async fn who_takes_nothing_of_a_replay_is_given_up_sqlite() {
    nothing_of_a_replay_is_read(Backend::Sqlite).await;
}

#[tokio::test]
async fn who_takes_nothing_of_a_replay_is_given_up_postgres() {
    nothing_of_a_replay_is_read(Backend::Postgres).await;
}

#[tokio::test]
async fn who_takes_nothing_of_a_replay_is_given_up_mariadb() {
    nothing_of_a_replay_is_read(Backend::MariaDb).await;
}

/// Whoever keeps a connection busy does not keep an answer on it that is not read.
#[tokio::test]
async fn who_takes_nothing_of_one_answer_loses_that_one_alone() {
    let (database, app) = (any_database().await, App::answering(bytes(WHOLE)).await);
    let clients = "max_passed = 1\nbody_timeout = \"10min\"\nwrite_timeout = \"300ms\"\nhead_timeout = \"10min\"";
    let gateway = start(&database, &app, clients).await;
    let client = slow_streams(&gateway).await;
    let get = || Request::get("http://shop.example/pay").body("").unwrap();
    let unread = client.open(get()).await.unwrap();
    // It waits for the place of the first.
    let waiting = tokio::spawn(client.send(get()));
    let others = async {
        for key in 0.. {
            assert!(client.send(h2_client::post("/pay", &key.to_string())).await.body == bytes(WHOLE));
            if waiting.is_finished() {
                break;
            }
        }
    };
    tokio::time::timeout(LIMIT, others).await.expect("the first is given up within the limit");
    assert!(waiting.await.unwrap().body == bytes(WHOLE));
    assert!(unread.into_body().collect().await.is_err(), "it was given up in the middle");
}

/// The time for a head is not the time for reading an answer.
async fn all_is_read_late(backend: Backend) {
    let (database, app) = (Database::create(backend).await, App::answering(bytes(LARGE)).await);
    let gateway = start(&database, &app, "head_timeout = \"200ms\"\nwrite_timeout = \"10min\"").await;
    let mut client = Raw::connect_narrow(gateway.address).await;
    client.write(raw_post("h1")).await;
    let head = client.head().await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    let h2 = narrow_h2(&gateway).await;
    let opened = h2.open(h2_client::post("/pay", "h1")).await.unwrap();
    assert_eq!(opened.headers()["idempotent-replayed"], "true");

    // By the end of this one everything has been waited for that is waited for without a request.
    let mut witness = Raw::connect(gateway.address).await;
    witness.write("GET / HTTP/1.1\r\nHo").await;
    witness.rest().await;
    assert!(client.exactly(LARGE).await == bytes(LARGE));
    assert!(opened.into_body().collect().await.unwrap().to_bytes() == bytes(LARGE));
}

#[tokio::test]
async fn who_reads_late_gets_everything_sqlite() {
    all_is_read_late(Backend::Sqlite).await;
}

#[tokio::test]
async fn who_reads_late_gets_everything_postgres() {
    all_is_read_late(Backend::Postgres).await;
}

#[tokio::test]
async fn who_reads_late_gets_everything_mariadb() {
    all_is_read_late(Backend::MariaDb).await;
}
