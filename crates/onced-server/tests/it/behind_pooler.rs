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
    let routes = route("orders", "/orders/*", &upstream.url(), "external", "wait = \"10s\"\n");
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
