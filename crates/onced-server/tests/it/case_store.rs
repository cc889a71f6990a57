//! Reported cases about the store, O-30: statements that fail and pass, replies that are lost, two processes on one
//! file, a ledger that is gone for a while, and restarts. Each item of the case has a file.

mod o_30_2_failing_statements;
mod o_30_2_held_write_lock;
mod o_30_3_lost_confirmation;
mod o_30_4_two_processes_one_file;
mod o_30_5_nul_and_half_a_pair;
mod o_30_6_ledger_gone;
mod o_30_7_restart;
pub(crate) mod wire;

use std::net::SocketAddr;
use std::time::Instant;

use testkit::http_client::{Answer, Request, send};
use testkit::process::{Process, free_port};
use testkit::{Backend, Database};

use self::wire::Wire;
use crate::fixture::{LIMIT, secs, sql, written};

/// For tests in which no lease runs out.
pub(crate) const LONG_LEASE: &str = "lease = \"60s\"\n";

/// For tests that wait for its end: short, and yet long enough for a slow machine to claim and send within two thirds.
fn short_lease() -> String {
    format!("lease = \"{}\"\n", written(secs(20.0)))
}

/// The one request of these cases.
fn order(key: &str) -> Request {
    Request::post("/api/order", r#"{"sku":"A","qty":1}"#).key(key).header("content-type", "application/json")
}

/// The code of a problem; `None` where the answer is none.
pub(crate) fn problem(answer: &Answer) -> Option<String> {
    if answer.header("content-type") != Some("application/problem+json") {
        return None;
    }
    let body: serde_json::Value = serde_json::from_slice(&answer.body).expect("a problem is JSON");
    Some(body["code"].as_str().expect("a problem has a code").to_owned())
}

/// The answer is a problem with that status and code, and says when to come again with the same key.
pub(crate) fn assert_come_again(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, problem(answer).as_deref()), (status, Some(code)), "{answer:?}");
    assert!(retry_after(answer) >= 1, "{answer:?}");
    let body: serde_json::Value = serde_json::from_slice(&answer.body).expect("a problem is JSON");
    assert_eq!(body["retry"], "same-key", "{answer:?}");
}

pub(crate) fn assert_replay_of(answer: &Answer, status: u16, body: &str) {
    let is_replay = answer.header("idempotent-replayed");
    assert_eq!((answer.status, is_replay, answer.text()), (status, Some("true"), body.to_owned()), "{answer:?}");
}

fn retry_after(answer: &Answer) -> u32 {
    let value = answer.header("retry-after").unwrap_or_else(|| panic!("no Retry-After: {answer:?}"));
    value.parse().unwrap_or_else(|_| panic!("Retry-After is no whole number: {answer:?}"))
}

/// Sends again while an attempt is said to be running, each time after the wait that the answer asks for, as a sender
/// does. A lease that did not run out would be waited for in vain.
async fn until_decided(gateway: SocketAddr, request: &Request) -> Answer {
    let started = Instant::now();
    loop {
        let answer = send(gateway, request).await;
        if problem(&answer).as_deref() != Some("in-progress") {
            return answer;
        }
        assert!(started.elapsed() < LIMIT, "still said to be running after {LIMIT:?}: {answer:?}");
        tokio::time::sleep(secs(1.0) * retry_after(&answer)).await;
    }
}

/// As [`until_decided`], until no owner is presumed alive. A renewal that was on its way when its owner gave up may
/// still be written; then one more lease has to run out.
async fn until_decided_without_owner(gateway: SocketAddr, database: &Database, request: &Request) -> Answer {
    let started = Instant::now();
    loop {
        let answer = until_decided(gateway, request).await;
        if live_leases(database).await == 0 {
            return answer;
        }
        assert!(started.elapsed() < LIMIT, "an owner is still presumed alive after {LIMIT:?}: {answer:?}");
    }
}

/// How many records are there.
pub(crate) async fn records(database: &Database) -> i64 {
    database.sql().count(&format!("SELECT count(*) FROM {}", sql::table(database.backend()))).await
}

/// How many records have an owner that is presumed alive.
async fn live_leases(database: &Database) -> i64 {
    let now = match database.backend() {
        Backend::Sqlite | Backend::MariaDb => "(SELECT now FROM onced_clock)",
        Backend::Postgres => "onced.clock()",
    };
    let table = sql::table(database.backend());
    database.sql().count(&format!("SELECT count(*) FROM {table} WHERE lease_until > {now}")).await
}

/// The number of the last attempt of the one record.
async fn attempts(database: &Database) -> i64 {
    database.sql().count(&format!("SELECT attempt FROM {}", sql::table(database.backend()))).await
}

/// A gateway whose database server is behind a wire that the test can cut.
struct WiredGateway {
    address: SocketAddr,
    wire: Wire,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl WiredGateway {
    async fn start(database: &Database, routes: &str) -> Self {
        let (wire, url) = Wire::before(database).await;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let folder = tempfile::tempdir().expect("a folder for the configuration");
        let config = folder.path().join("onced.toml");
        let text = format!("listen = \"{address}\"\n[store]\nurl = \"{url}\"\n[log]\nlevel = \"debug\"\n{routes}");
        std::fs::write(&config, text).expect("the configuration can be written");
        let config = config.to_str().expect("a path of plain characters");
        let tenths = if testkit::soaking() { "0" } else { "1" };
        let process =
            Process::spawn(env!("CARGO_BIN_EXE_onced"), ["serve", "--config", config], [("ONCED_TEST_TENTHS", tenths)]);
        process.wait_for_line(|line| line.contains("listening"), LIMIT).await;
        Self { address, wire, _process: process, _folder: folder }
    }
}
