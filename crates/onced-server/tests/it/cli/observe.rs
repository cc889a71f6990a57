//! `onced observe report`: what would have been withheld, counted from lines as the gateway writes them.

use std::time::Duration;

use onced_harness::{Recorder, RecorderOptions};
use serde_json::{Value, json};
use testkit::http_client::{Request, send};
use testkit::{Backend, Database, Signal};

use super::{onced, onced_in};
use crate::fixture::{Gateway, LIMIT, route, sql};

/// Deliveries through a gateway: an execution and a replay of each of two keys. Its end waits for the log.
async fn delivered(database: &Database) {
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    let mut gateway = Gateway::start(database, &route("mail", "/mail", &upstream.url(), "external", "")).await;
    for key in ["a", "b"] {
        for _ in 0..2 {
            assert_eq!(send(gateway.address, &Request::post("/mail", "{}").key(key)).await.status, 200);
        }
    }
    gateway.process.signal(Signal::Terminate);
    gateway.process.wait(LIMIT).await;
}

/// Lines as they are written on a route that only observes, that many hours ago by the ledger's clock.
async fn plant(database: &Database, scope: &str, key: &str, decision: &str, times: u32, hours_ago: i64) {
    let table = match database.backend() {
        Backend::Sqlite | Backend::MariaDb => "onced_deliveries",
        Backend::Postgres => "onced.deliveries",
    };
    let now = match database.backend() {
        Backend::Sqlite => "SELECT now / 1000 FROM onced_clock",
        Backend::Postgres => "SELECT onced.micros(onced.clock()) / 1000",
        Backend::MariaDb => "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', now) DIV 1000 FROM onced_clock",
    };
    let millis = database.sql().count(now).await - hours_ago * 3_600_000;
    for _ in 0..times {
        let random = uuid::Uuid::new_v4().into_bytes();
        let id = uuid::Builder::from_unix_timestamp_millis(
            u64::try_from(millis).expect("it is after 1970"),
            random.first_chunk().expect("there are enough"),
        )
        .into_uuid();
        let (at, hash) = match database.backend() {
            Backend::Sqlite => (format!("{millis} * 1000"), "zeroblob(32)"),
            Backend::Postgres => (format!("to_timestamp({millis} / 1000.0)"), "decode(repeat('00', 32), 'hex')"),
            Backend::MariaDb => (
                format!("TIMESTAMP'1970-01-01 00:00:00' + INTERVAL {millis} * 1000 MICROSECOND"),
                "UNHEX(REPEAT('00', 32))",
            ),
        };
        // MariaDB has no type for them in onced's tables: there they are bytes.
        let id = if database.backend() == Backend::MariaDb { format!("x'{}'", id.simple()) } else { format!("'{id}'") };
        let insert = format!(
            "INSERT INTO {table} (id, scope, key, received_at, decision, answered_status, request_hash, attempt) \
             VALUES ({id}, '{scope}', '{key}', {at}, '{decision}', 200, {hash}, 1)"
        );
        assert_eq!(database.sql().execute(&insert).await, 1);
    }
}

/// The counts of a scope, without its times.
fn counts(report: &Value, scope: &str) -> Value {
    let found = report.as_array().and_then(|scopes| scopes.iter().find(|counts| counts["scope"] == scope));
    let mut found = found.unwrap_or_else(|| panic!("no scope {scope} in {report:#}")).clone();
    for time in ["first", "last"] {
        let text = found[time].as_str().unwrap_or_default().to_owned();
        assert!(text.len() == 24 && text.ends_with('Z'), "{time}: {text:?}");
        found.as_object_mut().expect("it is an object").remove(time);
    }
    found
}

async fn report(backend: Backend) {
    let database = Database::create(backend).await;
    delivered(&database).await;
    for (scope, key, decision, times, hours_ago) in [
        ("pay", "order-1", "execute", 1, 1),
        ("pay", "order-1", "observed: replay", 3, 1),
        ("pay", "order-1", "observed: replay, payload differs", 1, 1),
        ("pay", "order-2", "execute", 1, 30),
        ("pay", "order-2", "observed: in-progress", 2, 30),
        ("pay", "order-2", "observed: mismatch", 1, 1),
        ("pay", "order-3", "observed: unknown", 1, 1),
    ] {
        plant(&database, scope, key, decision, times, hours_ago).await;
    }
    let args = ["observe", "report", "--store", database.url()];
    let all = onced(&[&args[..], &["--json"]].concat()).await;
    assert_eq!((all.code, all.err.as_str()), (Some(0), ""));
    let all: Value = serde_json::from_str(&all.out).expect("it is JSON");
    assert_eq!(
        counts(&all, "pay"),
        json!({
            "scope": "pay", "deliveries": 10, "executed": 2, "replay": 4, "in_progress": 2, "mismatch": 1, "others": 1,
            "withheld": 0,
            "observed": { "replay": 3, "replay, payload differs": 1, "in-progress": 2, "mismatch": 1, "unknown": 1 },
            "most_repeated": [
                { "key": "order-1", "repeats": 4 }, { "key": "order-2", "repeats": 3 }, { "key": "order-3", "repeats": 1 },
            ],
        })
    );
    assert_eq!(
        counts(&all, "mail"),
        json!({
            "scope": "mail", "deliveries": 4, "executed": 2, "replay": 0, "in_progress": 0, "mismatch": 0, "others": 0,
            "withheld": 2, "observed": {}, "most_repeated": [],
        })
    );
    let day = onced(&[&args[..], &["--json", "--since", "24h"]].concat()).await;
    let day: Value = serde_json::from_str(&day.out).expect("it is JSON");
    let day = counts(&day, "pay");
    assert_eq!((&day["deliveries"], &day["executed"], &day["in_progress"]), (&json!(7), &json!(1), &json!(0)));

    let people = onced(&args).await;
    assert_eq!((people.code, people.err.as_str()), (Some(0), ""));
    let row = |start: &str| -> Vec<&str> {
        let line = people.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        line.into_iter().find(|words| words.first() == Some(&start)).unwrap_or_else(|| panic!("{}", people.out))
    };
    let columns = ["SCOPE", "DELIVERIES", "EXECUTED", "REPLAY", "IN-PROGRESS", "MISMATCH", "OTHERS", "WITHHELD"];
    assert_eq!(row("SCOPE")[..8], columns);
    assert_eq!(row("pay")[..8], ["pay", "10", "2", "4", "2", "1", "1", "0"]);
    assert_eq!(row("mail")[..8], ["mail", "4", "2", "0", "0", "0", "0", "2"]);
    assert!(people.out.contains("pay: 4 effects happened again that onced would have answered"), "{}", people.out);
    assert!(people.out.contains("mail: nothing was only observed; 2 duplicates were withheld."), "{}", people.out);
    assert!(people.out.contains("  repeated most: order-1 (4), order-2 (3), order-3 (1)"), "{}", people.out);

    // Lines are counted as long as they are kept.
    sql::put_the_clock_ahead(database.sql(), backend, Duration::from_secs(31 * 24 * 3600)).await;
    assert_eq!(onced(&["sweep", "--store", database.url()]).await.code, Some(0));
    let none = onced(&args).await;
    assert!(none.code == Some(0) && none.out.starts_with("There are no deliveries in that time."), "{none:?}");
}

#[tokio::test]
async fn what_was_only_observed_is_counted_by_scope_and_word_sqlite() {
    report(Backend::Sqlite).await;
}

#[tokio::test]
async fn what_was_only_observed_is_counted_by_scope_and_word_postgres() {
    report(Backend::Postgres).await;
}

#[tokio::test]
async fn what_was_only_observed_is_counted_by_scope_and_word_mariadb() {
    report(Backend::MariaDb).await;
}

/// From the requests to the report: what a gateway that only observes has let through.
async fn observed(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    let routes = route("mail", "/mail", &upstream.url(), "external", "observe = true");
    let mut gateway = Gateway::start(&database, &routes).await;
    for (key, body) in [("a", "{}"), ("a", "{}"), ("a", "{}"), ("a", r#"{"to":"b"}"#), ("b", "{}")] {
        let answer = send(gateway.address, &Request::post("/mail", body).key(key)).await;
        // The answer does not wait for its record.
        gateway.ended(key).await;
        assert_eq!((answer.status, answer.header("idempotent-replayed")), (200, None));
    }
    assert_eq!(upstream.count(), 5, "nothing is withheld");
    gateway.process.signal(Signal::Terminate);
    gateway.process.wait(LIMIT).await;
    let ran = onced(&["observe", "report", "--store", database.url(), "--json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("it is JSON: {ran:?}"));
    assert_eq!(
        counts(&report, "mail"),
        json!({
            "scope": "mail", "deliveries": 5, "executed": 2, "replay": 2, "in_progress": 0, "mismatch": 1, "others": 0,
            "withheld": 0, "observed": { "replay": 2, "mismatch": 1 },
            "most_repeated": [{ "key": "a", "repeats": 3 }],
        })
    );
}

#[tokio::test]
async fn a_route_that_only_observes_is_reported_on_sqlite() {
    observed(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_route_that_only_observes_is_reported_on_postgres() {
    observed(Backend::Postgres).await;
}

#[tokio::test]
async fn a_route_that_only_observes_is_reported_on_mariadb() {
    observed(Backend::MariaDb).await;
}

#[tokio::test]
async fn what_cannot_be_reported_is_said_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let absent = onced_in(folder.path(), &["observe", "report"]).await;
    assert!(absent.code == Some(1) && absent.err.contains("there is no file onced.db"), "{absent:?}");
    let wrong = onced_in(folder.path(), &["observe", "report", "--since", "lately"]).await;
    assert!(wrong.code == Some(2) && wrong.err.contains("invalid value"), "{wrong:?}");
    let help = onced_in(folder.path(), &["observe", "--help"]).await;
    assert!(help.code == Some(0) && help.out.contains("Examples:\n  onced observe report"), "{help:?}");
}
