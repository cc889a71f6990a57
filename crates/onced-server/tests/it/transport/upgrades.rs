//! Connections that become something else, as WebSockets do: passed on by GET alone, unguarded.

use testkit::http_client::{Request, send};
use testkit::http_raw::raw;
use testkit::{Backend, Database};
use tokio::net::TcpListener;

use super::app::App;
use super::h2_client::Client;
use super::raw_client::Raw;
use super::wire::{Act, Wire};
use super::{any_database, outcome, post, records, records_at, said};
use crate::fixture::{Gateway, LIMIT, route};

const ASK: &str = "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: own/1\r\n\r\n";

#[tokio::test]
async fn what_the_upstream_agrees_to_is_passed_in_both_directions() {
    let (database, listener) = (any_database().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    let url = format!("http://{}", listener.local_addr().unwrap());
    // One client at a time: what has become something else is still one.
    let routes = format!("[clients]\nmax_connections = 1\n\n{}", route("ws", "/ws", &url, "external", ""));
    let gateway = Gateway::start(&database, &routes).await;
    let mut client = Raw::connect(gateway.address).await;
    client.write(ASK.as_bytes()).await;
    let mut upstream = Raw::of(listener.accept().await.unwrap().0);
    let asked = upstream.head().await;
    assert!(asked.contains("\r\nconnection: upgrade\r\n") && asked.contains("\r\nupgrade: own/1\r\n"), "{asked}");
    // Its first bytes come together with its head.
    let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: own/1\r\nX-Own: a\r\n\r\nhello";
    upstream.write(agreed.as_bytes()).await;
    let head = client.head().await;
    assert!(head.starts_with("http/1.1 101 ") && head.contains("\r\nupgrade: own/1\r\n"), "{head}");
    assert!(head.contains("\r\nconnection: upgrade\r\n") && head.contains("\r\nx-own: a\r\n"), "{head}");
    assert_eq!(client.exactly(5).await, b"hello");
    client.write(b"\x00\xffany bytes").await;
    assert_eq!(upstream.exactly(11).await, b"\x00\xffany bytes");
    let unguarded = |line: &str| line.contains("what passes from here on is unguarded") && line.contains("\"ws\"");
    gateway.process.wait_for_line(unguarded, LIMIT).await;

    // Another client waits meanwhile.
    let mut other = Raw::connect(gateway.address).await;
    other.write(b"GET /_onced/healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    for count in 0..20_u8 {
        upstream.write(&[count]).await;
        assert_eq!(client.exactly(1).await, [count]);
    }
    assert!(other.is_silent(), "it has been served");

    // Either side may stop sending while the other goes on.
    upstream.shut().await;
    assert_eq!(client.rest().await, b"");
    client.write(b"bye").await;
    drop(client);
    assert_eq!(upstream.rest().await, b"bye");
    assert!(other.rest().await.starts_with(b"HTTP/1.1 200 "), "its place is free again");
    assert_eq!(records(&database).await, 0);
}

/// Bytes in one direction are enough.
#[tokio::test]
async fn what_is_silent_for_too_long_is_closed() {
    let (database, listener) = (any_database().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = Gateway::start(&database, &route("ws", "/ws", &url, "external", "upgraded_timeout = \"2s\"\n")).await;
    let upgraded = async || {
        let mut client = Raw::connect(gateway.address).await;
        client.write(ASK).await;
        let mut upstream = Raw::of(listener.accept().await.unwrap().0);
        upstream.head().await;
        upstream.write("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: own/1\r\n\r\n").await;
        assert!(client.head().await.starts_with("http/1.1 101 "));
        (client, upstream)
    };
    let (mut listening, mut telling) = upgraded().await;
    let (silent, mut other) = upgraded().await;
    let told = async {
        let mut ended = tokio::spawn(async move { other.rest().await });
        // More often than once in that time, and for longer than it.
        let mut ticks = tokio::time::interval(std::time::Duration::from_millis(50));
        loop {
            tokio::select! {
                ended = &mut ended => break ended.unwrap(),
                _ = ticks.tick() => telling.write(b"a").await,
            }
        }
    };
    assert_eq!(tokio::time::timeout(LIMIT, told).await.expect("the silent one is closed"), b"");
    drop(silent);
    telling.write(b"z").await;
    telling.shut().await;
    drop(telling);
    assert!(tokio::time::timeout(LIMIT, listening.rest()).await.unwrap().ends_with(b"z"), "it was closed, too");
}

#[tokio::test]
async fn what_the_upstream_refuses_is_passed_as_an_answer() {
    let (database, listener) = (any_database().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = Gateway::start(&database, &route("ws", "/ws", &url, "external", "")).await;
    for (status, body) in [("200 OK", "a page"), ("400 Bad Request", "own/2 only"), ("426 Upgrade Required", "")] {
        let mut client = Raw::connect(gateway.address).await;
        client.write(ASK.as_bytes()).await;
        let mut upstream = Raw::of(listener.accept().await.unwrap().0);
        upstream.head().await;
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        upstream.write(answer.as_bytes()).await;
        let head = client.head().await;
        assert!(head.starts_with(&format!("http/1.1 {}\r\n", status.to_ascii_lowercase())), "{head}");
        assert_eq!(client.exactly(body.len()).await, body.as_bytes());
        // The connection is as it was.
        client.write(b"GET /_onced/healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(client.head().await.starts_with("http/1.1 200 "));
    }
    let lines = gateway.process.stderr().all();
    assert!(!lines.iter().any(|line| line.contains("unguarded")), "nothing was upgraded");
}

async fn a_post_asks(backend: Backend) {
    let (database, app) = (Database::create(backend).await, App::on_tcp().await);
    let gateway = Gateway::start(&database, &route("ws", "/ws", &app.url(), "external", "")).await;
    let ask = post("/ws", "k").header("connection", "upgrade, x-mine").header("upgrade", "own/1").header("x-mine", "1");
    let first = send(gateway.address, &ask).await;
    assert_eq!((first.status, first.text().as_str()), (200, r#"{"ok":true}"#));
    assert_eq!(send(gateway.address, &ask).await.header("idempotent-replayed"), Some("true"));
    let seen = app.seen();
    assert_eq!(seen.len(), 1);
    for name in ["connection", "upgrade", "x-mine"] {
        assert_eq!(seen[0].header(name), [""; 0], "{name}");
    }
    assert_eq!(records_at(&database, "completed").await, 1);
}

#[tokio::test]
async fn a_post_that_asks_for_an_upgrade_is_an_ordinary_request_sqlite() {
    a_post_asks(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_post_that_asks_for_an_upgrade_is_an_ordinary_request_postgres() {
    a_post_asks(Backend::Postgres).await;
}

#[tokio::test]
async fn a_post_that_asks_for_an_upgrade_is_an_ordinary_request_mariadb() {
    a_post_asks(Backend::MariaDb).await;
}

/// Whoever switches protocols unasked has not answered: what became of the request is not known.
async fn switched_unasked(backend: Backend) {
    let (database, upstream) = (Database::create(backend).await, Wire::start([Act::Switch, Act::Switch]).await);
    let gateway = Gateway::start(&database, &route("ws", "/ws", &upstream.url(), "external", "")).await;
    assert_eq!(outcome(&send(gateway.address, &post("/ws", "k")).await), said(504, "outcome-unknown"));
    assert_eq!(records_at(&database, "pending_external").await, 1);
    assert_eq!(outcome(&send(gateway.address, &Request::new("GET", "/ws")).await), said(504, "outcome-unknown"));
    assert_eq!(upstream.requests().len(), 2);
}

#[tokio::test]
async fn an_upgrade_that_nobody_asked_for_is_no_answer_sqlite() {
    switched_unasked(Backend::Sqlite).await;
}

#[tokio::test]
async fn an_upgrade_that_nobody_asked_for_is_no_answer_postgres() {
    switched_unasked(Backend::Postgres).await;
}

#[tokio::test]
async fn an_upgrade_that_nobody_asked_for_is_no_answer_mariadb() {
    switched_unasked(Backend::MariaDb).await;
}

#[tokio::test]
async fn there_is_no_tunnel() {
    let (database, app) = (any_database().await, App::on_tcp().await);
    let everything = format!("upstream = \"{}\"", app.url());
    let gateway = Gateway::start_with(&database, &everything, "", "").await;
    let target = format!("127.0.0.1:{}", app.port());
    for head in [
        format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"),
        "CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n".into(),
    ] {
        let answer = String::from_utf8(raw(gateway.address, &head).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    }
    let client = Client::connect(gateway.address).await;
    let connect = http::Request::connect(target.as_str()).header("idempotency-key", "k").body("").unwrap();
    assert_eq!(client.send(connect).await.status, 404);
    assert_eq!((app.count(), records(&database).await), (0, 0));
}
