//! O-07: the first attempt fails. If nothing was done, the sender's retry must really run, not be taken for a duplicate
//! of something that never happened; if the handler says that it will never work, that is the outcome, and is replayed.

use onced_harness::{Recorder, Reply, Rule};
use testkit::http_client::{Request, send};
use testkit::{Backend, Database};

use super::*;
use crate::fixture::{Gateway, route};
use crate::same_database_app::{self, Work, orders};

/// A webhook, whose key is in a header of the sender's.
fn delivery() -> Request {
    let request = Request::post("/hooks/shop", r#"{"id":5001,"total_price":"10.00"}"#);
    request.header("content-type", "application/json").header("x-shopify-webhook-id", "wh-o07")
}

async fn gateway(database: &Database, app: &Recorder, effect: &str) -> Gateway {
    let key = "key = { from = \"header\", header = \"X-Shopify-Webhook-Id\" }\nmismatch = \"note\"\n";
    let more = format!("{key}{}", lease(STEADY));
    Gateway::start(database, &route("hooks.shop", "/hooks/shop", &app.url(), effect, &more)).await
}

/// The connection to the upstream is refused, so nothing was sent, whatever kind of upstream it is.
async fn refused_at_first(backend: Backend, effect: &str) {
    let database = Database::create(backend).await;
    let app = match effect {
        "same-database" => same_database_app::start(&database, |_| Work::ok(r#"{"ok":true}"#)).await,
        _ => outside_app(&database).await,
    };
    let gateway = gateway(&database, &app, effect).await;

    app.stop().await;
    let first = send(gateway.address, &delivery()).await;
    is_problem(&first, 502, "upstream-unreachable");
    assert!(first.header("retry-after").is_some(), "{first:?}");
    assert_eq!(record(&database, "wh-o07").await, ["failed", "1", "NULL"]);
    assert_eq!((runs(&app, "wh-o07"), orders(&database).await), (0, 0));

    app.restart().await.expect("the upstream's address is still free");
    let second = send(gateway.address, &delivery()).await;
    assert_eq!((second.status, second.text().as_str(), is_replayed(&second)), (200, r#"{"ok":true}"#, false));
    replays(&send(gateway.address, &delivery()).await, &second);
    assert_eq!(record(&database, "wh-o07").await, ["completed", "2", r#"{"ok":true}"#]);
    assert_eq!((runs(&app, "wh-o07"), orders(&database).await), (1, 1));
}

/// The handler answers that this will never work.
async fn failed_for_good(backend: Backend, effect: &str) {
    let database = Database::create(backend).await;
    let app = match effect {
        "same-database" => same_database_app::start(&database, |_| Work::fails(422)).await,
        _ => outside_app(&database).await,
    };
    if effect != "same-database" {
        app.script([Rule::always(Reply::status(422).json(r#"{"error":true}"#))]);
    }
    let gateway = gateway(&database, &app, effect).await;
    let first = send(gateway.address, &delivery()).await;
    assert_eq!((first.status, first.text().as_str(), is_replayed(&first)), (422, r#"{"error":true}"#, false));
    assert_eq!(record(&database, "wh-o07").await, ["completed", "1", r#"{"error":true}"#]);
    for _ in 0..2 {
        replays(&send(gateway.address, &delivery()).await, &first);
    }
    assert_eq!((runs(&app, "wh-o07"), orders(&database).await), (1, 0));
}

const EFFECTS: [&str; 3] = ["same-database", "idempotent", "external"];

#[tokio::test]
async fn o_07_a_retry_runs_after_a_refused_connection_sqlite() {
    for effect in EFFECTS {
        refused_at_first(Backend::Sqlite, effect).await;
    }
}

#[tokio::test]
async fn o_07_a_retry_runs_after_a_refused_connection_postgres() {
    for effect in EFFECTS {
        refused_at_first(Backend::Postgres, effect).await;
    }
}

#[tokio::test]
async fn o_07_a_retry_runs_after_a_refused_connection_mariadb() {
    for effect in EFFECTS {
        refused_at_first(Backend::MariaDb, effect).await;
    }
}

#[tokio::test]
async fn o_07_a_permanent_failure_is_the_outcome_sqlite() {
    for effect in EFFECTS {
        failed_for_good(Backend::Sqlite, effect).await;
    }
}

#[tokio::test]
async fn o_07_a_permanent_failure_is_the_outcome_postgres() {
    for effect in EFFECTS {
        failed_for_good(Backend::Postgres, effect).await;
    }
}

#[tokio::test]
async fn o_07_a_permanent_failure_is_the_outcome_mariadb() {
    for effect in EFFECTS {
        failed_for_good(Backend::MariaDb, effect).await;
    }
}
