//! The axum layer: what a route may say otherwise, and commits and recordings that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http_body_util::BodyExt as _;
use onced::http::axum::{Onced, OncedLayer, Tx, TxError};
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::decision::Policy;
use onced_core::failure::FinalPolicy;
use onced_core::fingerprint::BodyRecipe;
use onced_core::key::Key;
use testkit::Backend;
use tower::ServiceExt as _;

use crate::bench::{Bench, Tested, fresh_key, patient, scope};

/// `{"qty":1}`, and five thousand blanks, as gzip packs them.
const ONE: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xabV*,\xa9T\xb22\xac\x05\x00\xbb7\xec\xca\t\x00\x00\x00";
const BLANKS: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xed\xc11\x01\x00\x00\x00\xc2\xa0*\xeb\x9f\xd2\x14~@\x01\x00\x00\x00\x00o\x03`,\x0b\x87\x88\x13\x00\x00";

/// An application with one handler, which writes an order and answers with the status that the run's number gets.
struct App<S> {
    bench: Bench<S>,
    router: Router,
    runs: Arc<AtomicU32>,
}

impl<S: Tested> App<S> {
    async fn new(change: impl Fn(OncedLayer<S>) -> OncedLayer<S>, status: fn(u32) -> u16) -> Self {
        let (bench, runs) = (Bench::<S>::with(&patient()).await, Arc::new(AtomicU32::new(0)));
        let counted = runs.clone();
        let handler = post(move |tx: Tx<S>, headers: HeaderMap, _body: Bytes| {
            let run = counted.fetch_add(1, Ordering::SeqCst) + 1;
            handle::<S>(tx, headers, run, status(run))
        });
        let handler = handler.layer(change(Onced::new(bench.guard.clone()).atomic(scope())));
        let orders = Router::new().route("/orders", handler);
        let router = Router::new().nest("/v1", orders.clone()).nest("/v2", orders);
        Self { bench, router, runs }
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    async fn send(&self, path: &str, key: &Key, coding: Option<&str>, body: impl Into<Body>) -> Answer {
        let request = Request::post(path).header("idempotency-key", key.as_str());
        let request = request.header("content-type", "application/json");
        let request = coding.into_iter().fold(request, |request, coding| request.header("content-encoding", coding));
        let response = self.router.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        Answer { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
    }

    async fn order(&self, key: &Key) -> Answer {
        self.send("/v1/orders", key, None, "{\"qty\":1}").await
    }
}

async fn handle<S: Tested>(mut tx: Tx<S>, headers: HeaderMap, run: u32, status: u16) -> Result<Response, TxError> {
    let key = headers["idempotency-key"].to_str().unwrap();
    S::run(&mut tx, &format!("INSERT INTO orders (key) VALUES ('{key}')")).await?;
    let status = StatusCode::from_u16(status).unwrap();
    Ok((status, [("x-run", run.to_string())], format!("run {run}")).into_response())
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        problem["code"].as_str().unwrap().to_owned()
    }
}

on_all! {
    a_routes_own_rules_hold => own_rules;
    a_request_is_what_the_client_sent_decoded_and_under_its_whole_path => what_was_sent;
    an_answer_that_could_not_be_recorded_is_withheld => not_recorded;
    o_02_two_events_of_one_business_fact_have_one_order_and_one_mail => o_02;
}

/// The key is in the body, and the order is unique by what both events are about. The mail goes out by its row.
async fn o_02<S: Tested>() {
    let bench = Bench::<S>::with(&patient()).await;
    let place = if S::BACKEND == Backend::Postgres { "public." } else { "" };
    bench.execute(&format!("CREATE TABLE {place}subscribed (subscription varchar(40) NOT NULL UNIQUE)")).await;
    bench.execute(&format!("CREATE TABLE {place}mails (subscription varchar(40) NOT NULL)")).await;
    let of_body = |_: &Parts, body: &Bytes| {
        let event: serde_json::Value = serde_json::from_slice(body).unwrap();
        Key::new(event["id"].as_str().unwrap()).map(Some)
    };
    let handler = post(async |mut tx: Tx<S>, event: Bytes| -> Result<StatusCode, TxError> {
        let event: serde_json::Value = serde_json::from_slice(&event).unwrap();
        let about = &event["data"]["object"];
        let subscription = about["subscription"].as_str().or(about["id"].as_str()).unwrap();
        let insert = match S::BACKEND {
            Backend::MariaDb => format!("INSERT IGNORE INTO subscribed VALUES ('{subscription}')"),
            Backend::Postgres | Backend::Sqlite => {
                format!("INSERT INTO subscribed VALUES ('{subscription}') ON CONFLICT DO NOTHING")
            }
        };
        if S::run(&mut tx, &insert).await? == 1 {
            S::run(&mut tx, &format!("INSERT INTO mails VALUES ('{subscription}')")).await?;
        }
        Ok(StatusCode::OK)
    });
    let layer = Onced::new(bench.guard.clone()).atomic(scope()).key(of_body);
    let router = Router::new().route("/hooks", handler.layer(layer));
    let rounds = if testkit::soaking() { 50 } else { 5 };
    for round in 0..rounds {
        let deliver = async |event: &str, object: &str| {
            let body = format!(r#"{{"id":"{event}_{round}","data":{{"object":{object}}}}}"#);
            let send = || router.clone().oneshot(Request::post("/hooks").body(Body::from(body.clone())).unwrap());
            let first = send().await.unwrap();
            // Where the other's transaction is waited for, it is said to be sent again.
            if first.status() == StatusCode::CONFLICT { send().await.unwrap() } else { first }
        };
        let (completed, created) =
            (format!(r#"{{"subscription":"sub_{round}"}}"#), format!(r#"{{"id":"sub_{round}"}}"#));
        let (one, other) = tokio::join!(deliver("evt_a", &completed), deliver("evt_b", &created));
        assert_eq!((one.status(), other.status()), (StatusCode::OK, StatusCode::OK), "round {round}");
    }
    assert_eq!(bench.count("SELECT count(*) FROM subscribed").await, rounds);
    assert_eq!(bench.count("SELECT count(*) FROM mails").await, rounds);
    assert_eq!(bench.count("SELECT count(*) FROM {keys} WHERE status = 'completed'").await, rounds * 2);
}

async fn own_rules<S: Tested>() {
    let app = App::<S>::new(
        |layer| {
            layer
                .fingerprint(BodyRecipe::Ignore(vec!["/at".parse().unwrap()]))
                .policy(Policy { max_attempts: Some(2), ..Policy::default() })
                .final_answers(FinalPolicy::Success)
                .store_headers([HeaderName::from_static("x-run")])
        },
        |run| if run == 1 { 201 } else { 404 },
    )
    .await;
    let key = fresh_key();
    let first = app.send("/v1/orders", &key, None, "{\"qty\":1,\"at\":1}").await;
    let again = app.send("/v1/orders", &key, None, "{\"qty\":1,\"at\":2}").await;
    assert_eq!(
        (again.status, again.is_replay(), &again.headers["x-run"]),
        (first.status, true, &first.headers["x-run"])
    );
    assert_eq!(app.send("/v1/orders", &key, None, "{\"qty\":2,\"at\":1}").await.code(), "key-reused");

    // Here a 404 is no outcome, and there are two attempts.
    let failing = fresh_key();
    for run in 2..=3 {
        let answer = app.order(&failing).await;
        assert_eq!((answer.status, answer.is_replay(), app.runs()), (StatusCode::NOT_FOUND, false, run));
    }
    let last = app.order(&failing).await;
    assert_eq!((last.is_replay(), &last.body[..], app.runs()), (true, &b"run 3"[..], 3));
    assert_eq!((app.bench.orders(&key).await, app.bench.orders(&failing).await), (1, 0));
}

async fn what_was_sent<S: Tested>() {
    let app = App::<S>::new(|layer| layer.max_request_bytes(1000), |_| 201).await;
    let key = fresh_key();
    assert_eq!(app.order(&key).await.status, StatusCode::CREATED);
    assert!(app.send("/v1/orders", &key, Some("gzip"), ONE).await.is_replay(), "the same, packed");
    // The routers take the prefix off before the layer sees the path.
    assert_eq!(app.send("/v2/orders", &key, None, "{\"qty\":1}").await.code(), "key-reused");
    let large = app.send("/v1/orders", &fresh_key(), Some("gzip"), BLANKS).await;
    assert_eq!((large.status, large.code().as_str()), (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"));
    assert_eq!((app.runs(), app.bench.orders(&key).await), (1, 1));
}

/// A refusal and a failure that the ledger does not take: who is told of them would not be told so again.
async fn not_recorded<S: Tested>() {
    let app = App::<S>::new(|layer| layer, |run| if run == 1 { 422 } else { 500 }).await;
    let trigger = match S::BACKEND {
        Backend::Sqlite => {
            "CREATE TRIGGER refuse BEFORE UPDATE ON {keys} BEGIN SELECT RAISE(ABORT, 'as the test wants it'); END"
        }
        Backend::Postgres => {
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 RAISE EXCEPTION 'as the test wants it';
             END $$;
             CREATE TRIGGER refuse BEFORE UPDATE ON {keys} FOR EACH ROW EXECUTE FUNCTION refuse()"
        }
        Backend::MariaDb => {
            "CREATE TRIGGER refuse BEFORE UPDATE ON {keys} FOR EACH ROW
                 SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'as the test wants it'"
        }
    };
    app.bench.execute(trigger).await;
    for run in 1..=2 {
        let key = fresh_key();
        let answer = app.order(&key).await;
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"));
        assert_eq!((app.runs(), app.bench.orders(&key).await, app.bench.record(&key).await.len()), (run, 0, 0));
    }
}

/// What fails at the commit itself: an error that passes runs the handler again, any other one withholds its answer.
/// PostgreSQL alone has constraints that are looked at only then, and codes on demand.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_given_only_once_its_rows_are_committed() {
    for (code, times, runs) in [("40001", 2, 3), ("23514", 1, 1)] {
        let app = App::<PgStore>::new(|layer| layer, |_| 201).await;
        let function = format!(
            "CREATE FUNCTION at_the_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF nextval('commits') <= {times} THEN RAISE EXCEPTION USING ERRCODE = '{code}'; END IF;
                 RETURN NULL;
             END $$"
        );
        for statement in [
            "CREATE SEQUENCE commits",
            &function,
            "CREATE CONSTRAINT TRIGGER at_the_commit AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION at_the_commit()",
        ] {
            app.bench.execute(statement).await;
        }
        let key = fresh_key();
        let answer = app.order(&key).await;
        assert_eq!(app.runs(), runs, "{code}");
        if code == "40001" {
            assert_eq!((answer.status, &answer.body[..]), (StatusCode::CREATED, &b"run 3"[..]));
        } else {
            assert!(answer.status.is_server_error(), "{}", answer.status);
            assert_eq!(app.bench.orders(&key).await, 0);
            assert_eq!(app.order(&key).await.status, StatusCode::CREATED);
        }
        assert_eq!(app.bench.orders(&key).await, 1, "{code}");
    }
}

/// Between the rollback of a refused attempt and the recording of its refusal another delivery comes to an outcome: that
/// stands, and is what the first one is told. PostgreSQL alone: a trigger plays the other delivery.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_is_told_what_others_have_settled_meanwhile() {
    for refuses in [true, false] {
        let app = App::<PgStore>::new(|layer| layer, if refuses { |_| 422 } else { |_| 500 }).await;
        for statement in [
            "CREATE SEQUENCE claims",
            "CREATE FUNCTION settle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF pg_trigger_depth() = 1 AND nextval('claims') = 2 THEN
                     INSERT INTO onced.idempotency_keys SELECT (jsonb_populate_record(NEW, jsonb_build_object(
                         'status', 'completed', 'lease_token', 'of another', 'lease_until', NULL,
                         'response_code', 201, 'completed_at', NEW.created_at))).*;
                 END IF;
                 RETURN NEW;
             END $$",
            "CREATE TRIGGER settle BEFORE INSERT ON {keys} FOR EACH ROW EXECUTE FUNCTION settle()",
        ] {
            app.bench.execute(statement).await;
        }
        let key = fresh_key();
        let answer = app.order(&key).await;
        assert_eq!((answer.status, answer.is_replay(), app.runs()), (StatusCode::CREATED, true, 1), "{refuses}");
        assert_eq!(app.bench.columns(&key, "status, lease_token").await, ["completed", "of another"]);
        assert_eq!(app.bench.orders(&key).await, 0, "{refuses}");
    }
}

/// A body that does not come to its end is waited for by the layer's own clock.
#[tokio::test]
async fn a_body_that_does_not_end_is_waited_for_half_a_minute() {
    let app = App::<SqliteStore>::new(|layer| layer, |_| 201).await;
    tokio::time::pause();
    let since = tokio::time::Instant::now();
    let endless = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
    let answer = app.send("/v1/orders", &fresh_key(), None, endless).await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::REQUEST_TIMEOUT, "body-timeout"));
    assert!(since.elapsed() < Duration::from_secs(31), "{:?}", since.elapsed());
    assert_eq!(app.runs(), 0);
}
