//! Connections to the upstream that are kept for the next request: only where a lost answer may safely be sent again,
//! for a short while, and never so that a request is sent twice.

use testkit::http_client::{Answer, Request, send};
use testkit::{Backend, Database, Signal};

use super::raw_client::Raw;
use super::wire::{Act, Wire};
use super::{any_database, outcome, post, records_at, said};
use crate::fixture::{Gateway, route};

/// Longer than any test takes.
const KEPT: &str = "upstream_keep_alive = \"10min\"\n";

/// A gateway with one route of each kind, and one without keys, all to the same upstream.
async fn start(database: &Database, upstream: &Wire, more: &str) -> Gateway {
    let one = |name: &str, effect: &str, more: &str| route(name, &format!("/{name}"), &upstream.url(), effect, more);
    let routes = one("same", "same-database", more)
        + &one("idempotent", "idempotent", more)
        + &one("external", "external", more)
        + &one("passed", "external", &format!("{more}key = \"off\"\n"));
    Gateway::start(database, &routes).await
}

async fn deliver(gateway: &Gateway, path: &str, key: &str) -> Answer {
    send(gateway.address, &post(path, key)).await
}

async fn two_requests(backend: Backend) {
    for (path, connections) in
        [("/same", [0, 0, 0]), ("/idempotent", [0, 0, 0]), ("/passed", [0, 0, 0]), ("/external", [0, 1, 2])]
    {
        let (database, upstream) = (Database::create(backend).await, Wire::start([]).await);
        let gateway = start(&database, &upstream, KEPT).await;
        for key in ["a", "b", "c"] {
            assert_eq!(deliver(&gateway, path, key).await.status, 200);
        }
        assert_eq!(upstream.requests(), connections, "{path}");
        // What is safe is passed on whatever is kept, and leaves it.
        assert_eq!(send(gateway.address, &Request::new("GET", path)).await.status, 200);
        assert!(upstream.requests()[3] <= connections[2], "{path}: {:?}", upstream.seen());
    }
}

#[tokio::test]
async fn a_connection_is_kept_where_a_lost_answer_makes_no_harm_sqlite() {
    two_requests(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_connection_is_kept_where_a_lost_answer_makes_no_harm_postgres() {
    two_requests(Backend::Postgres).await;
}

#[tokio::test]
async fn a_connection_is_kept_where_a_lost_answer_makes_no_harm_mariadb() {
    two_requests(Backend::MariaDb).await;
}

async fn after_a_while(backend: Backend) {
    let (database, upstream) = (Database::create(backend).await, Wire::start([]).await);
    let gateway = start(&database, &upstream, "upstream_keep_alive = \"200ms\"\n").await;
    for (path, connection) in [("/same", 0), ("/idempotent", 1), ("/external", 2), ("/passed", 3)] {
        assert_eq!(deliver(&gateway, path, "k").await.status, 200);
        upstream.wait_until(|seen| seen.ended.contains(&connection)).await;
    }
    assert_eq!(upstream.requests(), [0, 1, 2, 3]);
}

#[tokio::test]
async fn a_kept_connection_is_closed_after_a_while_sqlite() {
    after_a_while(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_kept_connection_is_closed_after_a_while_postgres() {
    after_a_while(Backend::Postgres).await;
}

#[tokio::test]
async fn a_kept_connection_is_closed_after_a_while_mariadb() {
    after_a_while(Backend::MariaDb).await;
}

async fn closed_meanwhile(backend: Backend) {
    for path in ["/same", "/idempotent", "/passed"] {
        let script = [Act::AnswerThenClose, Act::AnswerThenClose];
        let (database, upstream) = (Database::create(backend).await, Wire::start(script).await);
        let gateway = start(&database, &upstream, KEPT).await;
        for (key, connection) in [("a", 0), ("b", 1), ("c", 2)] {
            assert_eq!(deliver(&gateway, path, key).await.status, 200, "{path} {key}");
            if connection < 2 {
                upstream.wait_until(|seen| seen.ended.contains(&connection)).await;
            }
        }
        assert_eq!(upstream.requests(), [0, 1, 2], "{path}: each arrived once");
    }
}

#[tokio::test]
async fn a_connection_that_the_upstream_has_closed_harms_nothing_sqlite() {
    closed_meanwhile(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_connection_that_the_upstream_has_closed_harms_nothing_postgres() {
    closed_meanwhile(Backend::Postgres).await;
}

#[tokio::test]
async fn a_connection_that_the_upstream_has_closed_harms_nothing_mariadb() {
    closed_meanwhile(Backend::MariaDb).await;
}

/// The end of the kept connection and the next request come in at once. If not one byte of the request went out, it is
/// sent on another connection; else it is lost, and that is said.
#[tokio::test]
async fn a_close_that_comes_in_with_the_request_never_doubles_it() {
    let (database, upstream) = (any_database().await, Wire::start([]).await);
    let gateway = start(&database, &upstream, KEPT).await;
    let mut answered = 0;
    for round in 0..20 {
        let mut client = Raw::connect(gateway.address).await;
        client.write("GET /passed HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert_eq!(client.answer().await.0, "http/1.1 200 ok");
        let before = upstream.requests();
        gateway.process.signal(Signal::Stop);
        upstream.close();
        upstream.wait_until(|seen| seen.ended.contains(&before[before.len() - 1])).await;
        client.write("POST /passed HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").await;
        gateway.process.signal(Signal::Continue);
        let line = client.answer().await.0;
        let arrived = upstream.requests().len() - before.len();
        match arrived {
            1 => assert_eq!(line, "http/1.1 200 ok", "round {round}"),
            0 => assert_eq!(line, "http/1.1 504 gateway timeout", "round {round}"),
            more => panic!("it arrived {more} times in round {round}"),
        }
        answered += arrived;
    }
    assert!(answered > 0, "a request on a connection that has ended is sent on another one");
}

/// The close crosses the request on a kept connection: it was received, and nothing is sent again in silence.
async fn closed_upon_the_request(backend: Backend) {
    for (path, status) in [("/same", "in_progress"), ("/idempotent", "pending_external"), ("/passed", "")] {
        for act in [Act::Close, Act::Reset] {
            let (database, upstream) = (Database::create(backend).await, Wire::start([Act::Answer, act]).await);
            let gateway = start(&database, &upstream, KEPT).await;
            assert_eq!(deliver(&gateway, path, "a").await.status, 200);
            let lost = deliver(&gateway, path, "b").await;
            assert_eq!(outcome(&lost), said(504, "outcome-unknown"), "{path} {act:?}");
            assert_eq!(upstream.requests(), [0, 0], "{path} {act:?}: the same connection, once each");
            if !status.is_empty() {
                assert_eq!(records_at(&database, status).await, 1, "{path} {act:?}");
                assert_eq!(outcome(&deliver(&gateway, path, "b").await), said(409, "in-progress"));
                assert_eq!(upstream.requests(), [0, 0], "{path} {act:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_request_that_a_close_has_crossed_is_not_sent_again_sqlite() {
    closed_upon_the_request(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_request_that_a_close_has_crossed_is_not_sent_again_postgres() {
    closed_upon_the_request(Backend::Postgres).await;
}

#[tokio::test]
async fn a_request_that_a_close_has_crossed_is_not_sent_again_mariadb() {
    closed_upon_the_request(Backend::MariaDb).await;
}

/// On a connection of its own no close crosses an external call, whatever was done with connections before.
async fn external_calls(backend: Backend) {
    let (database, upstream) =
        (Database::create(backend).await, Wire::start([Act::Answer, Act::Answer, Act::Close]).await);
    let gateway = start(&database, &upstream, KEPT).await;
    assert_eq!(send(gateway.address, &Request::new("GET", "/external")).await.status, 200);
    assert_eq!(deliver(&gateway, "/external", "a").await.status, 200);
    assert_eq!(outcome(&deliver(&gateway, "/external", "b").await), said(504, "outcome-unknown"));
    assert_eq!(upstream.requests(), [0, 1, 2]);
    assert_eq!(records_at(&database, "pending_external").await, 1);
}

#[tokio::test]
async fn an_external_call_has_a_connection_of_its_own_sqlite() {
    external_calls(Backend::Sqlite).await;
}

#[tokio::test]
async fn an_external_call_has_a_connection_of_its_own_postgres() {
    external_calls(Backend::Postgres).await;
}

#[tokio::test]
async fn an_external_call_has_a_connection_of_its_own_mariadb() {
    external_calls(Backend::MariaDb).await;
}
