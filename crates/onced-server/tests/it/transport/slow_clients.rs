//! Clients that send too slowly or too much: each is given up in time, nothing of it is stored or forwarded, and none
//! of them keeps others from being served.

use futures_util::future::join_all;
use testkit::http_client::{Request, send};
use testkit::{Backend, Database};
use tokio::task::JoinSet;

use super::app::App;
use super::h2_client::{self, Client};
use super::raw_client::Raw;
use super::wire::Wire;
use super::{any_database, post, records};
use crate::fixture::{Gateway, LIMIT, route};

/// What HTTP/2 begins with, and an empty frame of settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The beginning of a frame with the head of the first request, 16000 bytes long.
const LONG_HEAD: &[u8] = b"\0\x3e\x80\x01\x04\0\0\0\x01";
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingping";
const GET: &str = "GET /pay HTTP/1.1\r\nHost: x\r\n\r\n";

async fn start(database: &Database, upstream: &str, clients: &str) -> Gateway {
    let route = route("pay", "/pay", upstream, "external", "");
    Gateway::start(database, &format!("[clients]\n{clients}\n\n{route}")).await
}

async fn no_request(backend: Backend) {
    let (database, app) = (Database::create(backend).await, App::on_tcp().await);
    let gateway = start(&database, &app.url(), "head_timeout = \"300ms\"").await;
    let address = gateway.address;
    let frame_of_a_head = [PREFACE, LONG_HEAD].concat();
    let rows: [(&[u8], &[u8]); 9] = [
        (b"", b""),
        (b"GET /pay HTTP/1.1\r\nHost: x\r\n", b""),
        (b"GET /pay HTTP/1.1\r\nX-Endless: ", b"a"),
        (b"POST /pay HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n", b"X: 1\r\n"),
        (b"\r\n", b"\r\n"),
        (b"PRI * HTTP/2.0\r\n\r\nS", b""),
        (PREFACE, b""),
        (&frame_of_a_head, b"\x82"),
        (PREFACE, PING),
    ];
    let ended = rows.map(|(start, drips)| async move {
        let mut client = Raw::connect(address).await;
        client.write(start).await;
        if drips.is_empty() { client.rest().await } else { client.drip(drips).await }
    });
    let kept = async {
        let mut client = Raw::connect(address).await;
        client.write(GET).await;
        assert_eq!(client.answer().await.0, "http/1.1 200 ok");
        assert_eq!(client.rest().await, b"", "it is closed without a word");
    };
    let kept_h2 = async {
        let client = Client::connect(address).await;
        assert_eq!(client.send(http::Request::get("http://x/pay").body("").unwrap()).await.status, 200);
        tokio::time::timeout(LIMIT, client.ended).await.expect("the connection ends within the limit").unwrap();
    };
    let (ended, (), ()) = tokio::join!(join_all(ended), kept, kept_h2);
    for ((start, _), back) in rows.iter().zip(ended) {
        assert!(!back.starts_with(b"HTTP/1.1 2"), "{start:?}: {back:?}");
    }
    assert_eq!((records(&database).await, app.count()), (0, 2));
    assert_eq!(send(address, &Request::new("GET", "/pay")).await.status, 200);
}

#[tokio::test]
async fn a_connection_without_a_whole_head_is_closed_sqlite() {
    no_request(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_connection_without_a_whole_head_is_closed_postgres() {
    no_request(Backend::Postgres).await;
}

#[tokio::test]
async fn a_connection_without_a_whole_head_is_closed_mariadb() {
    no_request(Backend::MariaDb).await;
}

async fn no_whole_body(backend: Backend) {
    let (database, app) = (Database::create(backend).await, App::on_tcp().await);
    let gateway = start(&database, &app.url(), "body_timeout = \"300ms\"").await;
    let head = "POST /pay HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n";
    for (length, drips) in [
        ("Content-Length: 60000", &b""[..]),
        ("Content-Length: 60000", b"x"),
        ("Transfer-Encoding: chunked", b"1\r\nx\r\n"),
    ] {
        let mut client = Raw::connect(gateway.address).await;
        client.write(format!("{head}{length}\r\n\r\n")).await;
        let back = if drips.is_empty() { client.rest().await } else { client.drip(drips).await };
        let back = String::from_utf8(back).unwrap();
        assert!(back.starts_with("HTTP/1.1 408 ") && back.contains("\"body-timeout\""), "{length} {drips:?}: {back}");
    }
    assert_eq!((records(&database).await, app.count()), (0, 0));
    assert_eq!(send(gateway.address, &post("/pay", "k")).await.status, 200, "the key is free");
}

#[tokio::test]
async fn a_body_that_does_not_arrive_in_time_is_refused_sqlite() {
    no_whole_body(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_in_time_is_refused_postgres() {
    no_whole_body(Backend::Postgres).await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_in_time_is_refused_mariadb() {
    no_whole_body(Backend::MariaDb).await;
}

async fn large_heads(backend: Backend) {
    // One that has no bounds of its own.
    let (database, upstream) = (Database::create(backend).await, Wire::start([]).await);
    let gateway = start(&database, &upstream.url(), "max_head_bytes = \"8KiB\"").await;
    let with = |count: usize, size: usize| {
        (0..count).fold(post("/pay", "k"), |request, at| request.header(&format!("x-{at}"), "x".repeat(size)))
    };
    // With its key, its length and its host it has three more.
    for request in [with(98, 1), with(500, 1), with(1, 9000), with(80, 120)] {
        let answer = send(gateway.address, &request).await;
        assert_eq!((answer.status, answer.body.len()), (431, 0));
    }
    let client = Client::connect(gateway.address).await;
    let mut request = h2_client::post("/pay", "k");
    request.headers_mut().insert("x-large", "x".repeat(9000).parse().unwrap());
    assert_eq!(client.send(request).await.status, 431);
    assert_eq!((records(&database).await, upstream.requests().len()), (0, 0));

    assert_eq!(client.send(h2_client::post("/pay", "others live on")).await.status, 200);
    assert_eq!(send(gateway.address, &with(97, 1)).await.status, 200, "a hundred are allowed");
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused_sqlite() {
    large_heads(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused_postgres() {
    large_heads(Backend::Postgres).await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused_mariadb() {
    large_heads(Backend::MariaDb).await;
}

#[tokio::test]
async fn the_next_client_is_served_once_one_leaves() {
    let (database, app) = (any_database().await, App::on_tcp().await);
    let gateway = start(&database, &app.url(), "max_connections = 2").await;
    let ask = async |client: &mut Raw| {
        client.write(GET).await;
        assert_eq!(client.answer().await.0, "http/1.1 200 ok");
    };
    let (mut first, mut second) = (Raw::connect(gateway.address).await, Raw::connect(gateway.address).await);
    let mut third = Raw::connect(gateway.address).await;
    third.write(GET).await;
    for _ in 0..10 {
        ask(&mut first).await;
        ask(&mut second).await;
    }
    assert!(third.is_silent(), "there is no place for it");
    assert_eq!(app.count(), 20);
    gateway.process.wait_for_line(|line| line.contains("as many clients are connected as may be"), LIMIT).await;
    drop(first);
    assert_eq!(third.answer().await.0, "http/1.1 200 ok");
    ask(&mut second).await;
    ask(&mut third).await;
}

#[tokio::test]
async fn a_crowd_of_slow_clients_keeps_nobody_from_being_served() {
    let (database, app) = (any_database().await, App::on_tcp().await);
    let gateway = start(&database, &app.url(), "max_connections = 300\nhead_timeout = \"10min\"").await;
    let mut crowd = JoinSet::new();
    for at in 0..200 {
        let mut client = Raw::connect(gateway.address).await;
        client.write(if at % 2 == 0 { &b"POST /pay HTTP/1.1\r\nX: "[..] } else { &PREFACE[..30] }).await;
        crowd.spawn(async move { if at % 2 == 0 { client.drip(b"a").await } else { client.rest().await } });
    }
    let client = Client::connect(gateway.address).await;
    for count in 0..10 {
        assert_eq!(send(gateway.address, &post("/pay", &format!("h1 {count}"))).await.status, 200);
        assert_eq!(client.send(h2_client::post("/pay", &format!("h2 {count}"))).await.status, 200);
    }
    assert!(crowd.try_join_next().is_none(), "the crowd is still there");
    assert_eq!(app.count(), 20);
}
