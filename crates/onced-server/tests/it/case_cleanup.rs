//! O-28: a key's retention ends, a retry comes late, and finished keys are deleted, by hand, beside traffic, and by the
//! gateway's schedule.

mod beside_traffic;
mod late_retries;
mod schedule;

use testkit::{Database, Process};

use crate::fixture::{LIMIT, sql};

/// Runs `onced sweep` on that ledger to its end, and tells what it said last.
async fn sweep(database: &Database, args: &[&str]) -> String {
    let args = [&["sweep", "--store", database.url()], args].concat();
    let mut process = Process::spawn(env!("CARGO_BIN_EXE_onced"), args, [("RUST_BACKTRACE", "0")]);
    let status = process.wait(LIMIT).await;
    let (out, err) = (process.stdout().all().join("\n"), process.stderr().all().join("\n"));
    assert_eq!((status.code(), err.as_str()), (Some(0), ""), "{out}");
    out
}

/// How many records there are.
async fn records(database: &Database) -> i64 {
    database.sql().count(&format!("SELECT count(*) FROM {}", sql::table(database.backend()))).await
}
