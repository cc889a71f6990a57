//! Trailers of an answer reach its first client where that speaks HTTP/2, however the answer came; a replay has none.

use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use testkit::{Backend, Database};
use tokio::net::TcpListener;

use super::h2_client::{Client, post};
use super::raw_client::Raw;
use crate::fixture::{Gateway, on_all, route};

const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n";
const BODY: &str = "\r\n3\r\nabc\r\n0\r\nX-Sum: 6\r\nConnection: close\r\nKeep-Alive: 1\r\n\r\n";

/// The body and the trailers of the answer to that request, in which the upstream says this, if it is asked.
async fn told(client: &Client, upstream: &TcpListener, request: Request<&str>, says: &str) -> (String, HeaderMap) {
    let answering = async {
        let mut upstream = Raw::of(upstream.accept().await.unwrap().0);
        upstream.head().await;
        upstream.write(says).await;
        std::future::pending::<()>().await;
    };
    let reading = async { client.open(request).await.unwrap().into_body().collect().await.unwrap() };
    let answer = tokio::select! {
        answer = reading => answer,
        () = answering => unreachable!("it does not end"),
    };
    let trailers = answer.trailers().cloned().unwrap_or_default();
    (String::from_utf8(answer.to_bytes().to_vec()).unwrap(), trailers)
}

async fn trailers(backend: Backend) {
    let (database, upstream) = (Database::create(backend).await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    let url = format!("http://{}", upstream.local_addr().unwrap());
    let routes =
        route("all", "/*", &url, "external", "") + &route("seen", "/seen", &url, "external", "observe = true\n");
    let gateway = Gateway::start(&database, &routes).await;
    let client = Client::connect(gateway.address).await;
    let (whole, events) = (format!("{HEAD}{BODY}"), format!("{HEAD}Content-Type: text/event-stream\r\n{BODY}"));
    let get = Request::get("http://shop.example/passed").body("").unwrap();
    for (request, says) in
        [(post("/a", "whole"), &whole), (post("/a", "streamed"), &events), (post("/seen", "k"), &whole), (get, &whole)]
    {
        let (uri, (body, trailers)) = (request.uri().clone(), told(&client, &upstream, request, says).await);
        assert_eq!((body.as_str(), trailers.len()), ("abc", 1), "{uri} {says}");
        assert_eq!(trailers["x-sum"], "6");
    }
    for key in ["whole", "streamed"] {
        let (body, trailers) = told(&client, &upstream, post("/a", key), "").await;
        assert_eq!((body.as_str(), trailers.len()), ("abc", 0), "{key}");
    }
    // HTTP/1 is told where the body ends as ever.
    let request = testkit::http_client::Request::post("/a", "{}").key("old");
    let (answer, ()) = tokio::join!(testkit::http_client::send(gateway.address, &request), async {
        let mut upstream = Raw::of(upstream.accept().await.unwrap().0);
        upstream.head().await;
        upstream.write(&whole).await;
    });
    assert_eq!((answer.text().as_str(), answer.header("content-length")), ("abc", Some("3")));
}

on_all! {
    trailers: trailers_reach_the_first_client_sqlite, trailers_reach_the_first_client_postgres, trailers_reach_the_first_client_mariadb;
}
