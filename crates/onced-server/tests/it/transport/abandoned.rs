//! Executions outlive their clients; so their number is bounded, whoever hangs up.

use std::time::Duration;

use onced_harness::{Recorder, RecorderOptions};
use testkit::http_client::{Request, send, send_and_hang_up};
use testkit::{Backend, Database};

use crate::fixture::{Gateway, LIMIT, on_all, route, sql};

async fn abandoned_executions_take_places(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.unwrap();
    upstream.hold();
    let routes = route("r", "/r", &upstream.url(), "external", "lease = \"60s\"\n");
    let clients = format!("[clients]\nmax_connections = 2\n\n{routes}");
    let gateway = Gateway::start(&database, &clients).await;
    let request = |n: usize| Request::post("/r", "{}").key(&format!("k{n}"));
    for n in 1..=2 {
        let arrived = upstream.wait_for_calls(n, LIMIT);
        send_and_hang_up(gateway.address, &request(n), arrived).await;
    }
    let third = tokio::spawn({
        let (address, request) = (gateway.address, request(3));
        async move { send(address, &request).await }
    });
    // Both connections are free again, and the gateway answers; but it executes no more than two at once.
    assert_eq!(send(gateway.address, &Request::new("GET", "/_onced/healthz")).await.status, 200);
    assert!(upstream.wait_for_calls(3, Duration::from_millis(300)).await.is_err(), "a third one is executed");
    upstream.release();
    assert_eq!(third.await.unwrap().status, 200);
    assert_eq!(upstream.count(), 3);
    gateway.process.wait_for_line(|line| line.contains("\"phase\":\"ended\"") && line.contains("k2"), LIMIT).await;
    assert_eq!(sql::keys_at(database.sql(), backend, "completed").await, 3);
}

on_all! {
    abandoned_executions_take_places: abandoned_executions_take_places_sqlite, abandoned_executions_take_places_postgres, abandoned_executions_take_places_mariadb;
}
