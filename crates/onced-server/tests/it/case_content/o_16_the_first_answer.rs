//! O-16, the replay is the first answer and only that: body and stored headers come again byte for byte and in order,
//! while what belonged to the first caller, its connection or its moment does not. The upstream writes its answer as
//! raw bytes, since HTTP libraries have opinions on `Connection` and `Transfer-Encoding`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use testkit::{Backend, Database};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::RawAnswer;
use crate::fixture::{Gateway, route};

/// Double space, a trailing zero, a member named twice, an escape: all lost by whoever reads it as JSON and writes it
/// again. No newline at the end.
const BODY: &[u8] = br#"{"b":1.10,  "a":2,"a":3,"z":"\u00e9"}"#;

const HEAD: &str = "HTTP/1.1 201 Created\r\n\
    Content-Type: application/vnd.api+json; charset=utf-8\r\n\
    Location: /orders/42\r\n\
    ETag: \"v1\"\r\n\
    Link: </a>; rel=prev\r\n\
    Link: </b>; rel=next\r\n\
    Set-Cookie: session=SECRET; HttpOnly\r\n\
    WWW-Authenticate: Bearer\r\n\
    X-Request-Id: first\r\n\
    Connection: keep-alive, X-Hop\r\n\
    X-Hop: 1\r\n\
    Keep-Alive: timeout=5\r\n\
    Transfer-Encoding: chunked\r\n";

/// What was true at the time of the first answer, and for its caller.
const OF_THE_MOMENT: &str = "Date: Mon, 01 Dec 2025 00:00:00 GMT\r\n\
    Server: first\r\n\
    Access-Control-Allow-Origin: https://first.example\r\n";

/// Sends the same bytes to every caller, and counts them.
struct Upstream {
    address: SocketAddr,
    runs: Arc<AtomicUsize>,
}

impl Upstream {
    async fn start(head: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let runs = Arc::new(AtomicUsize::new(0));
        // The body in two chunks, neither of which is JSON.
        let (left, right) = BODY.split_at(11);
        let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        let answer = [head.as_bytes(), b"\r\n", &chunk(left), &chunk(right), b"0\r\n\r\n"].concat();
        let counter = runs.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if serve(stream, &answer).await.is_ok() {
                    counter.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        Self { address, runs }
    }
}

/// Answers once the whole request is there: it ends with the body that the test sends.
async fn serve(mut stream: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(REQUEST_BODY.as_bytes()) {
        if stream.read_buf(&mut request).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    stream.write_all(answer).await?;
    stream.shutdown().await
}

const REQUEST_BODY: &str = r#"{"sku":"A","qty":1}"#;

/// Sends the request of this case on a connection of its own.
async fn order(gateway: &Gateway) -> RawAnswer {
    let length = REQUEST_BODY.len();
    let request = format!(
        "POST /api/order HTTP/1.1\r\nHost: gateway\r\nIdempotency-Key: o16\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{REQUEST_BODY}"
    );
    RawAnswer::to(gateway.address, request.as_bytes()).await
}

/// Whether a `Date`, which is written in whole seconds, is of a moment ago.
fn is_now(date: &str) -> bool {
    let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).expect("a date");
    let age = jiff::Timestamp::now().as_second() - at.as_second();
    (0..60).contains(&age)
}

async fn the_replay_is_the_first_answer(backend: Backend, head: String) {
    let database = Database::create(backend).await;
    let upstream = Upstream::start(head).await;
    let url = format!("http://{}", upstream.address);
    let gateway =
        Gateway::start(&database, &route("api.order", "/api/order", &url, "external", "lease = \"30s\"\n")).await;

    let (first, replay) = (order(&gateway).await, order(&gateway).await);
    assert_eq!(upstream.runs.load(Ordering::SeqCst), 1);
    assert!(!first.is_replay() && replay.is_replay(), "{first:?} {replay:?}");

    for answer in [&first, &replay] {
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(String::from_utf8_lossy(&answer.body), String::from_utf8_lossy(BODY));
        assert_eq!(answer.all("content-type"), ["application/vnd.api+json; charset=utf-8"]);
        assert_eq!(answer.all("location"), ["/orders/42"]);
        assert_eq!(answer.all("etag"), ["\"v1\""]);
        assert_eq!(answer.all("link"), ["</a>; rel=prev", "</b>; rel=next"]);
        // Of the upstream's connection, which is not this one.
        for name in ["connection", "x-hop", "keep-alive"] {
            assert!(answer.all(name).is_empty(), "{name} in {answer:?}");
        }
        let framing = [answer.all("content-length"), answer.all("transfer-encoding")].concat();
        assert_eq!(framing.len(), 1, "exactly one of Content-Length and chunked: {answer:?}");
        assert_eq!(answer.all("onced-key-expires").len(), 1, "{answer:?}");
    }

    // The first caller gets all that was said to it.
    assert_eq!(first.all("set-cookie"), ["session=SECRET; HttpOnly"]);
    assert_eq!((first.all("www-authenticate"), first.all("x-request-id")), (vec!["Bearer"], vec!["first"]));
    // A later one nothing of it.
    for name in ["set-cookie", "www-authenticate", "x-request-id", "server", "access-control-allow-origin"] {
        assert!(replay.all(name).is_empty(), "{name} in {replay:?}");
    }
    let [date] = replay.all("date")[..] else { panic!("one Date: {replay:?}") };
    assert!(is_now(date), "{date}");
}

async fn both_answers(backend: Backend) {
    the_replay_is_the_first_answer(backend, HEAD.to_owned()).await;
    the_replay_is_the_first_answer(backend, format!("{HEAD}{OF_THE_MOMENT}")).await;
}

#[tokio::test]
async fn o_16_the_replay_is_the_first_answer_and_only_that_sqlite() {
    both_answers(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_16_the_replay_is_the_first_answer_and_only_that_postgres() {
    both_answers(Backend::Postgres).await;
}

#[tokio::test]
async fn o_16_the_replay_is_the_first_answer_and_only_that_mariadb() {
    both_answers(Backend::MariaDb).await;
}
