//! What a ledger says about itself, against what was planted.

use std::time::Duration;

use onced::store::health::{Backends, Health as _, Settings};
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::record::{Record, Status};
use testkit::{Backend, Database};

use crate::bench::{Bench, SCOPE, Tested, fresh_key, line, options};
use crate::plant;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_and_grows_is_counted() {
    counts::<SqliteStore>().await;
    counts::<PgStore>().await;
    counts::<MySqlStore>().await;
}

async fn counts<S: Tested>() {
    let bench = Bench::<S>::new().await;
    let mut store = bench.store.clone();
    let growth = store.growth().await.unwrap();
    assert_eq!((growth.keys, growth.keys_of_a_day, growth.deliveries, growth.kept), (0, 0, 0, Duration::ZERO));
    assert_eq!((store.unfinished().await.unwrap().len(), store.overdue().await.unwrap().count), (0, 0));

    let now = bench.now().await;
    bench.stop_the_clock_at(now).await;
    for (name, held) in [
        ("completed", false),
        ("completed-expired", false),
        ("failed-expired", false),
        ("queued", false),
        ("in-progress-alive", false),
        ("in-progress-over", false),
        ("pending-over-hold", false),
        ("pending-over-hold", true),
    ] {
        let record = line(name).found(now).record.unwrap();
        let expired = name.ends_with("expired").then(|| now.minus(HOUR * 2));
        let record = Record {
            created_at: now.minus(HOUR * if held { 30 } else { 3 }),
            expires_at: expired.or(Some(now.plus(HOUR * 5))),
            held_at: held.then_some(now),
            ..record
        };
        plant::record(&bench, SCOPE, &fresh_key(), &record).await;
    }
    let unfinished = store.unfinished().await.unwrap();
    let rows: Vec<_> =
        unfinished.iter().map(|row| (row.status, row.lease_over, row.count, row.held, row.oldest)).collect();
    assert_eq!(
        rows,
        [
            (Status::InProgress, false, 1, 0, HOUR * 3),
            (Status::InProgress, true, 1, 0, HOUR * 3),
            (Status::PendingExternal, true, 2, 1, HOUR * 30),
            (Status::Queued, true, 1, 0, HOUR * 3),
        ]
    );
    let overdue = store.overdue().await.unwrap();
    assert_eq!((overdue.count, overdue.longest), (2, HOUR * 2));
    let growth = store.growth().await.unwrap();
    assert_eq!((growth.keys, growth.keys_of_a_day), (8, 7));
    // Five of them are kept for eight hours, two for one.
    assert_eq!(growth.kept.as_secs(), (5 * 8 + 2) * 3600 / 7);
    assert!(growth.total_bytes > 8192, "{growth:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_and_versions_are_read() {
    let bench = Bench::<PgStore>::new().await;
    let mut store = bench.store.clone();
    let Settings::Postgres(settings) = store.settings().await.unwrap() else { panic!("it is PostgreSQL") };
    assert_eq!((settings.synchronous_commit.as_str(), settings.full_page_writes.as_str()), ("on", "on"));
    assert!(settings.version_number >= 120_000 && settings.used_connections >= 1, "{settings:?}");
    assert!(!settings.in_recovery && !settings.read_only);
    let Some(backends) = store.backends().await.unwrap() else { panic!("there is a server") };
    let Backends { first, second, first_meanwhile, first_afterwards } = backends;
    assert!(first == first_meanwhile && first == first_afterwards && first != second, "{backends:?}");

    let bench = Bench::<MySqlStore>::new().await;
    let mut store = bench.store.clone();
    let Settings::MariaDb(settings) = store.settings().await.unwrap() else { panic!("it is MariaDB") };
    assert!(settings.version.contains("MariaDB") && settings.release() >= (10, 6), "{settings:?}");
    assert_eq!((settings.flush_log_at_commit, settings.doublewrite, settings.read_only), (1, true, false));
    assert!(settings.max_connections == 300 && settings.used_connections >= 1, "{settings:?}");
    assert_eq!(store.backends().await.unwrap(), None);

    let bench = Bench::<SqliteStore>::new().await;
    let mut store = bench.store.clone();
    let Settings::Sqlite(settings) = store.settings().await.unwrap() else { panic!("it is SQLite") };
    assert_eq!((settings.journal_mode.as_str(), settings.synchronous), ("wal", 2));
    assert!(settings.has_wal_reset_fix && settings.not_writable.is_none());
    assert_eq!(settings.file, bench.database.folder().unwrap().canonicalize().unwrap().join("test.db"));
    assert_eq!(store.backends().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_is_there_or_not_or_somebody_elses() {
    schemas::<SqliteStore>().await;
    schemas::<PgStore>().await;
    schemas::<MySqlStore>().await;
}

async fn schemas<S: Tested>() {
    let database = Database::create(S::BACKEND).await;
    let mut store = S::open_at(database.url(), &options()).await.unwrap();
    let version = store.schema_version().await.unwrap();
    assert_eq!((version.found, version.foreign), (None, false));
    store.bring_up_to_date().await.unwrap();
    let version = store.schema_version().await.unwrap();
    assert_eq!((version.found, version.foreign), (Some(version.known), false));

    let foreign = Database::create(S::BACKEND).await;
    let tables = match S::BACKEND {
        Backend::Sqlite | Backend::MariaDb => "CREATE TABLE onced_idempotency_keys (id integer)",
        Backend::Postgres => "CREATE SCHEMA onced; CREATE TABLE onced.idempotency_keys (id integer)",
    };
    foreign.sql().execute(tables).await;
    let version = S::open_at(foreign.url(), &options()).await.unwrap().schema_version().await.unwrap();
    assert_eq!((version.found, version.foreign), (None, true));
}
