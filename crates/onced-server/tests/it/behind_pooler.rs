//! A gateway whose ledger lies behind a PgBouncer that lends connections by transaction: with the setting each of many
//! requests at once gets its own answer, and without it the gateway does not start.

use std::time::Duration;

use futures_util::future::join_all;
use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Request, send};
use testkit::pgbouncer::{PgBouncer, PoolOptions};
use testkit::process::Process;
use testkit::{Backend, Database};

use crate::fixture::{Gateway, LIMIT, route};

const KEYS: usize = 100;
/// Of each key, at once.
const DELIVERIES: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_many_requests_at_once_gets_its_own_answer() {
    let database = Database::create(Backend::Postgres).await;
    let pooler = PgBouncer::start(PoolOptions::transaction());
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    upstream.script(
        (0..KEYS).map(|n| Rule::always(Reply::status(201).body(format!("order {n}"))).at(&format!("/orders/{n}"))),
    );
    // So many at once wait for four connections: a lease of the tests' tenths would be over before its turn.
    let routes = route("orders", "/orders/*", &upstream.url(), "external", "lease = \"30s\"\nwait = \"30s\"\n");
    let url = pooler.url(database.url());
    let gateway = Gateway::start_on(&url, "", "pooler = \"transaction\"\nmax_connections = 20\n", &routes, &[]).await;
    for round in 0..2 {
        let answers =
            join_all(
                (0..KEYS * DELIVERIES).map(|n| {
                    let (n, address) = (n % KEYS, gateway.address);
                    async move {
                        (n, send(address, &Request::post(&format!("/orders/{n}"), "{}").key(&format!("k{n}"))).await)
                    }
                }),
            );
        for (n, answer) in answers.await {
            assert_eq!((answer.status, answer.text()), (201, format!("order {n}")), "round {round}, key {n}");
        }
        // However often it was delivered.
        assert_eq!(upstream.count(), KEYS, "round {round}");
    }
    let keys = "SELECT count(*) FROM onced.idempotency_keys WHERE status = 'completed' AND attempt = 1";
    assert_eq!(database.sql().count(keys).await, i64::try_from(KEYS).unwrap_or(-1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_setting_the_gateway_does_not_start() {
    let database = Database::create(Backend::Postgres).await;
    for ignores_settings in [false, true] {
        let pooler = PgBouncer::start(PoolOptions { ignores_settings, ..PoolOptions::transaction() });
        let url = pooler.url(database.url());
        let args = ["serve", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--store", &url];
        let mut process = Process::spawn(env!("CARGO_BIN_EXE_onced"), args, [("USER", "me")]);
        let status = process.wait(LIMIT.min(Duration::from_secs(30))).await;
        let said = process.stderr().all().join("\n");
        assert!(!status.success() && said.contains("set pooler = \"transaction\""), "{said}");
        assert!(!said.contains("listening"), "{said}");
    }
    assert_eq!(database.sql().count("SELECT count(*) FROM pg_namespace WHERE nspname = 'onced'").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_looks_through_a_pooler_that_it_was_told_of_and_names_one_that_it_was_not() {
    let database = Database::create(Backend::Postgres).await;
    let pooler = PgBouncer::start(PoolOptions { ignores_settings: true, ..PoolOptions::transaction() });
    let folder = tempfile::tempdir().expect("a folder");
    let url = pooler.url(database.url());
    for (setting, reach, found) in [("", "wrong", 1), ("pooler = \"transaction\"\n", "", 9)] {
        let text = format!("upstream = \"http://127.0.0.1:1\"\n[store]\nurl = \"{url}\"\n{setting}");
        let file = folder.path().join("onced.toml");
        std::fs::write(&file, text).expect("the file can be written");
        let path = file.to_str().expect("a path of plain characters");
        let run = |command: &'static [&'static str]| {
            let args = [command, &["--config", path]].concat();
            Process::spawn(env!("CARGO_BIN_EXE_onced"), args, [("USER", "me")])
        };
        if !setting.is_empty() {
            assert!(run(&["migrate"]).wait(LIMIT).await.success());
        }
        let mut doctor = run(&["doctor", "--json"]);
        let status = doctor.wait(LIMIT).await;
        let report: serde_json::Value = serde_json::from_str(&doctor.stdout().all().join("\n")).expect("a report");
        let findings = report["findings"].as_array().expect("a list");
        let verdict = |name: &str| {
            let finding = findings.iter().find(|finding| finding["name"] == name);
            finding.map_or("", |finding| finding["verdict"].as_str().unwrap_or_default()).to_owned()
        };
        assert_eq!((status.success(), verdict("reach").as_str()), (reach.is_empty(), reach), "{report:#}");
        assert!(findings.len() >= found, "{report:#}");
        if reach.is_empty() {
            assert_eq!(verdict("pooler"), "ok", "{report:#}");
        } else {
            assert!(report.to_string().contains("pooler = \\\"transaction\\\""), "{report:#}");
        }
    }
}
