//! The application that the tests of the axum layer in leased mode deliver to: one handler, by a script.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use onced::guard::{Guard, Step};
use onced::http::axum::{Leased, LeasedError, Onced};
use onced::store::StoreOptions;
use onced::store::deliveries::LogDeliveries;
use onced_core::decision::{OnUnknown, Policy};
use onced_core::key::Key;
use onced_core::record::StoredResponse;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

use crate::bench::{Bench, Tested, conflict_of, patient, scope};

/// What the handler does in one run. Unless it says otherwise it announces a call, makes it, and then writes an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Succeed,
    /// Waits before it calls, or between the call and its rows.
    HangBefore,
    HangAfter,
    /// The same, and then meets an error of its own.
    ErrLateBefore,
    ErrLateAfter,
    /// Answers after the call, and after its rows.
    Answer(u16),
    /// Announces nothing, whatever an earlier attempt did, and answers 503.
    Unannounced,
    /// Nothing happened outside, it says.
    NoEffect,
    PanicBefore,
    PanicAfter,
    /// The call is a step, and its rows meet so many serialization failures.
    StepThenConflicts(u32),
    CallThenConflict,
    /// Its rows are refused at the commit for a reason that passes.
    ConflictAtCommit,
    /// The call is a step that gets no outcome, and the handler says 201 none the less.
    ForgetTheStep,
    KeepIt,
    /// Answers in two pieces, between which it waits and writes its rows.
    Stream,
    /// The second piece is an error, or a panic.
    StreamBreaks,
    StreamPanics,
    Mistake,
    /// Opens its transaction before it calls.
    CallLate,
}

pub(crate) struct App<S> {
    pub(crate) bench: Arc<Bench<S>>,
    pub(crate) router: Router,
    pub(crate) script: Arc<Script>,
}

#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) does: Mutex<VecDeque<Does>>,
    pub(crate) runs: AtomicU32,
    pub(crate) conflicts: AtomicU32,
    /// Calls are steps from here on.
    pub(crate) by_step: AtomicBool,
    pub(crate) go_on: Semaphore,
    /// The downstream key of each call.
    pub(crate) calls: Mutex<Vec<String>>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        problem["code"].as_str().unwrap().to_owned()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

impl<S: Tested> App<S> {
    pub(crate) async fn new(on_unknown: OnUnknown) -> Self {
        let bench = Arc::new(Bench::<S>::with(&patient()).await);
        let url = bench.database.url().to_owned();
        Self::over(&url, bench, on_unknown).await
    }

    pub(crate) async fn over(url: &str, bench: Arc<Bench<S>>, on_unknown: OnUnknown) -> Self {
        let script = Arc::new(Script {
            does: Mutex::default(),
            runs: AtomicU32::new(0),
            conflicts: AtomicU32::new(0),
            by_step: AtomicBool::new(false),
            go_on: Semaphore::new(0),
            calls: Mutex::default(),
        });
        let five = StoreOptions { max_connections: 5, ..patient() };
        let guard = Guard::new(S::open_at(url, &five).await.unwrap(), LogDeliveries::All);
        let layer = Onced::new(guard).leased(scope()).policy(Policy { on_unknown, ..Policy::default() });
        let shared = script.clone();
        let handler = post(move |leased: Leased<S>, headers: HeaderMap| handle(shared.clone(), leased, headers));
        let router = Router::new().route("/orders", handler.layer(layer));
        Self { bench, router, script }
    }

    pub(crate) fn next(&self, does: &[Does]) {
        self.script.does.lock().unwrap().extend(does);
    }

    pub(crate) fn runs(&self) -> u32 {
        self.script.runs.load(Ordering::SeqCst)
    }

    pub(crate) fn calls(&self) -> usize {
        self.script.calls.lock().unwrap().len()
    }

    pub(crate) async fn order(&self, key: &Key) -> Answer {
        send(self.router.clone(), key.clone(), "{\"q\":1}").await
    }

    pub(crate) fn in_background(&self, key: &Key) -> JoinHandle<Answer> {
        tokio::spawn(send(self.router.clone(), key.clone(), "{\"q\":1}"))
    }

    pub(crate) async fn columns(&self, key: &Key, columns: &str) -> Vec<String> {
        self.bench.columns(key, columns).await
    }
}

pub(crate) async fn send(router: Router, key: Key, body: &'static str) -> Answer {
    let request = Request::post("/orders").header("idempotency-key", key.as_str());
    let request = request.header("content-type", "application/json").body(Body::from(body)).unwrap();
    let (head, body) = router.oneshot(request).await.unwrap().into_parts();
    Answer { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
}

async fn handle<S: Tested>(
    script: Arc<Script>,
    mut leased: Leased<S>,
    headers: HeaderMap,
) -> Result<Response, LeasedError> {
    let run = script.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let key = headers["idempotency-key"].to_str().unwrap();
    let does = script.does.lock().unwrap().pop_front().unwrap_or(Does::Succeed);
    let call = |sent: &str| script.calls.lock().unwrap().push(sent.to_owned());
    let hang = async || script.go_on.acquire().await.unwrap().forget();
    match does {
        Does::PanicBefore => panic!("as the test wants it"),
        Does::HangBefore => hang().await,
        Does::ErrLateBefore => {
            hang().await;
            return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
        }
        Does::NoEffect => {
            leased.external().await?;
            leased.no_effect();
            return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
        }
        Does::ForgetTheStep => {
            let Step::Execute(step) = leased.step("charge").await? else { panic!("it has no outcome") };
            call(step.downstream_key());
            return Ok(StatusCode::CREATED.into_response());
        }
        Does::CallLate => {
            leased.tx().await?;
            leased.external().await?;
            unreachable!("a transaction is open");
        }
        Does::KeepIt => {
            tokio::spawn(async move {
                let _kept = leased;
                std::future::pending::<()>().await;
            });
            return Ok(StatusCode::CREATED.into_response());
        }
        Does::Succeed
        | Does::HangAfter
        | Does::ErrLateAfter
        | Does::Answer(_)
        | Does::Unannounced
        | Does::PanicAfter
        | Does::StepThenConflicts(_)
        | Does::CallThenConflict
        | Does::ConflictAtCommit
        | Does::Stream
        | Does::StreamBreaks
        | Does::StreamPanics
        | Does::Mistake => {}
    }
    if let Does::StepThenConflicts(conflicts) = does {
        script.conflicts.store(conflicts, Ordering::SeqCst);
        script.by_step.store(true, Ordering::SeqCst);
    }
    if script.by_step.load(Ordering::SeqCst) {
        if let Step::Execute(step) = leased.step("charge").await? {
            assert!(step.may_start_call());
            call(step.downstream_key());
            step.complete(StoredResponse::bare(200)).await?;
        }
    } else if leased.call_answer().is_none() {
        if does != Does::Unannounced {
            leased.external().await?;
        }
        assert!(leased.may_start_call());
        call(leased.downstream_key());
    }
    if does == Does::PanicAfter {
        panic!("as the test wants it");
    } else if matches!(does, Does::HangAfter | Does::ErrLateAfter) {
        hang().await;
    }
    if does == Does::ErrLateAfter {
        return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
    }
    if matches!(does, Does::Stream | Does::StreamBreaks | Does::StreamPanics) {
        return Ok((StatusCode::CREATED, streams(script.clone(), leased, key.to_owned(), does)).into_response());
    }
    let tx = leased.tx().await?;
    S::run(tx, &format!("INSERT INTO orders (key) VALUES ('{key}')")).await?;
    let meets_a_conflict =
        |left: &AtomicU32| left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
    if does == Does::CallThenConflict || meets_a_conflict(&script.conflicts) {
        S::run(tx, conflict_of(S::BACKEND)).await?;
        unreachable!("the statement fails");
    }
    if does == Does::ConflictAtCommit {
        S::run(tx, "INSERT INTO late VALUES (1)").await?;
    }
    if does == Does::Mistake {
        S::run(tx, "INSERT INTO card_4242 VALUES (1)").await?;
    }
    let otherwise = if does == Does::Unannounced { 503 } else { 201 };
    let status = if let Does::Answer(status) = does { status } else { otherwise };
    let by = format!("{{\"by\":{}}}", leased.attempt());
    Ok((StatusCode::from_u16(status).unwrap(), [("x-run", run.to_string())], by).into_response())
}

/// The right to execute goes with the body.
fn streams<S: Tested>(script: Arc<Script>, mut leased: Leased<S>, key: String, does: Does) -> Body {
    let second = async move {
        script.go_on.acquire().await.unwrap().forget();
        assert!(does != Does::StreamPanics, "as the test wants it");
        if does == Does::StreamBreaks {
            return Err("as the test wants it".into());
        }
        let tx = leased.tx().await?;
        S::run(tx, &format!("INSERT INTO orders (key) VALUES ('{key}')")).await?;
        Ok::<_, axum::BoxError>(Bytes::from_static(b"two"))
    };
    let first = async { Ok(Bytes::from_static(b"one")) };
    Body::from_stream(stream::once(first).chain(stream::once(second)))
}
