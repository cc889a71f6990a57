//! O-30, item 5: a request and an answer with `\u0000` and half a surrogate pair, which JSON columns refuse, and with bytes
//! that text columns refuse. They are kept and told again as bytes.

use onced_harness::{Call, Recorder, RecorderOptions, Reply};
use testkit::http_client::{Request, send};
use testkit::{Backend, Database, SqlText};

use super::{LONG_LEASE, problem};
use crate::case_crash::key_of;
use crate::fixture::{Gateway, route, sql};

const BODIES: &[&[u8]] =
    &[br#"{"s":"\u0000"}"#, br#"{"s":"\ud83d"}"#, b"{\"s\":\"\x00\"}", b"{\"s\":\"\xed\xa0\xbd\"}"];

async fn kept_as_bytes(backend: Backend) {
    let database = Database::create(backend).await;
    let echo = RecorderOptions::default().effect_fn(|call: Call| async move { Some(Reply::ok().json(call.body)) });
    let upstream = Recorder::start(echo).await.expect("the upstream can listen");
    let gateway = Gateway::start(&database, &route("api.order", "/o", &upstream.url(), "external", LONG_LEASE)).await;

    for (number, body) in BODIES.iter().enumerate() {
        let key = format!("o30-5-{number}");
        let request =
            |body: &[u8]| Request::post("/o", body.to_vec()).key(&key).header("content-type", "application/json");
        let first = send(gateway.address, &request(body)).await;
        let replay = send(gateway.address, &request(body)).await;
        assert_eq!((first.status, first.header("idempotent-replayed")), (200, None), "{first:?}");
        assert_eq!((replay.status, replay.header("idempotent-replayed")), (200, Some("true")), "{replay:?}");
        assert_eq!((&first.body[..], &replay.body[..]), (*body, *body));
        assert_eq!(sent(&upstream, &key), [body.to_vec()], "sent once, as it was");

        let of_key = format!("FROM {} WHERE key = '{key}'", sql::table(backend));
        let sqlite = format!("SELECT lower(hex(response_body)) {of_key}");
        let postgres = format!("SELECT encode(response_body, 'hex') {of_key}");
        let stored = database.sql().text(SqlText::each(&sqlite, &postgres, &sqlite)).await;
        let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(stored, [[hex]]);

        let other = send(gateway.address, &request(br#"{"s":"?"}"#)).await;
        assert_eq!((other.status, problem(&other).as_deref()), (422, Some("key-reused")), "{other:?}");
    }
}

/// The bodies that were sent under that key of the gateway.
fn sent(upstream: &Recorder, key: &str) -> Vec<Vec<u8>> {
    let calls = upstream.calls().into_iter();
    calls.filter(|call| key_of(call) == key).map(|call| call.body.to_vec()).collect()
}

#[tokio::test]
async fn o_30_5_nul_and_half_a_pair_are_kept_as_bytes_sqlite() {
    kept_as_bytes(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_30_5_nul_and_half_a_pair_are_kept_as_bytes_postgres() {
    kept_as_bytes(Backend::Postgres).await;
}

#[tokio::test]
async fn o_30_5_nul_and_half_a_pair_are_kept_as_bytes_mariadb() {
    kept_as_bytes(Backend::MariaDb).await;
}
