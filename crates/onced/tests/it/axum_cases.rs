//! Cases that users reported, through the axum layer in atomic mode.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use axum::routing::post;
use futures_util::future::join_all;
use onced::guard::{Begun, Guard};
use onced::http::axum::{Onced, Tx, TxError};
use onced::store::deliveries::LogDeliveries;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced_core::key::Key;
use testkit::Backend;
use tower::ServiceExt as _;

use crate::axum_app::{App, Does, answer, order};
use crate::bench::{Bench, Tested, fresh_key, line, patient, request_of, scope};
use crate::transient::{Step, Times, Transient};
use crate::{plant, transient};

on_all! {
    o_01_twenty_at_once_on_two_instances_have_one_effect => o_01;
    o_06_ten_retries_of_a_failed_one_run_once => o_06;
    o_12_a_key_is_its_tenants_its_scopes_and_its_requests => o_12;
    o_30_1_a_known_key_within_the_handlers_transaction_is_replayed_to_it => o_30_1;
    o_30_5_what_no_text_can_hold_is_stored_and_replayed_as_bytes => o_30_5;
    o_30_6_nothing_runs_while_the_ledger_cannot_be_used => o_30_6;
}

async fn o_01<S: Tested>() {
    let one = App::<S>::new().await;
    let two = App::on(one.bench.clone()).await;
    let rounds = if testkit::soaking() { 20 } else { 3 };
    for round in 1..=rounds {
        let key = fresh_key();
        let apps = (0..20).map(|n| if n % 2 == 0 { &one } else { &two });
        let answers = join_all(apps.map(|app| app.order(&key))).await;
        assert!(answers.iter().any(|answer| answer.status == StatusCode::CREATED));
        let mut bodies: Vec<&Bytes> = Vec::new();
        for answer in &answers {
            match answer.status {
                StatusCode::CREATED => bodies.push(&answer.body),
                StatusCode::CONFLICT => {
                    assert_eq!(
                        (answer.code().as_str(), answer.headers.contains_key("retry-after")),
                        ("in-progress", true)
                    );
                }
                other => panic!("{other}: {:?}", answer.body),
            }
        }
        assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]));
        assert!(two.order(&key).await.is_replay());
        assert_eq!((one.runs() + two.runs(), one.rows(&key).await), (round, 1));
    }
}

async fn o_06<S: Tested>() {
    let (app, key) = (App::<S>::new().await, fresh_key());
    app.next(&[Does::Answer(StatusCode::INTERNAL_SERVER_ERROR)]);
    assert_eq!(app.order(&key).await.status, StatusCode::INTERNAL_SERVER_ERROR);
    let answers = join_all((0..10).map(|_| app.order(&key))).await;
    let ran = answers.iter().filter(|answer| answer.status == StatusCode::CREATED && !answer.is_replay()).count();
    assert_eq!(ran, 1);
    for answer in answers {
        assert!(matches!(answer.status, StatusCode::CREATED | StatusCode::CONFLICT), "{}", answer.status);
    }
    assert_eq!((app.runs(), app.rows(&key).await), (2, 1));
}

async fn o_12<S: Tested>() {
    let app = App::<S>::new().await;
    let of = |tenant: Option<&'static str>, method: &str, path: &str, key: &'static str| {
        let request = Request::builder().method(method).uri(path).header("idempotency-key", key);
        let request = tenant.into_iter().fold(request, |request, tenant| request.header("x-tenant", tenant));
        app.send(request.body(Body::from("{\"amount\":5}")).unwrap())
    };
    let send = |tenant, path: &'static str| of(Some(tenant), "POST", path, "1");
    let first = send("t1", "/own/7").await;
    assert_eq!(&first.body[..], b"run 1");
    assert_eq!(&send("t2", "/own/7").await.body[..], b"run 2");
    assert_eq!(&send("t1", "/returns/7").await.body[..], b"run 3");
    for other in ["/own/7?dry=1", "/own/77", "/own/78"] {
        assert_eq!(send("t1", other).await.code(), "key-reused", "{other}");
    }
    assert_eq!(of(Some("t1"), "PUT", "/own/7", "1").await.code(), "key-reused");
    let again = send("t1", "/own/7").await;
    assert_eq!((again.is_replay(), &again.body), (true, &first.body));
    let nobody = of(None, "POST", "/own/7", "1").await;
    assert_eq!((nobody.status, nobody.code().as_str()), (StatusCode::UNAUTHORIZED, "caller-unknown"));
    assert_eq!((app.runs(), app.rows(&Key::new("1").unwrap()).await), (3, 3));

    assert_eq!(&of(Some("t1"), "POST", "/own/77", "2").await.body[..], b"run 4");
    assert_eq!(of(Some("t1"), "POST", "/own/78", "2").await.code(), "key-reused");
    // The query is compared as it is sent: in another order it is another request.
    assert_eq!(&of(Some("t1"), "POST", "/own/7?x=1&y=2", "3").await.body[..], b"run 5");
    assert_eq!(of(Some("t1"), "POST", "/own/7?y=2&x=1", "3").await.code(), "key-reused");
    assert!(of(Some("t1"), "POST", "/own/7?x=1&y=2", "3").await.is_replay());
    assert_eq!(app.runs(), 5);
}

/// The handler's rows stand before and after the replay, beside its own key.
async fn o_30_1<S: Tested>() {
    let bench = Arc::new(Bench::<S>::with(&patient()).await);
    let (known, own) = (fresh_key(), fresh_key());
    let line = line("completed");
    plant::line(&bench, &line, &known).await;
    let handler = {
        let (bench, inner, own) = (bench.clone(), request_of(&line, &known), own.clone());
        async move |mut tx: Tx<S>| {
            let row = format!("INSERT INTO orders (key) VALUES ('{}')", own.as_str());
            S::run(&mut tx, &row).await?;
            let begun = bench.guard.begin_tx(&mut tx, &inner).await.unwrap();
            S::run(&mut tx, &row).await?;
            Ok::<_, TxError>(if matches!(begun, Begun::Replay { .. }) { StatusCode::CREATED } else { StatusCode::GONE })
        }
    };
    let once = Onced::new(Guard::new(bench.another_store(&patient()).await, LogDeliveries::All));
    let router = Router::new().route("/orders", post(handler).layer(once.atomic(scope())));
    let deliver = async || answer(router.clone().oneshot(order(&own, "{}")).await.unwrap()).await;
    let (first, again) = (deliver().await, deliver().await);
    assert_eq!((first.status, first.is_replay()), (StatusCode::CREATED, false));
    assert_eq!((again.status, again.is_replay(), bench.orders(&own).await), (StatusCode::CREATED, true, 2));
}

async fn o_30_5<S: Tested>() {
    let app = App::<S>::new().await;
    for body in [&b"{\"a\":\"\\u0000\"}"[..], b"{\"a\":\"\\ud83d\"}", b"\0\xff\xc3"] {
        let key = fresh_key();
        app.next(&[Does::Echo]);
        let (first, again) = (app.send(order(&key, body)).await, app.send(order(&key, body)).await);
        assert_eq!((first.status, first.is_replay(), &first.body[..]), (StatusCode::OK, false, body));
        assert_eq!((again.status, again.is_replay(), &again.body), (first.status, true, &first.body), "{body:?}");
        assert_eq!(app.rows(&key).await, 1, "{body:?}");
    }
}

/// The table is gone, and there again.
async fn o_30_6<S: Tested>() {
    let (app, key) = (App::<S>::new().await, fresh_key());
    let [away, back] = match S::BACKEND {
        Backend::Postgres => ["ALTER TABLE {keys} RENAME TO gone", "ALTER TABLE onced.gone RENAME TO idempotency_keys"],
        Backend::Sqlite | Backend::MariaDb => {
            ["ALTER TABLE {keys} RENAME TO gone", "ALTER TABLE gone RENAME TO {keys}"]
        }
    };
    app.bench.execute(away).await;
    let refused = app.order(&key).await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"));
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!((app.runs(), app.rows(&key).await), (0, 0));
    app.bench.execute(back).await;
    assert_eq!(app.order(&key).await.status, StatusCode::CREATED);
    assert!(app.order(&key).await.is_replay());
    assert_eq!((app.runs(), app.rows(&key).await), (1, 1));
}

/// O-30.6 at the completion: the server ends the connection, once the handler has written its rows. Not on SQLite: there
/// is no server.
#[tokio::test(flavor = "multi_thread")]
async fn o_30_6_a_connection_that_ends_at_the_completion_leaves_nothing() {
    ends_at_completion::<PgStore>().await;
    ends_at_completion::<MySqlStore>().await;
}

async fn ends_at_completion<S: Tested>() {
    let (app, key) = (App::<S>::new().await, fresh_key());
    let (plant, clear) = match S::BACKEND {
        Backend::MariaDb => (
            "CREATE TRIGGER ending BEFORE UPDATE ON {keys} FOR EACH ROW BEGIN
                 IF NEW.status = 'completed' THEN KILL CONNECTION_ID(); END IF;
             END",
            "DROP TRIGGER ending",
        ),
        Backend::Postgres | Backend::Sqlite => (
            "CREATE FUNCTION public.ending() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
                 BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
             CREATE TRIGGER ending BEFORE UPDATE ON {keys} FOR EACH ROW WHEN (NEW.status = 'completed')
                 EXECUTE FUNCTION public.ending()",
            "DROP TRIGGER ending ON {keys}",
        ),
    };
    app.bench.execute(plant).await;
    let refused = app.order(&key).await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"));
    assert!(refused.headers.contains_key("retry-after"));
    let runs = app.runs();
    assert!(runs >= 1, "the handler had run");
    assert_eq!(app.rows(&key).await, 0);
    assert_eq!(app.bench.count("SELECT count(*) FROM {keys} WHERE lease_until IS NOT NULL").await, 0);
    app.bench.execute(clear).await;
    assert_eq!(app.order(&key).await.status, StatusCode::CREATED);
    assert!(app.order(&key).await.is_replay());
    assert_eq!((app.runs(), app.rows(&key).await), (runs + 1, 1));
}

/// O-30.2, at the claim and at the completion: each of the conflicts, once and always.
#[tokio::test(flavor = "multi_thread")]
async fn o_30_2_a_statement_of_the_ledger_that_fails_and_passes() {
    statements_fail::<PgStore>().await;
    statements_fail::<MySqlStore>().await;
}

async fn statements_fail<S: Tested>() {
    let app = App::<S>::new().await;
    for case in Transient::all() {
        let (key, name) = (fresh_key(), case.name());
        transient::plant(&app.bench, case).await;
        let answer = app.order(&key).await;
        transient::clear(&app.bench, case).await;
        if case.times == Times::Once {
            assert_eq!((answer.status, app.rows(&key).await), (StatusCode::CREATED, 1), "{name}");
        } else {
            let refused = (answer.status, answer.headers.contains_key("retry-after"));
            assert_eq!(refused, (StatusCode::SERVICE_UNAVAILABLE, true), "{name}");
            assert_eq!(answer.code(), "store-unavailable", "{name}");
            assert_eq!(app.rows(&key).await, 0, "{name}");
            let left = app.bench.columns(&key, "status, lease_until").await;
            match case.step {
                Step::Claim => assert!(left.is_empty(), "{name}: {left:?}"),
                Step::Complete => assert_eq!(left, ["failed", "NULL"], "{name}"),
            }
            assert_eq!(app.order(&key).await.status, StatusCode::CREATED, "{name}");
        }
        assert!(app.order(&key).await.is_replay(), "{name}");
        assert_eq!(app.rows(&key).await, 1, "{name}");
    }
}

/// O-30.2: what passes is run again, whole; what does not pass is 503, a failed attempt without rows. Not on SQLite: its
/// transaction has the write lock before its handler runs, and meets no conflict.
#[tokio::test(flavor = "multi_thread")]
async fn o_30_2_a_serialization_failure_runs_the_handler_again() {
    runs_again::<PgStore>().await;
    runs_again::<MySqlStore>().await;
}

async fn runs_again<S: Tested>() {
    let (app, key) = (App::<S>::new().await, fresh_key());
    app.next(&[Does::Conflict, Does::Conflict]);
    let answer = app.order(&key).await;
    assert_eq!((answer.status, app.runs(), app.rows(&key).await), (StatusCode::CREATED, 3, 1));
    assert_eq!(app.bench.columns(&key, "status, attempt").await, ["completed", "1"]);

    let hopeless = fresh_key();
    app.next(&[Does::Conflict; 5]);
    let answer = app.order(&hopeless).await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"));
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(app.bench.columns(&hopeless, "status, attempt, lease_until").await, ["failed", "1", "NULL"]);
    assert_eq!(app.rows(&hopeless).await, 0);
    assert_eq!((app.order(&hopeless).await.status, app.rows(&hopeless).await), (StatusCode::CREATED, 1));
}
