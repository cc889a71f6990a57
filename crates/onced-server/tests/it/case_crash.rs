//! Reported cases in which something crashes, freezes, cannot be reached or hangs up. Each stands for a fault that users
//! of such systems have reported in public; its file says what happens and what is right. What they share is here.
//!
//! `R` counts how often the upstream ran, by the upstream's own log; `B` counts the orders that it wrote, by SQL past
//! our code.

mod o_03;
mod o_05;
mod o_07;
mod o_09;

use std::time::{Duration, Instant};

use onced_harness::{Call, Recorder, RecorderOptions};
use testkit::http_client::{Answer, Request};
use testkit::{Database, Sql, SqlText};

use crate::fixture::{secs, sql};
use crate::same_database_app::create_orders;

/// A lease for cases in which none is to run out. Not shortened: a slow machine must not end it.
pub(crate) const STEADY: Duration = Duration::from_secs(5);

/// The setting of a route for that lease.
pub(crate) fn lease(length: Duration) -> String {
    format!("lease = \"{}\"\n", crate::fixture::written(length))
}

/// A lease that is to run out: by waiting in the soak, else by [`leases_are_over`], and then it is long enough for a
/// slow machine not to end it before.
fn mortal(full: Duration) -> Duration {
    if testkit::soaking() { full } else { full * 10 }
}

/// Waits for that second of a case, at which a request is to be sent.
async fn at_second(full: f64, start: Instant) {
    tokio::time::sleep_until((start + secs(full)).into()).await;
}

/// It is that second of a case, and by then all leases are over: in the soak because so much time has passed, else
/// because the database's clock is taken to have moved on.
async fn leases_are_over(database: &Database, second: f64, start: Instant) {
    at_second(second, start).await;
    if !testkit::soaking() {
        sql::let_leases_run_out(database.sql(), database.backend()).await;
    }
}

/// A JSON request under a key.
pub(crate) fn post(path: &str, key: &str, body: &str) -> Request {
    Request::post(path, body.to_owned()).key(key).header("content-type", "application/json")
}

/// How often the upstream ran under that key of the gateway.
pub(crate) fn runs(upstream: &Recorder, key: &str) -> usize {
    upstream.calls().iter().filter(|call| key_of(call) == key).count()
}

/// The key under which the gateway has its record.
pub(crate) fn key_of(call: &Call) -> &str {
    call.headers.get("onced-key").and_then(|key| key.to_str().ok()).unwrap_or_default()
}

/// An upstream that knows nothing of the ledger: each call that takes effect writes one order.
pub(crate) async fn outside_app(database: &Database) -> Recorder {
    create_orders(database).await;
    let sql = database.sql().clone();
    let options = RecorderOptions::default().effect_fn(move |call: Call| {
        let sql = sql.clone();
        async move {
            outside_order(&sql, key_of(&call), call.run).await;
            None
        }
    });
    Recorder::start(options).await.expect("the upstream can listen")
}

/// What such an upstream writes.
pub(crate) async fn outside_order(sql: &Sql, key: &str, run: u64) {
    sql.execute(&format!("INSERT INTO orders (key, attempt, body) VALUES ('{key}', {run}, '')")).await;
}

/// The record of a key: its status, its attempt and the stored body.
pub(crate) async fn record(database: &Database, key: &str) -> Vec<String> {
    let of_key = format!("FROM {} WHERE key = '{key}'", sql::table(database.backend()));
    let sqlite = format!("SELECT status, attempt, CAST(response_body AS TEXT) {of_key}");
    let postgres = format!("SELECT status, attempt, convert_from(response_body, 'UTF8') {of_key}");
    let mariadb = format!("SELECT status, attempt, CONVERT(response_body USING utf8mb4) {of_key}");
    let mut rows = database.sql().text(SqlText::each(&sqlite, &postgres, &mariadb)).await;
    assert_eq!(rows.len(), 1, "records of {key}");
    rows.remove(0)
}

/// Checks that no record is left that is being executed.
pub(crate) async fn nothing_is_running(database: &Database) {
    for status in ["in_progress", "pending_external"] {
        assert_eq!(sql::keys_at(database.sql(), database.backend(), status).await, 0, "keys left {status}");
    }
}

/// Whether an answer came from the record.
pub(crate) fn is_replayed(answer: &Answer) -> bool {
    answer.header("idempotent-replayed") == Some("true")
}

/// Checks that an answer is the first one again, from the record.
pub(crate) fn replays(answer: &Answer, first: &Answer) {
    assert!(is_replayed(answer), "no replay: {answer:?}");
    assert_eq!((answer.status, answer.text()), (first.status, first.text()));
    assert_eq!(answer.header_all("content-type"), first.header_all("content-type"));
    assert!(answer.header("date").is_some() && answer.header("onced-key-expires").is_some(), "{answer:?}");
}

/// Checks that an answer is the gateway's own problem with that status and code.
pub(crate) fn is_problem(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer:?}");
    let problem: serde_json::Value = serde_json::from_slice(&answer.body).expect("a problem is JSON");
    assert_eq!(problem["code"], code, "{answer:?}");
}

/// Checks that an answer is 409 "still running", with a `Retry-After` within the lease.
pub(crate) fn is_in_progress(answer: &Answer, lease: Duration) {
    is_problem(answer, 409, "in-progress");
    // Gateways of a short run count `Retry-After` in tenths of a second.
    let unit = secs(1.0);
    let longest = lease.as_millis().div_ceil(unit.as_millis());
    let wait: u128 = answer.header("retry-after").and_then(|wait| wait.parse().ok()).expect("a whole number");
    assert!((1..=longest).contains(&wait), "Retry-After {wait}, lease {longest}");
}

/// Checks equal requests that were sent at once: one at most ran and was answered so, the others were told that it is
/// running, or got its answer from the record. Returns how many ran.
pub(crate) fn one_ran_at_most(answers: &[Answer], status: u16, body: &str, lease: Duration) -> usize {
    let mut ran = 0;
    for answer in answers {
        if answer.status == 409 {
            is_in_progress(answer, lease);
        } else {
            assert_eq!((answer.status, answer.text().as_str()), (status, body));
            ran += usize::from(!is_replayed(answer));
        }
    }
    assert!(ran <= 1, "{ran} of them ran");
    ran
}
