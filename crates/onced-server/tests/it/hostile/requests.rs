//! Requests that no HTTP client would write, as raw bytes. They are refused, or the connection is closed, and nothing is
//! forwarded or stored; what looks odd and is sound takes effect once, under the key that it says. What the syntax of
//! keys allows is told in `case_content`, packed bodies there too.

use std::net::SocketAddr;

use futures_util::future::join_all;
use onced_harness::Recorder;
use testkit::http_client::{Request, send};
use testkit::{Backend, Database};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{high_water, is_well, status_of};
use crate::case_crash::{key_of, outside_app, runs};
use crate::case_store::records;
use crate::fixture::{Gateway, LIMIT, route};
use crate::same_database_app::{orders, orders_of};

/// What a request must come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comes {
    /// Refused with a 4xx or 5xx, or the connection is closed without an answer.
    ToNothing,
    /// It takes effect once, and is replayed when it comes again.
    ToOneEffect,
}
use Comes::{ToNothing, ToOneEffect};

type Case = (&'static str, Vec<u8>, Comes);

const KEY: &str = "Idempotency-Key: KEY\r\n";

/// A request to the route, with these header lines and this body as they are.
fn to_route(lines: &[u8], body: &[u8]) -> Vec<u8> {
    [b"POST /h HTTP/1.1\r\nHost: g\r\nConnection: close\r\n", KEY.as_bytes(), lines, b"\r\n", body].concat()
}

/// With that request line, a key and a small body.
fn line(request_line: &[u8]) -> Vec<u8> {
    let rest = format!("\r\nHost: g\r\nConnection: close\r\n{KEY}Content-Length: 2\r\n\r\n{{}}");
    [request_line, rest.as_bytes()].concat()
}

/// With these header lines and a small body.
fn lines(lines: impl AsRef<[u8]>) -> Vec<u8> {
    to_route(&[lines.as_ref(), b"Content-Length: 2\r\n"].concat(), b"{}")
}

fn chunked(body: impl AsRef<[u8]>) -> Vec<u8> {
    to_route(b"Transfer-Encoding: chunked\r\n", body.as_ref())
}

fn heads() -> Vec<Case> {
    let many = |count: usize| (0..count).map(|number| format!("X-{number}: a\r\n")).collect::<String>();
    let large = |size: usize| [b"X: ".to_vec(), vec![b'a'; size], b"\r\n".to_vec()].concat();
    vec![
        ("an ordinary one", lines(""), ToOneEffect),
        ("a folded line", lines("X-A: b\r\n c\r\n"), ToNothing),
        ("a folded key", lines("X: y\r\nIdempotency-Key:\r\n KEY\r\n"), ToNothing),
        ("a blank before the colon", lines("X-A : b\r\n"), ToNothing),
        ("no colon", lines("X-A\r\n"), ToNothing),
        ("no name", lines(": b\r\n"), ToNothing),
        ("a NUL in a value", lines(b"X: a\0b\r\n"), ToNothing),
        ("a NUL in a name", lines(b"X\0: a\r\n"), ToNothing),
        ("a CR in a value", lines("X: a\rb\r\n"), ToNothing),
        ("a bell in a value", lines(b"X: a\x07\r\n"), ToNothing),
        ("a second key behind a bare LF", lines("X: a\nIdempotency-Key: other\r\n"), ToNothing),
        ("a second key in another spelling", lines("idempotency-KEY: KEY\r\n"), ToNothing),
        ("fifty keys", lines("Idempotency-Key: KEY\r\n".repeat(50)), ToNothing),
        ("200 headers", lines(many(200)), ToNothing),
        ("a header of 1 MB", lines(large(1 << 20)), ToNothing),
        ("a name of 1 MB", lines([vec![b'a'; 1 << 20], b": b\r\n".to_vec()].concat()), ToNothing),
        ("10 MB of headers", lines(large(1024).repeat(10_000)), ToNothing),
        (
            "the key named as one for the connection",
            lines("Connection: idempotency-key, onced-key, onced-lease-token\r\n"),
            ToOneEffect,
        ),
        ("headers in our name", lines("Onced-Key: other\r\nOnced-Attempt: 9\r\nOnced-Effect: none\r\n"), ToOneEffect),
        ("no host", replaced(&lines(""), b"Host: g\r\n", b""), ToNothing),
        ("a host that is none", replaced(&lines(""), b"Host: g", b"Host: g/h"), ToNothing),
        ("two hosts", lines("Host: h\r\n"), ToNothing),
        ("the same host twice", lines("Host: g\r\n"), ToNothing),
        ("two content types", lines("Content-Type: a/b\r\nContent-Type: c/d\r\n"), ToOneEffect),
        ("bytes beyond ASCII in a value", lines(b"X: \xff\xfe\r\n"), ToOneEffect),
    ]
}

fn bodies() -> Vec<Case> {
    let lengths = |text: &str| to_route(text.as_bytes(), b"{}");
    let deep = |depth: usize| {
        let body = "[".repeat(depth) + &"]".repeat(depth);
        to_route(
            format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()).as_bytes(),
            body.as_bytes(),
        )
    };
    let open = "[".repeat(1 << 20);
    let both = to_route(b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n");
    vec![
        ("two lengths", lengths("Content-Length: 2\r\nContent-Length: 3\r\n"), ToNothing),
        ("a list of lengths", lengths("Content-Length: 2, 3\r\n"), ToNothing),
        ("a negative length", lengths("Content-Length: -2\r\n"), ToNothing),
        ("a signed length", lengths("Content-Length: +2\r\n"), ToNothing),
        ("an empty length", lengths("Content-Length:\r\n"), ToNothing),
        ("a length in hex", lengths("Content-Length: 0x2\r\n"), ToNothing),
        ("a huge length", lengths("Content-Length: 9223372036854775807\r\n"), ToNothing),
        ("an overflowing length", lengths("Content-Length: 99999999999999999999999\r\n"), ToNothing),
        ("a body shorter than said", lengths("Content-Length: 10\r\n"), ToNothing),
        // RFC 9112, 6.3: the length does not count then. It is not forwarded either.
        ("a length beside chunks", both, ToOneEffect),
        ("a coding that is not chunked", to_route(b"Transfer-Encoding: gzip\r\n", b"{}"), ToNothing),
        (
            "chunked, and not last",
            to_route(b"Transfer-Encoding: chunked, gzip\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
            ToNothing,
        ),
        ("chunks", chunked("2\r\n{}\r\n0\r\n\r\n"), ToOneEffect),
        ("a key in the trailer", chunked("2\r\n{}\r\n0\r\nIdempotency-Key: other\r\n\r\n"), ToOneEffect),
        ("a chunk size that is none", chunked("zz\r\n{}\r\n0\r\n\r\n"), ToNothing),
        ("a negative chunk", chunked("-2\r\n{}\r\n0\r\n\r\n"), ToNothing),
        ("a huge chunk", chunked("ffffffffffffffffff\r\n{}\r\n0\r\n\r\n"), ToNothing),
        ("a chunk longer than said", chunked("1\r\n{}\r\n0\r\n\r\n"), ToNothing),
        ("a chunk shorter than said", chunked("3\r\n{}\r\n0\r\n\r\n"), ToNothing),
        ("no last chunk", chunked("2\r\n{}\r\n"), ToNothing),
        (
            "an endless extension of a chunk",
            chunked(format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "a".repeat(1 << 20))),
            ToNothing,
        ),
        ("an endless trailer", chunked(format!("2\r\n{{}}\r\n0\r\n{}\r\n", "X: a\r\n".repeat(1 << 17))), ToNothing),
        ("JSON 10,000 levels deep", deep(10_000), ToOneEffect),
        (
            "a mebibyte of open brackets",
            to_route(b"Content-Type: application/json\r\nContent-Length: 1048576\r\n", open.as_bytes()),
            ToOneEffect,
        ),
        ("one byte over the limit", to_route(b"Content-Length: 1048577\r\n", &vec![b'a'; (1 << 20) + 1]), ToNothing),
    ]
}

fn request_lines() -> Vec<Case> {
    let long = [b"POST /".to_vec(), vec![b'a'; 1 << 20], b" HTTP/1.1".to_vec()].concat();
    let method = [vec![b'M'; 1 << 20], b" /h HTTP/1.1".to_vec()].concat();
    vec![
        ("an absolute target", line(b"POST http://elsewhere.example/h HTTP/1.1"), ToOneEffect),
        ("an authority as the target", line(b"POST elsewhere.example:80 HTTP/1.1"), ToNothing),
        ("CONNECT", line(b"CONNECT elsewhere.example:80 HTTP/1.1"), ToNothing),
        ("CONNECT to the route", line(b"CONNECT /h HTTP/1.1"), ToNothing),
        ("POST *", line(b"POST * HTTP/1.1"), ToNothing),
        ("another scheme", line(b"POST file:///h HTTP/1.1"), ToNothing),
        ("no target", line(b"POST  HTTP/1.1"), ToNothing),
        ("two targets", line(b"POST /h /h HTTP/1.1"), ToNothing),
        ("no version", line(b"POST /h"), ToNothing),
        ("HTTP/2.0 in the line", line(b"POST /h HTTP/2.0"), ToNothing),
        ("HTTP/9.9", line(b"POST /h HTTP/9.9"), ToNothing),
        ("a method that is no token", line(b"P@(ST /h HTTP/1.1"), ToNothing),
        ("a method with a NUL", line(b"PO\0ST /h HTTP/1.1"), ToNothing),
        ("a method of 1 MB", line(&method), ToNothing),
        (
            "a safe method in small letters needs its key",
            b"get /h HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n".to_vec(),
            ToNothing,
        ),
        ("a method of its own", line(b"BREW /h HTTP/1.1"), ToOneEffect),
        ("a path of 1 MB", line(&long), ToNothing),
        ("a path with a NUL", line(b"POST /h\0 HTTP/1.1"), ToNothing),
        ("a path with a backslash", line(b"POST \\h HTTP/1.1"), ToNothing),
        ("a path without its slash", line(b"POST h HTTP/1.1"), ToNothing),
        ("another path", line(b"POST /x/../../etc HTTP/1.1"), ToNothing),
        ("bytes beyond ASCII in a path", line(b"POST /\xff\xfe HTTP/1.1"), ToNothing),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(40), ToNothing),
        ("blank lines", b"\r\n".repeat(100_000), ToNothing),
        ("noise", (0..200_000_u32).map(|n| (n * 31 % 253) as u8).collect(), ToNothing),
    ]
}

/// Writes all of it, and reads until the gateway closes.
async fn deliver(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let mut answer = Vec::new();
    let conversation = async {
        // It may answer and close before it has read everything.
        drop(stream.write_all(bytes).await);
        drop(stream.read_to_end(&mut answer).await);
    };
    assert!(tokio::time::timeout(LIMIT, conversation).await.is_ok(), "it neither answers nor closes");
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(answer: &str) -> Option<u16> {
    answer.strip_prefix("HTTP/1.1 ").or(answer.strip_prefix("HTTP/1.0 "))?.get(..3)?.parse().ok()
}

async fn every_request(backend: Backend) {
    let (database, books) = (Database::create(backend).await, Database::create(Backend::Sqlite).await);
    let upstream = outside_app(&books).await;
    let routes = route("h", "/h", &upstream.url(), "external", "lease = \"60s\"\n");
    // What is never finished is given up by these.
    let patience = "[clients]\nhead_timeout = \"2s\"\nbody_timeout = \"2s\"\n";
    let gateway = Gateway::start_with(&database, patience, "", &routes).await;
    let before = high_water(&gateway);
    let cases =
        [heads(), bodies(), request_lines()].concat().into_iter().enumerate().map(|(number, (name, bytes, comes))| {
            let key = format!("k{number:03}");
            (name, replaced(&bytes, b"KEY\r\n", format!("{key}\r\n").as_bytes()), comes, key)
        });
    let (nothing, one): (Vec<_>, Vec<_>) = cases.partition(|(_, _, comes, _)| *comes == ToNothing);

    let answers = join_all(nothing.iter().map(|(_, bytes, ..)| deliver(gateway.address, bytes))).await;
    for ((name, .., key), answer) in nothing.iter().zip(answers) {
        let is_refused = answer.is_empty() || status(&answer).is_some_and(|status| status >= 400);
        assert!(is_refused, "{name}: {answer:.300}");
        assert_eq!((orders_of(&books, key).await, runs(&upstream, key)), (0, 0), "{name}: {answer:.300}");
        assert_eq!(status_of(&database, key).await, None, "{name}: {answer:.300}");
    }
    assert_eq!((orders(&books).await, upstream.count(), records(&database).await), (0, 0, 0));
    let grown = high_water(&gateway).saturating_sub(before);
    assert!(grown < 64 * 1024, "{} requests at once: {grown} KiB more", nothing.len());

    for (name, bytes, _, key) in &one {
        let first = deliver(gateway.address, bytes).await;
        assert_eq!(status(&first), Some(200), "{name}: {first:.300}");
        let again = deliver(gateway.address, bytes).await;
        assert!(again.to_ascii_lowercase().contains("idempotent-replayed: true"), "{name}: {again:.300}");
        assert_eq!((orders_of(&books, key).await, runs(&upstream, key)), (1, 1), "{name}");
        assert_eq!(status_of(&database, key).await.as_deref(), Some("completed"), "{name}");
    }
    spoke_in_its_own_name(&upstream);
    is_well(&gateway).await;
    assert_eq!(send(gateway.address, &Request::post("/h", "{}").key("after")).await.status, 200);
    let all = one.len() + 1;
    assert_eq!((orders(&books).await, upstream.count(), records(&database).await), (all as i64, all, all as i64));
}

/// Whatever a client wrote: what the upstream got was framed once, and bears the gateway's names.
fn spoke_in_its_own_name(upstream: &Recorder) {
    for call in upstream.calls() {
        assert!(call.key.as_deref().is_some_and(|key| key.starts_with("onced1_")), "{call:?}");
        assert!(key_of(&call).starts_with('k') && call.headers["onced-attempt"] == "1", "{call:?}");
        let count = |name: &str| call.headers.get_all(name).iter().count();
        assert_eq!(
            (count("onced-lease-token"), count("content-length") + count("transfer-encoding")),
            (1, 1),
            "{call:?}"
        );
        assert_eq!(call.path, "/h");
    }
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(from.len()).position(|part| part == from) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[tokio::test]
async fn no_request_makes_the_gateway_act_twice_or_fall_sqlite() {
    every_request(Backend::Sqlite).await;
}

#[tokio::test]
async fn no_request_makes_the_gateway_act_twice_or_fall_postgres() {
    every_request(Backend::Postgres).await;
}

#[tokio::test]
async fn no_request_makes_the_gateway_act_twice_or_fall_mariadb() {
    every_request(Backend::MariaDb).await;
}
