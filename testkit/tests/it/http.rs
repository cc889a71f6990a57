//! The HTTP client against the recorder.

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Request, race, race_same, request, try_send};
use testkit::http_raw::raw;

use crate::LIMIT;

async fn recorder(rules: impl IntoIterator<Item = Rule>) -> Recorder {
    Recorder::start(RecorderOptions::default().script(rules)).await.expect("a free port")
}

#[tokio::test]
async fn a_request_arrives_as_it_was_written() {
    let recorder = recorder([]).await;
    let answer = request(recorder.addr(), "PATCH", "/x?y", &[("a", "1"), ("a", "2")], "body").await;
    assert_eq!((answer.status, answer.text().as_str()), (200, r#"{"ok":true}"#));
    let call = &recorder.calls()[0];
    assert_eq!((call.method.as_str(), call.body.as_ref()), ("PATCH", &b"body"[..]));
    assert_eq!(call.headers.get_all("a").iter().count(), 2);
    assert_eq!(call.headers["host"], recorder.addr().to_string());
}

#[tokio::test]
async fn a_race_is_run_by_all_at_once_and_answered_in_order() {
    // Nobody is answered before all have arrived: a race in turn would never end.
    let (left, right) = (recorder([]).await, recorder([]).await);
    left.hold();
    right.hold();
    let addrs = [left.addr(), right.addr()];
    let running = tokio::spawn(async move { race_same(20, &addrs, &Request::post("/", "")).await });
    left.wait_for_held(10, LIMIT).await.expect("half of them");
    right.wait_for_held(10, LIMIT).await.expect("half of them");
    left.release();
    right.release();
    assert_eq!(running.await.expect("no panic").len(), 20);

    left.script([201, 202, 203].map(|status| Rule::always(Reply::status(status)).at(&format!("/{status}"))));
    let requests = [203, 201, 202].map(|status| (left.addr(), Request::post(&format!("/{status}"), "")));
    let statuses: Vec<_> = race(&requests).await.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [203, 201, 202]);
}

#[tokio::test]
async fn a_slow_answer_is_a_broken_one_after_the_limit() {
    let recorder = recorder([Rule::always(Reply::hang())]).await;
    let broken = try_send(recorder.addr(), &Request::post("/", "").limit(LIMIT / 1000)).await.expect_err("too slow");
    assert_eq!((broken.status, broken.cause.as_str()), (None, "no head within 20ms"));
}

#[tokio::test]
async fn raw_bytes_go_out_unchanged_and_whole_answers_come_back() {
    let recorder = recorder([
        Rule::always(Reply::status(200).body("chunky").chunked()).at("/chunked"),
        Rule::always(Reply::status(204)).at("/none"),
    ])
    .await;
    let rows = [("/sized", "{\"ok\":true}"), ("/chunked", "6\r\nchunky\r\n0\r\n\r\n"), ("/none", "\r\n\r\n")];
    for (path, end) in rows {
        let answer = raw(recorder.addr(), format!("GET {path} HTTP/1.1\r\nhOsT: x\r\nX-Odd:  \"a\"  \r\n\r\n")).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with("HTTP/1.1 20") && answer.ends_with(end), "{answer}");
    }
    let refused = raw(recorder.addr(), "nonsense\r\n\r\n").await;
    assert!(refused.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&refused));
}
