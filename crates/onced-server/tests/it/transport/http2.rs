//! HTTP/2 without TLS: from clients that speak it from the first byte on, and to an upstream that is said to.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use http::{Request, Version};
use testkit::{Backend, Database};

use super::app::App;
use super::h2_client::{Client, post};
use super::{any_database, outcome, records_at, said};
use crate::fixture::{Gateway, route};

async fn guarded(backend: Backend) {
    let (database, app) = (Database::create(backend).await, App::on_tcp().await);
    let gateway = Gateway::start(&database, &route("pay", "/pay", &app.url(), "external", "")).await;
    let client = Client::connect(gateway.address).await;

    app.hold();
    let first = tokio::spawn(client.send(post("/pay", "k")));
    app.wait_for(1).await;
    assert_eq!(outcome(&client.send(post("/pay", "k")).await), said(409, "in-progress"), "on the same connection");
    app.release();
    let first = first.await.unwrap();
    assert_eq!((first.status, first.text().as_str()), (200, r#"{"ok":true}"#));
    assert_eq!(first.header("idempotent-replayed"), None);
    let replay = client.send(post("/pay", "k")).await;
    assert_eq!((replay.status, replay.text()), (200, first.text()));
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    assert_eq!(replay.header("content-type"), Some("application/json"));
    let other = Request::post("http://shop.example/pay").header("idempotency-key", "k").body("{\"other\":1}").unwrap();
    assert_eq!(outcome(&client.send(other).await), said(422, "key-reused"));
    assert_eq!(app.count(), 1);
    assert_eq!(client.send(Request::get("http://shop.example/pay").body("").unwrap()).await.status, 200);
    assert_eq!(app.count(), 2, "what is safe is passed");
    assert_eq!(records_at(&database, "completed").await, 1);
}

#[tokio::test]
async fn a_request_over_http_2_is_guarded_sqlite() {
    guarded(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_request_over_http_2_is_guarded_postgres() {
    guarded(Backend::Postgres).await;
}

#[tokio::test]
async fn a_request_over_http_2_is_guarded_mariadb() {
    guarded(Backend::MariaDb).await;
}

async fn at_once(backend: Backend) {
    const MANY: usize = 40;
    let (database, app) = (Database::create(backend).await, App::on_tcp().await);
    let gateway = Gateway::start(&database, &route("pay", "/pay", &app.url(), "external", "lease = \"30s\"\n")).await;
    let client = Client::connect(gateway.address).await;
    app.hold();
    // Two of each: one of them runs, the other is told so.
    let requests = (0..MANY * 2).map(|at| tokio::spawn(client.send(post("/pay", &format!("k{}", at / 2)))));
    let requests: Vec<_> = requests.collect();
    app.wait_for(MANY).await;
    app.release();
    let answers: Vec<_> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
    for pair in answers.chunks(2) {
        let ran = pair.iter().filter(|a| a.status == 200 && a.header("idempotent-replayed").is_none()).count();
        assert_eq!(ran, 1, "{pair:?}");
        let others = pair.iter().filter(|a| a.status == 409 || a.header("idempotent-replayed").is_some()).count();
        assert_eq!(others, 1, "{pair:?}");
    }
    assert_eq!(app.count(), MANY);
    assert_eq!(records_at(&database, "completed").await, 40);
}

#[tokio::test]
async fn many_requests_on_one_connection_run_at_once_sqlite() {
    at_once(Backend::Sqlite).await;
}

#[tokio::test]
async fn many_requests_on_one_connection_run_at_once_postgres() {
    at_once(Backend::Postgres).await;
}

#[tokio::test]
async fn many_requests_on_one_connection_run_at_once_mariadb() {
    at_once(Backend::MariaDb).await;
}

#[tokio::test]
async fn what_http_2_writes_otherwise_the_upstream_gets_as_it_knows_it() {
    let (database, app) = (any_database().await, App::on_tcp().await);
    let gateway = Gateway::start(&database, &route("pay", "/pay", &app.url(), "external", "")).await;
    let client = Client::connect(gateway.address).await;
    for method in ["POST", "GET"] {
        let request = Request::builder().method(method).uri("http://shop.example:8443/pay?a=1&b=%2F");
        let request = request.header("idempotency-key", "k").header("cookie", "a=1").header("cookie", "b=2; c=3");
        assert_eq!(client.send(request.body("").unwrap()).await.status, 200);
    }
    for seen in app.seen() {
        assert_eq!(seen.parts.version, Version::HTTP_11);
        assert_eq!(seen.parts.uri, "/pay?a=1&b=%2F");
        assert_eq!(seen.header("host"), ["shop.example:8443"]);
        assert_eq!(seen.header("cookie"), ["a=1; b=2; c=3"]);
        assert_eq!(seen.header("connection"), [""; 0]);
    }
    assert_eq!(app.count(), 2);
}

async fn to_the_upstream(backend: Backend) {
    let (database, app) = (Database::create(backend).await, App::on_tcp().await);
    let over_2 = "upstream_http = \"2\"\nupstream_keep_alive = \"60s\"\n";
    let routes = route("own", "/own", &app.url(), "external", over_2)
        + &route("shared", "/shared", &app.url(), "idempotent", over_2);
    let gateway = Gateway::start(&database, &routes).await;
    let address = gateway.address;
    let send = async |request| testkit::http_client::send(address, &request).await;
    assert_eq!(send(super::post("/own", "k").header("host", "shop.example")).await.text(), r#"{"ok":true}"#);
    assert_eq!(send(super::post("/own", "k")).await.header("idempotent-replayed"), Some("true"));
    assert_eq!(send(super::post("/own", "k2")).await.status, 200);
    for key in ["k", "k2"] {
        assert_eq!(send(super::post("/shared", key)).await.status, 200);
        assert_eq!(send(testkit::http_client::Request::new("GET", "/shared")).await.status, 200);
    }
    let client = Client::connect(address).await;
    assert_eq!(client.send(post("/own", "over 2 all the way")).await.status, 200);
    let seen = app.seen();
    assert!(seen.iter().all(|seen| seen.parts.version == Version::HTTP_2));
    assert_eq!(seen[0].parts.uri, "http://shop.example/own");
    assert_eq!(&seen[0].body[..], b"{}");
    let connections = |path: &str| {
        let on_path = seen.iter().filter(|seen| seen.parts.uri.path() == path);
        on_path.map(|seen| seen.connection).collect::<BTreeSet<_>>().len()
    };
    assert_eq!((connections("/own"), connections("/shared")), (3, 1), "an external call has a connection of its own");
}

#[tokio::test]
async fn an_upstream_is_spoken_to_over_http_2_sqlite() {
    to_the_upstream(Backend::Sqlite).await;
}

#[tokio::test]
async fn an_upstream_is_spoken_to_over_http_2_postgres() {
    to_the_upstream(Backend::Postgres).await;
}

#[tokio::test]
async fn an_upstream_is_spoken_to_over_http_2_mariadb() {
    to_the_upstream(Backend::MariaDb).await;
}
