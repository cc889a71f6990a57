//! Keys that a guard has met before: a replay of one is a read, and every other answer comes from a claim as ever.
//! PostgreSQL alone: on SQLite reading comes first anyway.

use onced::guard::Begun;
use onced::store::keys::Transactional;
use onced::store::postgres::PgStore;
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
