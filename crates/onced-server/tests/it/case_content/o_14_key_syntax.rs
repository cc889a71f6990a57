//! O-14, the syntax of keys, as raw bytes on a socket, because HTTP clients tidy headers up. What is no key is refused
//! with 400 and stores nothing; what looks odd and is a key is taken as it is; the quoted and the bare form are one key.
//! Each line has a scope of its own, so that its counters begin at zero.

use testkit::{Backend, Database};

use super::RawAnswer;
use crate::fixture::{Gateway, route};
use crate::same_database_app::{self, Work};

/// What one request of a line must come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    /// It runs: a first execution.
    Runs,
    /// The answer of the line's first execution again.
    Replays,
    /// 400 with this code.
    Refused(&'static str),
    /// 400 already from the HTTP parser below us, which gives no problem body: the bytes are no HTTP header.
    NotHttp,
}
use Answered::{NotHttp, Refused, Replays, Runs};

const INVALID: Answered = Refused("key-invalid");

/// One line: what it is about, and its requests in order, each with the header lines that it is sent with.
type Line = (&'static str, Vec<(Vec<u8>, Answered)>);

fn key(value: impl AsRef<[u8]>) -> Vec<u8> {
    [b"Idempotency-Key: ", value.as_ref(), b"\r\n"].concat()
}

/// That many characters of no particular kind.
fn long(length: usize) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut state = 14_u32;
    let next = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        alphabet[(state >> 26) as usize]
    });
    next.take(length).collect()
}

fn lines() -> Vec<Line> {
    let two = |first: &str, second: &str| [key(first), key(second)].concat();
    vec![
        ("no key", vec![(Vec::new(), Refused("key-missing"))]),
        ("an empty one", vec![(b"Idempotency-Key:\r\n".to_vec(), INVALID)]),
        ("blanks only", vec![(b"Idempotency-Key:   \t\r\n".to_vec(), INVALID)]),
        ("two equal fields, then one of them", vec![(two("k", "k"), INVALID), (key("k"), Runs)]),
        ("two fields", vec![(two("k", "K2"), INVALID)]),
        ("two fields in two spellings", vec![([b"idempotency-key: k\r\n".to_vec(), key("k")].concat(), INVALID)]),
        (
            "a comma in it: one literal key, another than k",
            vec![(key("k, k"), Runs), (key("k"), Runs), (key("k, k"), Replays)],
        ),
        ("quoted, then bare", vec![(key("\"k14\""), Runs), (key("k14"), Replays)]),
        (
            "bare, then quoted, then quoted with a parameter",
            vec![(key("k14"), Runs), (key("\"k14\""), Replays), (key("\"k14\";a=1"), Replays)],
        ),
        ("a quote left open", vec![(key("\"k14"), INVALID), (key("k14"), Runs)]),
        ("nothing between quotes", vec![(key("\"\""), INVALID)]),
        ("case counts", vec![(key("Key-14"), Runs), (key("key-14"), Runs), (key("Key-14"), Replays)]),
        ("blanks around it do not", vec![(key("k14"), Runs), (key("k14   "), Replays), (key("  k14 \t"), Replays)]),
        ("255 characters", vec![(key(long(255)), Runs), (key(long(255)), Replays)]),
        ("one too many", vec![(key(long(256)), INVALID)]),
        ("4096 characters", vec![(key(long(4096)), INVALID)]),
        ("16384 characters", vec![(key(long(16_384)), INVALID)]),
        ("a control character", vec![(key(b"k\x0714"), NotHttp)]),
        ("Latin-1", vec![(key(b"k\xe914"), INVALID)]),
        ("UTF-8", vec![(key("k…14"), INVALID)]),
        ("SQL", vec![(key("' OR 1=1 --"), Runs), (key("' OR 1=1 --"), Replays)]),
        ("an escaped NUL", vec![(key("%00"), Runs), (key("%00"), Replays)]),
        ("a path", vec![(key("../x"), Runs), (key("../x"), Replays)]),
        ("a colon", vec![(key("a:b"), Runs), (key("a:b"), Replays)]),
        (
            "upper-case and lower-case names",
            vec![(b"IDEMPOTENCY-KEY: k\r\n".to_vec(), Runs), (b"idempotency-key: k\r\n".to_vec(), Replays)],
        ),
    ]
}

fn path(line: usize) -> String {
    format!("/o14/{line}")
}

async fn every_key(backend: Backend) {
    let lines = lines();
    let database = Database::create(backend).await;
    let answer = |path: &str, seq| Work::ok(&format!(r#"{{"path":"{path}","run":{seq}}}"#));
    let app = same_database_app::start(&database, move |call| answer(&call.path, call.seq)).await;
    let routes = (0..lines.len()).map(|line| {
        route(&format!("o14.{line}"), &path(line), &app.url(), "same-database", "key = \"required\"\nlease = \"30s\"\n")
    });
    let gateway = Gateway::start(&database, &routes.collect::<String>()).await;

    for (line, (about, requests)) in lines.iter().enumerate() {
        let mut runs = Vec::new();
        for (step, (headers, expected)) in requests.iter().enumerate() {
            let start = format!("POST {} HTTP/1.1\r\nHost: gateway\r\nContent-Length: 2\r\n", path(line));
            let request = [start.as_bytes(), headers, b"\r\n{}"].concat();
            let answer = RawAnswer::to(gateway.address, &request).await;
            let what = format!("{about}, request {}: {answer:?}", step + 1);
            match expected {
                Runs => {
                    assert_eq!((answer.status, answer.is_replay()), (200, false), "{what}");
                    runs.push(answer.body);
                }
                Replays => {
                    assert_eq!((answer.status, answer.is_replay()), (200, true), "{what}");
                    assert_eq!(Some(&answer.body), runs.first(), "{what}");
                }
                Refused(code) => {
                    assert_eq!((answer.status, answer.problem().as_deref()), (400, Some(*code)), "{what}");
                    assert_eq!((app_calls(&app, line), runs.len()), (0, 0), "{what}");
                }
                NotHttp => assert_eq!(answer.status, 400, "{what}"),
            }
        }
        assert_eq!(app_calls(&app, line), runs.len(), "{about}");
        let orders = format!("SELECT count(*) FROM orders WHERE body LIKE '%\"{}\"%'", path(line));
        assert_eq!(usize::try_from(database.sql().count(&orders).await), Ok(runs.len()), "{about}");
    }
}

fn app_calls(app: &onced_harness::Recorder, line: usize) -> usize {
    app.calls().iter().filter(|call| call.path == path(line)).count()
}

#[tokio::test]
async fn o_14_what_is_a_key_and_what_is_not_sqlite() {
    every_key(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_14_what_is_a_key_and_what_is_not_postgres() {
    every_key(Backend::Postgres).await;
}

#[tokio::test]
async fn o_14_what_is_a_key_and_what_is_not_mariadb() {
    every_key(Backend::MariaDb).await;
}
