//! Answers of an upstream over HTTP/2 whose stream is reset: without an error too, what has not been said to end is cut off.

use std::time::Duration;

use testkit::http_client::{Answer, Broken, Request, try_send};
use testkit::{Backend, Database};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{post, records_at};
use crate::fixture::{Gateway, on_all, route};

/// An empty frame of settings, and a head that says 200.
const HEAD: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x04\0\0\0\x01\x88";
const DATA: &[u8] = b"\0\0\x03\0\0\0\0\0\x01abc";
const LAST_DATA: &[u8] = b"\0\0\x03\0\x01\0\0\0\x01abc";
/// One header, `x: y`.
const TRAILERS: &[u8] = b"\0\0\x05\x01\x05\0\0\0\x01\0\x01x\x01y";
const NO_ERROR: &[u8] = b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\0";
const INTERNAL_ERROR: &[u8] = b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x02";
/// The connection is left, and the stream was not looked at.
const GOODBYE: &[u8] = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Answers the first request on each connection with these frames, and closes it.
async fn upstream(frames: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            if read_request(&mut stream).await.is_ok() {
                drop(stream.write_all(&frames).await);
                drop(stream.shutdown().await);
                drop(stream.read_to_end(&mut Vec::new()).await);
            }
        }
    });
    url
}

/// Reads up to the frame that ends the first stream.
async fn read_request(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.read_exact(&mut [0; 24]).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        stream.read_exact(&mut vec![0; length]).await?;
        // Data or a head, with the flag of the end.
        if head[3] <= 1 && head[4] & 1 == 1 {
            return Ok(());
        }
    }
}

async fn to_each(backend: Backend) {
    for (name, frames, is_whole) in [
        ("an end", vec![HEAD, LAST_DATA], true),
        ("an end, then no error", vec![HEAD, LAST_DATA, NO_ERROR], true),
        ("trailers", vec![HEAD, DATA, TRAILERS], true),
        ("no error before the end", vec![HEAD, DATA, NO_ERROR], false),
        ("no error before anything", vec![HEAD, NO_ERROR], false),
        ("an error before the end", vec![HEAD, DATA, INTERNAL_ERROR], false),
        ("a goodbye before the end", vec![HEAD, DATA, GOODBYE], false),
        ("a close before the end", vec![HEAD, DATA], false),
    ] {
        let (database, url) = (Database::create(backend).await, upstream(frames.concat()).await);
        let gateway =
            Gateway::start(&database, &route("two", "/two", &url, "external", "upstream_http = \"2\"\n")).await;
        let guarded = try_send(gateway.address, &post("/two", "k")).await;
        let passed = try_send(gateway.address, &Request::new("GET", "/two")).await;
        assert_eq!((is_abc(&guarded), is_abc(&passed)), (is_whole, is_whole), "{name}: {guarded:?}, {passed:?}");
        let status = if is_whole { "completed" } else { "pending_external" };
        assert_eq!(records_at(&database, status).await, 1, "{name}");
    }
}

/// A client of HTTP/1.1 has the whole answer with this head, so that it waits for the end, however events are else passed on.
async fn a_head_alone(backend: Backend) {
    // 204, and the type of events.
    const NO_CONTENT: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x15\x01\x04\0\0\0\x01\x89\x0f\x10\x11text/event-stream";
    const END: &[u8] = b"\0\0\0\0\x01\0\0\0\x01";
    for (end, status, record) in [(END, 204, "completed"), (INTERNAL_ERROR, 504, "pending_external")] {
        let (database, listener) = (Database::create(backend).await, TcpListener::bind("127.0.0.1:0").await.unwrap());
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gateway =
            Gateway::start(&database, &route("two", "/two", &url, "external", "upstream_http = \"2\"\n")).await;
        let (address, request) = (gateway.address, post("/two", "k"));
        let mut answer = tokio::spawn(async move { try_send(address, &request).await });
        let (mut upstream, _) = listener.accept().await.unwrap();
        read_request(&mut upstream).await.unwrap();
        upstream.write_all(NO_CONTENT).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(300), &mut answer).await;
        assert!(early.is_err(), "it went out before its end: {early:?}");
        upstream.write_all(end).await.unwrap();
        assert_eq!(answer.await.unwrap().unwrap().status, status);
        assert_eq!(records_at(&database, record).await, 1);
    }
}

fn is_abc(answer: &Result<Answer, Broken>) -> bool {
    answer.as_ref().is_ok_and(|answer| answer.status == 200 && answer.text() == "abc")
}

on_all! {
    a_head_alone: an_answer_that_is_a_head_alone_waits_for_its_end_sqlite, an_answer_that_is_a_head_alone_waits_for_its_end_postgres, an_answer_that_is_a_head_alone_waits_for_its_end_mariadb;
    to_each: an_answer_that_is_reset_before_its_end_is_cut_off_sqlite, an_answer_that_is_reset_before_its_end_is_cut_off_postgres, an_answer_that_is_reset_before_its_end_is_cut_off_mariadb;
}
