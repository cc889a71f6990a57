//! The axum layer in leased mode: the handler calls outside between a committed claim and late rows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced_core::decision::OnUnknown;
use onced_core::key::downstream_key;
use tower::ServiceExt as _;

use crate::axum_leased_app::{App, Does, send};
use crate::bench::{Bench, Tested, fresh_key, patient, scope, until};
use crate::isolation::at_level;
use crate::proxy::{Cut, Proxy, commit_of};

on_all! {
    the_call_is_announced_before_it_and_the_rows_commit_with_the_answer => succeeds;
    an_answer_that_is_no_outcome_leaves_a_call_unknown_and_nothing_else => not_final;
    a_panic_is_a_failed_attempt_before_the_call_and_unknown_after_it => panics;
    what_was_taken_over_pending_keeps_its_downstream_key => taken_over;
    what_the_handler_keeps_or_forgets_is_not_stored => kept;
    an_answer_without_a_length_goes_out_as_it_comes_and_ends_once_it_is_stored => streamed;
    o_05_a_slow_owner_changes_nothing_and_tells_the_others_outcome => o_05;
    o_05_an_error_of_a_slow_owner_changes_nothing => o_05_error;
    o_05_of_three_owners_the_first_two_change_nothing => o_05_twice;
    o_13_a_mismatch_goes_before_in_progress => o_13;
    o_29_a_hot_key_holds_no_connection_while_its_handler_calls => o_29;
}

async fn succeeds<S: Tested>() {
    let (app, key) = (App::<S>::new(OnUnknown::Reconcile).await, fresh_key());
    app.next(&[Does::HangBefore]);
    let first = app.in_background(&key);
    until("the handler runs", async || app.runs() == 1).await;
    assert_eq!(app.columns(&key, "status, attempt").await, ["in_progress", "1"]);
    app.script.go_on.add_permits(1);
    let first = first.await.unwrap();
    assert_eq!((first.status, first.is_replay(), &first.body[..]), (StatusCode::CREATED, false, &b"{\"by\":1}"[..]));
    assert!(first.headers.contains_key("onced-key-expires") && first.headers.contains_key("x-run"));
    let again = app.order(&key).await;
    assert_eq!((again.status, again.is_replay(), &again.body), (first.status, true, &first.body));
    assert_eq!(app.columns(&key, "status, attempt, called_at IS NULL").await[..2], ["completed", "1"]);
    assert_eq!(*app.script.calls.lock().unwrap(), [downstream_key(&scope(), &key, "call")]);

    let after = fresh_key();
    app.next(&[Does::HangAfter]);
    let pending = app.in_background(&after);
    until("it has called", async || app.calls() == 2).await;
    assert_eq!(app.columns(&after, "status").await, ["pending_external"]);
    assert_eq!(app.order(&after).await.code(), "in-progress");
    app.script.go_on.add_permits(1);
    assert_eq!(pending.await.unwrap().status, StatusCode::CREATED);
    assert_eq!((app.runs(), app.bench.orders(&key).await, app.bench.orders(&after).await), (2, 1, 1));
    let lines = format!("SELECT decision, answered_status FROM {{deliveries}} WHERE key = '{}'", after.as_str());
    until("both are logged", async || {
        let mut lines = app.bench.rows(&lines).await;
        lines.sort_unstable();
        lines == [["execute", "201"], ["in-progress", "409"]]
    })
    .await;

    // A refusal is an outcome, whatever was called; its rows are not.
    let refused = fresh_key();
    app.next(&[Does::Answer(402)]);
    let first = app.order(&refused).await;
    assert_eq!((first.status, first.is_replay()), (StatusCode::PAYMENT_REQUIRED, false));
    assert!(app.order(&refused).await.is_replay());
    assert_eq!(
        (app.columns(&refused, "status").await, app.bench.orders(&refused).await),
        (vec!["completed".into()], 0)
    );
}

async fn not_final<S: Tested>() {
    let app = App::<S>::new(OnUnknown::Reconcile).await;
    let key = fresh_key();
    app.next(&[Does::Answer(503)]);
    let first = app.order(&key).await;
    assert_eq!((first.status, &first.body[..]), (StatusCode::SERVICE_UNAVAILABLE, &b"{\"by\":1}"[..]));
    assert_eq!(app.columns(&key, "status, attempt").await, ["pending_external", "1"]);
    assert_eq!((app.order(&key).await.code().as_str(), app.bench.orders(&key).await), ("in-progress", 0));
    app.bench.let_the_lease_be_over(&key).await;
    assert_eq!(app.order(&key).await.code(), "outcome-unknown");
    assert_eq!(app.calls(), 1);

    let none = fresh_key();
    app.next(&[Does::NoEffect]);
    assert_eq!(app.order(&none).await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(app.columns(&none, "status, attempt, lease_until").await, ["failed", "1", "NULL"]);
    assert_eq!(app.order(&none).await.status, StatusCode::CREATED);
    assert_eq!(app.columns(&none, "status, attempt").await, ["completed", "2"]);

    let mistaken = fresh_key();
    app.next(&[Does::Mistake]);
    let answer = app.order(&mistaken).await;
    assert_eq!((answer.status, answer.body.len()), (StatusCode::INTERNAL_SERVER_ERROR, 0));
    assert_eq!(app.columns(&mistaken, "status").await, ["pending_external"]);
    assert_eq!(app.bench.orders(&mistaken).await, 0);
}

async fn panics<S: Tested>() {
    let app = App::<S>::new(OnUnknown::Hold).await;
    for (does, row) in [(Does::PanicBefore, "failed"), (Does::PanicAfter, "pending_external")] {
        let key = fresh_key();
        app.next(&[does]);
        assert!(app.in_background(&key).await.unwrap_err().is_panic());
        assert_eq!(app.columns(&key, "status, attempt").await, [row, "1"]);
        app.bench.alter(&key, "lease_until = lease_until").await;
        if does == Does::PanicAfter {
            app.bench.let_the_lease_be_over(&key).await;
            assert_eq!(app.order(&key).await.code(), "outcome-unknown");
            assert_eq!(app.bench.orders(&key).await, 0);
        } else {
            assert_eq!((app.order(&key).await.status, app.bench.orders(&key).await), (StatusCode::CREATED, 1));
        }
    }
}

async fn taken_over<S: Tested>() {
    let (app, key) = (App::<S>::new(OnUnknown::Retry).await, fresh_key());
    // What an earlier one has announced is unknown, whether or not this one has announced anything.
    for (attempt, does) in [("1", Does::Answer(503)), ("2", Does::Unannounced), ("3", Does::Answer(503))] {
        app.next(&[does]);
        app.order(&key).await;
        assert_eq!(app.columns(&key, "status, attempt").await, ["pending_external", attempt]);
        app.bench.let_the_lease_be_over(&key).await;
    }
    let last = app.order(&key).await;
    assert_eq!((last.status, &last.body[..]), (StatusCode::CREATED, &b"{\"by\":4}"[..]));
    let calls = app.script.calls.lock().unwrap().clone();
    assert_eq!(calls, vec![downstream_key(&scope(), &key, "call"); 4]);
    assert_eq!(app.bench.orders(&key).await, 1);
}

async fn kept<S: Tested>() {
    let app = App::<S>::new(OnUnknown::Hold).await;
    // Whoever keeps it may still complete it.
    let kept = (Does::KeepIt, "in-progress", "in_progress");
    for (does, code, row) in [kept, (Does::ForgetTheStep, "outcome-unknown", "pending_external")] {
        let key = fresh_key();
        app.next(&[does]);
        assert_eq!(app.order(&key).await.code(), code, "{does:?}");
        assert_eq!(app.columns(&key, "status").await, [row], "{does:?}");
        assert_eq!(app.order(&key).await.code(), "in-progress", "{does:?}");
    }
    // Refused before anything is announced, and not by waiting for a lock of its own.
    let late = fresh_key();
    app.next(&[Does::CallLate]);
    let answer = app.order(&late).await;
    assert_eq!((answer.status, answer.body.len()), (StatusCode::INTERNAL_SERVER_ERROR, 0));
    assert_eq!(app.columns(&late, "status, called_at").await, ["failed", "NULL"]);
}

async fn streamed<S: Tested>() {
    let app = App::<S>::new(OnUnknown::Hold).await;
    let begin = async |does| {
        let key = fresh_key();
        app.next(&[does]);
        let request = Request::post("/orders").header("idempotency-key", key.as_str());
        let request = request.header("content-type", "application/json").body(Body::from("{\"q\":1}")).unwrap();
        let (head, mut body) = app.router.clone().oneshot(request).await.unwrap().into_parts();
        assert_eq!((head.status, head.headers.contains_key("onced-key-expires")), (StatusCode::CREATED, false));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        assert_eq!(app.columns(&key, "status").await, ["pending_external"]);
        assert_eq!(app.order(&key).await.code(), "in-progress");
        (key, body)
    };
    let goes_on = || app.script.go_on.add_permits(1);
    // Whole: when it has ended, it is stored.
    let (key, body) = begin(Does::Stream).await;
    goes_on();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "two");
    assert_eq!(app.columns(&key, "status").await, ["completed"]);
    let again = app.order(&key).await;
    assert_eq!((again.status, again.is_replay(), &again.body[..]), (StatusCode::CREATED, true, &b"onetwo"[..]));
    assert_eq!(app.bench.orders(&key).await, 1);

    // Nobody reads on, and it is recorded all the same.
    let (key, body) = begin(Does::Stream).await;
    drop(body);
    goes_on();
    until("it is complete", async || app.columns(&key, "status").await == ["completed"]).await;
    assert_eq!((&app.order(&key).await.body[..], app.bench.orders(&key).await), (&b"onetwo"[..], 1));

    // No client takes for whole what is not stored; after its call the outcome is unknown.
    for does in [Does::StreamBreaks, Does::StreamPanics, Does::Stream] {
        let (key, body) = begin(does).await;
        if does == Does::Stream {
            app.bench.alter(&key, "lease_token = 'of-somebody-else'").await;
        }
        goes_on();
        assert!(body.collect().await.is_err(), "{does:?}");
        assert_eq!(app.columns(&key, "status").await, ["pending_external"], "{does:?}");
        assert_eq!(app.bench.orders(&key).await, 0, "{does:?}");
    }
    assert_eq!(app.calls(), 5);
}

/// The pauses of the case are what the lease and its end are made to be.
async fn o_05<S: Tested>() {
    let app = App::<S>::new(OnUnknown::Retry).await;
    for (second_has_ended, slow) in
        [(true, Does::HangAfter), (false, Does::HangAfter), (true, Does::HangBefore), (false, Does::HangBefore)]
    {
        let (key, runs, calls) = (fresh_key(), app.runs(), app.calls());
        let calls_of_first = usize::from(slow == Does::HangAfter);
        app.next(&[slow]);
        let first = app.in_background(&key);
        until("the first runs", async || app.runs() == runs + 1 && app.calls() == calls + calls_of_first).await;
        app.bench.let_the_lease_be_over(&key).await;
        let second = if second_has_ended {
            let second = app.order(&key).await;
            assert_eq!((second.status, &second.body[..]), (StatusCode::CREATED, &b"{\"by\":2}"[..]));
            None
        } else {
            app.next(&[Does::HangAfter]);
            let second = app.in_background(&key);
            until("the second calls", async || app.calls() == calls + calls_of_first + 1).await;
            Some(second)
        };
        let before = app.bench.record(&key).await;
        // Whoever waits first goes on first.
        app.script.go_on.add_permits(1);
        let late = first.await.unwrap();
        if slow == Does::HangAfter {
            assert_eq!(app.bench.record(&key).await, before, "the slow owner wrote");
        }
        match second {
            None => assert_eq!((late.is_replay(), &late.body[..]), (true, &b"{\"by\":2}"[..]), "{slow:?}"),
            Some(second) => {
                assert_eq!(app.order(&key).await.code(), "in-progress");
                app.script.go_on.add_permits(1);
                assert_eq!(&second.await.unwrap().body[..], b"{\"by\":2}");
            }
        }
        assert_eq!(app.columns(&key, "status, attempt").await, ["completed", "2"]);
        assert_eq!(app.bench.orders(&key).await, 1);
    }
}

async fn o_05_error<S: Tested>() {
    let app = App::<S>::new(OnUnknown::Retry).await;
    for slow in [Does::ErrLateBefore, Does::ErrLateAfter] {
        let (key, runs) = (fresh_key(), app.runs());
        app.next(&[slow]);
        let first = app.in_background(&key);
        until("the first runs", async || app.runs() == runs + 1).await;
        app.bench.let_the_lease_be_over(&key).await;
        assert_eq!(&app.order(&key).await.body[..], b"{\"by\":2}");
        let before = app.bench.record(&key).await;
        app.script.go_on.add_permits(1);
        let late = first.await.unwrap();
        // Beside an announced call an error proves nothing: nothing would be recorded, and it goes out as it is.
        let told = if slow == Does::ErrLateBefore {
            (StatusCode::CREATED, true)
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, false)
        };
        assert_eq!((late.status, late.is_replay()), told, "{slow:?}");
        assert_eq!((app.bench.record(&key).await, app.bench.orders(&key).await), (before, 1), "{slow:?}");
    }
}

async fn o_05_twice<S: Tested>() {
    let (app, key) = (App::<S>::new(OnUnknown::Retry).await, fresh_key());
    let mut slow = Vec::new();
    for calls in 1..=2 {
        app.next(&[Does::HangAfter]);
        slow.push(app.in_background(&key));
        until("it calls", async || app.calls() == calls).await;
        app.bench.let_the_lease_be_over(&key).await;
    }
    assert_eq!(&app.order(&key).await.body[..], b"{\"by\":3}");
    let before = app.bench.record(&key).await;
    app.script.go_on.add_permits(2);
    for late in slow {
        let late = late.await.unwrap();
        assert_eq!((late.is_replay(), &late.body[..]), (true, &b"{\"by\":3}"[..]));
    }
    assert_eq!((app.bench.record(&key).await, app.bench.orders(&key).await), (before, 1));
    assert_eq!(app.columns(&key, "status, attempt").await, ["completed", "3"]);
}

async fn o_13<S: Tested>() {
    let (app, key) = (App::<S>::new(OnUnknown::Reconcile).await, fresh_key());
    app.next(&[Does::HangAfter]);
    let first = app.in_background(&key);
    until("the handler runs", async || app.runs() == 1).await;
    let other = async || send(app.router.clone(), key.clone(), "{\"q\":2}").await;
    let (second, third) = (other().await, app.order(&key).await);
    assert_eq!((second.status, second.code().as_str()), (StatusCode::UNPROCESSABLE_ENTITY, "key-reused"));
    assert_eq!((third.status, third.code().as_str()), (StatusCode::CONFLICT, "in-progress"));
    app.script.go_on.add_permits(1);
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert_eq!(other().await.code(), "key-reused");
    assert!(app.order(&key).await.is_replay());
    assert_eq!((app.runs(), app.bench.orders(&key).await), (1, 1));
}

/// A pool of five, and fifty at once.
async fn o_29<S: Tested>() {
    hot_key(App::<S>::new(OnUnknown::Reconcile).await).await;
}

/// Where the sessions are REPEATABLE READ unless they say otherwise, no record is overlooked.
#[tokio::test(flavor = "multi_thread")]
async fn o_29_a_hot_key_at_repeatable_read() {
    let bench = Arc::new(Bench::<PgStore>::with(&patient()).await);
    let url = at_level(bench.database.url(), "repeatable\\ read");
    hot_key(App::over(&url, bench, OnUnknown::Reconcile).await).await;
}

async fn hot_key<S: Tested>(app: App<S>) {
    let key = fresh_key();
    app.next(&[Does::HangAfter]);
    let first = app.in_background(&key);
    until("it has called", async || app.calls() == 1).await;
    for answer in join_all((0..49).map(|_| app.order(&key))).await {
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::CONFLICT, "in-progress"));
        assert!(answer.headers.contains_key("retry-after"));
    }
    // As many as there are connections, each calling outside: none is held.
    app.next(&[Does::HangAfter; 7]);
    let hanging: Vec<_> = (0..7).map(|_| app.in_background(&fresh_key())).collect();
    until("all have called", async || app.calls() == 8).await;
    let other = fresh_key();
    assert_eq!(app.order(&other).await.status, StatusCode::CREATED);
    assert_eq!(app.columns(&key, "status").await, ["pending_external"]);
    app.script.go_on.add_permits(8);
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    for answer in hanging {
        assert_eq!(answer.await.unwrap().status, StatusCode::CREATED);
    }
    assert_eq!((app.runs(), app.bench.orders(&key).await), (9, 1));
}

/// O-30.2 in leased mode: rows that met a serialization failure are written again, and what a step has recorded is not
/// called again. Not on SQLite: a transaction has the write lock there before its first statement.
#[tokio::test(flavor = "multi_thread")]
async fn o_30_2_a_serialization_failure_repeats_the_rows_and_no_recorded_call() {
    repeats_rows::<PgStore>().await;
    repeats_rows::<MySqlStore>().await;
}

async fn repeats_rows<S: Tested>() {
    let app = App::<S>::new(OnUnknown::Hold).await;
    let key = fresh_key();
    app.next(&[Does::StepThenConflicts(2)]);
    assert_eq!(app.order(&key).await.status, StatusCode::CREATED);
    assert_eq!((app.runs(), app.calls(), app.bench.orders(&key).await), (3, 1, 1));
    assert_eq!(app.columns(&key, "status, attempt").await, ["completed", "1"]);

    let hopeless = fresh_key();
    app.next(&[Does::StepThenConflicts(5)]);
    let answer = app.order(&hopeless).await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"));
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(app.columns(&hopeless, "status, attempt, lease_until").await, ["failed", "1", "NULL"]);
    app.next(&[Does::StepThenConflicts(0)]);
    assert_eq!(app.order(&hopeless).await.status, StatusCode::CREATED);
    assert_eq!((app.calls(), app.bench.orders(&hopeless).await), (2, 1));

    // Beside a call that nobody has recorded, nothing is known any more.
    app.script.by_step.store(false, Ordering::SeqCst);
    let unknown = fresh_key();
    app.next(&[Does::CallThenConflict]);
    let answer = app.order(&unknown).await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::CONFLICT, "outcome-unknown"));
    assert_eq!(app.columns(&unknown, "status").await, ["pending_external"]);
    assert_eq!((app.calls(), app.bench.orders(&unknown).await), (3, 0));
}

/// The same at the commit, which is where PostgreSQL finds most of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_serialization_failure_at_the_commit_is_one_as_well() {
    let app = App::<PgStore>::new(OnUnknown::Hold).await;
    app.bench
        .execute(
            "CREATE TABLE public.late (n integer);
             CREATE FUNCTION public.conflict() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$;
             CREATE CONSTRAINT TRIGGER late AFTER INSERT ON public.late DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION public.conflict()",
        )
        .await;
    for by_step in [true, false] {
        let key = fresh_key();
        app.script.by_step.store(by_step, Ordering::SeqCst);
        let calls = app.calls();
        app.next(&[Does::ConflictAtCommit]);
        let answer = app.order(&key).await;
        let row = app.columns(&key, "status").await;
        if by_step {
            assert_eq!((answer.status, row), (StatusCode::CREATED, vec!["completed".to_owned()]));
        } else {
            assert_eq!(answer.code(), "store-unavailable");
            assert_eq!(row, ["pending_external"]);
        }
        assert_eq!((app.calls(), app.bench.orders(&key).await), (calls + 1, i64::from(by_step)));
    }
}

/// O-30.3: the claim is committed, and its answer lost: the same request goes on as its owner. Not on SQLite: there is no wire.
#[tokio::test(flavor = "multi_thread")]
async fn o_30_3_a_claim_whose_reply_was_lost_goes_on() {
    claim_is_lost::<PgStore>().await;
    claim_is_lost::<MySqlStore>().await;
}

async fn claim_is_lost<S: Tested>() {
    let bench = Arc::new(Bench::<S>::with(&patient()).await);
    let proxy = Proxy::before(bench.database.url()).await;
    let app = App::<S>::over(&proxy.url, bench, OnUnknown::Hold).await;
    let key = fresh_key();
    proxy.cut_claims(S::BACKEND, &key, &[Cut::BeforeTheReply]);
    let first = app.order(&key).await;
    assert_eq!((first.status, proxy.cuts_made()), (StatusCode::CREATED, 1));
    assert!(app.order(&key).await.is_replay());
    assert_eq!(app.columns(&key, "status, attempt").await, ["completed", "1"]);
    assert_eq!((app.runs(), app.calls(), app.bench.orders(&key).await), (1, 1, 1));
}

/// Not on SQLite: there is no wire between us and it.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_out_only_where_its_commit_is_known_to_stand() {
    commit_stands::<PgStore>().await;
    commit_stands::<MySqlStore>().await;
}

async fn commit_stands<S: Tested>() {
    let bench = Arc::new(Bench::<S>::with(&patient()).await);
    let proxy = Proxy::before(bench.database.url()).await;
    let app = App::<S>::over(&proxy.url, bench, OnUnknown::Hold).await;
    for (cut, status, row, orders) in
        [(Cut::BeforeTheReply, 201, "completed", 1), (Cut::BeforeItIsSent, 503, "pending_external", 0)]
    {
        let (key, calls) = (fresh_key(), app.calls());
        app.next(&[Does::HangAfter]);
        let first = app.in_background(&key);
        until("it has called", async || app.calls() == calls + 1).await;
        proxy.cut_at(commit_of(S::BACKEND), &[cut]);
        app.script.go_on.add_permits(1);
        assert_eq!(first.await.unwrap().status.as_u16(), status, "{cut:?}");
        assert_eq!(proxy.cuts_made(), 1);
        assert_eq!((app.columns(&key, "status").await, app.bench.orders(&key).await), (vec![row.to_owned()], orders));
    }
}
