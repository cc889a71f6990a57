//! An app in the ledger's database changes its record while the gateway decides how to end it.

use std::sync::Arc;

use onced_harness::{Call, Recorder, RecorderOptions, Reply};
use testkit::http_client::{Request, send};
use testkit::{Backend, Database, Sql};
use tokio::sync::Notify;

use crate::fixture::{Gateway, LIMIT, route, sql};
use crate::same_database_app::{self, Work};

/// Announces an outside call in a transaction that stays open until it is told to commit, and answers 500 meanwhile,
/// as a front of several workers may.
async fn announcing_app(database: &Database, commit: Arc<Notify>, committed: Arc<Notify>) -> Recorder {
    let sql = database.sql().clone();
    let options = RecorderOptions::default().effect_fn(move |call: Call| {
        let (sql, commit, committed) = (sql.clone(), commit.clone(), committed.clone());
        let key = call.headers["onced-key"].to_str().unwrap().to_owned();
        async move {
            let begun = Arc::new(Notify::new());
            let has_begun = begun.clone();
            tokio::spawn(async move {
                macro_rules! announce {
                    ($pool:expr, $begin:expr, $update:expr) => {{
                        let mut tx = $pool.begin_with($begin).await.unwrap();
                        let done = sqlx::query($update).bind(&key).execute(&mut *tx).await.unwrap();
                        assert_eq!(done.rows_affected(), 1);
                        begun.notify_one();
                        commit.notified().await;
                        tx.commit().await.unwrap();
                    }};
                }
                match &sql {
                    Sql::Sqlite(pool) => announce!(
                        pool,
                        "BEGIN IMMEDIATE",
                        "UPDATE onced_idempotency_keys SET status = 'pending_external' WHERE key = ?1"
                    ),
                    Sql::Postgres(pool) => announce!(
                        pool,
                        "BEGIN",
                        "UPDATE onced.idempotency_keys SET status = 'pending_external' WHERE key = $1"
                    ),
                    Sql::MariaDb(pool) => announce!(
                        pool,
                        "BEGIN",
                        "UPDATE onced_idempotency_keys SET status = 'pending_external' WHERE `key` = ?"
                    ),
                }
                committed.notify_one();
            });
            has_begun.notified().await;
            Some(Reply::status(500).json(r#"{"error":"a front's time-out"}"#).without_effect())
        }
    });
    Recorder::start(options).await.unwrap()
}

async fn stays_announced(backend: Backend) {
    let database = Database::create(backend).await;
    let (commit, committed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let app = announcing_app(&database, commit.clone(), committed.clone()).await;
    let gateway = Gateway::start(&database, &route("pay", "/pay", &app.url(), "same-database", "")).await;
    let request = Request::post("/pay", "{}").key("announced");
    let address = gateway.address;
    let first = tokio::spawn({
        let request = request.clone();
        async move { send(address, &request).await }
    });
    // It has read `in_progress`, has decided that a 500 is a failure, and is about to write that.
    gateway.process.wait_for_line(|line| line.contains("\"phase\":\"completing\""), LIMIT).await;
    commit.notify_one();
    committed.notified().await;
    assert_eq!(first.await.unwrap().status, 500, "the app's own answer");
    assert_eq!(
        sql::keys_at(database.sql(), backend, "pending_external").await,
        1,
        "the announced call is not forgotten"
    );
    sql::let_leases_run_out(database.sql(), backend).await;
    let again = send(gateway.address, &request).await;
    assert_eq!(again.status, 409);
    assert!(again.text().contains("outcome-unknown"), "{}", again.text());
    assert_eq!(app.count(), 1, "nothing is sent a second time");
}

#[tokio::test]
async fn a_call_that_the_app_announces_late_is_not_failed_sqlite() {
    stays_announced(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_call_that_the_app_announces_late_is_not_failed_postgres() {
    stays_announced(Backend::Postgres).await;
}

#[tokio::test]
async fn a_call_that_the_app_announces_late_is_not_failed_mariadb() {
    stays_announced(Backend::MariaDb).await;
}

async fn replays_what_the_app_stored(backend: Backend) {
    let database = Database::create(backend).await;
    // The first attempt fails with an answer that is too large to keep; the second completes with a small one.
    let app = same_database_app::start(&database, |call| match call.run {
        1 => Work { body: "x".repeat(5_000), ..Work::fails(500) },
        _ => Work::ok(r#"{"charge":1}"#),
    })
    .await;
    let limit = "max_response_bytes = 1024\n";
    let gateway = Gateway::start(&database, &route("pay", "/pay", &app.url(), "same-database", limit)).await;
    let request = Request::post("/pay", "{}").key("second");
    assert_eq!(send(gateway.address, &request).await.status, 500);
    assert_eq!(send(gateway.address, &request).await.text(), r#"{"charge":1}"#);
    let replay = send(gateway.address, &request).await;
    assert_eq!((replay.status, replay.text().as_str()), (200, r#"{"charge":1}"#), "the whole stored answer");
    assert_eq!(replay.header("onced-body"), None);
}

#[tokio::test]
async fn an_omitted_failure_does_not_omit_the_outcome_sqlite() {
    replays_what_the_app_stored(Backend::Sqlite).await;
}

#[tokio::test]
async fn an_omitted_failure_does_not_omit_the_outcome_postgres() {
    replays_what_the_app_stored(Backend::Postgres).await;
}

#[tokio::test]
async fn an_omitted_failure_does_not_omit_the_outcome_mariadb() {
    replays_what_the_app_stored(Backend::MariaDb).await;
}
