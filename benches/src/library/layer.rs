//! The axum layer in atomic mode beside the same handler unprotected: over HTTP, in one process.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::ensure;
use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use onced::guard::Guard;
use onced::http::axum::{Onced, Tx, TxError};
use onced::store::deliveries::LogDeliveries;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::key::Scope;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::sides::RESPONSE;
use super::sql::{Ledger, fresh_database};
use crate::http_load::{Keys, Target};
use crate::pairs::{Plan, Side, take_turns};
use crate::report::Report;

const CONNECTIONS: [u32; 2] = [1, 16];
const BARE: &str = "/bare";
const ATOMIC: &str = "/atomic";
const WHAT_EACH_DOES: &str = "
An axum application with two routes, and its clients (keep-alive connections, one POST of 64 bytes after the other, each
under a new key, every answer read and its status looked at) in one process. Both handlers insert the same order and
answer 201 with the same 71 bytes; both take their transactions from one pool, with as many connections as there are clients.

- **bare**: the handler opens a transaction, inserts and commits.
- **atomic**: the handler inserts through `Tx`, behind `Onced::atomic`: key, fingerprint, stored answer and the log of
  deliveries (`all`) commit with the order.
- **replay**: always the same key, behind `Onced::atomic`; the handler sees nothing.
";

pub(crate) async fn run(postgres: &str, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.part("The axum layer", WHAT_EACH_DOES);
    let folder = tempfile::tempdir()?;
    for connections in CONNECTIONS {
        let url = format!("sqlite:{}", folder.path().join(format!("layer{connections}.db")).display());
        compare(SqliteStore::open(&url, &super::options(connections)).await?, connections, plan, report).await?;
    }
    for connections in CONNECTIONS {
        let url = fresh_database(postgres).await?;
        compare(PgStore::open(&url, &super::options(connections)).await?, connections, plan, report).await?;
    }
    Ok(())
}

async fn compare<S: Ledger>(store: S, connections: u32, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    store.migrate_ledger().await?;
    store.make_tables().await?;
    let app = App::start(store).await?;
    let target = |path, keys| Target { address: app.address, path, keys };
    let count = connections as usize;
    let replay = target(ATOMIC, Keys::same());
    replay.call().await?;
    let sides = vec![
        Side::new("bare", target(BARE, Keys::Fresh).clients(count)),
        Side::new("atomic", target(ATOMIC, Keys::Fresh).clients(count)),
        Side::new("replay", replay.clients(count)),
    ];
    let title = super::title(&format!("axum on {}", S::NAME), connections);
    let outcome = take_turns(&title, sides, plan).await?;
    ensure!(!app.serving.is_finished(), "the application has ended");
    report.comparison(&title, &outcome, &["bare"]);
    Ok(())
}

struct App {
    address: SocketAddr,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Drop for App {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl App {
    async fn start<S: Ledger>(store: S) -> anyhow::Result<Self> {
        let once = Onced::new(Guard::new(store.clone(), LogDeliveries::All));
        let atomic = post(atomic::<S>).layer(once.atomic(Scope::new("bench.order")?));
        let app: Router =
            Router::new().route(BARE, post(bare::<S>)).with_state(store).merge(Router::new().route(ATOMIC, atomic));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(Self { address, serving })
    }
}

async fn bare<S: Ledger>(State(store): State<S>, headers: HeaderMap) -> Response {
    let key = key(&headers);
    let written = async {
        let mut tx = store.transaction().await?;
        S::order(&mut tx, key).await?;
        anyhow::Ok(tx.commit().await?)
    };
    match written.await {
        Ok(()) => answer().into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn atomic<S: Ledger>(mut tx: Tx<S>, headers: HeaderMap) -> Result<impl IntoResponse, TxError> {
    S::order(&mut tx, key(&headers)).await?;
    Ok(answer())
}

fn key(headers: &HeaderMap) -> &str {
    headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default()
}

fn answer() -> impl IntoResponse {
    (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], RESPONSE)
}
