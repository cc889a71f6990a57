//! A target that names its host is believed.

use testkit::http_raw::raw;

use super::any_database;
use super::app::App;
use crate::fixture::{Gateway, route};

#[tokio::test]
async fn a_target_that_names_its_host_is_believed() {
    let (database, app) = (any_database().await, App::on_tcp().await);
    let gateway = Gateway::start(&database, &route("all", "/*", &app.url(), "external", "")).await;
    for method in ["GET", "POST"] {
        let head = format!("{method} http://shop.example:81/a?b HTTP/1.1\r\nHost: other.example\r\n");
        let answer = raw(gateway.address, format!("{head}Idempotency-Key: k\r\nContent-Length: 0\r\n\r\n")).await;
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{method}: {}", String::from_utf8_lossy(&answer));
    }
    for seen in app.seen() {
        assert_eq!(seen.header("host"), ["shop.example:81"], "{}", seen.parts.method);
        assert_eq!(seen.parts.uri, "/a?b");
    }
    assert_eq!(app.count(), 2);
}
