//! Within the retention a retry is replayed, whatever cleaning up has done. After it the key counts as unknown: the
//! request is new to onced, the order's own reference refuses a second order, and the answer is the same before and
//! after the row is gone.

use std::time::Duration;

use onced_harness::{Call, Recorder, RecorderOptions, Reply};
use testkit::http_client::{Answer, Request, send};
use testkit::{Backend, Database};

use super::{records, sweep};
use crate::fixture::{Gateway, route, sql};

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// An upstream whose orders have a reference of their own, which is unique.
async fn shop(database: &Database) -> Recorder {
    database.sql().execute("CREATE TABLE orders (ref TEXT NOT NULL UNIQUE)").await;
    let sql = database.sql().clone();
    let options = RecorderOptions::default().effect_fn(move |call: Call| {
        let sql = sql.clone();
        async move {
            let body = String::from_utf8_lossy(&call.body).into_owned();
            let written = sql.try_execute(&format!("INSERT INTO orders (ref) VALUES ('{body}')")).await;
            Some(match written {
                Ok(_) => Reply::status(201).json(r#"{"ordered":true}"#).with_effect(),
                Err(_) => Reply::status(409).json(r#"{"error":"there is such an order"}"#).without_effect(),
            })
        }
    });
    Recorder::start(options).await.expect("the shop can listen")
}

fn order(key: &str) -> Request {
    Request::post("/order", key.to_owned()).key(key).header("content-type", "text/plain")
}

/// The status, and whether it is said to be a replay.
fn seen(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status, answer.header("idempotent-replayed"))
}

async fn late_retries(backend: Backend) {
    let database = Database::create(backend).await;
    let shop = shop(&database).await;
    let routes = route("orders", "/order", &shop.url(), "external", "retention = \"2days\"");
    // What is kept in memory ages by the time that passes, not by a clock that is put ahead.
    let gateway = Gateway::start_with(&database, "", "replay_memory = 0", &routes).await;
    let deliver = async |key: &str| send(gateway.address, &order(key)).await;
    let clock = async |by| sql::put_the_clock_ahead(database.sql(), backend, by).await;

    for key in ["a", "b"] {
        assert_eq!(seen(&deliver(key).await), (201, None));
    }
    clock(HOUR * 48 - MINUTE).await;
    assert_eq!(seen(&deliver("a").await), (201, Some("true")));
    assert!(sweep(&database, &["--dry-run"]).await.starts_with("0 keys"));
    assert!(sweep(&database, &[]).await.starts_with("0 keys"));
    assert_eq!(seen(&deliver("a").await), (201, Some("true")));
    assert_eq!(shop.count(), 2);

    clock(HOUR * 48 + MINUTE).await;
    let before = deliver("a").await;
    assert_eq!(seen(&before), (409, None), "it is executed as new, and the order's reference refuses it");
    // Of `a` there is a record of its next life.
    let dry = sweep(&database, &["--dry-run"]).await;
    assert!(dry.contains("1 key and 0 lines of deliveries would be deleted. Nothing was."), "{dry}");
    assert_eq!(records(&database).await, 2);
    let swept = sweep(&database, &[]).await;
    assert!(swept.starts_with("1 key and 0 lines of deliveries deleted, in 1 batch "), "{swept}");
    assert_eq!(records(&database).await, 1);
    let after = deliver("b").await;
    assert_eq!((seen(&after), after.text()), (seen(&before), before.text()), "the same without the row");
    for key in ["a", "b"] {
        assert_eq!(seen(&deliver(key).await), (409, Some("true")), "what the next life ended with");
    }
    assert_eq!(shop.count(), 4, "each was executed once in each life");
    assert_eq!(database.sql().count("SELECT count(*) FROM orders").await, 2, "and there is one order of each");
}

#[tokio::test]
async fn o_28_late_retries_sqlite() {
    late_retries(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_28_late_retries_postgres() {
    late_retries(Backend::Postgres).await;
}

#[tokio::test]
async fn o_28_late_retries_mariadb() {
    late_retries(Backend::MariaDb).await;
}
