//! O-06: the first attempt failed, and then ten retries come at once. Exactly one of them may run.

use testkit::http_client::{race_same, send};
use testkit::{Backend, Database};

use crate::case_crash::{STEADY, lease, nothing_is_running, one_ran_at_most, post, record, runs};
use crate::fixture::{Gateway, repeats, route, secs};
use crate::same_database_app::{self, Work, orders_of};

const ANSWER: &str = r#"{"order":2}"#;

/// The upstream answers 500 to the first run, and 201 to the second one after 300 ms.
async fn ten_retries(backend: Backend) {
    let database = Database::create(backend).await;
    let app = same_database_app::start(&database, |call| match call.run {
        1 => Work::fails(500),
        _ => Work { status: 201, ..Work::ok(ANSWER).before(secs(0.3)) },
    })
    .await;
    let routes = route("api.order", "/api/order", &app.url(), "same-database", &lease(STEADY));
    let gateway = Gateway::start(&database, &routes).await;

    for repeat in 1..=repeats() {
        let key = format!("o06-{repeat}");
        let request = post("/api/order", &key, r#"{"sku":"A","qty":1}"#);
        let first = send(gateway.address, &request).await;
        assert_eq!((first.status, first.text().as_str()), (500, r#"{"error":true}"#));
        assert_eq!(record(&database, &key).await, ["failed", "1", r#"{"error":true}"#]);
        let answers = race_same(10, &[gateway.address], &request).await;
        assert_eq!(one_ran_at_most(&answers, 201, ANSWER, STEADY), 1, "one of them must have run");
        assert_eq!((runs(&app, &key), orders_of(&database, &key).await), (2, 1));
        assert_eq!(record(&database, &key).await, ["completed", "2", ANSWER]);
    }
    nothing_is_running(&database).await;
}

#[tokio::test]
async fn o_06_ten_retries_of_a_failed_attempt_sqlite() {
    ten_retries(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_06_ten_retries_of_a_failed_attempt_postgres() {
    ten_retries(Backend::Postgres).await;
}

#[tokio::test]
async fn o_06_ten_retries_of_a_failed_attempt_mariadb() {
    ten_retries(Backend::MariaDb).await;
}
