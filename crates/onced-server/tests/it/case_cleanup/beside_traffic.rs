//! 25,001 expired keys go in one run in batches of 10,000, while a gateway goes on answering; what is unfinished, or
//! expires an hour later, stays.

use std::time::{Duration, Instant};

use onced_harness::{Recorder, RecorderOptions};
use testkit::http_client::{Request, send};
use testkit::process::Process;
use testkit::{Backend, Database, SqlText};

use super::{records, sweep};
use crate::fixture::{Gateway, LIMIT, route, sql};

/// Many finished keys that expired an hour ago, and one each of what must stay.
async fn plant(database: &Database, expired: u32) {
    let columns = "(scope, key, request_hash, hash_version, status, attempt, lease_token, lease_until, retry_window, \
                    created_at, updated_at, expires_at)";
    let stays = "('queued'), ('in_progress'), ('pending_external'), ('completed-later'), ('failed-later')";
    let sqlite = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {expired}), \
              rows (key, status, hours) AS ( \
                  SELECT 'old-' || i, CASE i % 2 WHEN 0 THEN 'completed' ELSE 'failed' END, -1 FROM n UNION ALL \
                  SELECT 'stays-' || column1, replace(column1, '-later', ''), \
                         CASE WHEN column1 LIKE '%-later' THEN 1 ELSE -1 END FROM (VALUES {stays})) \
         INSERT INTO onced_idempotency_keys {columns} \
         SELECT 'old', key, zeroblob(32), '1:all', status, 1, 'token', now, 3600000000, now, now, now + hours * 3600000000 \
           FROM rows, onced_clock"
    );
    let postgres = format!(
        "INSERT INTO onced.idempotency_keys {columns} \
         SELECT 'old', key, decode(repeat('00', 32), 'hex'), '1:all', status, 1, 'token', now, interval '1 hour', now, now, \
                now + hours * interval '1 hour' \
           FROM (SELECT 'old-' || i AS key, CASE i % 2 WHEN 0 THEN 'completed' ELSE 'failed' END AS status, -1 AS hours \
                   FROM generate_series(1, {expired}) i \
                  UNION ALL \
                 SELECT 'stays-' || kind, replace(kind, '-later', ''), CASE WHEN kind LIKE '%-later' THEN 1 ELSE -1 END \
                   FROM (VALUES {stays}) AS v (kind)) AS rows, \
                (SELECT onced.clock() AS now) AS t"
    );
    let mariadb = format!(
        "INSERT INTO onced_idempotency_keys {columns} \
         WITH rows_of AS ( \
             SELECT CONCAT('old-', seq) AS key, IF(seq % 2 = 0, 'completed', 'failed') AS status, -1 AS hours \
               FROM seq_1_to_{expired} \
             UNION ALL \
             SELECT CONCAT('stays-', kind), REPLACE(kind, '-later', ''), IF(kind LIKE '%-later', 1, -1) \
               FROM (WITH v (kind) AS (VALUES {stays}) SELECT kind FROM v) v) \
         SELECT 'old', key, UNHEX(REPEAT('00', 32)), '1:all', status, 1, 'token', now, 3600000000, now, now, \
                now + INTERVAL hours HOUR \
           FROM rows_of, onced_clock"
    );
    assert_eq!(database.sql().execute(SqlText::each(&sqlite, &postgres, &mariadb)).await, u64::from(expired) + 5);
}

async fn beside_traffic(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    let gateway = Gateway::start(&database, &route("orders", "/order", &upstream.url(), "external", "")).await;
    plant(&database, 25_001).await;
    let old = format!("SELECT count(*) FROM {} WHERE key LIKE 'old-%'", sql::table(backend));
    let dry = sweep(&database, &["--dry-run"]).await;
    assert!(dry.contains("25001 keys and 0 lines of deliveries would be deleted. Nothing was."), "{dry}");
    assert_eq!(records(&database).await, 25_006);

    let args = ["sweep", "--store", database.url(), "--batch", "10000"];
    let mut sweeping = Process::spawn(env!("CARGO_BIN_EXE_onced"), args, [("RUST_BACKTRACE", "0")]);
    // Until after its last batch.
    let started = Instant::now();
    let (mut sent, mut slowest) = (0_u32, Duration::ZERO);
    loop {
        let over = database.sql().count(&old).await == 0;
        let answer = send(gateway.address, &Request::post("/order", "{}").key(&format!("new-{sent}"))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        (sent, slowest) = (sent + 1, slowest.max(answer.took));
        if over {
            break;
        }
        assert!(started.elapsed() < LIMIT, "they are not swept: {:?}", sweeping.stderr().all());
    }
    let status = sweeping.wait(LIMIT).await;
    let said = sweeping.stdout().all().join("\n");
    assert_eq!((status.code(), sweeping.stderr().all().len()), (Some(0), 0), "{said}");
    assert!(said.starts_with("25001 keys and 0 lines of deliveries deleted, in 3 batches"), "{said}");
    println!("{backend:?}: {sent} requests meanwhile, the slowest took {slowest:?}; {said}");

    assert_eq!(upstream.count(), sent as usize);
    let stays = format!("SELECT key FROM {} WHERE scope = 'old' ORDER BY key", sql::table(backend));
    let left: Vec<String> = database.sql().text(&stays).await.into_iter().flatten().collect();
    let expected = ["completed-later", "failed-later", "in_progress", "pending_external", "queued"];
    assert_eq!(left, expected.map(|kind| format!("stays-{kind}")));
    assert_eq!(records(&database).await, 5 + i64::from(sent));
}

#[tokio::test]
async fn o_28_many_go_beside_traffic_sqlite() {
    beside_traffic(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_28_many_go_beside_traffic_postgres() {
    beside_traffic(Backend::Postgres).await;
}

#[tokio::test]
async fn o_28_many_go_beside_traffic_mariadb() {
    beside_traffic(Backend::MariaDb).await;
}

/// Many old lines of the log go, too; those of an unfinished key stay.
async fn old_lines(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    let gateway = Gateway::start(&database, &route("orders", "/order", &upstream.url(), "external", "")).await;
    assert_eq!(send(gateway.address, &Request::post("/order", "{}").key("done")).await.status, 200);
    assert_eq!(send(gateway.address, &Request::post("/order", "{}").key("runs")).await.status, 200);
    let unfinished = SqlText::each(
        "UPDATE onced_idempotency_keys SET status = 'in_progress', lease_until = 1 WHERE key = 'runs'",
        "UPDATE onced.idempotency_keys SET status = 'in_progress', lease_until = onced.clock() WHERE key = 'runs'",
        "UPDATE onced_idempotency_keys SET status = 'in_progress', lease_until = UTC_TIMESTAMP(6) WHERE key = 'runs'",
    );
    assert_eq!(database.sql().execute(unfinished).await, 1);
    sql::put_the_clock_ahead(database.sql(), backend, Duration::from_secs(5 * 24 * 3600)).await;
    let young = sweep(&database, &["--keep-deliveries", "6days"]).await;
    assert!(young.starts_with("0 keys and 0 lines"), "{young}");
    let old = sweep(&database, &["--keep-deliveries", "4days", "--dry-run"]).await;
    assert!(old.contains("0 keys and 1 line of deliveries would be deleted"), "{old}");
    let old = sweep(&database, &["--keep-deliveries", "4days"]).await;
    assert!(old.starts_with("0 keys and 1 line of deliveries deleted"), "{old}");
    let keys = SqlText::each(
        "SELECT key FROM onced_deliveries",
        "SELECT key FROM onced.deliveries",
        "SELECT key FROM onced_deliveries",
    );
    assert_eq!(database.sql().text(keys).await, [["runs"]]);
}

#[tokio::test]
async fn old_lines_of_finished_keys_go_sqlite() {
    old_lines(Backend::Sqlite).await;
}

#[tokio::test]
async fn old_lines_of_finished_keys_go_postgres() {
    old_lines(Backend::Postgres).await;
}

#[tokio::test]
async fn old_lines_of_finished_keys_go_mariadb() {
    old_lines(Backend::MariaDb).await;
}
