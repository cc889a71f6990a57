//! `onced serve` sweeps by itself, as often as `[sweep] every` says, and not where that is off.

use std::time::{Duration, Instant};

use onced_harness::{Recorder, RecorderOptions};
use testkit::http_client::{Request, send};
use testkit::{Backend, Database, Signal};

use super::{records, sweep};
use crate::fixture::{Gateway, LIMIT, route, sql};

const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

async fn start(database: &Database, upstream: &Recorder, sweep: &str) -> Gateway {
    let routes = route("orders", "/order", &upstream.url(), "external", "");
    Gateway::start(database, &format!("[sweep]\n{sweep}\n\n{routes}")).await
}

async fn gone(database: &Database) {
    let started = Instant::now();
    while records(database).await > 0 {
        assert!(started.elapsed() < LIMIT, "it is not swept");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn by_itself(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    let every = if testkit::soaking() { "1s" } else { "100ms" };
    let mut gateway = start(&database, &upstream, &format!("every = \"{every}\"\nkeep_deliveries = \"30days\"")).await;
    // It goes on from run to run.
    for round in 1_u32..=3 {
        let key = format!("k{round}");
        assert_eq!(send(gateway.address, &Request::post("/order", "{}").key(&key)).await.status, 200);
        sql::put_the_clock_ahead(database.sql(), backend, LONG * round).await;
        gone(&database).await;
    }
    gateway.process.wait_for_line(|line| line.contains("swept what had expired"), LIMIT).await;
    gateway.process.signal(Signal::Terminate);
    assert_eq!(gateway.process.wait(LIMIT).await.code(), Some(0), "it ends with the gateway");
}

#[tokio::test]
async fn a_gateway_sweeps_by_itself_sqlite() {
    by_itself(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_gateway_sweeps_by_itself_postgres() {
    by_itself(Backend::Postgres).await;
}

#[tokio::test]
async fn a_gateway_sweeps_by_itself_mariadb() {
    by_itself(Backend::MariaDb).await;
}

/// A ledger that cannot be swept does not end the schedule.
#[tokio::test]
async fn a_sweep_that_fails_is_tried_again() {
    let database = Database::create(Backend::Postgres).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    let every = if testkit::soaking() { "1s" } else { "100ms" };
    let gateway = start(&database, &upstream, &format!("every = \"{every}\"")).await;
    assert_eq!(send(gateway.address, &Request::post("/order", "{}").key("k1")).await.status, 200);
    database.sql().execute("ALTER TABLE onced.deliveries RENAME TO away").await;
    gateway.process.wait_for_line(|line| line.contains("sweeping failed"), LIMIT).await;
    database.sql().execute("ALTER TABLE onced.away RENAME TO deliveries").await;
    sql::put_the_clock_ahead(database.sql(), Backend::Postgres, LONG).await;
    gone(&database).await;
}

/// Two gateways and a person sweep one ledger at once: each row goes once, and nobody fails.
#[tokio::test]
async fn many_sweepers_get_along() {
    for backend in Backend::ALL {
        let database = Database::create(backend).await;
        let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
        let every = if testkit::soaking() { "1s" } else { "100ms" };
        let first = start(&database, &upstream, &format!("every = \"{every}\"")).await;
        let second = start(&database, &upstream, &format!("every = \"{every}\"")).await;
        for (number, gateway) in [&first, &second].into_iter().cycle().take(40).enumerate() {
            let answer = send(gateway.address, &Request::post("/order", "{}").key(&format!("k{number}"))).await;
            assert_eq!(answer.status, 200);
        }
        sql::put_the_clock_ahead(database.sql(), backend, LONG).await;
        let (one, two) = tokio::join!(sweep(&database, &["--batch", "1"]), sweep(&database, &["--batch", "3"]));
        assert!(one.contains("deleted") && two.contains("deleted"), "{one}\n{two}");
        gone(&database).await;
        for gateway in [&first, &second] {
            assert!(!gateway.process.stderr().all().iter().any(|line| line.contains("sweeping failed")));
            assert!(!gateway.process.stdout().all().iter().any(|line| line.contains("sweeping failed")));
        }
    }
}
