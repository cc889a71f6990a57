//! What passes unguarded has places of its own: each request holds one until its answer has ended, and whoever finds none
//! in time is told so.

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use hyper::client::conn::http2::Builder;
use hyper_util::rt::TokioExecutor;
use testkit::Database;
use testkit::http_client::Answer;
use tokio::net::TcpListener;

use super::app::App;
use super::h2_client::{self, Client};
use super::raw_client::Raw;
use super::{any_database, outcome, said};
use crate::fixture::{Gateway, route};

/// More than a client of HTTP/2 takes unasked.
const LARGE: usize = 900_000;

async fn start(upstream: &str) -> (Database, Gateway) {
    start_with(upstream, "").await
}

async fn start_with(upstream: &str, more: &str) -> (Database, Gateway) {
    let database = any_database().await;
    let clients = "[clients]\nmax_passed = 1\nbody_timeout = \"300ms\"\n\n";
    let routes = format!("{clients}{}{more}", route("all", "/*", upstream, "external", ""));
    let gateway = Gateway::start(&database, &routes).await;
    (database, gateway)
}

fn get(path: &str) -> Request<&'static str> {
    Request::get(format!("http://shop.example{path}")).body("").unwrap()
}

fn is_busy(answer: &Answer) {
    assert_eq!(outcome(answer), said(503, "busy"));
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
}

#[tokio::test]
async fn a_request_that_passes_has_a_place_while_it_is_under_way() {
    let app = App::on_tcp().await;
    let (_database, gateway) = start(&app.url()).await;
    let client = Client::connect(gateway.address).await;
    app.hold();
    let first = tokio::spawn(client.send(get("/first")));
    app.wait_for(1).await;
    is_busy(&client.send(get("/second")).await);
    // What has a key needs no such place.
    let guarded = tokio::spawn(client.send(h2_client::post("/guarded", "k")));
    app.wait_for(2).await;
    let waiting = tokio::spawn(client.send(get("/waiting")));
    app.release();
    for answer in [first, guarded, waiting] {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    assert_eq!(app.seen().iter().filter(|seen| seen.parts.uri == "/second").count(), 0);
}

/// Nothing is withheld on a route that is only watched, whatever passes beside it.
#[tokio::test]
async fn what_is_only_watched_waits_for_no_place() {
    let app = App::on_tcp().await;
    let seen = route("seen", "/seen", &app.url(), "external", "observe = true\n");
    let (_database, gateway) = start_with(&app.url(), &seen).await;
    let client = Client::connect(gateway.address).await;
    app.hold();
    let mut answers = vec![tokio::spawn(client.send(get("/first")))];
    app.wait_for(1).await;
    let keyless = Request::post("http://shop.example/seen").body("{}").unwrap();
    // The first is executed, the second repeats it, the third would be refused.
    for (count, request) in (2..).zip([h2_client::post("/seen", "k"), h2_client::post("/seen", "k"), keyless]) {
        answers.push(tokio::spawn(client.send(request)));
        app.wait_for(count).await;
    }
    app.release();
    for answer in answers {
        assert_eq!(answer.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_request_that_passes_has_a_place_until_its_answer_is_taken() {
    let app = App::answering(Bytes::from(vec![b'x'; LARGE])).await;
    let (_database, gateway) = start(&app.url()).await;
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(65_535);
    let client = Client::connect_with(gateway.address, &builder).await;
    let unread = client.open(get("/first")).await.unwrap();
    is_busy(&client.send(get("/second")).await);
    assert_eq!(unread.into_body().collect().await.unwrap().to_bytes().len(), LARGE);
    assert_eq!(client.send(get("/third")).await.status, 200);
    // Whoever leaves an answer gives its place back, too.
    drop(client.open(get("/left")).await.unwrap());
    assert_eq!(client.send(get("/fourth")).await.status, 200);
}

#[tokio::test]
async fn what_a_connection_has_become_keeps_the_place_until_it_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (_database, gateway) = start(&format!("http://{}", listener.local_addr().unwrap())).await;
    let mut client = Raw::connect(gateway.address).await;
    client.write("GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: own/1\r\n\r\n").await;
    let mut upstream = Raw::of(listener.accept().await.unwrap().0);
    upstream.head().await;
    upstream.write("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: own/1\r\n\r\n").await;
    assert!(client.head().await.starts_with("http/1.1 101 "));

    let other = Client::connect(gateway.address).await;
    is_busy(&other.send(get("/second")).await);
    drop((client, upstream));
    let (answer, ()) = tokio::join!(other.send(get("/third")), async {
        let mut upstream = Raw::of(listener.accept().await.unwrap().0);
        upstream.head().await;
        upstream.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    });
    assert_eq!(answer.status, 200);
}
