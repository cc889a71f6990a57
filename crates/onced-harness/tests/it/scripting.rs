//! Which rule a call gets, what the reply looks like, and what the effect hook can say.

use std::time::Duration;

use onced_harness::{RecorderOptions, Reply, Rule, When};
use testkit::http_client::{Request, send};

use crate::{keyed, scripted, start};

#[tokio::test]
async fn the_first_rule_that_matches_decides() {
    let recorder = scripted([
        Rule::new(When::Nth(4), Reply::status(429).header("retry-after", "7")),
        Rule::on_run(1, Reply::status(500)).at("/charge"),
        Rule::new(When::FromRun(3), Reply::status(503)),
        Rule::always(Reply::status(202)).at("/mail"),
    ])
    .await;
    let rows = [("/charge", "a", 500), ("/charge", "a", 200), ("/mail", "b", 202), ("/charge", "c", 429)];
    for (path, key, status) in rows.into_iter().chain([("/mail", "a", 503), ("/other", "d", 200)]) {
        let answer = send(recorder.addr(), &Request::post(path, "").key(key)).await;
        assert_eq!(answer.status, status, "{path} {key}");
    }
    recorder.script([Rule::always(Reply::status(204))]);
    assert_eq!(send(recorder.addr(), &keyed("a")).await.status, 204);
}

#[tokio::test]
async fn headers_and_body_go_out_byte_for_byte() {
    let body = &br#"{"b":1.10,  "a":2,"a":3}"#[..];
    let reply = Reply::status(201)
        .header("link", "</a>; rel=prev")
        .header("link", "</b>; rel=next")
        .header("connection", "keep-alive, X-Hop")
        .header("x-hop", "1")
        .header("x-latin", b"caf\xe9")
        .body(body);
    let recorder = scripted([Rule::always(reply.clone()), Rule::always(reply.clone().chunked())]).await;
    for (reply, length, coding) in [(reply.clone(), Some("24"), None), (reply.chunked(), None, Some("chunked"))] {
        recorder.script([Rule::always(reply)]);
        let answer = send(recorder.addr(), &keyed("k")).await;
        assert_eq!((answer.status, answer.body.as_ref()), (201, body));
        assert_eq!(answer.header_all("link"), [&b"</a>; rel=prev"[..], b"</b>; rel=next"]);
        assert_eq!(answer.header_all("x-latin"), [b"caf\xe9"]);
        assert_eq!(answer.header("connection"), Some("keep-alive, X-Hop"));
        assert_eq!((answer.header("content-length"), answer.header("transfer-encoding")), (length, coding));
        assert_eq!(answer.header("content-type"), None);
    }
}

#[tokio::test]
async fn delays_lie_before_the_effect_and_before_the_answer() {
    let (before, after) = (Duration::from_millis(40), Duration::from_millis(60));
    let recorder = scripted([Rule::always(Reply::ok().delay_effect(before).delay_answer(after))]).await;
    let answer = send(recorder.addr(), &keyed("k")).await;
    let log = recorder.log();
    let entry = &log.entries()[0];
    assert!(entry.effect_at.expect("an effect") >= entry.call.received_at + before);
    assert!(answer.took >= before + after, "{:?}", answer.took);
}

#[tokio::test]
async fn the_hook_is_the_effect_and_may_give_the_reply() {
    let options = RecorderOptions::default().effect_fn(|call| async move {
        match call.path.as_str() {
            "/conflict" => Some(Reply::status(409)),
            "/made" => Some(Reply::status(201).body(format!("run {}", call.run))),
            _ => None,
        }
    });
    let recorder = start(options.script([Rule::always(Reply::status(202)).at("/scripted")])).await;
    for (path, status, effects) in [("/made", 201, 1), ("/conflict", 409, 1), ("/scripted", 202, 2), ("/x", 200, 3)] {
        let answer = send(recorder.addr(), &Request::post(path, "").key("k")).await;
        assert_eq!((answer.status, recorder.effects()), (status, effects), "{path}");
    }
}

#[tokio::test]
async fn the_hook_does_not_run_for_a_call_without_effect() {
    let options = RecorderOptions::default().effect_fn(|_| async { panic!("must not run") });
    let recorder = start(options.script([Rule::always(Reply::status(503))])).await;
    assert_eq!(send(recorder.addr(), &keyed("k")).await.status, 503);
    assert!(recorder.log().entries().iter().all(|entry| !entry.panicked));
}
