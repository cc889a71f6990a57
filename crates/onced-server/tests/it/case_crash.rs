//! Reported cases about crashes.

use onced_harness::Recorder;
use testkit::http_client::{Request, send};
use testkit::{Backend, Database};

use crate::fixture::{Gateway, route};
use crate::same_database_app::{self, Work};

async fn first_delivery(backend: Backend) {
    let database = Database::create(backend).await;
    let app: Recorder = same_database_app::start(&database, |_| Work::ok(r#"{"ok":true}"#)).await;
    let gateway = Gateway::start(&database, &route("api.order", "/api/order", &app.url(), "same-database", "")).await;
    let request = Request::post("/api/order", r#"{"sku":"A"}"#).key("k1").header("content-type", "application/json");
    let answer = send(gateway.address, &request).await;
    assert_eq!((answer.status, answer.text()), (200, r#"{"ok":true}"#.into()));
    let again = send(gateway.address, &request).await;
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.body, answer.body);
    assert_eq!(same_database_app::orders(&database).await, 1);
}

#[tokio::test]
async fn smoke_sqlite() {
    first_delivery(Backend::Sqlite).await;
}

#[tokio::test]
async fn smoke_postgres() {
    first_delivery(Backend::Postgres).await;
}
