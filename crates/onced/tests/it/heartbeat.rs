//! The heartbeat: a permit that lives keeps its lease, one that is dropped lets it run out, and its owner knows by its
//! own clock when it must not call out any more.

use std::time::Duration;

use onced::guard::{Begun, EndError, Pace, Permit, Request};
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::key::Key;
use onced_core::lease::Lease;
use onced_core::record::StoredResponse;

use crate::bench::{Bench, SCOPE, Tested, delivery, executes, fresh_key, of_backend, patient, until};

/// Short enough to be waited for, long enough for a machine that is busy with other tests.
const LEASE: Lease = Lease { length: Duration::from_secs(3), tick: Duration::from_millis(100) };
const PACE: Pace = Pace { heartbeat: Duration::from_millis(200), max_execution: Duration::from_secs(60) };

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_lives_keeps_its_lease_and_a_dropped_one_lets_it_run_out() {
    tokio::join!(
        lives_and_is_dropped::<SqliteStore>(),
        lives_and_is_dropped::<PgStore>(),
        lives_and_is_dropped::<MySqlStore>()
    );
}

async fn lives_and_is_dropped<S: Tested>() {
    let bench = Bench::<S>::with(&patient()).await;
    let key = fresh_key();
    let permit = begun(&bench, &short_lived(&key, PACE)).await;
    let first_end = lease_until(&bench, &key).await;
    until("the first lease is over", async || bench.now().await.as_micros() > first_end).await;
    let rival = bench.guard.begin(&short_lived(&key, PACE)).await.unwrap();
    let Begun::InProgress { retry_after, .. } = rival else { panic!("its owner lives: {rival:?}") };
    assert!(retry_after >= LEASE.tick && retry_after <= LEASE.length, "{retry_after:?}");
    assert!(permit.may_start_call());

    drop(permit);
    // Were it still renewed, its end would never be reached.
    until("the last lease is over", async || bench.now().await.as_micros() >= lease_until(&bench, &key).await).await;
    let next = begun(&bench, &short_lived(&key, PACE)).await;
    assert_eq!((next.attempt(), next.is_resumed()), (2, true));
    next.complete(StoredResponse::bare(201)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_no_more_once_max_execution_is_over() {
    tokio::join!(is_bounded::<SqliteStore>(), is_bounded::<PgStore>(), is_bounded::<MySqlStore>());
}

async fn is_bounded<S: Tested>() {
    let bench = Bench::<S>::with(&patient()).await;
    let key = fresh_key();
    let pace = Pace { max_execution: Duration::from_millis(1200), ..PACE };
    let permit = begun(&bench, &short_lived(&key, pace)).await;
    let first_end = lease_until(&bench, &key).await;
    until("the lease is over", async || bench.now().await.as_micros() >= lease_until(&bench, &key).await).await;
    assert!(lease_until(&bench, &key).await > first_end, "it was renewed at least once before");
    assert!(!permit.may_start_call());
    let next = begun(&bench, &short_lived(&key, PACE)).await;
    assert_eq!(next.attempt(), 2);
    let late = permit.complete(StoredResponse::bare(201)).await;
    assert!(matches!(late, Err(EndError::ClaimLost { .. })), "{late:?}");
    next.complete(StoredResponse::bare(201)).await.unwrap();
}

/// The store is frozen by a lock on the row, so no renewal comes back: no call may be started, long before the lease is
/// over for the others. Thawed, the owner goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_cannot_renew_starts_no_call_once_the_margin_is_gone() {
    tokio::join!(knows_its_margin::<SqliteStore>(), knows_its_margin::<PgStore>(), knows_its_margin::<MySqlStore>());
}

async fn knows_its_margin<S: Tested>() {
    let bench = Bench::<S>::with(&patient()).await;
    let key = fresh_key();
    let permit = begun(&bench, &short_lived(&key, PACE)).await;
    assert!(permit.may_start_call());
    let mut frozen = bench.another_store(&patient()).await.transaction().await.unwrap();
    let keys = of_backend(S::BACKEND, "{keys}");
    let touch = format!("UPDATE {keys} SET attempt = attempt WHERE scope = '{SCOPE}' AND key = '{}'", key.as_str());
    S::run(&mut frozen, &touch).await.unwrap();
    until("the margin is gone", async || !permit.may_start_call()).await;
    frozen.rollback().await.unwrap();
    until("a renewal comes through", async || permit.may_start_call()).await;
    permit.complete(StoredResponse::bare(201)).await.unwrap();
}

/// A heartbeat that finds its claim gone says so to its owner.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_whose_claim_was_lost_starts_no_call() {
    tokio::join!(notices_the_loss::<SqliteStore>(), notices_the_loss::<PgStore>(), notices_the_loss::<MySqlStore>());
}

async fn notices_the_loss<S: Tested>() {
    let bench = Bench::<S>::with(&patient()).await;
    let key = fresh_key();
    let pace = Pace { heartbeat: Duration::from_millis(20), ..PACE };
    let mut request = Request { pace, ..delivery(&key) };
    // A lease that outlasts the test: that it may not call has no other reason.
    request.policy.lease = Lease::new(Duration::from_secs(3600));
    let permit = begun(&bench, &request).await;
    assert!(permit.may_start_call());
    bench.alter(&key, "lease_token = 'another'").await;
    until("the loss is noticed", async || !permit.may_start_call()).await;
}

fn short_lived(key: &Key, pace: Pace) -> Request {
    let mut request = Request { pace, ..delivery(key) };
    request.policy.lease = LEASE;
    request
}

async fn begun<S: Tested>(bench: &Bench<S>, request: &Request) -> Permit<S> {
    executes(bench.guard.begin(request).await.unwrap())
}

async fn lease_until<S: Tested>(bench: &Bench<S>, key: &Key) -> i64 {
    bench.columns(key, "{micros}(lease_until)").await[0].parse().unwrap()
}
