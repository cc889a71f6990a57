//! A ledger that breaks in the middle of a write, and is well again.

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Request, request, send};
use testkit::{Backend, Database};

use crate::fixture::{Gateway, route, sql};

/// A full disk and an I/O error make SQLite roll the whole transaction back by itself; so does this trigger. The writer
/// must not be wedged by it.
#[tokio::test]
async fn a_transaction_that_sqlite_has_rolled_back_itself_is_not_the_last_one() {
    let database = Database::create(Backend::Sqlite).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.unwrap();
    let gateway = Gateway::start(&database, &route("a", "/a", &upstream.url(), "external", "")).await;
    let trigger = "CREATE TRIGGER planted BEFORE INSERT ON onced_idempotency_keys WHEN NEW.key = 'poison' \
         BEGIN SELECT RAISE(ROLLBACK, 'planted'); END";
    database.sql().execute(trigger).await;
    let deliver = async |key: &str| send(gateway.address, &Request::post("/a", "{}").key(key)).await.status;
    for round in 0..3 {
        assert_eq!(deliver("poison").await, 503);
        assert_eq!(deliver(&format!("good {round}")).await, 200);
    }
    assert_eq!(request(gateway.address, "GET", "/_onced/readyz", &[], "").await.status, 200);
    assert_eq!(upstream.count(), 3, "what could not be claimed was not forwarded");
}

/// Connecting that takes too long has sent nothing: 502, and the record may run again. It is not an unknown outcome.
async fn never_connected(backend: Backend) {
    let database = Database::create(backend).await;
    // A full queue of connections that nobody accepts: the next one hangs.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let waiting =
        futures_util::future::join_all((0..8).map(|_| {
            tokio::time::timeout(std::time::Duration::from_millis(200), tokio::net::TcpStream::connect(address))
        }))
        .await;
    let limits = "upstream_timeout = \"2s\"\nconnect_timeout = \"300ms\"\n";
    let gateway = Gateway::start(&database, &route("a", "/a", &format!("http://{address}"), "external", limits)).await;
    let answer = send(gateway.address, &Request::post("/a", "{}").key("hangs")).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert!(answer.text().contains("upstream-unreachable"));
    assert_eq!(sql::keys_at(database.sql(), backend, "failed").await, 1);
    drop(waiting);
}

#[tokio::test]
async fn a_connection_that_never_came_about_sent_nothing_sqlite() {
    never_connected(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_connection_that_never_came_about_sent_nothing_postgres() {
    never_connected(Backend::Postgres).await;
}

#[tokio::test]
async fn a_connection_that_never_came_about_sent_nothing_mariadb() {
    never_connected(Backend::MariaDb).await;
}

/// Between an unknown outcome and the same call again stands a balancer: its word is not the upstream's.
async fn a_balancer_answers(backend: Backend) {
    let database = Database::create(backend).await;
    let script = [
        Rule::on_run(1, Reply::lose_answer()),
        Rule::on_run(2, Reply::status(503)),
        Rule::on_run(3, Reply::status(502)),
    ];
    let upstream = Recorder::start(RecorderOptions::default().script(script)).await.unwrap();
    let gateway = Gateway::start(&database, &route("a", "/a", &upstream.url(), "idempotent", "")).await;
    let deliver = async || {
        let status = send(gateway.address, &Request::post("/a", "{}").key("behind")).await.status;
        let pending = sql::keys_at(database.sql(), backend, "pending_external").await;
        sql::let_leases_run_out(database.sql(), backend).await;
        (status, pending)
    };
    assert_eq!(deliver().await, (504, 1));
    assert_eq!(deliver().await, (503, 1), "says nothing about the first call");
    assert_eq!(deliver().await, (502, 1));
    assert_eq!(deliver().await, (200, 0));
    let keys: std::collections::BTreeSet<_> = upstream.calls().into_iter().map(|call| call.key).collect();
    assert_eq!(keys.len(), 1, "one downstream key for every attempt");
}

#[tokio::test]
async fn a_balancers_answer_does_not_fail_an_unknown_outcome_sqlite() {
    a_balancer_answers(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_balancers_answer_does_not_fail_an_unknown_outcome_postgres() {
    a_balancer_answers(Backend::Postgres).await;
}

#[tokio::test]
async fn a_balancers_answer_does_not_fail_an_unknown_outcome_mariadb() {
    a_balancer_answers(Backend::MariaDb).await;
}
