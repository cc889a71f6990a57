//! TCP keep-alive, as the system tells of it: on the connections of clients and on those to upstreams.

use testkit::Backend;
use testkit::Database;
use tokio::net::TcpListener;

use super::raw_client::Raw;
use crate::fixture::{Gateway, LIMIT, route};

/// Whether the system is to ask for the other end of this connection, of the process's socket at that port: `timer_active`
/// in `/proc/net/tcp`.
fn is_asked_for(local: u16, remote: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux says so");
    let port = |address: &str| address.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok());
    table.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (port(words[1]), port(words[2])) == (Some(local), Some(remote)) && words[5].starts_with("02:")
    })
}

#[tokio::test]
async fn both_ends_are_asked_for_while_they_are_silent() {
    let database = Database::create(Backend::Sqlite).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let gateway = Gateway::start(&database, &route("all", "/*", &format!("http://{at}"), "external", "")).await;
    let mut client = Raw::connect(gateway.address).await;
    client.write("GET /events HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let (stream, from) = listener.accept().await.unwrap();
    let mut upstream = Raw::of(stream);
    upstream.head().await;
    upstream.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    client.head().await;
    // What was sent last is acknowledged at a time of the system's own.
    let both = async {
        while !(is_asked_for(gateway.address.port(), client.port()) && is_asked_for(from.port(), at.port())) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, both).await.expect("keep-alive on both connections");
}
