//! O-10, the same request in other clothes: JSON written by another library, the same form with another boundary, the
//! same pairs with other escapes, other spellings of headers, another framing. Each is a replay of the first answer.

use onced_harness::Recorder;
use testkit::{Backend, Database};

use super::RawAnswer;
use crate::fixture::{Gateway, route, sql};
use crate::same_database_app::{self, Work};

const JSON: &str = "Content-Type: application/json";
const FORM: &str = "Content-Type: application/x-www-form-urlencoded";

const FIRST: &str = r#"{"amount":100,"currency":"eur","note":"café","meta":{"b":2,"a":[1,2]}}"#;

/// The same value, written by others.
const RETRIES: &[&str] = &[
    // Members in other order.
    r#"{"meta":{"a":[1,2],"b":2},"note":"café","currency":"eur","amount":100}"#,
    // Blanks, and a newline at the end.
    "{ \"amount\" :\t100,\r\n\"currency\":\"eur\",\"note\":\"café\",\"meta\":{\"b\":2,\"a\":[ 1 , 2 ]}}\n",
    r#"{"amount":100,"currency":"eur","note":"caf\u00e9","meta":{"b":2,"a":[1,2]}}"#,
    r#"{"amount":100,"currency":"eur","note":"caf\u00E9","meta":{"b":2,"a":[1,2]}}"#,
    r#"{"amount":100,"currency":"eur","note":"\u0063afé","meta":{"b":2,"a":[1,2]}}"#,
    r#"{"amount":100.0,"currency":"eur","note":"café","meta":{"b":2,"a":[1,2]}}"#,
    r#"{"amount":1e2,"currency":"eur","note":"café","meta":{"b":2,"a":[1,2]}}"#,
    r#"{"amount":10000e-2,"currency":"eur","note":"café","meta":{"b":2,"a":[1,2]}}"#,
];

/// Other lines for the same head.
const HEADS: &[&str] = &[
    "Content-Type: application/json; charset=utf-8",
    "CONTENT-TYPE:APPLICATION/JSON ;  CHARSET=UTF-8",
    "content-type: \t application/json \t",
    "Content-Type: application/json\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "Content-Type: application/json\r\ntraceparent: 00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01\r\nX-Try: 2",
];

struct Case {
    app: Recorder,
    database: Database,
    routes: String,
}

impl Case {
    async fn start(backend: Backend) -> Self {
        let database = Database::create(backend).await;
        let app = same_database_app::start(&database, |call| Work::ok(&format!(r#"{{"run":{}}}"#, call.seq))).await;
        let lease = "lease = \"30s\"\n";
        let order = route("api.order", "/api/order", &app.url(), "same-database", lease);
        let upload = route("api.upload", "/api/upload", &app.url(), "same-database", lease);
        Self { app, database, routes: order + &upload }
    }

    async fn gateway(&self) -> Gateway {
        Gateway::start(&self.database, &self.routes).await
    }

    /// Checks that a request is the first of its key.
    async fn runs(&self, gateway: &Gateway, key: &str, path: &str, head: &str, body: &[u8]) -> RawAnswer {
        let runs = self.app.count();
        let answer = RawAnswer::to(gateway.address, &request(key, path, head, body)).await;
        assert_eq!((answer.status, answer.is_replay()), (200, false), "{answer:?}");
        assert_eq!(self.app.count(), runs + 1);
        assert_eq!(
            self.app.calls().last().map(|call| call.body.to_vec()).as_deref(),
            Some(body),
            "forwarded as it was"
        );
        answer
    }

    /// Checks that a request is a retry of that first one.
    async fn replays(&self, gateway: &Gateway, first: &RawAnswer, request: &[u8]) {
        let runs = self.app.count();
        let answer = RawAnswer::to(gateway.address, request).await;
        let what = String::from_utf8_lossy(request);
        assert_eq!((answer.status, answer.is_replay()), (200, true), "{what}\n{answer:?}");
        assert_eq!(answer.body, first.body, "{what}");
        assert_eq!(self.app.count(), runs, "{what}");
    }

    /// Checks that a request is another one than that of its key.
    async fn differs(&self, gateway: &Gateway, request: &[u8]) {
        let runs = self.app.count();
        let answer = RawAnswer::to(gateway.address, request).await;
        let what = String::from_utf8_lossy(request);
        assert_eq!((answer.status, answer.problem().as_deref()), (422, Some("key-reused")), "{what}");
        assert_eq!(self.app.count(), runs, "{what}");
    }
}

fn request(key: &str, path: &str, head: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: gateway\r\nIdempotency-Key: {key}\r\n{head}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The body in three chunks, the first of which ends within a character.
fn chunked(key: &str, path: &str, head: &str, body: &[u8]) -> Vec<u8> {
    let cuts = [body.iter().position(|byte| *byte > 0x7f).map_or(1, |at| at + 1), body.len() - 2];
    let chunks = [&body[..cuts[0]], &body[cuts[0]..cuts[1]], &body[cuts[1]..], b""];
    let chunks = chunks.map(|chunk| [format!("{:X}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: gateway\r\nIdempotency-Key: {key}\r\n{head}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    [head.as_bytes(), &chunks.concat()].concat()
}

/// The form of the case: a text and a file.
fn multipart(boundary: &str, file: &[u8]) -> Vec<u8> {
    let text = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\nx\r\n--{boundary}\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"a.bin\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    [text.as_bytes(), file, format!("\r\n--{boundary}--\r\n").as_bytes()].concat()
}

fn of_boundary(boundary: &str) -> String {
    format!("Content-Type: multipart/form-data; boundary={boundary}")
}

const FILE: &[u8] = b"\x00\r\n--\xff";

async fn json_in_other_clothes(backend: Backend) {
    let case = Case::start(backend).await;
    let gateway = case.gateway().await;
    let (path, key) = ("/api/order", "o10");
    let first = case.runs(&gateway, key, path, JSON, FIRST.as_bytes()).await;
    for retry in RETRIES {
        case.replays(&gateway, &first, &request(key, path, JSON, retry.as_bytes())).await;
    }
    for head in HEADS {
        case.replays(&gateway, &first, &request(key, path, head, FIRST.as_bytes())).await;
    }
    case.replays(&gateway, &first, &chunked(key, path, JSON, FIRST.as_bytes())).await;
    assert_eq!(same_database_app::orders_of(&case.database, key).await, 1);

    // Above 2^53, where a double has no odd numbers.
    let first = case.runs(&gateway, "o10-large", path, JSON, br#"{"id":9007199254740993,"a":1}"#).await;
    case.replays(&gateway, &first, &request("o10-large", path, JSON, br#"{"a":1,"id":9007199254740993}"#)).await;
}

async fn forms_in_other_clothes(backend: Backend) {
    let case = Case::start(backend).await;
    let gateway = case.gateway().await;

    let (path, key) = ("/api/upload", "o10-upload");
    let first = case.runs(&gateway, key, path, &of_boundary("AAA"), &multipart("AAA", FILE)).await;
    for (head, body) in [
        (of_boundary("BBB"), multipart("BBB", FILE)),
        (of_boundary("\"C C\""), multipart("C C", FILE)),
        (of_boundary("----x-1"), multipart("----x-1", FILE)),
    ] {
        case.replays(&gateway, &first, &request(key, path, &head, &body)).await;
        case.replays(&gateway, &first, &chunked(key, path, &head, &body)).await;
    }
    case.differs(&gateway, &request(key, path, &of_boundary("BBB"), &multipart("BBB", b"\x00\r\n--\xfe"))).await;
    case.differs(&gateway, &request(key, path, &of_boundary("BBB"), &multipart("AAA", FILE))).await;

    let (path, key) = ("/api/order", "o10-form");
    let first = case.runs(&gateway, key, path, FORM, b"a=1&b=x+y").await;
    for body in ["a=1&b=x%20y", "%61=1&b=x+%79"] {
        case.replays(&gateway, &first, &request(key, path, FORM, body.as_bytes())).await;
    }
    let charset = format!("{FORM};charset=UTF-8");
    case.replays(&gateway, &first, &request(key, path, &charset, b"a=1&b=x%20y")).await;
    // The order counts, as documented.
    for body in ["b=x+y&a=1", "a=1&b=x+y&", "a=1&b=x%2By", "a=1&b=x%2"] {
        case.differs(&gateway, &request(key, path, FORM, body.as_bytes())).await;
    }
}

async fn the_locale_does_not_count(backend: Backend) {
    let case = Case::start(backend).await;
    let mut gateways = Vec::new();
    // In Turkish the small letter of I is another one than i; it is in APPLICATION.
    for locale in ["C", "tr_TR.UTF-8"] {
        let variables = [("LANG", locale), ("LC_ALL", locale)];
        gateways.push(Gateway::start_among(&case.database, "", "", &case.routes, &variables).await);
    }
    let path = "/api/order";
    let heads = ["Content-Type: application/json", "CONTENT-TYPE: APPLICATION/JSON"];
    for (number, (gateway, head)) in gateways.iter().flat_map(|gateway| heads.map(|head| (gateway, head))).enumerate() {
        let key = format!("o10-locale-{number}");
        let first = case.runs(gateway, &key, path, head, FIRST.as_bytes()).await;
        for other in &gateways {
            case.replays(other, &first, &request(&key, path, JSON, RETRIES[0].as_bytes())).await;
        }
    }
    let table = sql::table(backend);
    let hashes = case.database.sql().text(&format!("SELECT DISTINCT request_hash FROM {table}")).await;
    assert_eq!(hashes.len(), 1, "{hashes:?}");
}

#[tokio::test]
async fn o_10_json_in_other_clothes_sqlite() {
    json_in_other_clothes(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_10_json_in_other_clothes_postgres() {
    json_in_other_clothes(Backend::Postgres).await;
}

#[tokio::test]
async fn o_10_json_in_other_clothes_mariadb() {
    json_in_other_clothes(Backend::MariaDb).await;
}

#[tokio::test]
async fn o_10_forms_in_other_clothes_sqlite() {
    forms_in_other_clothes(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_10_forms_in_other_clothes_postgres() {
    forms_in_other_clothes(Backend::Postgres).await;
}

#[tokio::test]
async fn o_10_forms_in_other_clothes_mariadb() {
    forms_in_other_clothes(Backend::MariaDb).await;
}

#[tokio::test]
async fn o_10_the_locale_does_not_count_sqlite() {
    the_locale_does_not_count(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_10_the_locale_does_not_count_postgres() {
    the_locale_does_not_count(Backend::Postgres).await;
}

#[tokio::test]
async fn o_10_the_locale_does_not_count_mariadb() {
    the_locale_does_not_count(Backend::MariaDb).await;
}
