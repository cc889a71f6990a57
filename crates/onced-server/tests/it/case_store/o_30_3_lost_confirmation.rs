//! O-30, item 3: the claim is committed, and its confirmation is lost. On PostgreSQL and MariaDB the connection is
//! cut before the confirmation gets through; either the same delivery finds its own claim and goes on as its owner, or, where the
//! ledger stays out of reach, a retry after the lease executes. On SQLite, which has no connection, the gateway is
//! killed right after its claim. In the end the request has run once.

use onced_harness::Recorder;
use testkit::http_client::{Broken, send, try_send};
use testkit::{Backend, Database};

use super::wire::After;
use super::{
    LONG_LEASE, WiredGateway, assert_come_again, assert_replay_of, attempts, live_leases, order, problem, records,
    short_lease, until_decided,
};
use crate::fixture::{Gateway, LIMIT, route, sql};
use crate::same_database_app::{self, Work};

const ANSWER: &str = r#"{"order":42}"#;

async fn assert_ran_once(database: &Database, app: &Recorder) {
    assert_eq!((app.effects(), same_database_app::orders(database).await), (1, 1));
    assert_eq!(sql::keys_at(database.sql(), database.backend(), "completed").await, 1);
    assert_eq!((records(database).await, live_leases(database).await), (1, 0));
}

async fn the_same_delivery_goes_on_as_owner(backend: Backend) {
    let database = Database::create(backend).await;
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER)).await;
    let routes = route("api.order", "/api/order", &app.url(), "same-database", LONG_LEASE);
    let gateway = WiredGateway::start(&database, &routes).await;

    gateway.wire.lose_the_next_confirmation(After::Mended);
    let answer = send(gateway.address, &order("o30-3")).await;
    assert!(gateway.wire.has_lost_a_confirmation());
    assert_eq!((answer.status, answer.header("idempotent-replayed")), (200, None), "{answer:?}");
    assert_eq!((answer.text().as_str(), app.count(), attempts(&database).await), (ANSWER, 1, 1));
    assert_replay_of(&send(gateway.address, &order("o30-3")).await, 200, ANSWER);
    assert_ran_once(&database, &app).await;
}

async fn a_retry_after_the_lease_runs(backend: Backend) {
    let database = Database::create(backend).await;
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER)).await;
    let routes = route("api.order", "/api/order", &app.url(), "same-database", &short_lease());
    let gateway = WiredGateway::start(&database, &routes).await;

    gateway.wire.lose_the_next_confirmation(After::Down);
    let answer = send(gateway.address, &order("o30-3")).await;
    assert!(gateway.wire.has_lost_a_confirmation());
    assert_come_again(&answer, 503, "store-unavailable");
    // It is committed, and nothing was forwarded: whether the claim was the delivery's own could not be read.
    assert_eq!(sql::keys_at(database.sql(), backend, "in_progress").await, 1);
    assert_eq!(app.count(), 0);

    gateway.wire.mend();
    let retry = until_decided(gateway.address, &order("o30-3")).await;
    assert_eq!((retry.status, retry.text().as_str(), app.count()), (200, ANSWER, 1), "{retry:?}");
    assert_eq!(attempts(&database).await, 2);
    assert_replay_of(&send(gateway.address, &order("o30-3")).await, 200, ANSWER);
    assert_ran_once(&database, &app).await;
}

#[tokio::test]
async fn o_30_3_the_same_delivery_goes_on_as_owner_postgres() {
    the_same_delivery_goes_on_as_owner(Backend::Postgres).await;
}

#[tokio::test]
async fn o_30_3_the_same_delivery_goes_on_as_owner_mariadb() {
    the_same_delivery_goes_on_as_owner(Backend::MariaDb).await;
}

#[tokio::test]
async fn o_30_3_a_retry_after_the_lease_runs_postgres() {
    a_retry_after_the_lease_runs(Backend::Postgres).await;
}

#[tokio::test]
async fn o_30_3_a_retry_after_the_lease_runs_mariadb() {
    a_retry_after_the_lease_runs(Backend::MariaDb).await;
}

#[tokio::test]
async fn o_30_3_a_retry_after_the_lease_runs_sqlite() {
    let database = Database::create(Backend::Sqlite).await;
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER)).await;
    let routes = route("api.order", "/api/order", &app.url(), "same-database", &short_lease());
    let mut gateway = Gateway::start(&database, &routes).await;

    // Should the request get out before the kill, it dies with the application.
    app.hold();
    let address = gateway.address;
    let sent = tokio::spawn(async move { try_send(address, &order("o30-3")).await });
    gateway.process.wait_for_line(|line| line.contains("\"phase\":\"claimed\""), LIMIT).await;
    gateway.process.kill().await;
    let broken: Result<_, Broken> = sent.await.expect("no panic");
    broken.expect_err("the gateway is gone");
    app.stop().await;
    app.release();
    app.restart().await.expect("the application can listen again");
    assert_eq!((app.effects(), sql::keys_at(database.sql(), Backend::Sqlite, "in_progress").await), (0, 1));

    gateway.restart().await;
    let early = send(gateway.address, &order("o30-3")).await;
    assert!(early.status == 200 || problem(&early).as_deref() == Some("in-progress"), "{early:?}");
    let retry = until_decided(gateway.address, &order("o30-3")).await;
    assert_eq!((retry.status, retry.text().as_str(), attempts(&database).await), (200, ANSWER, 2), "{retry:?}");
    assert_replay_of(&send(gateway.address, &order("o30-3")).await, 200, ANSWER);
    assert_ran_once(&database, &app).await;
}
