//! O-09: the client hangs up while its request is being executed. The execution goes on without it, a retry meanwhile is
//! told so, and a later one gets the stored answer; nothing runs twice, and no record is left in progress.

use std::time::Duration;

use onced_harness::{Log, Moment, Recorder, Reply, Rule};
use testkit::http_client::{send, send_and_hang_up};
use testkit::{Backend, Database};

use super::*;
use crate::fixture::{Gateway, LIMIT, route};
use crate::same_database_app::{self, Work, orders};

const ANSWER: &str = r#"{"ok":true}"#;
const BODY: &str = r#"{"sku":"A","qty":1}"#;

async fn gateway(database: &Database, app: &Recorder, effect: &str) -> Gateway {
    Gateway::start(database, &route("api.order", "/api/order", &app.url(), effect, &lease(STEADY))).await
}

/// The upstream's answer has been dealt with, and a further delivery is answered from the record.
async fn ends_well(database: &Database, app: &Recorder, gateway: &Gateway) {
    app.wait_until(|log| log.answered() == 1, LIMIT).await.unwrap();
    gateway.process.wait_for_line(|line| line.contains("\"phase\":\"ended\"") && line.contains("\"o09\""), LIMIT).await;
    nothing_is_running(database).await;
    let later = send(gateway.address, &post("/api/order", "o09", BODY)).await;
    assert!(is_replayed(&later), "{later:?}");
    assert_eq!((later.status, later.text().as_str()), (200, ANSWER));
    assert_eq!(later.header("content-type"), Some("application/json"));
    assert_eq!((runs(app, "o09"), orders(database).await), (1, 1));
    assert_eq!(record(database, "o09").await, ["completed", "1", ANSWER]);
}

/// It hangs up while the upstream is at work and has not committed.
async fn hangs_up_during_the_work(backend: Backend, effect: &str) {
    let database = Database::create(backend).await;
    let app = match effect {
        "same-database" => same_database_app::start(&database, |_| Work::ok(ANSWER)).await,
        _ => outside_app(&database).await,
    };
    app.script([Rule::on_run(1, Reply::hang())]);
    let gateway = gateway(&database, &app, effect).await;
    let request = post("/api/order", "o09", BODY);
    send_and_hang_up(gateway.address, &request, app.wait_for_held(1, LIMIT)).await;
    is_in_progress(&send(gateway.address, &request).await, STEADY);
    assert_eq!(orders(&database).await, 0);
    app.release();
    ends_well(&database, &app, &gateway).await;
}

/// It hangs up between the application's commit and its answer.
async fn hangs_up_after_the_commit(backend: Backend) {
    let database = Database::create(backend).await;
    // Not shortened: on a slow machine, too, the close has to come before the answer.
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER).after(Duration::from_secs(1))).await;
    let gateway = gateway(&database, &app, "same-database").await;
    let request = post("/api/order", "o09", BODY);
    send_and_hang_up(gateway.address, &request, app.wait_until(|log| log.effects() == 1, LIMIT)).await;
    assert_eq!(app.log().answered(), 0, "the close came too late to test anything");
    // The application's commit has completed the record.
    let next = send(gateway.address, &request).await;
    assert_eq!((next.status, next.text().as_str(), is_replayed(&next)), (200, ANSWER, true));
    ends_well(&database, &app, &gateway).await;
}

/// It hangs up between the upstream's commit and the completion, which is the gateway's here.
async fn hangs_up_before_the_completion(backend: Backend, effect: &str) {
    let database = Database::create(backend).await;
    let app = outside_app(&database).await;
    app.script([Rule::on_run(1, Reply::ok().hold(Moment::BeforeAnswer))]);
    let gateway = gateway(&database, &app, effect).await;
    let request = post("/api/order", "o09", BODY);
    let committed = |log: &Log| log.effects() == 1 && log.held() == 1;
    send_and_hang_up(gateway.address, &request, app.wait_until(committed, LIMIT)).await;
    is_in_progress(&send(gateway.address, &request).await, STEADY);
    assert_eq!(orders(&database).await, 1);
    app.release();
    ends_well(&database, &app, &gateway).await;
}

#[tokio::test]
async fn o_09_the_client_hangs_up_during_the_work_sqlite() {
    for effect in ["same-database", "idempotent", "external"] {
        hangs_up_during_the_work(Backend::Sqlite, effect).await;
    }
}

#[tokio::test]
async fn o_09_the_client_hangs_up_during_the_work_postgres() {
    for effect in ["same-database", "idempotent", "external"] {
        hangs_up_during_the_work(Backend::Postgres, effect).await;
    }
}

#[tokio::test]
async fn o_09_the_client_hangs_up_during_the_work_mariadb() {
    for effect in ["same-database", "idempotent", "external"] {
        hangs_up_during_the_work(Backend::MariaDb, effect).await;
    }
}

#[tokio::test]
async fn o_09_the_client_hangs_up_after_the_commit_sqlite() {
    hangs_up_after_the_commit(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_09_the_client_hangs_up_after_the_commit_postgres() {
    hangs_up_after_the_commit(Backend::Postgres).await;
}

#[tokio::test]
async fn o_09_the_client_hangs_up_after_the_commit_mariadb() {
    hangs_up_after_the_commit(Backend::MariaDb).await;
}

#[tokio::test]
async fn o_09_the_client_hangs_up_before_the_completion_sqlite() {
    for effect in ["idempotent", "external"] {
        hangs_up_before_the_completion(Backend::Sqlite, effect).await;
    }
}

#[tokio::test]
async fn o_09_the_client_hangs_up_before_the_completion_postgres() {
    for effect in ["idempotent", "external"] {
        hangs_up_before_the_completion(Backend::Postgres, effect).await;
    }
}

#[tokio::test]
async fn o_09_the_client_hangs_up_before_the_completion_mariadb() {
    for effect in ["idempotent", "external"] {
        hangs_up_before_the_completion(Backend::MariaDb, effect).await;
    }
}
