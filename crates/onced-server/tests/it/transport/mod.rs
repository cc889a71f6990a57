//! The ways to the gateway and from it to its upstreams: which protocols are spoken, whom it trusts, which connections
//! it keeps, and what it does with clients that send or read too slowly.

mod abandoned;
mod app;
mod h2_client;
mod http2;
mod keep_alive;
mod kept_connections;
mod passed_on;
mod passed_places;
mod raw_client;
mod reset_streams;
mod slow_clients;
mod slow_readers;
mod stopping;
mod tls;
mod trailers;
mod unix_socket;
mod upgrades;
mod wire;

use serde_json::Value;
use testkit::http_client::{Answer, Request};
use testkit::{Backend, Database};

use crate::fixture::sql;

/// A request under a key.
fn post(path: &str, key: &str) -> Request {
    Request::post(path, "{}").key(key)
}

/// The status, and the code of the problem where the answer is one.
fn outcome(answer: &Answer) -> (u16, String) {
    let problem: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    (answer.status, problem["code"].as_str().unwrap_or_default().to_owned())
}

/// As [`outcome`] gives it.
fn said(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

/// How many records there are.
async fn records(database: &Database) -> i64 {
    let table = sql::table(database.backend());
    database.sql().count(&format!("SELECT count(*) FROM {table}")).await
}

/// How many records stand at that status.
async fn records_at(database: &Database, status: &str) -> i64 {
    sql::keys_at(database.sql(), database.backend(), status).await
}

/// A database for tests that look at no record.
async fn any_database() -> Database {
    Database::create(Backend::Sqlite).await
}
