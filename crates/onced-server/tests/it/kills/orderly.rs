//! The orderly end: told to stop, the gateway takes nothing new and lets what runs finish, within its grace.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use onced_harness::{Recorder, RecorderOptions};
use testkit::http_client::{Answer, Request, send, send_and_hang_up, try_send};
use testkit::{Backend, Database, Signal};
use tokio::net::TcpStream;

use crate::fixture::{Gateway, LIMIT, route, sql};

fn request(key: &str) -> Request {
    Request::post("/payments", r#"{"amount":5}"#).key(key).header("content-type", "application/json")
}

async fn start(backend: Backend, top: &str, lease: &str) -> (Database, Recorder, Gateway) {
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default().deduplicate()).await.expect("the upstream can listen");
    let lease = format!("lease = \"{lease}\"");
    let routes = route("payments", "/payments", &upstream.url(), "idempotent", &lease);
    let gateway = Gateway::start_with(&database, top, "", &routes).await;
    (database, upstream, gateway)
}

/// Comes back once nothing listens at that address any more.
async fn refused(address: SocketAddr) {
    let started = Instant::now();
    while TcpStream::connect(address).await.is_ok() {
        assert!(started.elapsed() < LIMIT, "new connections are still taken");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn what_runs_is_finished(backend: Backend) {
    let (database, upstream, mut gateway) = start(backend, "shutdown_grace = \"30s\"", "5s").await;
    upstream.hold();
    let address = gateway.address;
    let running = tokio::spawn(async move { send(address, &request("k1")).await });
    upstream.wait_for_held(1, LIMIT).await.expect("the request reaches the upstream");
    gateway.process.signal(Signal::Terminate);
    gateway.process.wait_for_line(|line| line.contains("stopping"), LIMIT).await;
    refused(address).await;
    assert_eq!(sql::keys_at(database.sql(), backend, "pending_external").await, 1, "it still runs");
    assert!(gateway.process.id().is_some() && !running.is_finished(), "the gateway waits for it");

    upstream.release();
    let answer = running.await.expect("the client got an answer");
    assert_eq!((answer.status, answer.text().as_str()), (200, r#"{"ok":true}"#));
    assert_eq!(gateway.process.wait(LIMIT).await.code(), Some(0));
    assert_eq!(sql::keys_at(database.sql(), backend, "completed").await, 1);
    gateway.restart().await;
    let again = send(address, &request("k1")).await;
    assert_eq!((again.header("idempotent-replayed"), &again.body), (Some("true"), &answer.body));
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn told_to_stop_it_finishes_what_runs_sqlite() {
    what_runs_is_finished(Backend::Sqlite).await;
}

#[tokio::test]
async fn told_to_stop_it_finishes_what_runs_postgres() {
    what_runs_is_finished(Backend::Postgres).await;
}

#[tokio::test]
async fn told_to_stop_it_finishes_what_runs_mariadb() {
    what_runs_is_finished(Backend::MariaDb).await;
}

/// What runs is the gateway's to finish, also where no connection waits for it any more.
async fn what_nobody_waits_for_is_finished(backend: Backend) {
    let (database, upstream, mut gateway) = start(backend, "shutdown_grace = \"30s\"", "5s").await;
    upstream.hold();
    send_and_hang_up(gateway.address, &request("k1"), upstream.wait_for_held(1, LIMIT)).await;
    gateway.process.signal(Signal::Terminate);
    gateway.process.wait_for_line(|line| line.contains("stopping"), LIMIT).await;
    refused(gateway.address).await;
    upstream.release();
    assert_eq!(gateway.process.wait(LIMIT).await.code(), Some(0));
    assert_eq!(sql::keys_at(database.sql(), backend, "completed").await, 1);
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn told_to_stop_it_finishes_what_nobody_waits_for_sqlite() {
    what_nobody_waits_for_is_finished(Backend::Sqlite).await;
}

#[tokio::test]
async fn told_to_stop_it_finishes_what_nobody_waits_for_postgres() {
    what_nobody_waits_for_is_finished(Backend::Postgres).await;
}

#[tokio::test]
async fn told_to_stop_it_finishes_what_nobody_waits_for_mariadb() {
    what_nobody_waits_for_is_finished(Backend::MariaDb).await;
}

async fn what_outlasts_the_grace_is_taken_over(backend: Backend) {
    let lease = if testkit::soaking() { "3s" } else { "500ms" };
    let (database, upstream, mut gateway) = start(backend, "shutdown_grace = \"200ms\"", lease).await;
    upstream.hold();
    let address = gateway.address;
    let running = tokio::spawn(async move { try_send(address, &request("k1")).await });
    upstream.wait_for_held(1, LIMIT).await.expect("the request reaches the upstream");
    gateway.process.signal(Signal::Terminate);
    assert_eq!(gateway.process.wait(LIMIT).await.code(), Some(0), "a grace that is over is no failure");
    assert!(running.await.expect("the client has ended").is_err(), "nobody could answer");
    assert_eq!(sql::keys_at(database.sql(), backend, "pending_external").await, 1, "the row stays");

    upstream.release();
    gateway.restart().await;
    let answer = delivered(address).await;
    assert_eq!((answer.status, answer.header("idempotent-replayed")), (200, None), "it was executed again");
    let calls = upstream.calls();
    let attempts: Vec<&str> = calls.iter().map(|call| call.headers["onced-attempt"].to_str().unwrap()).collect();
    assert_eq!(attempts, ["1", "2"]);
    assert_eq!(calls[0].key, calls[1].key, "under the same downstream key");
    assert_eq!(upstream.effects(), 1);
    assert_eq!(sql::keys_at(database.sql(), backend, "completed").await, 1);
}

/// Delivers again, as a sender does, until the lease of the lost attempt is over.
async fn delivered(address: SocketAddr) -> Answer {
    let started = Instant::now();
    loop {
        let answer = send(address, &request("k1")).await;
        if answer.status != 409 {
            return answer;
        }
        assert!(answer.text().contains("in-progress"), "{}", answer.text());
        assert!(answer.header("retry-after").is_some() && started.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn what_outlasts_the_grace_is_taken_over_sqlite() {
    what_outlasts_the_grace_is_taken_over(Backend::Sqlite).await;
}

#[tokio::test]
async fn what_outlasts_the_grace_is_taken_over_postgres() {
    what_outlasts_the_grace_is_taken_over(Backend::Postgres).await;
}

#[tokio::test]
async fn what_outlasts_the_grace_is_taken_over_mariadb() {
    what_outlasts_the_grace_is_taken_over(Backend::MariaDb).await;
}

#[tokio::test]
async fn told_twice_it_ends_at_once() {
    let (database, upstream, mut gateway) = start(Backend::Sqlite, "shutdown_grace = \"10min\"", "5s").await;
    upstream.hold();
    let address = gateway.address;
    let running = tokio::spawn(async move { try_send(address, &request("k1")).await });
    upstream.wait_for_held(1, LIMIT).await.expect("the request reaches the upstream");
    let started = Instant::now();
    // A person presses the key again where nothing happens.
    let code = loop {
        assert!(started.elapsed() < LIMIT, "it does not end");
        gateway.process.signal(Signal::Terminate);
        if let Ok(status) = tokio::time::timeout(Duration::from_millis(100), gateway.process.wait(LIMIT)).await {
            break status.code();
        }
    };
    assert_eq!(code, Some(0));
    assert!(running.await.expect("the client has ended").is_err(), "nobody could answer");
    assert_eq!(sql::keys_at(database.sql(), Backend::Sqlite, "pending_external").await, 1, "the row stays");
}
