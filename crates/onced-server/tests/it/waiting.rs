//! `Prefer: wait=N` and the route's `wait`: a duplicate of a running request waits for its outcome. The upstream holds
//! its answers until a test lets them go, and the gateway says when somebody begins to wait.

use onced_harness::Recorder;
use testkit::http_client::{Answer, Request, send, send_and_hang_up};
use testkit::{Backend, Database, Signal, SqlText};
use tokio::task::JoinHandle;

use crate::case_crash::{
    STEADY, is_in_progress, is_problem, is_replayed, lease, outside_app, post, record, replays, runs,
};
use crate::fixture::{Gateway, LIMIT, route, sql};
use crate::same_database_app::{self, Work, orders_of};

const BODY: &str = r#"{"amount":5}"#;

/// A request that waits for longer than the test does.
fn patient(path: &str, key: &str) -> Request {
    post(path, key, BODY).header("prefer", "wait=60").limit(LIMIT / 2)
}

fn spawn(gateway: &Gateway, request: Request) -> JoinHandle<Answer> {
    let address = gateway.address;
    tokio::spawn(async move { send(address, &request).await })
}

/// How many have begun to wait there.
fn waiting(gateway: &Gateway) -> usize {
    gateway.process.stderr().all().iter().filter(|line| line.contains("\"phase\":\"waiting\"")).count()
}

async fn until_waiting(gateway: &Gateway, count: usize) {
    gateway.process.wait_for_line(|_| waiting(gateway) >= count, LIMIT).await;
}

/// Stops the gateway, which writes the last lines of the log of deliveries: what was decided about a key, and told.
async fn logged(gateway: &mut Gateway, database: &Database, key: &str) -> Vec<String> {
    gateway.process.signal(Signal::Terminate);
    gateway.process.wait(LIMIT).await;
    let of = |table: &str| {
        format!(
            "SELECT decision || ' ' || coalesce(CAST(answered_status AS text), '-') FROM {table} WHERE key = '{key}' \
             ORDER BY decision"
        )
    };
    let text = (of("onced_deliveries"), of("onced.deliveries"));
    database
        .sql()
        .text(SqlText::each(&text.0, &text.1, &text.0.replace("AS text", "AS char")))
        .await
        .into_iter()
        .flatten()
        .collect()
}

/// Sends a request to an upstream that holds it there.
async fn held(gateway: &Gateway, upstream: &Recorder, request: Request) -> JoinHandle<Answer> {
    upstream.hold();
    let running = spawn(gateway, request);
    upstream.wait_for_held(1, LIMIT).await.unwrap();
    running
}

async fn outcome_of_the_running(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = outside_app(&database).await;
    let routes = route("orders", "/orders", &upstream.url(), "external", &lease(STEADY));
    let mut gateway = Gateway::start(&database, &routes).await;

    let first = held(&gateway, &upstream, post("/orders", "k", BODY)).await;
    let second = spawn(&gateway, patient("/orders", "k"));
    until_waiting(&gateway, 1).await;
    // Another request under the key is told so while the first still runs, however patient it is.
    let other = post("/orders", "k", r#"{"amount":6}"#).header("prefer", "wait=60").limit(LIMIT / 2);
    is_problem(&send(gateway.address, &other).await, 422, "key-reused");
    assert!(!second.is_finished());
    upstream.release();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.status, is_replayed(&first)), (200, false), "{first:?}");
    replays(&second, &first);
    assert_eq!(runs(&upstream, "k"), 1);
    assert_eq!(waiting(&gateway), 1);
    assert_eq!(logged(&mut gateway, &database, "k").await, ["execute 200", "mismatch 422", "replay 200"]);
}

#[tokio::test]
async fn a_waiting_duplicate_gets_the_outcome_of_the_running_sqlite() {
    outcome_of_the_running(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_waiting_duplicate_gets_the_outcome_of_the_running_postgres() {
    outcome_of_the_running(Backend::Postgres).await;
}

#[tokio::test]
async fn a_waiting_duplicate_gets_the_outcome_of_the_running_mariadb() {
    outcome_of_the_running(Backend::MariaDb).await;
}

async fn time_is_over(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = outside_app(&database).await;
    let routes = [("brief", "1s"), ("patient", "60s"), ("never", "0s")].map(|(name, wait)| {
        let more = format!("{}wait = \"{wait}\"", lease(STEADY));
        route(name, &format!("/{name}"), &upstream.url(), "external", &more)
    });
    let mut gateway = Gateway::start(&database, &routes.join("\n")).await;
    let to = async |request: Request| send(gateway.address, &request.limit(LIMIT / 2)).await;

    upstream.hold();
    for (number, path) in ["/brief", "/patient", "/never"].into_iter().enumerate() {
        spawn(&gateway, post(path, path, BODY));
        upstream.wait_for_held(number + 1, LIMIT).await.unwrap();
    }
    is_in_progress(&to(post("/never", "/never", BODY)).await, STEADY);
    assert_eq!(waiting(&gateway), 0);
    is_in_progress(&to(post("/brief", "/brief", BODY)).await, STEADY);
    assert_eq!(waiting(&gateway), 1);
    // What the request prefers goes before what the route says.
    is_in_progress(&to(post("/patient", "/patient", BODY).header("prefer", "wait=0")).await, STEADY);
    assert_eq!(waiting(&gateway), 1);
    is_in_progress(&to(post("/never", "/never", BODY).header("prefer", "respond-async, wait=1")).await, STEADY);
    assert_eq!(waiting(&gateway), 2);
    upstream.release();
    let last = to(post("/patient", "/patient", BODY)).await;
    assert_eq!(last.status, 200, "{last:?}");
    assert_eq!(logged(&mut gateway, &database, "/brief").await, ["execute 200", "in-progress 409"]);
}

#[tokio::test]
async fn a_duplicate_waits_no_longer_than_it_was_told_sqlite() {
    time_is_over(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_duplicate_waits_no_longer_than_it_was_told_postgres() {
    time_is_over(Backend::Postgres).await;
}

#[tokio::test]
async fn a_duplicate_waits_no_longer_than_it_was_told_mariadb() {
    time_is_over(Backend::MariaDb).await;
}

/// The gateway that runs the attempt is killed; the duplicate waits at another.
async fn runner_dies(backend: Backend) {
    let database = Database::create(backend).await;
    let app = same_database_app::start(&database, |_| Work::ok(r#"{"ok":true}"#)).await;
    let outside = Recorder::start(onced_harness::RecorderOptions::default()).await.unwrap();
    // It must not run out by itself, however slow the machine is.
    let long = "lease = \"10min\"\n";
    let routes = [
        route("own", "/own", &app.url(), "same-database", long),
        route("outside", "/outside", &outside.url(), "external", long),
    ];
    let mut runner = Gateway::start(&database, &routes.join("\n")).await;
    let mut gateway = Gateway::start(&database, &routes.join("\n")).await;

    let lost = [
        held(&runner, &app, post("/own", "own", BODY)).await,
        held(&runner, &outside, post("/outside", "outside", BODY)).await,
    ];
    let own = spawn(&gateway, patient("/own", "own"));
    let outcome = spawn(&gateway, patient("/outside", "outside"));
    until_waiting(&gateway, 2).await;
    lost.iter().for_each(JoinHandle::abort);
    runner.process.kill().await;
    assert!(!own.is_finished() && !outcome.is_finished());
    sql::let_leases_run_out(database.sql(), backend).await;

    is_problem(&outcome.await.unwrap(), 409, "outcome-unknown");
    app.wait_for_held(2, LIMIT).await.unwrap();
    app.release();
    let own = own.await.unwrap();
    assert_eq!((own.status, is_replayed(&own)), (200, false), "{own:?}");
    assert_eq!(record(&database, "own").await[..2], ["completed", "2"]);
    app.wait_until(|log| log.entries().iter().all(|entry| entry.status.is_some()), LIMIT).await.unwrap();
    assert_eq!((runs(&app, "own"), orders_of(&database, "own").await), (2, 1));
    assert_eq!(runs(&outside, "outside"), 1);
    outside.release();
    assert_eq!(logged(&mut gateway, &database, "own").await, ["execute -", "execute 200"]);
}

#[tokio::test]
async fn a_waiting_duplicate_takes_over_from_a_dead_runner_sqlite() {
    runner_dies(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_waiting_duplicate_takes_over_from_a_dead_runner_postgres() {
    runner_dies(Backend::Postgres).await;
}

#[tokio::test]
async fn a_waiting_duplicate_takes_over_from_a_dead_runner_mariadb() {
    runner_dies(Backend::MariaDb).await;
}

async fn many_wait(backend: Backend) {
    const WAITERS: usize = 40;
    let database = Database::create(backend).await;
    let slow = outside_app(&database).await;
    let quick = Recorder::start(onced_harness::RecorderOptions::default()).await.unwrap();
    let routes = [
        route("slow", "/slow", &slow.url(), "external", &lease(STEADY)),
        route("quick", "/quick", &quick.url(), "external", &lease(STEADY)),
    ];
    let store = "max_connections = 2\nbusy_timeout = \"10s\"";
    let gateway = Gateway::start_with(&database, "", store, &routes.join("\n")).await;

    let first = held(&gateway, &slow, post("/slow", "k", BODY)).await;
    let waiters: Vec<_> = (0..WAITERS).map(|_| spawn(&gateway, patient("/slow", "k"))).collect();
    until_waiting(&gateway, WAITERS).await;
    for number in 0..20 {
        let answer = send(gateway.address, &post("/quick", &format!("q{number}"), BODY)).await;
        assert_eq!((answer.status, is_replayed(&answer)), (200, false), "{answer:?}");
    }
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    slow.release();
    let first = first.await.unwrap();
    for waiter in waiters {
        replays(&waiter.await.unwrap(), &first);
    }
    assert_eq!((runs(&slow, "k"), quick.count()), (1, 20));
}

#[tokio::test]
async fn many_who_wait_hold_no_connection_sqlite() {
    many_wait(Backend::Sqlite).await;
}

#[tokio::test]
async fn many_who_wait_hold_no_connection_postgres() {
    many_wait(Backend::Postgres).await;
}

#[tokio::test]
async fn many_who_wait_hold_no_connection_mariadb() {
    many_wait(Backend::MariaDb).await;
}

async fn nobody_waits_any_more(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = outside_app(&database).await;
    let routes = route("orders", "/orders", &upstream.url(), "external", &lease(STEADY));
    let runner = Gateway::start(&database, &routes).await;
    let mut gateway = Gateway::start(&database, &routes).await;
    let first = held(&runner, &upstream, post("/orders", "k", BODY)).await;

    // The client hangs up: its delivery ends, while the first still runs.
    send_and_hang_up(gateway.address, &patient("/orders", "k"), until_waiting(&gateway, 1)).await;
    let ended = |line: &str| line.contains("\"decision\":\"in-progress\"") && line.contains("\"status\":409");
    gateway.process.wait_for_line(ended, LIMIT / 2).await;

    // The gateway is told to stop: the first runs at another, and may run for longer than the grace.
    let second = spawn(&gateway, patient("/orders", "k"));
    until_waiting(&gateway, 2).await;
    assert_eq!(logged(&mut gateway, &database, "k").await, ["execute -", "in-progress 409", "in-progress 409"]);
    is_in_progress(&second.await.unwrap(), STEADY);

    upstream.release();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(runs(&upstream, "k"), 1);
}

#[tokio::test]
async fn waiting_ends_with_its_client_and_with_its_gateway_sqlite() {
    nobody_waits_any_more(Backend::Sqlite).await;
}

#[tokio::test]
async fn waiting_ends_with_its_client_and_with_its_gateway_postgres() {
    nobody_waits_any_more(Backend::Postgres).await;
}

#[tokio::test]
async fn waiting_ends_with_its_client_and_with_its_gateway_mariadb() {
    nobody_waits_any_more(Backend::MariaDb).await;
}
