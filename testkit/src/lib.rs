//! What the tests share: throw-away databases, child processes, and HTTP clients that can misbehave.
//!
//! Everything here panics where it cannot do its work: a test that cannot be set up has failed, it is never skipped.

#![allow(clippy::unwrap_used, clippy::expect_used)]
// A broken answer is large, and tests can afford it.
#![allow(clippy::result_large_err)]

mod database;
pub mod http_client;
pub mod http_raw;
pub mod mariadb;
mod mariadb_server;
pub mod pgbouncer;
pub mod postgres;
pub mod process;
pub mod random;

pub use database::{Backend, Database, Sql, SqlText, with_key_quoted};
pub use mariadb_server::MariaDbServer;
pub use process::{Process, Signal, free_port};

/// Whether the run is to take as long as it needs for full counts (`cargo xtask soak`).
#[must_use]
pub fn soaking() -> bool {
    std::env::var_os("ONCED_SOAK").is_some_and(|value| value == "1")
}

/// The folder of the foreign inputs that `cargo xtask setup` fetches.
///
/// # Panics
/// Where `cargo xtask test` has not set it.
#[must_use]
pub fn inputs() -> std::path::PathBuf {
    let folder = std::env::var_os("ONCED_TEST_INPUTS");
    folder.expect("ONCED_TEST_INPUTS is not set: run the tests by `cargo xtask test`").into()
}
