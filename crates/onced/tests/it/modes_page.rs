//! `docs/guides/modes.md` is true: its handler stands here, and is run.

use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use onced::guard::{Guard, Step};
use onced::http::axum::{Leased, LeasedError, Onced};
use onced::store::deliveries::LogDeliveries;
use onced::store::postgres::PgStore;
use onced_core::record::StoredResponse;
use tower::ServiceExt as _;

use crate::bench::{Bench, fresh_key, patient, scope};

const PAGE: &str = include_str!("../../../../docs/guides/modes.md");

static CHARGES: AtomicU32 = AtomicU32::new(0);

async fn bank_charges(downstream_key: &str) -> StoredResponse {
    assert!(!downstream_key.is_empty());
    CHARGES.fetch_add(1, Ordering::SeqCst);
    StoredResponse { body: Some("charged".into()), ..StoredResponse::bare(200) }
}

async fn order(mut leased: Leased<PgStore>, item: String) -> Result<StatusCode, LeasedError> {
    let charge = match leased.step("charge").await? {
        Step::Recorded(answer) => answer,
        Step::Execute(step) => {
            let answer = bank_charges(step.downstream_key()).await;
            step.complete(answer.clone()).await?;
            answer
        }
    };
    sqlx::query("INSERT INTO orders (item, charge) VALUES ($1, $2)")
        .bind(item)
        .bind(charge.body.as_deref())
        .execute(&mut **leased.tx().await?)
        .await?;
    Ok(StatusCode::CREATED)
}

#[test]
fn the_pages_handler_stands_here() {
    let (_, block) = PAGE.split_once("```rust\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let plain = |text: &str| text.split_whitespace().collect::<String>();
    assert!(block.contains("leased.step(") && plain(include_str!("modes_page.rs")).contains(&plain(block)), "{block}");
}

/// The rows are refused once, after the step: the delivery after that finds it recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_step_is_not_called_again() {
    let bench = Bench::<PgStore>::with(&patient()).await;
    bench.execute("DROP TABLE orders").await;
    let guard = Guard::new(bench.another_store(&patient()).await, LogDeliveries::All);
    let app: Router = Router::new().route("/orders", post(order).layer(Onced::new(guard).leased(scope())));
    let key = fresh_key();
    let send = async || {
        let request =
            Request::post("/orders").header("idempotency-key", key.as_str()).body(Body::from("book")).unwrap();
        app.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!((send().await, CHARGES.load(Ordering::SeqCst)), (StatusCode::INTERNAL_SERVER_ERROR, 1));
    bench.execute("CREATE TABLE orders (item text, charge bytea)").await;
    for _ in 0..2 {
        assert_eq!((send().await, CHARGES.load(Ordering::SeqCst)), (StatusCode::CREATED, 1));
    }
    assert_eq!(bench.count("SELECT count(*) FROM orders WHERE charge = 'charged'").await, 1);
}
