//! O-11, look-alikes that are other requests: two JSON bodies that a careless reader takes for one (numbers that are the
//! same double, a text and a number, null and absent, composed and decomposed letters) must not share a key. The second
//! one is refused with 422 and runs nothing; the first one is still replayed afterwards.

use bytes::Bytes;
use onced_harness::Recorder;
use testkit::http_client::{Answer, Request, send};
use testkit::{Backend, Database};

use crate::fixture::{Gateway, route};
use crate::same_database_app::{self, Work};

/// Each of them is sent under a key of its own, first the left one, then the right one.
const LOOK_ALIKES: &[(&str, &str)] = &[
    // Both are the same double.
    (r#"{"id":9007199254740992}"#, r#"{"id":9007199254740993}"#),
    // The right one no longer fits 64 bits.
    (r#"{"id":18446744073709551615}"#, r#"{"id":18446744073709551616}"#),
    (r#"{"a":"100"}"#, r#"{"a":100}"#),
    (r#"{"a":"0.1"}"#, r#"{"a":"0.10"}"#),
    (r#"{"a":null}"#, "{}"),
    (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#),
    (r#"{"a":{"b":1},"c":2}"#, r#"{"a":{"b":1,"c":2}}"#),
    (r#"{"a":true}"#, r#"{"a":"true"}"#),
    (r#"{"a":5}"#, r#"{"a":-5}"#),
    // One code point, and a letter with a combining accent.
    ("{\"n\":\"\u{e9}\"}", "{\"n\":\"e\u{301}\"}"),
    (r#"{"n":"a"}"#, r#"{"n":"a "}"#),
    (r#"{"a":1.5}"#, r#"{"a":1.50000000000000022}"#),
    (r#"{"a":0.1}"#, r#"{"a":0.1000000000000000055}"#),
    // A member named twice: one application takes the first, another the last.
    (r#"{"amount":1,"amount":900}"#, r#"{"amount":900}"#),
    (r#"{"amount":900}"#, r#"{"amount":1,"amount":900}"#),
    (r#"{"amount":1,"amount":900}"#, r#"{"amount":1}"#),
    (r#"{"amount":900,"amount":900}"#, r#"{"amount":900}"#),
    // Half a surrogate pair: what readers make of it differs.
    (r#"{"s":"\ud800"}"#, "{\"s\":\"\u{fffd}\"}"),
    (r#"{"s":"\ud800"}"#, r#"{"s":"\ufffd"}"#),
    (r#"{"s":"\ud800"}"#, r#"{"s":"?"}"#),
    (r#"{"s":"\ufffd"}"#, r#"{"s":"\ud800"}"#),
];

/// No UTF-8, so no JSON.
const NOT_UTF8: &[u8] = b"{\"s\":\"\xff\"}";

struct Case {
    app: Recorder,
    database: Database,
    gateway: Gateway,
}

impl Case {
    async fn start(backend: Backend) -> Self {
        let database = Database::create(backend).await;
        let app = same_database_app::start(&database, |call| Work::ok(&format!(r#"{{"run":{}}}"#, call.seq))).await;
        let routes = route("api.order", "/api/order", &app.url(), "same-database", "lease = \"30s\"\n");
        let gateway = Gateway::start(&database, &routes).await;
        Self { app, database, gateway }
    }

    async fn order(&self, key: &str, body: &Bytes) -> Answer {
        let request = Request::post("/api/order", body.clone()).header("content-type", "application/json").key(key);
        send(self.gateway.address, &request).await
    }

    async fn check(&self, key: &str, left: impl Into<Bytes>, right: impl Into<Bytes>) {
        let (left, right) = (left.into(), right.into());
        let what = format!("{left:?} then {right:?}");
        let runs = self.app.count();

        let first = self.order(key, &left).await;
        assert_eq!((first.status, first.header("idempotent-replayed")), (200, None), "{what}");

        let other = self.order(key, &right).await;
        assert_eq!((other.status, other.header("content-type")), (422, Some("application/problem+json")), "{what}");
        let problem: serde_json::Value = serde_json::from_slice(&other.body).expect("a problem is JSON");
        assert_eq!((&problem["code"], &problem["retry"]), (&"key-reused".into(), &"new-key".into()), "{what}");
        assert!(!other.text().contains("run"), "the stored answer is not shown: {}", other.text());

        let again = self.order(key, &left).await;
        assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")), "{what}");
        assert_eq!(again.body, first.body, "{what}");
        assert_eq!(self.app.count() - runs, 1, "{what}");
        assert_eq!(same_database_app::orders_of(&self.database, key).await, 1, "{what}");
    }
}

async fn look_alikes_are_other_requests(backend: Backend) {
    let case = Case::start(backend).await;
    for (number, (left, right)) in LOOK_ALIKES.iter().enumerate() {
        case.check(&format!("o11-{number}"), *left, *right).await;
    }
    case.check("o11-bytes", NOT_UTF8, r#"{"s":"\ufffd"}"#).await;
    case.check("o11-letter", NOT_UTF8, "{\"s\":\"\u{fffd}\"}").await;
    case.check("o11-reverse", "{\"s\":\"\u{fffd}\"}", NOT_UTF8).await;
}

#[tokio::test]
async fn o_11_look_alikes_are_other_requests_sqlite() {
    look_alikes_are_other_requests(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_11_look_alikes_are_other_requests_postgres() {
    look_alikes_are_other_requests(Backend::Postgres).await;
}

#[tokio::test]
async fn o_11_look_alikes_are_other_requests_mariadb() {
    look_alikes_are_other_requests(Backend::MariaDb).await;
}
