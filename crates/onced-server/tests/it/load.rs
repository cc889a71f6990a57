//! A mixed load on one gateway for a while: ten minutes in `cargo xtask soak`, some seconds elsewhere. First deliveries,
//! replays, concurrent duplicates, mismatches, large bodies, upstreams that fail or lose their answer, clients that hang
//! up, and requests that only pass. In the end each key has one effect, by SQL; nothing is left unfinished; files are
//! closed, and memory has not grown.

mod clients;
mod process;
mod upstream;

use std::time::{Duration, Instant};

use testkit::{Backend, Database, SqlText};

use self::clients::Clients;
use self::process::{Measured, Watch};
use self::upstream::App;
use crate::fixture::LIMIT;
use crate::same_database_app::create_orders;
use testkit::random::{Random, seed};

const CLIENTS: usize = 8;
/// How many connections the gateway opens to its ledger at most.
const STORE_CONNECTIONS: usize = 4;
/// A connection of SQLite takes a file, its WAL, and once its index.
const FILES_EACH: usize = 3;

/// How long the load lasts.
fn length() -> Duration {
    if !testkit::soaking() {
        return Duration::from_secs(10);
    }
    let minutes = std::env::var("ONCED_LOAD_MINUTES").ok();
    let minutes = minutes.map_or(10, |text| text.parse().expect("ONCED_LOAD_MINUTES is a number"));
    Duration::from_secs(60 * minutes)
}

async fn mixed_load(backend: Backend, name: &str) {
    let length = length();
    let random = Random::new(seed(&format!("the load on {name}")));
    let database = Database::create(backend).await;
    create_orders(&database).await;
    database.sql().execute("CREATE TABLE effects (key TEXT NOT NULL)").await;
    let app = App::start(&database).await;
    let gateway = process::Gateway::start(&database, app.address, STORE_CONNECTIONS).await;
    let idle = gateway.files();
    let watch = Watch::start(&gateway, name, length);
    let clients = Clients::start(gateway.address, CLIENTS, &random);

    let started = Instant::now();
    while started.elapsed() < length {
        tokio::time::sleep(Duration::from_secs(1).min(length.saturating_sub(started.elapsed()))).await;
        watch.sample(&clients.words());
    }
    let (keys, words) = clients.end().await;
    let measured = watch.end();

    all_is_finished(&database).await;
    effects_are_keys(&database, &keys).await;
    let rows = rows(&database).await;
    let most = idle + STORE_CONNECTIONS * FILES_EACH;
    let files = gateway.files_fall_to(most).await;
    println!("SOAK: load on {name} for {length:?}: {words}; {} keys, {} effects; {rows}", keys.len(), keys.len());
    println!("SOAK: load on {name}: {measured}; {idle} files open before, {files} after");
    if testkit::soaking() {
        is_flat(&measured);
    }
}

/// Whether memory stays where it is. The first fifth of the time is the warm-up: caches, pools and the allocator take
/// what they need. From the second fifth on the load is the same, so the medians of the second and the last may differ
/// by chance alone; a fifth of the whole and 8 MiB is more than that, and less than ten minutes of any leak that matters
/// would make it.
fn is_flat(measured: &Measured) {
    let (early, late) = (measured.fifth(1), measured.fifth(4));
    assert!(late <= early + early / 5 + 8 * 1024, "memory grows: {early} KiB, then {late} KiB");
}

/// What a client gave up runs on; what it still ran into is over with its lease.
async fn all_is_finished(database: &Database) {
    let unfinished = SqlText::each(
        "SELECT count(*) FROM onced_idempotency_keys WHERE status <> 'completed'",
        "SELECT count(*) FROM onced.idempotency_keys WHERE status <> 'completed'",
        "SELECT count(*) FROM onced_idempotency_keys WHERE status <> 'completed'",
    );
    let started = Instant::now();
    while database.sql().count(unfinished).await > 0 {
        assert!(started.elapsed() < LIMIT, "records are left unfinished");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Each key that a client has sent has one effect, wherever its route writes it, and no other has any.
async fn effects_are_keys(database: &Database, keys: &[String]) {
    let written = "SELECT key FROM orders UNION ALL SELECT key FROM effects";
    let mut effects: Vec<String> =
        database.sql().text(written).await.into_iter().map(|mut row| row.remove(0)).collect();
    let mut keys = keys.to_vec();
    effects.sort();
    keys.sort();
    let twice: Vec<_> = effects.windows(2).filter(|two| two[0] == two[1]).map(|two| &two[0]).collect();
    assert!(twice.is_empty(), "more than one effect: {twice:?}");
    assert_eq!(effects.len(), keys.len(), "effects, and keys that were sent");
    assert!(effects == keys, "effects of other keys than were sent");
}

async fn rows(database: &Database) -> String {
    let keys = "SELECT (SELECT count(*) FROM onced_idempotency_keys), (SELECT count(*) FROM onced_deliveries)";
    let rows = database.sql().text(SqlText::each(keys, &keys.replace("onced_", "onced."), keys)).await;
    format!("{} records, {} deliveries in the ledger", rows[0][0], rows[0][1])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_load_sqlite() {
    mixed_load(Backend::Sqlite, "sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_load_postgres() {
    mixed_load(Backend::Postgres, "postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_load_mariadb() {
    mixed_load(Backend::MariaDb, "mariadb").await;
}
