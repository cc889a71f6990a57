//! O-03: the gateway is killed with a claim in its hands. The claim must not be lost (nobody may run beside an upstream
//! that is still at work), and must not last for ever (a later delivery has to run).

use std::time::{Duration, Instant};

use onced_harness::{Reply, Rule};
use testkit::http_client::{race_same, send, try_send};
use testkit::{Backend, Database};

use super::*;
use crate::fixture::{Gateway, LIMIT, route};
use crate::same_database_app::{self, Work, orders};

const ANSWER: &str = r#"{"order":1}"#;

/// The upstream hangs on the first run, and the gateway is killed at 1 s. Until the lease is over, deliveries are told
/// that an attempt is running; then one of ten runs. The first run wakes up last of all, and writes nothing.
async fn killed_after_the_claim(backend: Backend) {
    let database = Database::create(backend).await;
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER).before(secs(0.05))).await;
    app.script([Rule::on_run(1, Reply::hang())]);
    let length = mortal(Duration::from_secs(5));
    let routes = route("api.order", "/api/order", &app.url(), "same-database", &lease(length));
    let mut gateway = Gateway::start(&database, &routes).await;
    let (address, request) = (gateway.address, post("/api/order", "o03", r#"{"sku":"A","qty":1}"#));

    let start = Instant::now();
    let first = tokio::spawn({
        let request = request.clone();
        async move { try_send(address, &request).await }
    });
    app.wait_for_held(1, LIMIT).await.unwrap();
    at_second(1.0, start).await;
    gateway.process.kill().await;
    assert!(first.await.unwrap().is_err(), "a killed gateway answers nothing");
    gateway.restart().await;

    for second in [2.0, 4.0] {
        at_second(second, start).await;
        is_in_progress(&send(address, &request).await, length);
    }
    leases_are_over(&database, 7.0, start).await;
    let answers = race_same(10, &[address], &request).await;
    assert_eq!(one_ran_at_most(&answers, 200, ANSWER, length), 1);
    nothing_is_running(&database).await;
    at_second(9.0, start).await;
    let ran = answers.iter().find(|answer| answer.status == 200 && !is_replayed(answer)).unwrap();
    replays(&send(address, &request).await, ran);
    assert_eq!((runs(&app, "o03"), orders(&database).await), (2, 1));

    app.release();
    app.wait_until(|log| log.entries()[0].status == Some(409), LIMIT).await.unwrap();
    assert_eq!(orders(&database).await, 1);
    assert_eq!(record(&database, "o03").await, ["completed", "2", ANSWER]);
}

#[tokio::test]
async fn o_03_killed_after_the_claim_sqlite() {
    killed_after_the_claim(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_03_killed_after_the_claim_postgres() {
    killed_after_the_claim(Backend::Postgres).await;
}

#[tokio::test]
async fn o_03_killed_after_the_claim_mariadb() {
    killed_after_the_claim(Backend::MariaDb).await;
}
