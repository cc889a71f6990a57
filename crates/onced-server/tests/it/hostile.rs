//! Bytes that no honest peer would send, from upstreams and from clients, over plain sockets. The gateway answers or
//! hangs up in bounded time and memory, says no more than it knows, and goes on serving.

mod requests;
mod upstreams;

use testkit::Database;
use testkit::http_client::{Request, send};

use crate::fixture::{Gateway, sql};

/// The status of a key's record, by SQL; `None` where there is none.
async fn status_of(database: &Database, key: &str) -> Option<String> {
    let table = sql::table(database.backend());
    let mut rows = database.sql().text(&format!("SELECT status FROM {table} WHERE key = '{key}'")).await;
    rows.pop().map(|mut row| row.remove(0))
}

/// It lives, nothing has panicked, and it can still use its ledger.
async fn is_well(gateway: &Gateway) {
    for path in ["/_onced/healthz", "/_onced/readyz"] {
        assert_eq!(send(gateway.address, &Request::new("GET", path)).await.status, 200, "{path}");
    }
    let panics: Vec<String> =
        gateway.process.stderr().all().into_iter().filter(|line| line.contains("panicked")).collect();
    assert_eq!(panics, Vec::<String>::new());
}

/// The most memory that the process has had, in KiB.
fn high_water(gateway: &Gateway) -> u64 {
    let id = gateway.process.id().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("Linux says so");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the high-water mark");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}
