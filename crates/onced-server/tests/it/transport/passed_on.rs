//! What is passed on unguarded keeps its body; a target that names its host is believed, and who names two is refused.

use testkit::http_raw::raw;

use super::app::App;
use super::h2_client::{Client, post};
use super::{any_database, outcome, records, said};
use crate::fixture::{Gateway, route};

#[tokio::test]
async fn a_body_without_a_length_is_passed_whatever_the_method() {
    let (database, app) = (any_database().await, App::on_tcp().await);
    let gateway = Gateway::start(&database, &route("all", "/*", &app.url(), "external", "key = \"off\"\n")).await;
    for method in ["GET", "OPTIONS", "POST", "DELETE"] {
        let head = format!("{method} /search HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
        let answer = raw(gateway.address, format!("{head}5\r\n{{\"q\":\r\n2\r\n1}}\r\n0\r\n\r\n")).await;
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{method}: {}", String::from_utf8_lossy(&answer));
    }
    for seen in app.seen() {
        assert_eq!(&seen.body[..], br#"{"q":1}"#, "{}", seen.parts.method);
    }
    assert_eq!(app.count(), 4);
}

#[tokio::test]
async fn a_request_without_a_body_is_passed_without_one() {
    let (database, app) = (any_database().await, App::on_tcp().await);
    let gateway = Gateway::start(&database, &route("all", "/*", &app.url(), "external", "key = \"off\"\n")).await;
    for method in ["GET", "HEAD", "OPTIONS"] {
        raw(gateway.address, format!("{method} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await;
    }
    for seen in app.seen() {
        assert_eq!(seen.header("transfer-encoding"), [""; 0], "{}", seen.parts.method);
        assert_eq!(seen.body.len(), 0);
    }
    assert_eq!(app.count(), 3);
}

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

#[tokio::test]
async fn a_request_that_names_two_hosts_is_refused_whatever_it_is() {
    let (database, app) = (any_database().await, App::on_tcp().await);
    let cors = "cors = { origins = [\"*\"] }\n";
    let gateway = Gateway::start(&database, &route("all", "/*", &app.url(), "external", cors)).await;
    for method in ["GET", "POST", "OPTIONS"] {
        for hosts in ["Host: a\r\nHost: b\r\n", "Host: a\r\nhost: a\r\n", "Host: a/b\r\n", ""] {
            let head = format!("{method} /a HTTP/1.1\r\n{hosts}Idempotency-Key: k\r\nContent-Length: 0\r\n");
            let preflight = "Origin: http://a\r\nAccess-Control-Request-Method: POST\r\n\r\n";
            let answer = String::from_utf8(raw(gateway.address, format!("{head}{preflight}")).await).unwrap();
            assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("\"host-invalid\""), "{method}: {answer}");
        }
    }
    let client = Client::connect(gateway.address).await;
    let mut twice = post("/a", "k");
    for host in ["a", "b"] {
        twice.headers_mut().append("host", host.parse().unwrap());
    }
    assert_eq!(outcome(&client.send(twice).await), said(400, "host-invalid"));
    assert_eq!((app.count(), records(&database).await), (0, 0));
}
