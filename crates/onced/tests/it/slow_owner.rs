//! O-05 at the level of the library: a slow owner wakes up after another has taken over. Whatever it does then changes
//! nothing, and it is told.

use std::time::Duration;

use bytes::Bytes;
use onced::guard::{Begun, EndError, Pace, Permit, Request};
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::key::Key;
use onced_core::record::{Status, StoredResponse};

use crate::bench::{Bench, Tested, delivery, executes, fresh_key, patient};

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_owners_endings_change_nothing_after_a_takeover() {
    all_endings::<SqliteStore>().await;
    all_endings::<PgStore>().await;
    all_endings::<MySqlStore>().await;
}

async fn all_endings<S: Tested>() {
    let bench = Bench::<S>::with(&patient()).await;
    for ending in ["complete", "complete with its order", "fail", "release", "external"] {
        for second_has_ended in [true, false] {
            let key = fresh_key();
            let slow = begin(&bench, &key).await;
            bench.let_the_lease_be_over(&key).await;
            let quick = begin(&bench, &key).await;
            assert_eq!((slow.attempt(), quick.attempt(), quick.is_resumed()), (1, 2, true));
            let running = if second_has_ended {
                order(&bench, &quick, &key).await.unwrap();
                None
            } else {
                Some(quick)
            };
            let before = bench.record(&key).await;
            let ended = end(&bench, slow, &key, ending).await;
            assert!(matches!(ended, Err(EndError::ClaimLost { attempt: 1, .. })), "{ending}: {ended:?}");
            assert_eq!(bench.record(&key).await, before, "{ending}");
            match running {
                None => assert_eq!(stored_body(&bench, &key).await, br#"{"by":2}"#[..], "{ending}"),
                Some(quick) => {
                    // The third request of the case.
                    let third = bench.guard.begin(&asleep(&key)).await.unwrap();
                    assert!(matches!(third, Begun::InProgress { .. }), "{ending}: {third:?}");
                    order(&bench, &quick, &key).await.unwrap();
                }
            }
            assert_eq!(bench.orders(&key).await, 1, "{ending}");
        }
    }
}

/// A rival that gives a record up ends the first owner's claim: it must not take the failure for its own doing.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_a_rival_gave_up_is_not_its_owners_any_more() {
    given_up::<SqliteStore>().await;
    given_up::<PgStore>().await;
    given_up::<MySqlStore>().await;
}

async fn given_up<S: Tested>() {
    let bench = Bench::<S>::with(&patient()).await;
    let key = fresh_key();
    let mut once = asleep(&key);
    once.policy.max_attempts = Some(1);
    let slow = executes(bench.guard.begin(&once).await.unwrap());
    bench.let_the_lease_be_over(&key).await;
    let rival = bench.guard.begin(&once).await.unwrap();
    assert!(matches!(rival, Begun::Exhausted { .. }), "{rival:?}");
    let standing = slow.own_record().standing().await.unwrap();
    assert_eq!((standing.status, standing.is_mine), (Some(Status::Failed), false));
    let ended = slow.complete(StoredResponse::bare(200)).await;
    assert!(matches!(ended, Err(EndError::ClaimLost { .. })), "{ended:?}");
}

/// Two freezes: the first claim is as foreign to the third as to the second.
#[tokio::test(flavor = "multi_thread")]
async fn three_claims_of_one_key_never_write_for_each_other() {
    three_claims::<SqliteStore>().await;
    three_claims::<PgStore>().await;
    three_claims::<MySqlStore>().await;
}

async fn three_claims<S: Tested>() {
    let bench = Bench::<S>::with(&patient()).await;
    let key = fresh_key();
    let first = begin(&bench, &key).await;
    bench.let_the_lease_be_over(&key).await;
    let second = begin(&bench, &key).await;
    bench.let_the_lease_be_over(&key).await;
    let third = begin(&bench, &key).await;
    assert_eq!([first.attempt(), second.attempt(), third.attempt()], [1, 2, 3]);
    let tokens = [&first, &second, &third].map(|permit| permit.lease_token().as_str().to_owned());
    assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2] && tokens[0] != tokens[2]);
    let downstream = [&first, &second, &third].map(|permit| permit.downstream_key().to_owned());
    assert!(downstream.iter().all(|key| *key == downstream[0]), "one downstream key for all attempts");

    let before = bench.record(&key).await;
    for late in [&first, &second] {
        let ended = order(&bench, late, &key).await;
        assert!(matches!(ended, Err(EndError::ClaimLost { .. })), "{ended:?}");
        assert_eq!((bench.record(&key).await, bench.orders(&key).await), (before.clone(), 0));
    }
    order(&bench, &third, &key).await.unwrap();
    assert_eq!(stored_body(&bench, &key).await, br#"{"by":3}"#[..]);
    let late = first.fail("too late", None).await;
    assert!(matches!(late, Err(EndError::ClaimLost { .. })), "{late:?}");
    assert_eq!(bench.columns(&key, "status, attempt").await, ["completed", "3"]);
    assert_eq!(bench.orders(&key).await, 1);
}

/// Its heartbeat is frozen: it never comes.
fn asleep(key: &Key) -> Request {
    let hours = Duration::from_secs(24 * 3600);
    Request { pace: Pace { heartbeat: hours, max_execution: hours }, ..delivery(key) }
}

async fn begin<S: Tested>(bench: &Bench<S>, key: &Key) -> Permit<S> {
    executes(bench.guard.begin(&asleep(key)).await.unwrap())
}

fn response(attempt: u32) -> StoredResponse {
    StoredResponse { body: Some(Bytes::from(format!("{{\"by\":{attempt}}}"))), ..StoredResponse::bare(201) }
}

/// The order and the outcome in one transaction, as a leased owner writes them.
async fn order<S: Tested>(bench: &Bench<S>, permit: &Permit<S>, key: &Key) -> Result<(), EndError> {
    let mut tx = bench.store.transaction().await.unwrap();
    S::run(&mut tx, &format!("INSERT INTO orders (key) VALUES ('{}')", key.as_str())).await.unwrap();
    permit.complete_tx(&mut tx, response(permit.attempt())).await?;
    tx.commit().await.unwrap();
    Ok(())
}

async fn end<S: Tested>(bench: &Bench<S>, mut permit: Permit<S>, key: &Key, ending: &str) -> Result<(), EndError> {
    match ending {
        "complete" => permit.complete(response(1)).await.map(drop),
        "complete with its order" => order(bench, &permit, key).await,
        "fail" => permit.fail("woke up late", Some(response(1))).await,
        "release" => permit.release().await,
        _ => permit.external().await,
    }
}

async fn stored_body<S: Tested>(bench: &Bench<S>, key: &Key) -> Bytes {
    let begun = bench.guard.begin(&delivery(key)).await.unwrap();
    let Begun::Replay { response, .. } = begun else { panic!("it is completed: {begun:?}") };
    response.body.unwrap()
}
