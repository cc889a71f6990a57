//! Clients and payloads that nobody here wrote: every example of GitHub's webhook payloads in the npm package
//! `@octokit/webhooks-examples`, the official `stripe` package for Python with its own retries, and `curl`. The inputs
//! are fetched by `cargo xtask setup`.

use std::collections::BTreeMap;
use std::fs;

use bytes::Bytes;
use futures_util::StreamExt;
use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use testkit::http_client::{Answer, Request, send};
use testkit::{Backend, Database};
use tokio::process::Command;

use crate::fixture::{Gateway, route, sql};
use crate::same_database_app::{self, Work};

/// One payload as GitHub would send it.
struct Payload {
    event: String,
    delivery: String,
    body: Bytes,
}

impl Payload {
    fn request(&self) -> Request {
        Request::post("/hooks/github", self.body.clone())
            .header("content-type", "application/json")
            .header("x-github-event", &self.event)
            .header("x-github-delivery", &self.delivery)
    }
}

/// All examples of the package, of github.com and of each version of its server, byte for byte as they are written.
fn payloads() -> Vec<Payload> {
    let folder = testkit::inputs().join("webhooks-examples");
    let entries = fs::read_dir(&folder).expect("the examples are there: run `cargo xtask setup`");
    let mut files: Vec<_> =
        entries.flatten().map(|entry| entry.path().join("index.json")).filter(|file| file.is_file()).collect();
    files.sort();
    let mut payloads = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("text");
        let webhooks: Vec<Value> = serde_json::from_str(&text).expect("a list of webhooks");
        let mut rest = text.as_str();
        for webhook in &webhooks {
            let event = webhook["name"].as_str().expect("a webhook has a name");
            rest = &rest[rest.find(r#""examples": ["#).expect("a webhook has examples")..];
            rest = &rest[rest.find('[').expect("just found") + 1..];
            for example in webhook["examples"].as_array().expect("a list of examples") {
                rest = rest.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
                let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
                values.next().expect("one more example").expect("it is JSON");
                let (body, after) = rest.split_at(values.byte_offset());
                let read: Value = serde_json::from_str(body).expect("it is JSON");
                assert_eq!(&read, example, "the example was cut out whole");
                let delivery = format!("72d3162e-cc78-11e3-81ab-{:012x}", payloads.len());
                payloads.push(Payload {
                    event: event.to_owned(),
                    delivery,
                    body: Bytes::copy_from_slice(body.as_bytes()),
                });
                rest = after;
            }
        }
    }
    payloads
}

async fn deliver_all(gateway: &Gateway, payloads: &[Payload]) -> BTreeMap<String, Answer> {
    let sent = payloads
        .iter()
        .map(|payload| async { (payload.delivery.clone(), send(gateway.address, &payload.request()).await) });
    futures_util::stream::iter(sent).buffer_unordered(8).collect().await
}

async fn every_github_payload(backend: Backend) {
    let payloads = payloads();
    assert!(payloads.len() > 700, "only {} examples: has the package changed?", payloads.len());
    let database = Database::create(backend).await;
    let options = RecorderOptions::default()
        .effect_fn(|call| async move { Some(Reply::status(200).json(format!(r#"{{"delivered":{}}}"#, call.seq))) });
    let receiver = Recorder::start(options).await.expect("a free port");
    let more = "key = { from = \"header\", header = \"X-GitHub-Delivery\" }\nmismatch = \"note\"\nlease = \"60s\"\n";
    let routes = route("github.events", "/hooks/github", &receiver.url(), "idempotent", more);
    let gateway = Gateway::start(&database, &routes).await;

    let first = deliver_all(&gateway, &payloads).await;
    let again = deliver_all(&gateway, &payloads).await;

    assert_eq!((first.len(), again.len()), (payloads.len(), payloads.len()));
    for (delivery, answer) in &first {
        assert_eq!((answer.status, answer.header("idempotent-replayed")), (200, None), "{answer:?}");
        let again = &again[delivery];
        assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")), "{again:?}");
        assert_eq!(again.body, answer.body);
    }
    // Each arrived once, byte for byte.
    let arrived: BTreeMap<_, _> = receiver
        .calls()
        .into_iter()
        .map(|call| (call.headers["x-github-delivery"].as_bytes().to_vec(), call.body))
        .collect();
    assert_eq!((receiver.count(), arrived.len()), (payloads.len(), payloads.len()));
    for payload in &payloads {
        assert!(arrived[payload.delivery.as_bytes()] == payload.body, "{} {}", payload.event, payload.delivery);
    }
    let completed = sql::keys_at(database.sql(), backend, "completed").await;
    assert_eq!(usize::try_from(completed), Ok(payloads.len()));
}

#[tokio::test]
async fn every_github_payload_is_delivered_once_sqlite() {
    every_github_payload(Backend::Sqlite).await;
}

#[tokio::test]
async fn every_github_payload_is_delivered_once_postgres() {
    every_github_payload(Backend::Postgres).await;
}

#[tokio::test]
async fn every_github_payload_is_delivered_once_mariadb() {
    every_github_payload(Backend::MariaDb).await;
}

/// The provider charges and its first answer is lost. The client repeats after half a second or more, and once more
/// after another half; by then the lease is over, whatever happened before.
async fn the_stripe_client_charges_once(backend: Backend) {
    const CHARGE: &str = r#"{"id":"ch_42","object":"charge","amount":2000,"currency":"usd","paid":true}"#;
    let database = Database::create(backend).await;
    let script = [Rule::on_run(1, Reply::lose_answer().body(CHARGE)).at("/v1/charges")];
    let provider = Recorder::start(RecorderOptions::default().deduplicate().script(script)).await.expect("a free port");
    let routes = route("stripe.charge", "/v1/charges", &provider.url(), "idempotent", "lease = \"1s\"\n");
    let gateway = Gateway::start(&database, &routes).await;

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/charge.py");
    let output = Command::new(testkit::inputs().join("venv/bin/python")).args([script, &gateway.url()]).output();
    let output = output.await.expect("the client's Python is there: run `cargo xtask setup`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).expect("the script prints JSON");

    let charge = |replayed: Value| json!({ "id": "ch_42", "amount": 2000, "replayed": replayed });
    assert_eq!(told["charges"], json!([charge(Value::Null), charge(Value::Null), charge(json!("true"))]));
    assert_eq!(told["refused"], 422);
    // Two operations, each charged once and asked for twice, because its first answer was lost.
    let by_key = provider.effects_by_key();
    assert_eq!(by_key.values().collect::<Vec<_>>(), [&1, &1]);
    assert!(by_key.keys().all(|key| provider.calls_for(key).len() == 2), "{:?}", provider.calls());
    assert_eq!(sql::keys_at(database.sql(), backend, "completed").await, 2);
}

#[tokio::test]
async fn the_stripe_client_charges_once_sqlite() {
    the_stripe_client_charges_once(Backend::Sqlite).await;
}

#[tokio::test]
async fn the_stripe_client_charges_once_postgres() {
    the_stripe_client_charges_once(Backend::Postgres).await;
}

#[tokio::test]
async fn the_stripe_client_charges_once_mariadb() {
    the_stripe_client_charges_once(Backend::MariaDb).await;
}

/// What `curl -i` shows.
async fn curl(args: &[&str], url: &str) -> String {
    let mut command = Command::new("curl");
    // A proxy of the surroundings has no business here.
    command.args(["-sS", "-i", "--noproxy", "*", "--max-time", "60"]).args(args).arg(url);
    let output = command.output().await.expect("curl is there: run `cargo xtask setup`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").to_ascii_lowercase()
}

async fn curl_sees_the_contract(backend: Backend) {
    let database = Database::create(backend).await;
    let app = same_database_app::start(&database, |call| Work::ok(&format!(r#"{{"order":{}}}"#, call.seq))).await;
    let routes = route("orders", "/orders", &app.url(), "same-database", "lease = \"60s\"\n");
    let gateway = Gateway::start(&database, &routes).await;
    let url = format!("{}/orders", gateway.url());
    let key = ["-H", "Idempotency-Key: order-42"];
    let json = ["-H", "Content-Type: application/json"];
    let order = ["-d", r#"{"sku":"A","qty":1}"#];

    let first = curl(&[key, json, order].concat(), &url).await;
    assert!(first.starts_with("http/1.1 200 ok\r\n") && first.ends_with(r#"{"order":1}"#), "{first}");
    assert!(!first.contains("idempotent-replayed"), "{first}");

    // The same again; in chunks; and with the body announced first.
    let chunked = ["-H", "Transfer-Encoding: chunked"];
    let expect = ["-H", "Expect: 100-continue"];
    for more in [&[][..], &chunked, &expect] {
        let replay = curl(&[&key[..], &json, &order, more].concat(), &url).await;
        let last = replay.strip_prefix("http/1.1 100 continue\r\n\r\n").unwrap_or(&replay);
        assert!(last.starts_with("http/1.1 200 ok\r\n") && last.ends_with(r#"{"order":1}"#), "{replay}");
        assert!(last.contains("\r\nidempotent-replayed: true\r\n"), "{replay}");
        assert!(last.contains("\r\nonced-key-expires: "), "{replay}");
    }

    let other = curl(&[key, json, ["-d", r#"{"sku":"B","qty":1}"#]].concat(), &url).await;
    assert!(other.starts_with("http/1.1 422 "), "{other}");
    assert!(other.contains("application/problem+json") && other.contains(r#""code":"key-reused""#), "{other}");

    let keyless = curl(&[json, order].concat(), &url).await;
    assert!(keyless.starts_with("http/1.1 400 ") && keyless.contains(r#""code":"key-missing""#), "{keyless}");
    assert_eq!((app.count(), same_database_app::orders(&database).await), (1, 1));
}

#[tokio::test]
async fn curl_sees_first_replay_and_mismatch_sqlite() {
    curl_sees_the_contract(Backend::Sqlite).await;
}

#[tokio::test]
async fn curl_sees_first_replay_and_mismatch_postgres() {
    curl_sees_the_contract(Backend::Postgres).await;
}

#[tokio::test]
async fn curl_sees_first_replay_and_mismatch_mariadb() {
    curl_sees_the_contract(Backend::MariaDb).await;
}
