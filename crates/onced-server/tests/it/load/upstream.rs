//! The upstream of all routes. It keeps no log, only rows: each effect is one, without a unique column, so that a second
//! one would be seen. The request's body says how it is to be treated.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use http::HeaderMap;
use testkit::{Database, Sql};
use tokio::net::TcpListener;

use crate::same_database_app::{Work, commit};

/// An answer that is kept, and one that is too large for it.
const LARGE: usize = 20_000;
const HUGE: usize = 1_200_000;

pub(super) struct App {
    pub(super) address: SocketAddr,
}

struct Shared {
    sql: Sql,
    /// Which keys have come before, to fail the first time only.
    seen: Mutex<HashSet<String>>,
    /// What was done under a downstream key. The lock of a key is held while that is done.
    done: Mutex<HashMap<String, Arc<tokio::sync::Mutex<bool>>>>,
}

impl App {
    pub(super) async fn start(database: &Database) -> Self {
        let sql = database.sql().clone();
        let shared = Arc::new(Shared { sql, seen: Mutex::default(), done: Mutex::default() });
        let router = Router::new()
            .route("/order", post(order).get(async || "passed"))
            .route("/pay", post(pay))
            .route("/call", post(call))
            .route("/", get(async || "passed"))
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(shared);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address }
    }
}

impl Shared {
    /// Whether it is the first call of this key.
    fn is_first(&self, key: &str) -> bool {
        self.seen.lock().expect("nobody panics with it").insert(key.to_owned())
    }

    async fn take_effect(&self, key: &str) {
        self.sql.execute(&format!("INSERT INTO effects VALUES ('{key}')")).await;
    }
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn has(body: &Bytes, kind: &str) -> bool {
    let head = &body[..body.len().min(80)];
    String::from_utf8_lossy(head).contains(&format!("\"kind\":\"{kind}\""))
}

/// What every answer of a key says, padded as its kind wants.
fn answer(key: &str, body: &Bytes) -> Response {
    let size =
        [("large", LARGE), ("huge", HUGE)].into_iter().find(|(kind, _)| has(body, kind)).map_or(0, |(_, size)| size);
    Response::new(Body::from(format!("{{\"of\":\"{key}\",\"pad\":\"{}\"}}", "x".repeat(size))))
}

fn failure(status: u16) -> Response {
    let response = Response::builder().status(status).header("onced-effect", "none");
    response.body(Body::from("{\"error\":\"not now\"}")).expect("a response")
}

/// In the ledger's own database, in one transaction with the completion of the record.
async fn order(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let key = header(&headers, "onced-key").to_owned();
    if has(&body, "failing") && shared.is_first(&key) {
        return failure(500);
    }
    slow(&body).await;
    let small = Work::ok(&format!("{{\"of\":\"{key}\",\"pad\":\"\"}}"));
    match commit(&shared.sql, &headers, &small).await {
        true => answer(&key, &Bytes::new()),
        false => failure(409),
    }
}

/// Knows the gateway's key again. The answer of its first call may be lost.
async fn pay(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let (key, downstream) = (header(&headers, "onced-key").to_owned(), header(&headers, "idempotency-key").to_owned());
    let is_first = shared.is_first(&key);
    if has(&body, "failing") && is_first {
        return failure(500);
    }
    slow(&body).await;
    let known = shared.done.lock().expect("nobody panics with it").entry(downstream).or_default().clone();
    let mut done = known.lock().await;
    if !*done {
        shared.take_effect(&key).await;
        *done = true;
    }
    if has(&body, "lost") && is_first {
        // The head is broken off: a body that fails at once makes the server hang up.
        let broken = futures_util::stream::once(async { Err::<Bytes, _>(std::io::Error::other("lost")) });
        return Response::builder().header("content-length", "10").body(Body::from_stream(broken)).expect("a response");
    }
    answer(&key, &body)
}

/// Knows nothing again: what comes twice is done twice.
async fn call(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let key = header(&headers, "onced-key").to_owned();
    if has(&body, "failing") && shared.is_first(&key) {
        return failure(500);
    }
    slow(&body).await;
    shared.take_effect(&key).await;
    answer(&key, &body)
}

async fn slow(body: &Bytes) {
    if has(body, "slow") {
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
}
