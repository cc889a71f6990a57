//! Very many atomic operations at once, with rollbacks, panics and dropped futures among them: in the end there are as many
//! effects as keys, nothing is unfinished, and the pool is whole.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use onced::guard::Begun;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced::store::{StoreErrorKind, StoreOptions};
use onced_core::key::Key;
use onced_core::record::StoredResponse;
use testkit::random::{self, Random};

use crate::bench::{Bench, LIMIT, Tested, delivery, patient};

const TASKS: u64 = 32;
const CONNECTIONS: u32 = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn effects_equal_keys_whatever_is_rolled_back_panics_or_is_dropped_sqlite() {
    many::<SqliteStore>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn effects_equal_keys_whatever_is_rolled_back_panics_or_is_dropped_postgres() {
    many::<PgStore>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn effects_equal_keys_whatever_is_rolled_back_panics_or_is_dropped_mariadb() {
    many::<MySqlStore>().await;
}

/// How an operation ended.
#[derive(Default)]
struct Tally([AtomicU64; 6]);

#[derive(Clone, Copy, Debug)]
enum End {
    Committed,
    Replayed,
    InProgress,
    RolledBack,
    Panicked,
    Dropped,
}

async fn many<S: Tested>() {
    let (operations, keys) = if testkit::soaking() { (100_000, 1_000) } else { (4_000, 100) };
    let options = StoreOptions { max_connections: CONNECTIONS, ..patient() };
    let bench = Arc::new(Bench::<S>::with(&options).await);
    let random = Random::new(random::seed(S::NAME));
    let tally = Arc::new(Tally::default());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (bench, tally, mut random) = (bench.clone(), tally.clone(), random.fork(task));
            tokio::spawn(async move {
                for _ in 0..operations / TASKS {
                    let key = Key::new(&format!("many_{}", random.below(keys))).unwrap();
                    let end = one(&bench, key, &mut random).await;
                    tally.0[end as usize].fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let [committed, replayed, in_progress, rolled_back, panicked, dropped] =
        std::array::from_fn(|end| tally.0[end].load(Ordering::Relaxed));
    println!(
        "{}many on {}: {operations} operations from {TASKS} tasks on {keys} keys: {committed} committed, {replayed} \
         replayed, {in_progress} in progress, {rolled_back} rolled back, {panicked} panicked, {dropped} dropped",
        if testkit::soaking() { "SOAK: " } else { "" },
        S::NAME
    );
    assert!([committed, replayed, rolled_back, panicked, dropped].iter().all(|&count| count > 0), "a kind is missing");

    // A transaction whose future was dropped is rolled back when its connection is next used, or closed.
    for number in 0..keys {
        let key = Key::new(&format!("many_{number}")).unwrap();
        let finishes = async {
            while !matches!(order(&bench, key.clone(), None).await, End::Committed | End::Replayed) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, finishes).await.unwrap_or_else(|_| panic!("{key:?} cannot be had"));
    }
    assert_eq!(bench.count("SELECT count(*) FROM orders").await, keys as i64);
    assert_eq!(bench.count("SELECT count(DISTINCT key) FROM orders").await, keys as i64);
    assert_eq!(bench.count("SELECT count(*) FROM {keys}").await, keys as i64);
    assert_eq!(bench.count("SELECT count(*) FROM {keys} WHERE status = 'completed'").await, keys as i64);
    let whole = async {
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut tx = bench.store.plain_transaction().await;
            S::run(&mut tx, "SELECT 1").await.unwrap();
            all.push(tx);
        }
        for tx in all {
            tx.rollback().await.unwrap();
        }
    };
    tokio::time::timeout(LIMIT, whole).await.expect("the pool has lost connections");
}

/// One operation, in a task of its own.
async fn one<S: Tested>(bench: &Arc<Bench<S>>, key: Key, random: &mut Random) -> End {
    let (bench, fate) = (bench.clone(), random.below(10));
    let polls = random.below(40);
    let operation = async move { order(&bench, key, Some(fate)).await };
    // Some are dropped after so many polls, wherever they are then.
    let ended = match fate {
        0 | 1 => tokio::spawn(Polled { future: Box::pin(operation), left: polls }).await,
        _ => tokio::spawn(operation).await,
    };
    match ended {
        Ok(end) => end,
        Err(error) if error.is_panic() && fate == 2 => End::Panicked,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

async fn order<S: Tested>(bench: &Bench<S>, key: Key, fate: Option<u64>) -> End {
    let mut atomic = match bench.guard.begin_atomic(&delivery(&key), Duration::ZERO).await {
        Ok(Begun::Execute(atomic)) => atomic,
        Ok(Begun::Replay { .. }) => return End::Replayed,
        Ok(Begun::InProgress { .. }) => return End::InProgress,
        Ok(other) => panic!("came to {other:?}"),
        Err(error) => panic!("{error}"),
    };
    S::run(atomic.tx(), &format!("INSERT INTO orders (key) VALUES ('{}')", key.as_str())).await.unwrap();
    match fate {
        Some(2) => panic!("as the test wants it"),
        Some(3) => End::RolledBack,
        _ => match atomic.commit(StoredResponse::bare(201)).await {
            Ok(_) => End::Committed,
            Err(onced::guard::EndError::Store { source, .. }) if source.kind() == StoreErrorKind::Transient => {
                End::RolledBack
            }
            Err(error) => panic!("{error}"),
        },
    }
}

/// A future that is dropped after so many polls.
struct Polled<F> {
    future: Pin<Box<F>>,
    left: u64,
}

impl<F: Future<Output = End>> Future for Polled<F> {
    type Output = End;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        let Some(left) = self.left.checked_sub(1) else { return Poll::Ready(End::Dropped) };
        self.left = left;
        self.future.as_mut().poll(cx)
    }
}
