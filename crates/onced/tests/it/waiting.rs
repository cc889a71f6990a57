//! `begin_waiting`: a duplicate that finds an attempt running waits for its end, then begins afresh, and is logged once.
//! The tests see each question that a guard asks its store, and so know when it waits.

use std::sync::Arc;
use std::time::Duration;

use onced::guard::{Begun, Guard, Permit};
use onced::store::deliveries::LogDeliveries;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::key::Key;
use onced_core::record::StoredResponse;
use testkit::Database;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::bench::{Bench, LIMIT, Tested, delivery, executes, fresh_key, line, patient, request_of};
use crate::onlooked::{Onlooked, Onlooker, Statement};

/// Longer than any test waits: only an event ends this waiting.
const LONG: Duration = Duration::from_secs(3600);

/// Counts how often a record is looked at.
#[derive(Clone, Debug)]
struct Looks(Arc<watch::Sender<u32>>);

impl Onlooker for Looks {
    async fn before(&self, _: Statement) {}

    fn after_find(&self) {
        self.0.send_modify(|looks| *looks += 1);
    }
}

type Watched<S> = Onlooked<S, Looks>;

fn watched<S: Tested>(store: &S) -> Watched<S> {
    Onlooked { store: store.clone(), onlooker: Looks(Arc::new(watch::Sender::new(0))) }
}

impl<S: Tested> Watched<S> {
    /// Waits for that many more looks.
    async fn looked(&self, more: u32) {
        let mut looks = self.onlooker.0.subscribe();
        let wanted = *looks.borrow() + more;
        tokio::time::timeout(LIMIT, looks.wait_for(|looks| *looks >= wanted)).await.expect("it looks").unwrap();
    }
}

type Waiter<S> = JoinHandle<Begun<Permit<Watched<S>>>>;

/// A bench, and beside it a guard whose store is watched.
struct Waiting<S> {
    bench: Bench<S>,
    watched: Watched<S>,
    guard: Guard<Watched<S>>,
}

impl<S: Tested> Waiting<S> {
    async fn new() -> Self {
        let bench = Bench::<S>::on(Database::create(S::BACKEND).await, &patient(), LogDeliveries::All).await;
        let watched = watched(&bench.store);
        Self { guard: Guard::new(watched.clone(), LogDeliveries::All), watched, bench }
    }

    fn spawn(&self, request: onced::guard::Request, wait: Duration) -> Waiter<S> {
        let guard = self.guard.clone();
        tokio::spawn(async move { guard.begin_waiting(&request, wait).await.unwrap() })
    }

    /// A waiter that has seen the running attempt more than once.
    async fn waiter(&self, key: &Key) -> Waiter<S> {
        let waiter = self.spawn(delivery(key), LONG);
        self.watched.looked(3).await;
        assert!(!waiter.is_finished());
        waiter
    }

    /// The decisions in the log of deliveries, in the order in which they were received.
    async fn logged(&self, key: &Key) -> Vec<String> {
        self.guard.close().await;
        self.bench.guard.close().await;
        let sql =
            format!("SELECT decision FROM {{deliveries}} WHERE key = '{}' ORDER BY received_at, id", key.as_str());
        self.bench.rows(&sql).await.into_iter().flatten().collect()
    }
}

async fn ended<T>(task: JoinHandle<T>) -> T {
    tokio::time::timeout(LIMIT, task).await.expect("it ends").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_gets_the_outcome_of_the_running_attempt() {
    outcome::<SqliteStore>().await;
    outcome::<PgStore>().await;
    outcome::<MySqlStore>().await;
}

async fn outcome<S: Tested>() {
    let waiting = Waiting::<S>::new().await;
    let key = fresh_key();
    let permit = executes(waiting.bench.guard.begin(&delivery(&key)).await.unwrap());
    let waiter = waiting.waiter(&key).await;
    permit.complete(StoredResponse::bare(201)).await.unwrap();
    let Begun::Replay { response, about } = ended(waiter).await else { panic!("replays") };
    assert!(response.code == 201 && about.delivery.is_some());
    assert_eq!(waiting.logged(&key).await, ["execute", "replay"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_takes_over_what_the_other_has_left_behind() {
    takes_over::<SqliteStore>().await;
    takes_over::<PgStore>().await;
    takes_over::<MySqlStore>().await;
}

async fn takes_over<S: Tested>() {
    let waiting = Waiting::<S>::new().await;
    // Its lease is over; it has failed; it has given the key back.
    let (over, failed, released) = (fresh_key(), fresh_key(), fresh_key());
    let begin = async |key: &Key| executes(waiting.bench.guard.begin(&delivery(key)).await.unwrap());

    let dead = begin(&over).await;
    let waiter = waiting.waiter(&over).await;
    waiting.bench.let_the_lease_be_over(&over).await;
    assert_eq!(executes(ended(waiter).await).attempt(), 2);
    drop(dead);

    let permit = begin(&failed).await;
    let waiter = waiting.waiter(&failed).await;
    permit.fail("not this time", None).await.unwrap();
    assert_eq!(executes(ended(waiter).await).attempt(), 2);

    let permit = begin(&released).await;
    let waiter = waiting.waiter(&released).await;
    permit.release().await.unwrap();
    assert_eq!(executes(ended(waiter).await).attempt(), 1);

    for key in [over, failed, released] {
        assert_eq!(waiting.logged(&key).await, ["execute", "execute"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_waiters_one_takes_over() {
    one_takes_over::<SqliteStore>().await;
    one_takes_over::<PgStore>().await;
    one_takes_over::<MySqlStore>().await;
}

async fn one_takes_over<S: Tested>() {
    let waiting = Waiting::<S>::new().await;
    let key = fresh_key();
    let permit = executes(waiting.bench.guard.begin(&delivery(&key)).await.unwrap());
    let mut waiters = Vec::new();
    for _ in 0..8 {
        waiters.push(waiting.waiter(&key).await);
    }
    permit.fail("not this time", None).await.unwrap();
    // Whoever takes over ends the waiting of the others, which must not have ended before.
    let (first, _, others) = futures_util::future::select_all(waiters).await;
    executes(first.unwrap()).complete(StoredResponse::bare(200)).await.unwrap();
    for other in others {
        assert!(matches!(ended(other).await, Begun::Replay { .. }));
    }
    let replays = ["replay"; 7];
    let mut logged = waiting.logged(&key).await;
    logged.sort();
    assert_eq!(logged, [&["execute", "execute"][..], &replays].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_a_transaction_sees_what_it_commits() {
    of_a_transaction::<SqliteStore>().await;
    of_a_transaction::<PgStore>().await;
    of_a_transaction::<MySqlStore>().await;
}

/// While the other's transaction is open there is no record to be seen.
async fn of_a_transaction<S: Tested>() {
    let waiting = Waiting::<S>::new().await;
    // On SQLite an open transaction makes a claim wait; not for long here.
    let impatient = waiting.bench.beside("", &crate::bench::options()).await;
    let watched = watched(&impatient.store);
    let guard = Guard::new(watched.clone(), LogDeliveries::All);
    let key = fresh_key();
    let mut tx = onced::store::keys::Transactional::transaction(&waiting.bench.store).await.unwrap();
    let permit = executes(waiting.bench.guard.begin_tx(&mut tx, &delivery(&key)).await.unwrap());
    let request = delivery(&key);
    let waiter = tokio::spawn(async move { guard.begin_waiting(&request, LONG).await.unwrap() });
    watched.looked(2).await;
    permit.complete(&mut tx, StoredResponse::bare(202)).await.unwrap();
    tx.commit().await.unwrap();
    let Begun::Replay { response, .. } = ended(waiter).await else { panic!("replays") };
    assert_eq!(response.code, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_waiting_ends_with_its_time_or_with_its_client() {
    ends::<SqliteStore>().await;
    ends::<PgStore>().await;
    ends::<MySqlStore>().await;
}

async fn ends<S: Tested>() {
    let waiting = Waiting::<S>::new().await;
    let (timed, hung_up, dropped) = (fresh_key(), fresh_key(), fresh_key());
    let mut permits = Vec::new();
    for key in [&timed, &hung_up, &dropped] {
        permits.push(executes(waiting.bench.guard.begin(&delivery(key)).await.unwrap()));
    }

    for wait in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(60)] {
        let begun = ended(waiting.spawn(delivery(&timed), wait)).await;
        assert!(matches!(begun, Begun::InProgress { retry_after, .. } if !retry_after.is_zero()), "{begun:?}");
    }
    assert_eq!(waiting.logged(&timed).await, ["execute", "in-progress", "in-progress", "in-progress"]);

    let (hang_up, gone) = tokio::sync::oneshot::channel::<()>();
    let (guard, request) = (waiting.guard.clone(), delivery(&hung_up));
    let waiter = tokio::spawn(async move {
        let gone = async { drop(gone.await) };
        guard.begin_waiting_unless(&request, LONG, gone).await.unwrap()
    });
    waiting.watched.looked(3).await;
    drop(hang_up);
    assert!(matches!(ended(waiter).await, Begun::InProgress { .. }));
    assert_eq!(waiting.logged(&hung_up).await, ["execute", "in-progress"]);

    let waiter = waiting.waiter(&dropped).await;
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
    assert_eq!(waiting.logged(&dropped).await, ["execute"]);
    for permit in permits {
        permit.complete(StoredResponse::bare(200)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_in_progress_is_waited_for() {
    nothing_else::<SqliteStore>().await;
    nothing_else::<PgStore>().await;
    nothing_else::<MySqlStore>().await;
}

async fn nothing_else<S: Tested>() {
    let waiting = Waiting::<S>::new().await;
    let plant = async |name: &str| {
        let (key, line) = (fresh_key(), line(name));
        crate::plant::line(&waiting.bench, &line, &key).await;
        let begun = ended(waiting.spawn(request_of(&line, &key), LONG)).await;
        (begun, waiting.logged(&key).await)
    };
    let (begun, logged) = plant("in-progress-alive-foreign").await;
    assert!(matches!(begun, Begun::Mismatch { .. }), "{begun:?}");
    assert_eq!(logged, ["mismatch"]);
    let (begun, logged) = plant("pending-over-hold").await;
    assert!(matches!(begun, Begun::Unknown { .. }), "{begun:?}");
    assert_eq!(logged, ["unknown"]);
    let (begun, _) = plant("completed").await;
    assert!(matches!(begun, Begun::Replay { .. }), "{begun:?}");
    let (begun, _) = plant("none").await;
    assert!(matches!(begun, Begun::Execute(_)), "{begun:?}");
}
