//! The axum layer in atomic mode: the handler's rows, its key and its answer commit together or not at all.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode};
use futures_util::future::join_all;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use tower::ServiceExt as _;

use crate::axum_app::{App, Does, answer, order};
use crate::bench::{Tested, fresh_key, until};

on_all! {
    the_first_answer_is_replayed_and_other_requests_are_told_apart => replays;
    an_answer_that_refuses_or_fails_takes_its_rows_with_it => without_rows;
    a_panic_and_a_broken_answer_leave_nothing => leaves_nothing;
    a_handler_without_an_end_has_the_time_of_its_lease => too_long;
    a_large_answer_reaches_its_first_caller_whole => large;
    a_database_error_is_told_to_nobody_and_is_one_attempt => mistake;
    a_duplicate_waits_as_it_prefers_or_as_its_route_says => waits;
    the_log_says_what_each_delivery_was_answered => logged;
    a_client_that_hangs_up_stops_nothing => hangs_up;
    a_hot_key_is_in_progress_at_once_and_holds_nobody_up => hot_key;
}

async fn replays<S: Tested>() {
    let (app, key) = (App::<S>::new().await, fresh_key());
    let first = app.order(&key).await;
    assert_eq!((first.status, first.is_replay(), &first.body[..]), (StatusCode::CREATED, false, &b"run 1"[..]));
    assert!(first.headers.contains_key("onced-key-expires"));
    for _ in 0..3 {
        let again = app.order(&key).await;
        assert_eq!((again.status, again.is_replay(), &again.body), (first.status, true, &first.body));
        for name in ["location", "content-type", "onced-key-expires"] {
            assert_eq!(again.headers[name], first.headers[name], "{name}");
        }
    }
    // The same value in other clothes is the same request; another value is not.
    assert!(app.send(order(&key, " { \"qty\" : 1.0 } ")).await.is_replay());
    let other = app.send(order(&key, "{\"qty\":2}")).await;
    assert_eq!((other.status, other.code().as_str()), (StatusCode::UNPROCESSABLE_ENTITY, "key-reused"));
    assert_eq!((app.runs(), app.rows(&key).await), (1, 1));

    let keyless = app.send(Request::post("/orders").body(Body::empty()).unwrap()).await;
    assert_eq!((keyless.status, keyless.code().as_str()), (StatusCode::BAD_REQUEST, "key-missing"));
    let large =
        Request::post("/orders").header("idempotency-key", "large").body(Body::from(vec![b' '; 1024 * 1024 + 1]));
    assert_eq!(app.send(large.unwrap()).await.code(), "body-too-large");
    let read = Request::get("/orders").header("idempotency-key", key.as_str()).body(Body::empty()).unwrap();
    assert_eq!(&app.send(read).await.body[..], b"read");
    let unprotected = app.send(Request::post("/optional").body(Body::empty()).unwrap()).await;
    assert_eq!(&unprotected.body[..], b"unprotected");
    // One that has a key means it: what cannot be one is not left unprotected.
    for invalid in ["\"open", "", "\u{e9}"] {
        let request = Request::post("/optional").header("idempotency-key", invalid).body(Body::empty()).unwrap();
        let answer = app.send(request).await;
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::BAD_REQUEST, "key-invalid"), "{invalid}");
    }
    assert_eq!(app.runs(), 1);
}

/// Nobody could take over from its transaction, and on SQLite nobody else could write.
async fn too_long<S: Tested>() {
    let app = App::<S>::new().await;
    for does in [Does::Never, Does::Endless] {
        let key = fresh_key();
        let send = async || {
            let request = Request::post("/brief").header("idempotency-key", key.as_str()).body(Body::empty());
            app.send(request.unwrap()).await
        };
        app.next(&[does]);
        let late = send().await;
        assert_eq!(
            (late.status, late.code().as_str()),
            (StatusCode::INTERNAL_SERVER_ERROR, "handler-failed"),
            "{does:?}"
        );
        assert_eq!(app.bench.columns(&key, "status, attempt").await, ["failed", "1"], "{does:?}");
        assert_eq!(app.rows(&key).await, 0, "{does:?}");
        let again = send().await;
        assert_eq!((again.status, app.rows(&key).await), (StatusCode::CREATED, 1), "{does:?}");
    }
}

/// The handler's doing, not the ledger's: it counts, and does not go on for ever. PostgreSQL alone: SQLite refuses at
/// once, or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_database_refuses_at_the_commit_is_a_failed_attempt() {
    let app = App::<PgStore>::new().await;
    app.bench.execute("CREATE TABLE public.late (card text UNIQUE DEFERRABLE INITIALLY DEFERRED)").await;
    app.bench.execute("INSERT INTO late VALUES ('card_4242')").await;
    for does in [Does::RefusedLate, Does::PassOver] {
        let key = fresh_key();
        app.next(&[does; 5]);
        for attempt in 1..=5 {
            let refused = app.order(&key).await;
            assert_eq!(
                (refused.status, refused.code().as_str()),
                (StatusCode::INTERNAL_SERVER_ERROR, "handler-failed")
            );
            let row = app.bench.columns(&key, "status, attempt, lease_until").await;
            assert_eq!(row, ["failed", &attempt.to_string(), "NULL"], "{does:?}");
        }
        let runs = app.runs();
        assert_eq!(app.order(&key).await.code(), "attempts-exhausted");
        assert_eq!((app.runs(), app.rows(&key).await), (runs, 0), "{does:?}");
    }
}

async fn without_rows<S: Tested>() {
    let app = App::<S>::new().await;
    let refused = fresh_key();
    app.next(&[Does::Answer(StatusCode::UNPROCESSABLE_ENTITY)]);
    let first = app.order(&refused).await;
    let again = app.order(&refused).await;
    assert_eq!((first.status, first.is_replay()), (StatusCode::UNPROCESSABLE_ENTITY, false));
    assert_eq!((again.status, again.is_replay(), &again.body), (first.status, true, &first.body));
    assert_eq!(first.headers["onced-key-expires"], again.headers["onced-key-expires"]);
    assert_eq!((app.runs(), app.rows(&refused).await), (1, 0));

    let failed = fresh_key();
    app.next(&[Does::Answer(StatusCode::INTERNAL_SERVER_ERROR), Does::Answer(StatusCode::TOO_MANY_REQUESTS)]);
    let first = app.order(&failed).await;
    assert_eq!(first.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(first.headers.contains_key("onced-key-expires"));
    assert_eq!(app.bench.columns(&failed, "status, attempt").await, ["failed", "1"]);
    assert_eq!(app.order(&failed).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(app.rows(&failed).await, 0);
    let third = app.order(&failed).await;
    assert_eq!((third.status, third.is_replay()), (StatusCode::CREATED, false));
    assert!(app.order(&failed).await.is_replay());
    assert_eq!(app.rows(&failed).await, 1);
    assert_eq!(app.bench.columns(&failed, "status, attempt").await, ["completed", "3"]);

    let hopeless = fresh_key();
    app.next(&[Does::Answer(StatusCode::BAD_GATEWAY); 5]);
    for _ in 0..4 {
        app.order(&hopeless).await;
    }
    let (last, runs) = (app.order(&hopeless).await, app.runs());
    let again = app.order(&hopeless).await;
    assert_eq!((again.status, again.is_replay(), &again.body), (StatusCode::BAD_GATEWAY, true, &last.body));
    assert_eq!((last.is_replay(), app.runs(), app.rows(&hopeless).await), (false, runs, 0));
}

async fn leaves_nothing<S: Tested>() {
    let app = App::<S>::new().await;
    let key = fresh_key();
    app.next(&[Does::Panic]);
    let (router, request) = (app.router.clone(), order(&key, "{\"qty\":1}"));
    let panicked = tokio::spawn(async move { router.oneshot(request).await }).await.unwrap_err();
    assert!(panicked.is_panic(), "whoever stands around the layer sees the panic");
    assert_eq!(app.rows(&key).await, 0);
    assert_eq!(app.bench.columns(&key, "status, error").await, ["failed", "the handler panicked"]);
    app.next(&[Does::BreakOff]);
    let broken = app.order(&key).await;
    assert_eq!((broken.status, broken.code().as_str()), (StatusCode::INTERNAL_SERVER_ERROR, "handler-failed"));
    assert_eq!(app.bench.columns(&key, "status, attempt").await, ["failed", "2"]);
    assert_eq!(app.order(&key).await.status, StatusCode::CREATED);
    assert_eq!(app.rows(&key).await, 1);
}

async fn large<S: Tested>() {
    let app = App::<S>::new().await;
    // As large as may be kept, a piece larger, and much larger.
    for (pieces, is_kept) in [(10, true), (11, false), (50, false)] {
        let key = fresh_key();
        app.next(&[Does::Pieces(pieces)]);
        let first = app.order(&key).await;
        assert_eq!((first.body.len(), first.headers.contains_key("etag")), (pieces * 100, true));
        assert_eq!(first.trailers.as_ref().map(|trailers| &trailers["x-last"]), Some(&HeaderValue::from_static("yes")));
        let again = app.order(&key).await;
        assert_eq!((again.status, again.is_replay()), (StatusCode::OK, true));
        assert_eq!(
            (again.body.len(), again.headers.contains_key("etag")),
            if is_kept { (1000, true) } else { (0, false) }
        );
        let said = again.headers.get("onced-body").map(HeaderValue::as_bytes);
        assert_eq!(said, if is_kept { None } else { Some(&b"omitted"[..]) });
        assert_eq!(app.rows(&key).await, 1);
    }
}

/// The database's words stay with the application, and an error that does not pass is one failed attempt.
async fn mistake<S: Tested>() {
    let (app, key) = (App::<S>::new().await, fresh_key());
    app.next(&[Does::Mistake]);
    let answer = app.order(&key).await;
    assert_eq!((answer.status, answer.body.len(), app.runs()), (StatusCode::INTERNAL_SERVER_ERROR, 0, 1));
    assert!(!format!("{:?}", answer.headers).contains("4242"), "{:?}", answer.headers);
    let columns = app.bench.columns(&key, "status, attempt, error").await;
    assert_eq!(columns, ["failed", "1", "the handler answered 500 Internal Server Error"]);
    assert_eq!(app.rows(&key).await, 0);
    assert_eq!(app.order(&key).await.status, StatusCode::CREATED);

    let bare = Request::post("/bare").header("idempotency-key", "bare").body(Body::empty()).unwrap();
    let without = app.send(bare).await;
    assert_eq!((without.status, app.runs()), (StatusCode::INTERNAL_SERVER_ERROR, 2), "it has no transaction");
}

/// A duplicate waits for as long as it prefers, else as its route says, and is told the outcome.
async fn waits<S: Tested>() {
    let app = App::<S>::new().await;
    for (path, prefers) in [("/orders", Some("wait=30")), ("/patient", None)] {
        let (key, runs) = (fresh_key(), app.runs());
        app.next(&[Does::Hang]);
        let send = |prefers: Option<&'static str>| {
            let request = Request::post(path).header("idempotency-key", key.as_str());
            let request = prefers.into_iter().fold(request, |request, wait| request.header("prefer", wait));
            let (router, request) = (app.router.clone(), request.body(Body::empty()).unwrap());
            tokio::spawn(async move { answer(router.oneshot(request).await.unwrap()).await })
        };
        let first = send(None);
        until("the handler runs", async || app.runs() == runs + 1).await;
        assert_eq!(send(Some("wait=0")).await.unwrap().code(), "in-progress", "{path}");
        let mut second = send(prefers);
        let early = tokio::time::timeout(Duration::from_millis(300), &mut second).await;
        assert!(early.is_err(), "{path}: there is nothing to be told yet");
        app.script.go_on.add_permits(1);
        let second = second.await.unwrap();
        assert_eq!((second.is_replay(), &second.body), (true, &first.await.unwrap().body), "{path}");
        assert_eq!((app.runs(), app.rows(&key).await), (runs + 1, 1));
    }
}

/// The log says what each delivery came to, and what it was answered.
async fn logged<S: Tested>() {
    let (app, key) = (App::<S>::new().await, fresh_key());
    app.next(&[Does::Answer(StatusCode::SERVICE_UNAVAILABLE), Does::Answer(StatusCode::CREATED)]);
    app.order(&key).await;
    app.order(&key).await;
    app.order(&key).await;
    app.send(order(&key, "another")).await;
    let refused = fresh_key();
    app.next(&[Does::Answer(StatusCode::NOT_FOUND)]);
    app.order(&refused).await;
    for (key, expected) in [
        (&key, &["execute 1 503", "execute 2 201", "mismatch 2 422", "replay 2 201"][..]),
        (&refused, &["execute 1 404"]),
    ] {
        let lines =
            format!("SELECT decision, attempt, answered_status FROM {{deliveries}} WHERE key = '{}'", key.as_str());
        until("the log is written", async || {
            let mut lines: Vec<_> = app.bench.rows(&lines).await.iter().map(|line| line.join(" ")).collect();
            lines.sort();
            lines == expected
        })
        .await;
    }
}

async fn hangs_up<S: Tested>() {
    let (app, key) = (App::<S>::new().await, fresh_key());
    app.next(&[Does::Hang]);
    let (router, request) = (app.router.clone(), order(&key, "{\"qty\":1}"));
    let client = tokio::spawn(async move { router.oneshot(request).await });
    until("the handler runs", async || app.runs() == 1).await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    app.script.go_on.add_permits(1);
    until("its rows are committed", async || app.rows(&key).await == 1).await;
    let again = app.order(&key).await;
    assert_eq!((again.is_replay(), &again.body[..], app.runs()), (true, &b"at last"[..], 1));
}

/// More duplicates than the store has connections, while the handler runs: each is told at once, and no other key waits
/// on PostgreSQL and MariaDB. (On SQLite whoever writes waits for the one writer.)
async fn hot_key<S: Tested>() {
    let (app, key) = (App::<S>::new().await, fresh_key());
    app.next(&[Does::Hang]);
    let (router, request) = (app.router.clone(), order(&key, "{\"qty\":1}"));
    let first = tokio::spawn(async move { answer(router.oneshot(request).await.unwrap()).await });
    until("the handler runs", async || app.runs() == 1).await;
    for answer in join_all((0..50).map(|_| app.order(&key))).await {
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::CONFLICT, "in-progress"));
    }
    if S::BACKEND != testkit::Backend::Sqlite {
        assert_eq!(app.order(&fresh_key()).await.status, StatusCode::CREATED);
    }
    app.script.go_on.add_permits(1);
    assert_eq!(&first.await.unwrap().body[..], b"at last");
    assert!(app.order(&key).await.is_replay());
    assert_eq!(app.rows(&key).await, 1);
}

/// A handler that hands its transaction on has not ended when it answers. Not on SQLite: there what it keeps is the one write
/// lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_keeps_its_transaction_commits_nothing() {
    keeps_it::<PgStore>().await;
    keeps_it::<MySqlStore>().await;
}

async fn keeps_it<S: Tested>() {
    let (app, key) = (App::<S>::new().await, fresh_key());
    app.next(&[Does::KeepTheTransaction]);
    let answer = app.order(&key).await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::INTERNAL_SERVER_ERROR, "handler-failed"));
    assert_eq!(app.rows(&key).await, 0);
    assert!(app.bench.record(&key).await.is_empty());
    // For as long as it keeps it, the key is its own.
    assert_eq!(app.order(&key).await.code(), "in-progress");
}
