//! Keys that a guard has met before: a replay of one is a read, or none where the guard keeps outcomes, and every other
//! answer comes from a claim as ever. What a read saves is shown on PostgreSQL, where a lock can keep claims
//! out and let reads in.

use onced::guard::{Begun, Guard};
use onced::store::StoreOptions;
use onced::store::deliveries::LogDeliveries;
use onced::store::keys::{Keys, Transactional};
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::fingerprint::{BodyRecipe, Fingerprint, RequestParts};
use onced_core::record::StoredResponse;

use crate::bench::{Bench, SCOPE, Tested, delivery, executes, fresh_key, line, request_of};
use crate::plant;

/// A lock of the table that lets everybody read, and nobody claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_a_known_key_takes_no_claim() {
    let bench = Bench::<PgStore>::new().await;
    let key = fresh_key();
    let permit = executes(bench.guard.begin(&delivery(&key)).await.unwrap());
    permit.complete(StoredResponse::bare(201)).await.unwrap();
    let mut lock = bench.store.transaction().await.unwrap();
    PgStore::run(&mut lock, "LOCK TABLE onced.idempotency_keys IN SHARE ROW EXCLUSIVE MODE").await.unwrap();
    let begun = bench.guard.begin(&delivery(&key)).await.unwrap();
    assert!(matches!(begun, Begun::Replay { response, .. } if response.code == 201));
    let mut foreign = delivery(&key);
    foreign.fingerprint = Fingerprint::new(RequestParts::default(), BodyRecipe::All);
    let begun = bench.guard.begin(&foreign).await.unwrap();
    assert!(matches!(begun, Begun::Mismatch { .. }), "{begun:?}");
    lock.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_key_that_is_gone_executes_anew() {
    let bench = Bench::<PgStore>::new().await;
    let key = fresh_key();
    let permit = executes(bench.guard.begin(&delivery(&key)).await.unwrap());
    permit.complete(StoredResponse::bare(201)).await.unwrap();
    bench.execute(&format!("DELETE FROM {{keys}} WHERE key = '{}'", key.as_str())).await;
    assert_eq!(executes(bench.guard.begin(&delivery(&key)).await.unwrap()).attempt(), 1);
}

/// A rival with the claim lock may be about to write the outcome: "unknown" must not be said of what it has taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_known_key_under_a_rivals_lock_is_in_progress() {
    let bench = Bench::<PgStore>::new().await;
    let (key, line) = (fresh_key(), line("pending-over-hold"));
    plant::line(&bench, &line, &key).await;
    let request = request_of(&line, &key);
    assert!(matches!(bench.guard.begin(&request).await.unwrap(), Begun::Unknown { .. }));
    let mut rival = bench.store.transaction().await.unwrap();
    let lock = format!("SELECT pg_advisory_xact_lock(onced.lock_id('{SCOPE}', '{}'))", key.as_str());
    PgStore::run(&mut rival, &lock).await.unwrap();
    let begun = bench.guard.begin(&request).await.unwrap();
    assert!(matches!(begun, Begun::InProgress { .. }), "{begun:?}");
    rival.rollback().await.unwrap();
    assert!(matches!(bench.guard.begin(&request).await.unwrap(), Begun::Unknown { .. }));
}

async fn a_kept_outcome_is_replayed_from_memory<S: Tested>() {
    let mut bench = Bench::<S>::new().await;
    let (plain, key) = (bench.guard.clone(), fresh_key());
    // Each connection that is opened ends the memory of what was read before: there is one, from the start on.
    let store = bench.another_store(&StoreOptions { max_connections: 1, ..StoreOptions::default() }).await;
    bench.guard = Guard::new(store, LogDeliveries::Off).keeping_outcomes(1 << 20);
    let permit = executes(bench.guard.begin(&delivery(&key)).await.unwrap());
    permit.complete(StoredResponse::bare(201)).await.unwrap();
    let replays = async |what: &str| {
        let begun = bench.guard.begin(&delivery(&key)).await.unwrap();
        assert!(matches!(&begun, Begun::Replay { response, .. } if response.code == 201), "{what}: {begun:?}");
    };
    replays("from the record").await;
    let mut foreign = delivery(&key);
    foreign.fingerprint = Fingerprint::new(RequestParts::default(), BodyRecipe::All);
    let begun = bench.guard.begin(&foreign).await.unwrap();
    assert!(matches!(begun, Begun::Mismatch { .. }), "{begun:?}");
    bench.execute(&format!("DELETE FROM {{keys}} WHERE key = '{}'", key.as_str())).await;
    replays("from memory").await;
    assert_eq!(executes(plain.begin(&delivery(&key)).await.unwrap()).attempt(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_outcome_is_replayed_from_memory_on_sqlite() {
    a_kept_outcome_is_replayed_from_memory::<SqliteStore>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_outcome_is_replayed_from_memory_on_postgres() {
    a_kept_outcome_is_replayed_from_memory::<PgStore>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_outcome_is_replayed_from_memory_on_mariadb() {
    a_kept_outcome_is_replayed_from_memory::<MySqlStore>().await;
}

/// The server behind a new connection may be another one, and not have the record.
#[tokio::test(flavor = "multi_thread")]
async fn outcomes_are_forgotten_once_a_connection_is_opened() {
    let bench = Bench::<PgStore>::new().await;
    let (guard, key) = (bench.guard.clone().keeping_outcomes(1 << 20), fresh_key());
    let permit = executes(guard.begin(&delivery(&key)).await.unwrap());
    permit.complete(StoredResponse::bare(201)).await.unwrap();
    let begun = guard.begin(&delivery(&key)).await.unwrap();
    assert!(matches!(begun, Begun::Replay { .. }), "{begun:?}");
    bench.execute(&format!("DELETE FROM {{keys}} WHERE key = '{}'", key.as_str())).await;
    let mut held = Vec::new();
    let epoch = bench.store.epoch();
    while bench.store.epoch() == epoch {
        held.push(bench.store.transaction().await.unwrap());
    }
    drop(held);
    assert_eq!(executes(guard.begin(&delivery(&key)).await.unwrap()).attempt(), 1);
}

/// The server behind a new connection may be another one: the store says so on MariaDB too.
#[tokio::test(flavor = "multi_thread")]
async fn a_mariadb_store_knows_who_opened_a_connection() {
    let bench = Bench::<MySqlStore>::new().await;
    let epoch = bench.store.epoch();
    let mut held = Vec::new();
    while bench.store.epoch() == epoch {
        held.push(bench.store.transaction().await.unwrap());
    }
    assert!(!held.is_empty());
}

/// A ledger that refuses every claim may still say what has been; a key that it does not hold is nobody's to execute.
async fn a_finished_key_is_replayed_where_no_claim_is_taken<S: Tested>(refuse: &[&str]) {
    let bench = Bench::<S>::new().await;
    let key = fresh_key();
    let permit = executes(bench.guard.begin(&delivery(&key)).await.unwrap());
    permit.complete(StoredResponse::bare(201)).await.unwrap();
    for statement in refuse {
        bench.execute(statement).await;
    }
    let stranger = Guard::new(bench.store.clone(), LogDeliveries::Off);
    let begun = stranger.begin(&delivery(&key)).await.unwrap();
    assert!(matches!(&begun, Begun::Replay { response, .. } if response.code == 201), "{begun:?}");
    let mut foreign = delivery(&key);
    foreign.fingerprint = Fingerprint::new(RequestParts::default(), BodyRecipe::All);
    let stranger = Guard::new(bench.store.clone(), LogDeliveries::Off);
    let begun = stranger.begin(&foreign).await.unwrap();
    assert!(matches!(begun, Begun::Mismatch { .. }), "{begun:?}");
    assert!(stranger.begin(&delivery(&fresh_key())).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_key_is_replayed_where_no_claim_is_taken_on_sqlite() {
    let refuse = "CREATE TRIGGER shut BEFORE INSERT ON onced_idempotency_keys BEGIN SELECT RAISE(ABORT, 'shut'); END";
    a_finished_key_is_replayed_where_no_claim_is_taken::<SqliteStore>(&[refuse]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_key_is_replayed_where_no_claim_is_taken_on_postgres() {
    let refuse = [
        "CREATE FUNCTION shut() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''shut''; END'",
        "CREATE TRIGGER shut BEFORE INSERT ON onced.idempotency_keys EXECUTE FUNCTION shut()",
    ];
    a_finished_key_is_replayed_where_no_claim_is_taken::<PgStore>(&refuse).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_key_is_replayed_where_no_claim_is_taken_on_mariadb() {
    let refuse = "CREATE TRIGGER shut BEFORE INSERT ON onced_idempotency_keys FOR EACH ROW \
                  SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'shut'";
    a_finished_key_is_replayed_where_no_claim_is_taken::<MySqlStore>(&[refuse]).await;
}

/// What a standby holds may be behind, or be what the new primary never got: it is not asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_replays_nothing() {
    let bench = Bench::<PgStore>::new().await;
    let key = fresh_key();
    executes(bench.guard.begin(&delivery(&key)).await.unwrap()).complete(StoredResponse::bare(201)).await.unwrap();
    // One connection, so that it can be told what it is; `known` has met the key on it.
    let one = bench.another_store(&StoreOptions { max_connections: 1, ..StoreOptions::default() }).await;
    let guard = || Guard::new(one.clone(), LogDeliveries::Off);
    let (known, refused, stranger) = (guard(), guard(), guard());
    assert!(matches!(known.begin(&delivery(&key)).await.unwrap(), Begun::Replay { .. }));
    bench.execute("CREATE SCHEMA standby").await;
    bench.execute("CREATE FUNCTION standby.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'").await;
    let is_refused = async |guard: &Guard<PgStore>| {
        let error = guard.begin(&delivery(&key)).await.unwrap_err();
        assert!(error.to_string().contains("read-only"), "{error}");
    };
    // A primary that was: it is no standby, and takes no claims.
    sqlx::query("SET default_transaction_read_only = on").execute(one.pool()).await.unwrap();
    is_refused(&refused).await;
    sqlx::query("SET search_path = standby, pg_catalog").execute(one.pool()).await.unwrap();
    for guard in [known, stranger] {
        is_refused(&guard).await;
    }
}
