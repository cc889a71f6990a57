//! O-30, item 7: a request is delivered, every process is stopped and started again, the request is delivered again: it
//! is replayed, because nothing that counts was in memory.

use testkit::http_client::send;
use testkit::{Backend, Database, Signal};

use super::{LONG_LEASE, assert_replay_of, order};
use crate::fixture::{Gateway, LIMIT, route};
use crate::same_database_app::{self, Work};

async fn replayed_after_a_restart_of_everything(backend: Backend) {
    let database = Database::create(backend).await;
    let app = same_database_app::start(&database, |call| Work::ok(&format!(r#"{{"run":{}}}"#, call.seq))).await;
    let routes = route("api.order", "/api/order", &app.url(), "same-database", LONG_LEASE);
    let mut first = Gateway::start(&database, &routes).await;
    let mut second = Gateway::start(&database, &routes).await;

    let answer = send(first.address, &order("o30-7")).await;
    assert_eq!((answer.status, answer.header("idempotent-replayed")), (200, None), "{answer:?}");

    // One is asked to stop, the other has no time for anything.
    first.process.signal(Signal::Terminate);
    first.process.wait(LIMIT).await;
    second.process.kill().await;
    app.restart().await.expect("the application can listen again");
    first.restart().await;
    second.restart().await;

    for gateway in [&first, &second] {
        assert_replay_of(&send(gateway.address, &order("o30-7")).await, 200, &answer.text());
    }
    assert_eq!((app.count(), same_database_app::orders(&database).await), (1, 1));
}

#[tokio::test]
async fn o_30_7_replayed_after_a_restart_of_everything_sqlite() {
    replayed_after_a_restart_of_everything(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_30_7_replayed_after_a_restart_of_everything_postgres() {
    replayed_after_a_restart_of_everything(Backend::Postgres).await;
}

#[tokio::test]
async fn o_30_7_replayed_after_a_restart_of_everything_mariadb() {
    replayed_after_a_restart_of_everything(Backend::MariaDb).await;
}
