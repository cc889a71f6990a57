//! Told to stop, the gateway finishes and answers what is under way, over HTTP/1.1 and HTTP/2, and closes what is idle.

use testkit::http_client::{Request, send};
use testkit::{Backend, Database, Signal, SqlText};

use super::app::App;
use super::h2_client::{self, Client};
use super::raw_client::Raw;
use super::{post, records_at};
use crate::fixture::{Gateway, LIMIT, route};

/// Longer than any test takes: nothing ends because the grace is over.
const GRACE: &str = "shutdown_grace = \"10min\"";

async fn start(database: &Database, app: &App) -> Gateway {
    let route = route("pay", "/pay", &app.url(), "external", "lease = \"60s\"\n");
    Gateway::start_with(database, GRACE, "", &route).await
}

async fn told_to_stop(gateway: &Gateway) {
    gateway.process.signal(Signal::Terminate);
    gateway.process.wait_for_line(|line| line.contains("stopping"), LIMIT).await;
}

async fn under_way(backend: Backend) {
    let (database, app) = (Database::create(backend).await, App::on_tcp().await);
    let mut gateway = start(&database, &app).await;
    let address = gateway.address;
    let mut idle = Raw::connect(address).await;
    idle.write("GET /_onced/healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
    idle.answer().await;
    let (h2, idle_h2) = (Client::connect(address).await, Client::connect(address).await);
    assert_eq!(idle_h2.send(http::Request::get("http://x/_onced/healthz").body("").unwrap()).await.status, 200);

    app.hold();
    let guarded = tokio::spawn(async move { send(address, &post("/pay", "h1")).await });
    let passed = tokio::spawn(async move { send(address, &Request::new("GET", "/pay")).await });
    let guarded_h2 = tokio::spawn(h2.send(h2_client::post("/pay", "h2")));
    let passed_h2 = tokio::spawn(h2.send(http::Request::get("http://x/pay").body("").unwrap()));
    app.wait_for(4).await;
    told_to_stop(&gateway).await;
    assert_eq!(idle.rest().await, b"");
    tokio::time::timeout(LIMIT, idle_h2.ended).await.expect("what is idle is closed").unwrap();
    app.release();
    for (what, answer) in [("h1", guarded), ("GET", passed), ("h2", guarded_h2), ("GET over h2", passed_h2)] {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (200, r#"{"ok":true}"#), "{what}");
    }
    assert_eq!(gateway.process.wait(LIMIT).await.code(), Some(0));
    assert_eq!(records_at(&database, "completed").await, 2);
}

#[tokio::test]
async fn told_to_stop_what_is_under_way_is_answered_sqlite() {
    under_way(Backend::Sqlite).await;
}

#[tokio::test]
async fn told_to_stop_what_is_under_way_is_answered_postgres() {
    under_way(Backend::Postgres).await;
}

#[tokio::test]
async fn told_to_stop_what_is_under_way_is_answered_mariadb() {
    under_way(Backend::MariaDb).await;
}

/// A request is under way from its head on, also where its body is still coming; and its delivery is written down.
async fn still_coming(backend: Backend) {
    let (database, app) = (Database::create(backend).await, App::on_tcp().await);
    let mut gateway = start(&database, &app).await;
    let mut client = Raw::connect(gateway.address).await;
    client
        .write(
            "POST /pay HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
        )
        .await;
    assert!(client.head().await.starts_with("http/1.1 100 "), "its head has been taken");
    told_to_stop(&gateway).await;
    client.write("{").await;
    app.hold();
    client.write("}").await;
    app.wait_for(1).await;
    app.release();
    let (line, body) = client.answer().await;
    assert_eq!((line.as_str(), &body[..]), ("http/1.1 200 ok", &br#"{"ok":true}"#[..]));
    assert_eq!(gateway.process.wait(LIMIT).await.code(), Some(0));
    assert_eq!(records_at(&database, "completed").await, 1);
    let written = SqlText::each(
        "SELECT count(*) FROM onced_deliveries WHERE answered_status = 200",
        "SELECT count(*) FROM onced.deliveries WHERE answered_status = 200",
        "SELECT count(*) FROM onced_deliveries WHERE answered_status = 200",
    );
    assert_eq!(database.sql().count(written).await, 1);
}

#[tokio::test]
async fn told_to_stop_what_is_still_coming_is_answered_sqlite() {
    still_coming(Backend::Sqlite).await;
}

#[tokio::test]
async fn told_to_stop_what_is_still_coming_is_answered_postgres() {
    still_coming(Backend::Postgres).await;
}

#[tokio::test]
async fn told_to_stop_what_is_still_coming_is_answered_mariadb() {
    still_coming(Backend::MariaDb).await;
}
