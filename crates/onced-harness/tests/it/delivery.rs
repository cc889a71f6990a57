//! Answers that are lost, cut off, streamed or large.

use std::time::Duration;

use bytes::Bytes;
use onced_harness::{Delivery, Reply, Rule};
use testkit::http_client::{Request, open, send, try_send};
use testkit::http_raw::raw;

use crate::{LIMIT, keyed, scripted};

#[tokio::test]
async fn a_lost_answer_took_effect() {
    let recorder = scripted([Rule::on_run(1, Reply::lose_answer())]).await;
    let broken = try_send(recorder.addr(), &keyed("k")).await.expect_err("no answer");
    assert_eq!((broken.status, recorder.count(), recorder.effects()), (None, 1, 1));
    assert_eq!(send(recorder.addr(), &keyed("k")).await.status, 200);
    let answered: Vec<_> = recorder.log().entries().iter().map(|entry| entry.status).collect();
    assert_eq!(answered, [None, Some(200)]);
    assert_eq!(recorder.log().entries()[0].answered, None);
}

#[tokio::test]
async fn a_lost_answer_sends_no_byte() {
    let recorder = scripted([Rule::always(Reply::lose_answer())]).await;
    assert_eq!(raw(recorder.addr(), "POST / HTTP/1.1\r\nHost: r\r\nContent-Length: 0\r\n\r\n").await, b"");
    assert_eq!(recorder.effects(), 1);
}

#[tokio::test]
async fn a_cut_off_answer_sends_exactly_what_it_was_told() {
    for (declared, sent) in [(1_000, 100), (1_000, 0), (40_000_000, 30_000_000)] {
        let recorder = scripted([Rule::always(Reply::cut_off(declared, sent).body("abc"))]).await;
        let broken = try_send(recorder.addr(), &keyed("k")).await.expect_err("the answer breaks off");
        let length = broken.headers.get("content-length").and_then(|value| value.to_str().ok()?.parse().ok());
        assert_eq!((broken.status, length, broken.body.len()), (Some(200), Some(declared), sent));
        assert!(broken.body.iter().zip(b"abc".iter().cycle()).all(|(left, right)| left == right));
        assert_eq!((recorder.effects(), recorder.log().answered()), (1, 0));
    }
}

#[tokio::test]
async fn a_stream_comes_piece_by_piece() {
    // The gap is longer than the limit of the test: whoever waited for the second piece would fail.
    let recorder = scripted([Rule::always(Reply::stream(["one", "two"], LIMIT * 10))]).await;
    let mut streaming = open(recorder.addr(), &keyed("k")).await.expect("a head");
    let first = tokio::time::timeout(LIMIT, streaming.next()).await.expect("in time");
    assert_eq!(first, Some(Ok(Bytes::from_static(b"one"))));

    let recorder = scripted([Rule::always(Reply::stream(["one", "two", "three"], Duration::from_millis(5)))]).await;
    let whole = send(recorder.addr(), &keyed("k")).await;
    assert_eq!((whole.text().as_str(), whole.header("transfer-encoding")), ("onetwothree", Some("chunked")));
    assert!(whole.took >= Duration::from_millis(10));
}

#[tokio::test]
async fn empty_and_large_bodies_are_whole() {
    let large = Bytes::from(vec![7; 5 << 20]);
    let deliveries = [Delivery::Sized, Delivery::Chunked];
    for (body, delivery) in [Bytes::new(), large].iter().flat_map(|body| deliveries.iter().map(move |how| (body, how)))
    {
        let recorder = scripted([Rule::always(Reply::status(200).body(body.clone()).delivery(delivery.clone()))]).await;
        let answer = send(recorder.addr(), &Request::post("/", body.clone())).await;
        assert!(answer.body == body, "{delivery:?} {} {}", body.len(), answer.body.len());
        assert_eq!(recorder.calls()[0].body.len(), body.len());
        recorder.wait_until(|log| log.answered() == 1, LIMIT).await.expect("it went out");
    }
    let recorder = scripted([Rule::always(Reply::stream(Vec::<Bytes>::new(), LIMIT))]).await;
    assert_eq!(send(recorder.addr(), &keyed("k")).await.text(), "");
}

#[tokio::test]
async fn a_head_request_gets_the_head_alone() {
    for reply in [Reply::ok(), Reply::ok().chunked()] {
        let recorder = scripted([Rule::always(reply)]).await;
        assert_eq!(send(recorder.addr(), &Request::new("HEAD", "/")).await.text(), "");
        recorder.wait_until(|log| log.answered() == 1, LIMIT).await.expect("it went out");
    }
}
