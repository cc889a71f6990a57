//! Contracts, end to end: under `stripe-v1` whatever was answered is the outcome, under `stripe-v2` failures run again.

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Answer, Request, send};
use testkit::{Backend, Database};

use crate::case_crash::{STEADY, is_problem, is_replayed, lease, post, record, replays, runs};
use crate::fixture::{Gateway, route};

const BODY: &str = r#"{"amount":5}"#;

/// The upstream answers so on the first run of each key, and 201 on every later one.
async fn failing_once(status: u16) -> Recorder {
    let fails = Rule::on_run(1, Reply::status(status).json(r#"{"error":true}"#));
    let then = Rule::always(Reply::status(201).json(r#"{"ok":true}"#));
    Recorder::start(RecorderOptions::default().script([fails, then])).await.expect("the upstream can listen")
}

async fn three_times(gateway: &Gateway, request: &Request) -> [Answer; 3] {
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(send(gateway.address, request).await);
    }
    answers.try_into().expect("three answers")
}

async fn contracts(backend: Backend) {
    let database = Database::create(backend).await;
    for status in [500, 402] {
        let upstream = failing_once(status).await;
        let of = |name: &str, effect: &str, contract: &str| {
            let more = format!("{}contract = \"{contract}\"", lease(STEADY));
            route(&format!("{name}.{status}"), &format!("/{name}"), &upstream.url(), effect, &more)
        };
        let routes = [
            of("v1", "external", "stripe-v1"),
            of("v2", "idempotent", "stripe-v2"),
            of("own", "same-database", "stripe-v2"),
            of("unknown", "external", "stripe-v2"),
        ];
        let gateway = Gateway::start(&database, &routes.join("\n")).await;

        let key = format!("v1-{status}");
        let [first, second, third] = three_times(&gateway, &post("/v1", &key, BODY)).await;
        assert_eq!((first.status, is_replayed(&first)), (status, false), "{first:?}");
        replays(&second, &first);
        replays(&third, &first);
        assert_eq!((runs(&upstream, &key), record(&database, &key).await[0].as_str()), (1, "completed"));

        for (path, method) in [("/v2", "POST"), ("/v2", "DELETE"), ("/own", "POST")] {
            let key = format!("{}-{method}-{status}", &path[1..]);
            let request = Request::new(method, path).body(BODY).key(&key).header("content-type", "application/json");
            let failed = send(gateway.address, &request).await;
            assert_eq!((failed.status, is_replayed(&failed)), (status, false), "{failed:?}");
            assert_eq!(record(&database, &key).await[..2], ["failed", "1"]);
            let [second, third, _] = three_times(&gateway, &request).await;
            assert_eq!((second.status, is_replayed(&second)), (201, false), "{second:?}");
            replays(&third, &second);
            assert_eq!((runs(&upstream, &key), record(&database, &key).await[1].as_str()), (2, "2"));
        }
        // Where a failure proves nothing, the contract does not make it run again.
        let key = format!("unknown-{status}");
        let [first, second, _] = three_times(&gateway, &post("/unknown", &key, BODY)).await;
        assert_eq!(first.status, status, "{first:?}");
        is_problem(&second, 409, "in-progress");
        assert_eq!(runs(&upstream, &key), 1);
        // Other methods are not the route's.
        let put = Request::new("PUT", "/v2").body(BODY).key("put");
        is_problem(&send(gateway.address, &put).await, 404, "no-route");
    }
}

#[tokio::test]
async fn contracts_say_whether_failures_run_again_sqlite() {
    contracts(Backend::Sqlite).await;
}

#[tokio::test]
async fn contracts_say_whether_failures_run_again_postgres() {
    contracts(Backend::Postgres).await;
}

#[tokio::test]
async fn contracts_say_whether_failures_run_again_mariadb() {
    contracts(Backend::MariaDb).await;
}
