//! What is logged, what counts as an effect, de-duplication, and the control endpoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onced_harness::{Lookup, RecorderOptions, Reply, Rule, When};
use testkit::http_client::{Request, race_same, request, send, try_send};

use crate::{LIMIT, keyed, scripted, start};

#[tokio::test]
async fn a_call_is_logged_as_it_came() {
    let recorder = scripted([]).await;
    let sent = Request::post("/a%20b/c?x=1&y=%2F", &b"\x00\xffraw"[..]).key("k-1").header("x-many", "1");
    let answer = send(recorder.addr(), &sent.header("x-many", b"\xe9")).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, r#"{"ok":true}"#));
    assert_eq!(answer.header("content-type"), Some("application/json"));

    let calls = recorder.calls();
    let call = calls.first().expect("one call");
    assert_eq!((calls.len(), call.seq, call.run, call.method.as_str()), (1, 1, 1, "POST"));
    assert_eq!((call.path.as_str(), call.query.as_deref()), ("/a%20b/c", Some("x=1&y=%2F")));
    assert_eq!((call.key.as_deref(), call.body.as_ref()), (Some("k-1"), &b"\x00\xffraw"[..]));
    let many: Vec<_> = call.headers.get_all("x-many").iter().map(|value| value.as_bytes()).collect();
    assert_eq!(many, [&b"1"[..], b"\xe9"]);
}

#[tokio::test]
async fn answers_that_went_out_are_noted() {
    for reply in [Reply::ok(), Reply::ok().chunked(), Reply::status(204), Reply::stream(["a", "b"], LIMIT / 1000)] {
        let recorder = scripted([Rule::always(reply.clone())]).await;
        send(recorder.addr(), &keyed("k")).await;
        recorder
            .wait_until(|log| log.answered() == 1, LIMIT)
            .await
            .unwrap_or_else(|error| panic!("{reply:?}: {error}"));
        let log = recorder.log();
        let entry = &log.entries()[0];
        assert!(entry.call.received_at <= entry.effect_at.expect("an effect"));
        assert!(entry.effect_at <= entry.answered);
    }
}

#[tokio::test]
async fn effects_follow_the_status_unless_told_otherwise() {
    let recorder = scripted([
        Rule::always(Reply::status(500)).at("/refused"),
        Rule::always(Reply::status(500).with_effect()).at("/late-error"),
        Rule::always(Reply::ok().without_effect()).at("/ignored"),
    ])
    .await;
    let mut effects = Vec::new();
    for path in ["/refused", "/late-error", "/ignored", "/else"] {
        send(recorder.addr(), &Request::post(path, "").key(path)).await;
        effects.push(recorder.effects());
    }
    assert_eq!(effects, [0, 1, 1, 2]);
    let by_key: Vec<_> = recorder.effects_by_key().into_iter().collect();
    let expected = [("/else", 1), ("/ignored", 0), ("/late-error", 1), ("/refused", 0)];
    assert_eq!(by_key, expected.map(|(key, count)| (key.to_owned(), count)));
}

#[tokio::test]
async fn runs_are_counted_for_each_key() {
    let recorder = scripted([]).await;
    for key in ["a", "b", "a", "a"] {
        send(recorder.addr(), &keyed(key)).await;
    }
    send(recorder.addr(), &Request::new("GET", "/")).await;
    let runs: Vec<_> = recorder.calls().iter().map(|call| (call.seq, call.run)).collect();
    assert_eq!(runs, [(1, 1), (2, 1), (3, 2), (4, 3), (5, 1)]);
    assert_eq!((recorder.count(), recorder.calls_for("a").len()), (5, 3));
}

#[tokio::test]
async fn deduplication_repeats_the_first_answer_without_a_second_effect() {
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&ran);
    let options = RecorderOptions::default().deduplicate().effect_fn(move |call| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move { Some(Reply::status(201).body(format!("charge {}", call.seq))) }
    });
    let recorder = start(options).await;
    let answers = race_same(10, &[recorder.addr()], &keyed("same")).await;
    let first = answers[0].text();
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.text() == first), "{answers:?}");
    let again = recorder.log().entries().iter().filter(|entry| entry.deduplicated).count();
    assert_eq!((ran.load(Ordering::SeqCst), recorder.count(), recorder.effects(), again), (1, 10, 1, 9));
}

#[tokio::test]
async fn deduplication_tells_an_answer_that_was_lost_and_forgets_one_without_effect() {
    let recorder = start(RecorderOptions::default().deduplicate().script([
        Rule::on_run(1, Reply::lose_answer().body("done")).at("/lost"),
        Rule::new(When::Run(1), Reply::status(500)).at("/failed"),
    ]))
    .await;
    let lost = Request::post("/lost", "").key("lost");
    try_send(recorder.addr(), &lost).await.expect_err("the answer is lost");
    assert_eq!(send(recorder.addr(), &lost).await.text(), "done");
    let failed = Request::post("/failed", "").key("failed");
    assert_eq!(send(recorder.addr(), &failed).await.status, 500);
    assert_eq!(send(recorder.addr(), &failed).await.status, 200);
    assert_eq!((recorder.count(), recorder.effects()), (4, 2));
}

#[tokio::test]
async fn the_log_survives_a_panicking_hook() {
    let options = RecorderOptions::default().effect_fn(|call| {
        assert_ne!(call.key.as_deref(), Some("early"), "on purpose");
        async move {
            assert_ne!(call.key.as_deref(), Some("late"), "on purpose");
            None
        }
    });
    let recorder = start(options.deduplicate()).await;
    for (key, status) in [("early", 500), ("late", 500), ("late", 500), ("fine", 200)] {
        assert_eq!(send(recorder.addr(), &keyed(key)).await.status, status, "{key}");
    }
    let panicked = recorder.log().entries().iter().filter(|entry| entry.panicked).count();
    assert_eq!((recorder.count(), recorder.effects(), panicked), (4, 1, 3));
}

#[tokio::test]
async fn control_endpoints_tell_counts_and_effects_and_are_not_logged() {
    let recorder = scripted([Rule::always(Reply::status(500)).at("/refused")]).await;
    let get = async |path: &str| {
        let answer = request(recorder.addr(), "GET", path, &[], "").await;
        (answer.status, answer.text())
    };
    for key in ["a b/1", "a b/1"] {
        send(recorder.addr(), &keyed(key)).await;
    }
    send(recorder.addr(), &Request::post("/refused", "").key("no")).await;
    send(recorder.addr(), &Request::new("GET", "/")).await;

    let expected = concat!(
        r#"{"calls":4,"calls_without_key":1,"effects":3,"#,
        r#""keys":{"a b/1":{"calls":2,"effects":2},"no":{"calls":1,"effects":0}}}"#
    );
    assert_eq!(get("/_recorder/log").await, (200, expected.to_owned()));
    let found = r#"{"body":"{\"ok\":true}","effects":2,"key":"a b/1","seq":1}"#;
    assert_eq!(get("/_recorder/lookup?x=1&key=a%20b%2F1").await, (200, found.to_owned()));
    assert_eq!(get("/_recorder/lookup?key=no").await.0, 404);
    assert_eq!(get("/_recorder/lookup?key=never").await.0, 404);
    assert_eq!(get("/_recorder/lookup").await.0, 400);
    assert_eq!(get("/_recorder/other").await.0, 404);
    assert_eq!(request(recorder.addr(), "POST", "/_recorder/log", &[], "").await.status, 405);

    recorder.set_lookup(Lookup::Hidden);
    assert_eq!(get("/_recorder/lookup?key=a%20b/1").await.0, 404);
    recorder.set_lookup(Lookup::Truthful);
    assert_eq!(get("/_recorder/lookup?key=a+b/1").await.0, 200);
    assert_eq!(recorder.count(), 4);
}
