//! Upstreams that are absent, fall silent, break off, lie about their answers or never end them. Each case has a key of
//! its own and one run. What no whole answer proves stays open in the record; the client is told so.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use testkit::http_client::{Answer, Broken, Request, open, send, try_send};
use testkit::process::free_port;
use testkit::{Backend, Database};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{high_water, is_well, status_of};
use crate::fixture::{Gateway, route};

/// What the upstream does once it has read a request.
#[derive(Clone)]
enum Act {
    /// Says nothing and keeps the connection.
    Hangs,
    /// Says this and closes.
    Says(Vec<u8>),
    /// Says this, and then the other for ever.
    Floods(&'static str, &'static [u8]),
}

/// What the client must be told.
#[derive(Clone, Copy)]
enum Told {
    Problem(u16, &'static str),
    Answer(u16, &'static str),
    /// The answer's head had gone out: the connection is broken off.
    BrokenOff(u16),
}

struct Case {
    name: &'static str,
    act: Act,
    told: Told,
    record: &'static str,
}

const UNKNOWN: Told = Told::Problem(504, "outcome-unknown");

fn says(text: &str) -> Act {
    Act::Says(text.as_bytes().to_vec())
}

fn unknown(name: &'static str, act: Act) -> Case {
    Case { name, act, told: UNKNOWN, record: "pending_external" }
}

fn answered(name: &'static str, act: Act, status: u16, body: &'static str) -> Case {
    Case { name, act, told: Told::Answer(status, body), record: "completed" }
}

fn cases() -> Vec<Case> {
    let head_of = |length: &str| says(&format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nabc"));
    let chunked = |body: &str| says(&format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}"));
    let large =
        [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'a'; 10 << 20], b"\r\nContent-Length: 0\r\n\r\n".to_vec()].concat();
    let interim = "HTTP/1.1 100 Continue\r\n\r\n".repeat(50) + "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
    vec![
        unknown("hangs", Act::Hangs),
        unknown("closes", says("")),
        unknown("cut-in-status", says("HTTP/1.1 20")),
        unknown("cut-in-head", says("HTTP/1.1 200 OK\r\nContent-Le")),
        unknown("cut-before-body", says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")),
        unknown("cut-in-body", head_of("10")),
        answered("says-too-little", head_of("2"), 200, "ab"),
        answered(
            "says-two-answers",
            says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\nx"),
            200,
            "ab",
        ),
        unknown("two-lengths", says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc")),
        unknown("length-list", head_of("2, 3")),
        unknown("negative-length", head_of("-1")),
        unknown("signed-length", head_of("+3")),
        unknown("huge-length", head_of("9223372036854775807")),
        unknown("overflowing-length", head_of("99999999999999999999999")),
        unknown("hex-length", head_of("0x3")),
        unknown("bad-chunk-size", chunked("zz\r\nabc\r\n0\r\n\r\n")),
        unknown("negative-chunk", chunked("-3\r\nabc\r\n0\r\n\r\n")),
        unknown("huge-chunk", chunked("fffffffffffffffff\r\nabc\r\n0\r\n\r\n")),
        unknown("cut-in-chunk", chunked("5\r\nabc")),
        unknown("no-last-chunk", chunked("3\r\nabc\r\n")),
        unknown("chunk-without-end", chunked("3\r\nabcdef\r\n0\r\n\r\n")),
        unknown("nul-in-header", says("HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n")),
        unknown("nul-in-name", says("HTTP/1.1 200 OK\r\nX\0: a\r\nContent-Length: 0\r\n\r\n")),
        unknown("large-head", Act::Says(large)),
        unknown("endless-status", Act::Floods("HTTP/1.1 200 ", b"OK OK OK OK OK ")),
        unknown("endless-header", Act::Floods("HTTP/1.1 200 OK\r\nX: ", b"aaaaaaaaaaaaaaaa")),
        unknown("endless-headers", Act::Floods("HTTP/1.1 200 OK\r\n", b"X-A: b\r\n")),
        unknown("endless-1xx", Act::Floods("", b"HTTP/1.1 100 Continue\r\n\r\n")),
        answered("some-1xx", says(&interim), 200, "abc"),
        unknown("garbage", Act::Says((0..4096_u32).map(|n| (n * 7 % 251) as u8).collect())),
        unknown("endless-garbage", Act::Floods("", b"\x16\x03\x01 nothing at all ")),
        unknown("http-9", says("HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n")),
        unknown("status-099", says("HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n")),
        unknown("status-20", says("HTTP/1.1 20 Odd\r\nContent-Length: 0\r\n\r\n")),
        unknown("status-minus", says("HTTP/1.1 -20 Odd\r\nContent-Length: 0\r\n\r\n")),
        // A status that means nothing proves nothing: its client sees it, and the outcome is held.
        Case {
            name: "status-999",
            act: says("HTTP/1.1 999 Odd\r\nContent-Length: 3\r\n\r\nabc"),
            told: Told::Answer(999, "abc"),
            record: "pending_external",
        },
        Case {
            name: "endless-chunks",
            act: Act::Floods("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10\r\naaaaaaaaaaaaaaaa\r\n"),
            told: Told::BrokenOff(200),
            record: "pending_external",
        },
        Case {
            name: "endless-until-close",
            act: Act::Floods("HTTP/1.1 200 OK\r\n\r\n", b"aaaaaaaaaaaaaaaa"),
            told: Told::BrokenOff(200),
            record: "pending_external",
        },
        Case {
            name: "endless-length",
            act: Act::Floods("HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n", b"aaaaaaaaaaaaaaaa"),
            told: Told::BrokenOff(200),
            record: "pending_external",
        },
        answered("good", head_of("3"), 200, "abc"),
    ]
}

/// An upstream that does what the case says whose name is the request's path.
struct Liar {
    address: SocketAddr,
    runs: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Liar {
    async fn start(acts: BTreeMap<String, Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let runs: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let (counted, acts) = (runs.clone(), Arc::new(acts));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, acts.clone(), counted.clone()));
            }
        });
        Self { address, runs }
    }

    fn runs(&self, name: &str) -> usize {
        self.runs.lock().expect("nobody panics with it").get(name).copied().unwrap_or(0)
    }
}

/// Reads request after request, and acts; whoever breaks off ends it.
async fn converse(mut stream: TcpStream, acts: Arc<BTreeMap<String, Act>>, runs: Arc<Mutex<BTreeMap<String, usize>>>) {
    let mut read = Vec::new();
    // All requests here have a body of two bytes, or none.
    while !(read.ends_with(b"\r\n\r\n{}") || read.starts_with(b"GET") && read.ends_with(b"\r\n\r\n")) {
        if !matches!(stream.read_buf(&mut read).await, Ok(count) if count > 0) {
            return;
        }
    }
    let head = String::from_utf8_lossy(&read);
    let name = head.split([' ', '/']).find(|part| acts.contains_key(*part)).unwrap_or_default().to_owned();
    *runs.lock().expect("nobody panics with it").entry(name.clone()).or_default() += 1;
    match &acts[&name] {
        Act::Hangs => std::future::pending().await,
        Act::Says(bytes) => {
            if stream.write_all(bytes).await.is_ok() {
                // Closed in order, so that what was said arrives.
                drop(stream.shutdown().await);
                drop(stream.read_to_end(&mut Vec::new()).await);
            }
        }
        Act::Floods(first, piece) => {
            let pieces = piece.repeat(4096);
            if stream.write_all(first.as_bytes()).await.is_ok() {
                while stream.write_all(&pieces).await.is_ok() {}
            }
        }
    }
}

impl Case {
    /// The beginning of its path, and so its route: what is to be answered has all the time that it needs.
    fn room(&self) -> &'static str {
        match self.told {
            Told::Problem(..) => "/lost",
            Told::Answer(..) => "/told",
            Told::BrokenOff(..) => "/endless",
        }
    }

    fn request(&self) -> Request {
        Request::post(&format!("{}/{}", self.room(), self.name), "{}").key(self.name)
    }
}

/// Delivers, reads and forgets the answer's body where it never ends.
async fn deliver(gateway: &Gateway, case: &Case) -> Result<Answer, Broken> {
    let Told::BrokenOff(_) = case.told else { return try_send(gateway.address, &case.request()).await };
    let mut answer = open(gateway.address, &case.request()).await?;
    while let Some(piece) = answer.next().await {
        if let Err(cause) = piece {
            let (status, headers) = (Some(answer.status), answer.headers);
            return Err(Broken { status, headers, body: Vec::new().into(), cause });
        }
    }
    panic!("{}: an endless answer has ended in order", case.name);
}

fn assert_told(case: &Case, got: &Result<Answer, Broken>) {
    let what = format!("{}: {got:.300?}", case.name);
    match (case.told, got) {
        (Told::Problem(status, code), Ok(answer)) => {
            assert!(answer.status == status && answer.text().contains(code), "{what}");
            assert!(answer.header("retry-after").is_some(), "{what}");
        }
        (Told::Answer(status, body), Ok(answer)) => {
            assert_eq!((answer.status, answer.text().as_str()), (status, body), "{what}")
        }
        (Told::BrokenOff(status), Err(broken)) => assert_eq!(broken.status, Some(status), "{what}"),
        _ => panic!("{what}"),
    }
}

async fn every_upstream(backend: Backend) {
    let (database, mut cases) = (Database::create(backend).await, cases());
    cases.sort_by_key(Case::room);
    let liar = Liar::start(cases.iter().map(|case| (case.name.to_owned(), case.act.clone())).collect()).await;
    let url = format!("http://{}", liar.address);
    let lease = "lease = \"60s\"\n";
    // What is lost ends with the upstream's time-out, what is streamed with the whole execution.
    let lost = route("lost", "/lost/*", &url, "external", &format!("{lease}upstream_timeout = \"2s\"\n"));
    let told = route("told", "/told/*", &url, "external", lease);
    let limits = format!("{lease}upstream_timeout = \"3s\"\nmax_execution = \"3s\"\n");
    let endless = route("endless", "/endless/*", &url, "external", &limits);
    let absent = route("absent", "/absent", &format!("http://127.0.0.1:{}", free_port()), "external", lease);
    let gateway = Gateway::start(&database, &format!("{lost}{told}{endless}{absent}")).await;
    assert_eq!(send(gateway.address, &Request::post("/told/good", "{}").key("first")).await.status, 200);
    let before = high_water(&gateway);

    let mut got = Vec::new();
    // Those of a room at once.
    for room in cases.chunk_by(|one, next| one.room() == next.room()) {
        got.extend(join_all(room.iter().map(|case| deliver(&gateway, case))).await);
    }
    let grown = high_water(&gateway).saturating_sub(before);
    assert!(grown < 64 * 1024, "{} upstreams at once: {grown} KiB more", cases.len());
    for (case, got) in cases.iter().zip(&got) {
        assert_told(case, got);
        assert_eq!(status_of(&database, case.name).await.as_deref(), Some(case.record), "{}", case.name);
    }
    for (case, first) in cases.iter().zip(&got) {
        let again = send(gateway.address, &case.request()).await;
        match (case.record, first) {
            ("completed", Ok(first)) => {
                assert_eq!(again.header("idempotent-replayed"), Some("true"), "{}", case.name);
                assert_eq!((again.status, &again.body), (first.status, &first.body), "{}", case.name);
            }
            _ => assert!(again.status == 409 && again.text().contains("in-progress"), "{}: {again:?}", case.name),
        }
        assert_eq!(liar.runs(case.name), 1 + usize::from(case.name == "good"), "{}", case.name);
    }
    is_well(&gateway).await;

    let answer = send(gateway.address, &Request::post("/absent", "{}").key("absent")).await;
    assert!(answer.status == 502 && answer.text().contains("upstream-unreachable"), "{answer:?}");
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    assert_eq!(status_of(&database, "absent").await.as_deref(), Some("failed"));
}

/// What an upstream says beyond its answer is nobody's answer, also where connections are kept.
async fn no_answer_is_left_for_the_next(backend: Backend) {
    let database = Database::create(backend).await;
    let double = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";
    let acts = [("double", says(double)), ("good", says("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"))];
    let liar = Liar::start(acts.into_iter().map(|(name, act)| (name.to_owned(), act)).collect()).await;
    for effect in ["external", "idempotent"] {
        let routes = route(&format!("lying.{effect}"), "/u/*", &format!("http://{}", liar.address), effect, "");
        let gateway = Gateway::start(&database, &routes).await;
        for round in 0..5 {
            let key = |name: &str| format!("{name}-{effect}-{round}");
            for (name, body) in [("double", "ab"), ("good", "abc")] {
                let keyed = Request::post(&format!("/u/{name}"), "{}").key(&key(name));
                for request in [keyed, Request::new("GET", &format!("/u/{name}"))] {
                    let answer = send(gateway.address, &request).await;
                    assert_eq!((answer.status, answer.text().as_str()), (200, body), "{name}, {effect}");
                }
            }
        }
    }
}

#[tokio::test]
async fn no_upstream_makes_the_gateway_lie_or_fall_sqlite() {
    every_upstream(Backend::Sqlite).await;
}

#[tokio::test]
async fn no_upstream_makes_the_gateway_lie_or_fall_postgres() {
    every_upstream(Backend::Postgres).await;
}

#[tokio::test]
async fn no_upstream_makes_the_gateway_lie_or_fall_mariadb() {
    every_upstream(Backend::MariaDb).await;
}

#[tokio::test]
async fn no_answer_is_left_for_the_next_request_sqlite() {
    no_answer_is_left_for_the_next(Backend::Sqlite).await;
}

#[tokio::test]
async fn no_answer_is_left_for_the_next_request_postgres() {
    no_answer_is_left_for_the_next(Backend::Postgres).await;
}

#[tokio::test]
async fn no_answer_is_left_for_the_next_request_mariadb() {
    no_answer_is_left_for_the_next(Backend::MariaDb).await;
}
