//! On a route that is only watched an answer goes out as it comes, whatever it says of its length, and waits neither for the
//! upstream's timeouts nor for the ledger. Once nobody listens, the usual bounds hold.

use std::any::Any;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, MySqlConnection, PgConnection};
use testkit::http_client::{Request, Streaming, open, send};
use testkit::{Backend, Database};

use super::stepwise::{Answering, Stepwise};
use crate::case_crash::is_problem;
use crate::fixture::{Gateway, LIMIT, on_all, route, sql};

const SETTINGS: &str = "observe = true\nlease = \"60s\"\nupstream_timeout = \"300ms\"\nmax_execution = \"300ms\"\nconnect_timeout = \"100ms\"\n";
const SIZED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n";

fn request(key: &str) -> Request {
    Request::post("/s", "{\"n\":1}").key(key)
}

async fn start(backend: Backend) -> (Database, Stepwise, Gateway) {
    let database = Database::create(backend).await;
    let upstream = Stepwise::start(&database).await;
    let gateway = Gateway::start(&database, &route("s", "/s", &upstream.url(), "external", SETTINGS)).await;
    (database, upstream, gateway)
}

/// An answer of which one half has come.
async fn half(upstream: &mut Stepwise, gateway: &Gateway, key: &str) -> (Streaming, Answering) {
    let sent = request(key);
    let (answer, answering) = tokio::join!(open(gateway.address, &sent), async {
        let mut answering = upstream.next().await;
        answering.write(SIZED).await;
        answering.write("one, ").await;
        answering
    });
    let mut answer = answer.unwrap();
    assert_eq!(answer.next().await.unwrap().unwrap(), "one, ");
    (answer, answering)
}

/// The rest of it.
async fn rest(mut answer: Streaming) -> String {
    let mut rest = String::new();
    while let Some(piece) = answer.next().await {
        rest.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
    }
    rest
}

async fn nothing_is_kept_back(backend: Backend) {
    let (database, mut upstream, gateway) = start(backend).await;
    let (answer, mut answering) = half(&mut upstream, &gateway, "sized").await;
    // By the end of this one all the time of the first is over, too.
    let hanging = request("lost");
    let (lost, unanswered) = tokio::join!(send(gateway.address, &hanging), upstream.next());
    is_problem(&lost, 504, "outcome-unknown");
    drop(unanswered);
    answering.write("two").await;
    assert_eq!(rest(answer).await, "two");
    gateway.ended("sized").await;
    assert_eq!(sql::keys_at(database.sql(), backend, "completed").await, 1);
}

/// Until it is dropped nothing can be written to the ledger.
async fn lock(database: &Database) -> Box<dyn Any + Send> {
    match database.backend() {
        Backend::Sqlite => {
            let file: SqliteConnectOptions = database.url().parse().unwrap();
            let mut writer = file.busy_timeout(LIMIT).connect().await.unwrap();
            writer.execute("BEGIN IMMEDIATE").await.unwrap();
            Box::new(writer)
        }
        Backend::Postgres => {
            let mut other = PgConnection::connect(database.url()).await.unwrap();
            let lock = "BEGIN; LOCK TABLE onced.idempotency_keys IN ACCESS EXCLUSIVE MODE";
            other.execute(sqlx::raw_sql(lock)).await.unwrap();
            Box::new(other)
        }
        Backend::MariaDb => {
            let mut other = MySqlConnection::connect(database.url()).await.unwrap();
            other.execute("LOCK TABLES onced_idempotency_keys WRITE").await.unwrap();
            Box::new(other)
        }
    }
}

async fn the_end_does_not_wait(backend: Backend) {
    let (database, mut upstream, gateway) = start(backend).await;
    let sent = request("chunks");
    let (answer, mut answering) = tokio::join!(open(gateway.address, &sent), upstream.next_with_events());
    answering.chunk("data: 1\n\n").await;
    let locked = lock(&database).await;
    answering.end().await;
    assert_eq!(rest(answer.unwrap()).await, "data: 1\n\n");
    assert_eq!(gateway.process.stderr().all().iter().filter(|line| line.contains("\"phase\":\"ended\"")).count(), 0);
    drop(locked);
    gateway.ended("chunks").await;
    assert_eq!(sql::keys_at(database.sql(), backend, "completed").await, 1);
}

async fn nobody_listens(backend: Backend) {
    let (database, mut upstream, gateway) = start(backend).await;
    let (answer, answering) = half(&mut upstream, &gateway, "left").await;
    drop(answer);
    gateway.ended("left").await;
    drop(answering);
    assert_eq!(sql::keys_at(database.sql(), backend, "pending_external").await, 1);
}

on_all! {
    nothing_is_kept_back: an_observed_answer_goes_out_as_it_comes_sqlite, an_observed_answer_goes_out_as_it_comes_postgres, an_observed_answer_goes_out_as_it_comes_mariadb;
    the_end_does_not_wait: an_observed_end_does_not_wait_for_the_ledger_sqlite, an_observed_end_does_not_wait_for_the_ledger_postgres, an_observed_end_does_not_wait_for_the_ledger_mariadb;
    nobody_listens: an_observed_answer_ends_in_time_without_its_client_sqlite, an_observed_answer_ends_in_time_without_its_client_postgres, an_observed_answer_ends_in_time_without_its_client_mariadb;
}
