//! Outcomes that were lately replayed are answered with from memory, each still a delivery in the log; without that memory
//! the record is read each time.

use onced_harness::{Call, Recorder, RecorderOptions, Reply};
use testkit::http_client::{Request, send};
use testkit::process::Signal;
use testkit::{Backend, Database};

use crate::fixture::{Gateway, LIMIT, on_all, route, sql};

async fn replays(backend: Backend, store: &str, comes_from_memory: bool) {
    let database = Database::create(backend).await;
    let reply = RecorderOptions::default().effect_fn(|_: Call| async { Some(Reply::status(201).json(r#"{"n":1}"#)) });
    let app = Recorder::start(reply).await.expect("the app can listen");
    // Each connection that is opened ends the memory of what was read before: there is one, from the start on.
    let store = &format!("max_connections = 1\n{store}");
    let routes = route("orders", "/order", &app.url(), "external", "");
    let mut gateway = Gateway::start_with(&database, "", store, &routes).await;
    let request = Request::post("/order", "{}").key("key-1").header("content-type", "application/json");
    let first = send(gateway.address, &request).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (201, None));
    let read = send(gateway.address, &request).await;
    assert_eq!((read.status, read.header("idempotent-replayed")), (201, Some("true")));

    // Nobody but this test takes a completed record away before it expires.
    database.sql().execute(&format!("DELETE FROM {}", sql::table(backend))).await;
    let third = send(gateway.address, &request).await;
    assert_eq!((third.status, third.text()), (201, first.text()));
    let is_replay = third.header("idempotent-replayed").is_some();
    assert_eq!((is_replay, app.count()), (comes_from_memory, if comes_from_memory { 1 } else { 2 }));

    // The last lines of the log are written when the gateway is told to stop.
    gateway.process.signal(Signal::Terminate);
    gateway.process.wait(LIMIT).await;
    let table = match backend {
        Backend::Sqlite | Backend::MariaDb => "onced_deliveries",
        Backend::Postgres => "onced.deliveries",
    };
    let lines = format!("SELECT count(*) FROM {table} WHERE answered_status = 201");
    assert_eq!(database.sql().count(&lines).await, 3, "each is in the log");
}

async fn from_memory(backend: Backend) {
    replays(backend, "", true).await;
}

async fn without_memory(backend: Backend) {
    replays(backend, "replay_memory = 0", false).await;
}

on_all! {
    from_memory: a_repeated_replay_comes_from_memory_on_sqlite, a_repeated_replay_comes_from_memory_on_postgres, a_repeated_replay_comes_from_memory_on_mariadb;
    without_memory: without_memory_the_record_is_read_on_sqlite, without_memory_the_record_is_read_on_postgres, without_memory_the_record_is_read_on_mariadb;
}
