//! `/_onced/healthz` and `/_onced/readyz`: alive, and able to use the ledger.

use std::time::{Duration, Instant};

use onced_harness::{Recorder, RecorderOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use testkit::http_client::{Request, send};
use testkit::{Backend, Database};

use super::code;
use crate::fixture::{Gateway, LIMIT, route};

async fn start(database: &Database) -> (Recorder, Gateway) {
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    let routes = route("orders", "/orders", &upstream.url(), "external", "");
    let gateway = Gateway::start_with(database, "", "busy_timeout = \"500ms\"", &routes).await;
    (upstream, gateway)
}

async fn get(gateway: &Gateway, path: &str) -> u16 {
    send(gateway.address, &Request::new("GET", path)).await.status
}

async fn is_well(gateway: &Gateway) {
    assert_eq!(get(gateway, "/_onced/healthz").await, 200);
    let started = Instant::now();
    while get(gateway, "/_onced/readyz").await != 200 {
        assert!(started.elapsed() < LIMIT, "it does not become ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// It is alive and says that it is not ready; nothing is executed.
async fn is_cut_off(gateway: &Gateway, upstream: &Recorder) {
    assert_eq!(get(gateway, "/_onced/readyz").await, 503);
    assert_eq!(get(gateway, "/_onced/healthz").await, 200);
    let before = upstream.count();
    let answer = send(gateway.address, &Request::post("/orders", "{}").key("k-cut-off")).await;
    assert_eq!((answer.status, code(&answer).as_str()), (503, "store-unavailable"));
    assert!(answer.header("retry-after").is_some());
    assert_eq!(upstream.count(), before, "never forwarded without a claim");
    assert_eq!(get(gateway, "/_onced/readyz").await, 503, "still");
}

#[tokio::test]
async fn a_database_that_is_gone_is_not_ready() {
    let database = Database::create(Backend::Postgres).await;
    let (upstream, gateway) = start(&database).await;
    is_well(&gateway).await;
    let name = database.url().rsplit_once('/').expect("the URL names a database").1;
    let mut admin = PgConnection::connect(&testkit::postgres::server_url()).await.expect("the server can be reached");
    let gone = format!(
        "ALTER DATABASE {name} ALLOW_CONNECTIONS false; \
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    );
    admin.execute(sqlx::raw_sql(AssertSqlSafe(gone))).await.expect("the database can be closed");
    is_cut_off(&gateway, &upstream).await;
    let back = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true");
    admin.execute(sqlx::raw_sql(AssertSqlSafe(back))).await.expect("the database can be opened");
    is_well(&gateway).await;
    assert_eq!(send(gateway.address, &Request::post("/orders", "{}").key("k-cut-off")).await.status, 200);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_ledger_that_is_gone_is_not_ready() {
    for (backend, gone, back) in [
        (
            Backend::Sqlite,
            "ALTER TABLE onced_migrations RENAME TO away_m; ALTER TABLE onced_idempotency_keys RENAME TO away_k",
            "ALTER TABLE away_m RENAME TO onced_migrations; ALTER TABLE away_k RENAME TO onced_idempotency_keys",
        ),
        (
            Backend::MariaDb,
            "RENAME TABLE onced_migrations TO away_m, onced_idempotency_keys TO away_k",
            "RENAME TABLE away_m TO onced_migrations, away_k TO onced_idempotency_keys",
        ),
        (Backend::Postgres, "ALTER SCHEMA onced RENAME TO away", "ALTER SCHEMA away RENAME TO onced"),
    ] {
        let database = Database::create(backend).await;
        let (upstream, gateway) = start(&database).await;
        is_well(&gateway).await;
        database.sql().execute(gone).await;
        is_cut_off(&gateway, &upstream).await;
        database.sql().execute(back).await;
        is_well(&gateway).await;
        assert_eq!(send(gateway.address, &Request::post("/orders", "{}").key("k-cut-off")).await.status, 200);
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn the_endpoints_move_with_their_prefix() {
    let database = Database::create(Backend::Sqlite).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    let routes = route("all", "/*", &upstream.url(), "external", "");
    let gateway = Gateway::start_with(&database, "own_prefix = \"/ledger/\"", "", &routes).await;
    assert_eq!(get(&gateway, "/ledger/healthz").await, 200);
    assert_eq!(get(&gateway, "/ledger/readyz").await, 200);
    assert_eq!(upstream.count(), 0, "they are the gateway's own");
    assert_eq!(get(&gateway, "/_onced/healthz").await, 200, "the upstream's own");
    assert_eq!(upstream.count(), 1);
}
