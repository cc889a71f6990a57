//! The application that the tests of the axum layer in atomic mode deliver to: one handler, by a script.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::post;
use futures_util::StreamExt as _;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use onced::guard::Guard;
use onced::http::axum::{Onced, Tx, TxError};
use onced::store::deliveries::LogDeliveries;
use onced_core::decision::Policy;
use onced_core::key::{Key, Scope};
use onced_core::lease::Lease;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

use crate::bench::{Bench, LIMIT, SCOPE, Tested, conflict_of, patient};

/// What the handler does in one run. Whatever it is, it writes an order first.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Does {
    Answer(StatusCode),
    /// Answers once it is let go on.
    Hang,
    Panic,
    /// The database rolls its transaction back for a reason that passes.
    Conflict,
    KeepTheTransaction,
    BreakOff,
    /// Answers with so many pieces of a hundred bytes, and trailers.
    Pieces(usize),
    /// A statement that the database refuses, in words.
    Mistake,
    /// Never answers.
    Never,
    /// Answers, and never ends.
    Endless,
    /// Writes what the database refuses at the commit.
    RefusedLate,
    /// Passes over a statement that the database has refused, and with it the transaction.
    PassOver,
    /// Answers with the body of the request.
    Echo,
}

/// An application with one handler.
pub(crate) struct App<S> {
    pub(crate) bench: Arc<Bench<S>>,
    pub(crate) router: Router,
    pub(crate) script: Arc<Script>,
}

pub(crate) struct Script {
    pub(crate) does: Mutex<VecDeque<Does>>,
    pub(crate) runs: AtomicU32,
    pub(crate) go_on: Semaphore,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) fn is_replay(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }

    pub(crate) fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        problem["code"].as_str().unwrap().to_owned()
    }
}

impl<S: Tested> App<S> {
    pub(crate) async fn new() -> Self {
        Self::on(Arc::new(Bench::<S>::with(&patient()).await)).await
    }

    /// Another process's application on the same database, as far as a database can tell.
    pub(crate) async fn on(bench: Arc<Bench<S>>) -> Self {
        let script = Arc::new(Script { does: Mutex::default(), runs: AtomicU32::new(0), go_on: Semaphore::new(0) });
        let guard = Guard::new(bench.another_store(&patient()).await, LogDeliveries::All);
        let tenant = |head: &http::request::Parts| {
            head.headers.get("x-tenant").and_then(|tenant| tenant.to_str().ok()).map(str::to_owned)
        };
        let once = Onced::new(guard);
        let [all, own, returns] =
            [SCOPE, "conf.refund", "conf.return"].map(|scope| once.atomic(Scope::new(scope).unwrap()));
        let brief = Policy { lease: Lease::new(Duration::from_secs(1)), max_attempts: Some(2), ..Policy::default() };
        let handler = |script: &Arc<Script>| {
            let script = script.clone();
            let handle =
                move |tx: Tx<S>, headers: HeaderMap, body: Bytes| handle::<S>(script.clone(), tx, headers, body);
            post(handle.clone()).put(handle).get(async || "read")
        };
        let optional = post(async || "unprotected").layer(all.clone().key_optional());
        let orders = all.clone().max_response_bytes(1000);
        let router = Router::new()
            .route("/orders", handler(&script).layer(orders))
            .route("/own/{id}", handler(&script).layer(own.tenant(tenant)))
            .route("/returns/{id}", handler(&script).layer(returns.tenant(tenant)))
            .route("/patient", handler(&script).layer(all.clone().wait(LIMIT)))
            .route("/brief", handler(&script).layer(all.policy(brief)))
            .route("/bare", handler(&script))
            .route("/optional", optional);
        Self { bench, router, script }
    }

    pub(crate) fn next(&self, does: &[Does]) {
        self.script.does.lock().unwrap().extend(does);
    }

    pub(crate) fn runs(&self) -> u32 {
        self.script.runs.load(Ordering::SeqCst)
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        answer(self.router.clone().oneshot(request).await.unwrap()).await
    }

    pub(crate) async fn order(&self, key: &Key) -> Answer {
        self.send(order(key, "{\"qty\":1}")).await
    }

    pub(crate) async fn rows(&self, key: &Key) -> i64 {
        self.bench.orders(key).await
    }
}

pub(crate) async fn answer(response: Response) -> Answer {
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned();
    Answer { status: head.status, headers: head.headers, body: body.to_bytes(), trailers }
}

pub(crate) fn order(key: &Key, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post("/orders").header("idempotency-key", key.as_str());
    request.header("content-type", "application/json").body(body.into()).unwrap()
}

pub(crate) async fn handle<S: Tested>(
    script: Arc<Script>,
    mut tx: Tx<S>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, TxError> {
    let run = script.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let key = headers["idempotency-key"].to_str().unwrap();
    S::run(&mut tx, &format!("INSERT INTO orders (key) VALUES ('{key}')")).await?;
    let does = script.does.lock().unwrap().pop_front().unwrap_or(Does::Answer(StatusCode::CREATED));
    Ok(match does {
        Does::Answer(status) => {
            // What only the record may say, the handler says in vain.
            let headers = [("idempotent-replayed", "true".to_owned()), ("onced-body", "omitted".to_owned())];
            let location = ("location", format!("/orders/{run}"));
            (status, AppendHeaders(headers), [location], format!("run {run}")).into_response()
        }
        Does::Hang => {
            script.go_on.acquire().await.unwrap().forget();
            (StatusCode::CREATED, "at last").into_response()
        }
        Does::Panic => panic!("as the test wants it"),
        Does::Conflict => {
            S::run(&mut tx, conflict_of(S::BACKEND)).await?;
            unreachable!("the statement fails")
        }
        Does::KeepTheTransaction => {
            tokio::spawn(async move {
                let _kept = tx;
                std::future::pending::<()>().await;
            });
            StatusCode::CREATED.into_response()
        }
        Does::BreakOff => {
            let pieces = [Ok(Bytes::from_static(b"half")), Err(std::io::Error::other("as the test wants it"))];
            Body::from_stream(futures_util::stream::iter(pieces)).into_response()
        }
        Does::Pieces(pieces) => {
            let trailers = HeaderMap::from_iter([(HeaderName::from_static("x-last"), HeaderValue::from_static("yes"))]);
            let data = (0..pieces).map(|_| Frame::data(Bytes::from(vec![b'x'; 100])));
            let frames = data.chain([Frame::trailers(trailers)]).map(Ok::<_, std::io::Error>);
            let body = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
            ([("etag", "\"v1\"")], body).into_response()
        }
        Does::Mistake => {
            S::run(&mut tx, "INSERT INTO card_4242 VALUES (1)").await?;
            unreachable!("there is no such table")
        }
        Does::Never => std::future::pending().await,
        Does::Endless => {
            let begun = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"data: 1"))]);
            Body::from_stream(begun.chain(futures_util::stream::pending())).into_response()
        }
        Does::RefusedLate => {
            S::run(&mut tx, "INSERT INTO late VALUES ('card_4242')").await?;
            StatusCode::CREATED.into_response()
        }
        Does::Echo => body.into_response(),
        Does::PassOver => {
            assert!(S::run(&mut tx, "INSERT INTO card_4242 VALUES (1)").await.is_err());
            StatusCode::CREATED.into_response()
        }
    })
}
