//! O-17, empty, binary and encoded answers: nothing, `null`, `""`, bytes that are no text, and gzip are each told again as
//! they were. The upstream writes its answers as raw bytes, so that no library adds a header of its own.

use std::collections::HashMap;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use testkit::{Backend, Database};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::RawAnswer;
use crate::fixture::{Gateway, route};

const PLAIN: &[u8] = br#"{"text":"packed once"}"#;

/// The answers of the case, by the last part of the path: head and body.
fn answers() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let nul = br#"{"bytes":"NUL","escaped":"\u0000","more":""#;
    let nul = [&nul[..], &b"\x00\\u0000".repeat(70)[..500 - nul.len() - 2], b"\"}"].concat();
    assert_eq!(nul.len(), 500);
    vec![
        ("no-content", "204 No Content", Vec::new()),
        ("empty", "202 Accepted\r\nContent-Length: 0", Vec::new()),
        ("pdf", "200 OK\r\nContent-Type: application/pdf\r\nContent-Length: 9", b"%PDF\xff\xfe\x80\x00\x0a".to_vec()),
        ("latin", "200 OK\r\nContent-Type: text/plain; charset=iso-8859-1\r\nContent-Length: 2", b"\xe9\x0a".to_vec()),
        ("null", "200 OK\r\nContent-Type: application/json\r\nContent-Length: 4", b"null".to_vec()),
        ("quotes", "200 OK\r\nContent-Type: application/json\r\nContent-Length: 2", b"\"\"".to_vec()),
        ("nothing", "200 OK\r\nContent-Type: application/json\r\nContent-Length: 0", Vec::new()),
        ("nul", "200 OK\r\nContent-Type: application/json\r\nContent-Length: 500", nul),
    ]
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    flate2::read::GzEncoder::new(plain, flate2::Compression::default()).read_to_end(&mut packed).unwrap();
    packed
}

/// Answers each path with its bytes, and counts.
struct Upstream {
    address: SocketAddr,
    runs: Arc<Mutex<HashMap<String, usize>>>,
}

impl Upstream {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let runs: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
        let counter = runs.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(name) = serve(stream).await {
                    *counter.lock().unwrap().entry(name).or_default() += 1;
                }
            }
        });
        Self { address, runs }
    }

    fn runs(&self, name: &str) -> usize {
        self.runs.lock().unwrap().get(name).copied().unwrap_or_default()
    }
}

/// Answers once the whole request is there: it ends with the body that the test sends.
async fn serve(mut stream: TcpStream) -> std::io::Result<String> {
    let mut request = Vec::new();
    while !request.ends_with(b"{\"n\":1}") {
        if stream.read_buf(&mut request).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
    let name = text.split(' ').nth(1).and_then(|path| path.rsplit('/').next()).unwrap_or_default().to_owned();
    let (head, body) = match name.as_str() {
        "packed" if text.contains("accept-encoding: gzip") => {
            let body = gzip(PLAIN);
            let head = format!(
                "200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nVary: Accept-Encoding\r\nContent-Length: {}",
                body.len()
            );
            (head, body)
        }
        _ => {
            let (_, head, body) =
                answers().into_iter().find(|(path, _, _)| *path == name).unwrap_or(("", "404 Not Found", Vec::new()));
            (head.to_owned(), body)
        }
    };
    stream.write_all(&[format!("HTTP/1.1 {head}\r\n\r\n").as_bytes(), &body].concat()).await?;
    stream.shutdown().await?;
    Ok(name)
}

async fn order(gateway: &Gateway, name: &str, more: &str) -> RawAnswer {
    let request = format!(
        "POST /o17/{name} HTTP/1.1\r\nHost: gateway\r\nIdempotency-Key: o17-{name}\r\nContent-Type: application/json\r\n\
         {more}Content-Length: 7\r\n\r\n{{\"n\":1}}"
    );
    RawAnswer::to(gateway.address, request.as_bytes()).await
}

async fn answers_are_told_again_as_they_were(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = Upstream::start().await;
    let url = format!("http://{}", upstream.address);
    let gateway = Gateway::start(&database, &route("o17", "/o17/*", &url, "external", "lease = \"30s\"\n")).await;

    for (name, head, body) in answers() {
        let (first, replay) = (order(&gateway, name, "").await, order(&gateway, name, "").await);
        assert!(!first.is_replay() && replay.is_replay(), "{name}: {first:?} {replay:?}");
        let lines: Vec<&str> = head.split("\r\n").collect();
        let content_type = lines.iter().filter_map(|line| line.strip_prefix("Content-Type: "));
        let content_type: Vec<&str> = content_type.collect();
        for answer in [&first, &replay] {
            assert!(head.starts_with(&answer.status.to_string()), "{name}: {answer:?}");
            assert_eq!(answer.body, body, "{name}");
            assert_eq!(answer.all("content-type"), content_type, "{name}: none is invented");
            assert!(answer.all("content-encoding").is_empty(), "{name}: {answer:?}");
            let length = answer.all("content-length");
            let expected = if answer.status == 204 { vec![] } else { vec![body.len().to_string()] };
            assert_eq!(length, expected, "{name}");
        }
        assert_eq!(upstream.runs(name), 1, "{name}");
    }

    // Packed for the first caller, and told again so, whatever the later one would like.
    let first = order(&gateway, "packed", "Accept-Encoding: gzip\r\n").await;
    let replay = order(&gateway, "packed", "Accept-Encoding: identity\r\n").await;
    assert!(!first.is_replay() && replay.is_replay(), "{first:?} {replay:?}");
    for answer in [&first, &replay] {
        assert_eq!((answer.status, answer.all("content-encoding")), (200, vec!["gzip"]), "{answer:?}");
        assert_eq!(answer.all("vary"), ["Accept-Encoding"]);
        let mut plain = Vec::new();
        flate2::bufread::GzDecoder::new(answer.body.as_slice()).read_to_end(&mut plain).expect("packed once");
        assert_eq!(plain, PLAIN, "header and bytes agree, and it is not packed twice");
    }
    assert_eq!(first.body, replay.body);
    assert_eq!(upstream.runs("packed"), 1);
}

#[tokio::test]
async fn o_17_answers_are_told_again_as_they_were_sqlite() {
    answers_are_told_again_as_they_were(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_17_answers_are_told_again_as_they_were_postgres() {
    answers_are_told_again_as_they_were(Backend::Postgres).await;
}

#[tokio::test]
async fn o_17_answers_are_told_again_as_they_were_mariadb() {
    answers_are_told_again_as_they_were(Backend::MariaDb).await;
}
