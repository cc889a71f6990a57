//! SQLite: real situations that bring about the codes.

use onced::guard::Begun;
use onced::store::keys::Transactional as _;
use onced::store::sqlite::SqliteStore;
use onced::store::{StoreError, StoreOptions};
use testkit::Database;

use super::{Kind, Step, Times, Transient, Trouble, in_our_own_transaction, in_the_callers_transaction};
use crate::bench::{Bench, Tested as _, delivery, fresh_key, options, patient};

type Tx = <SqliteStore as onced::store::keys::Transactional>::Tx;

pub(super) async fn run(case: Transient) {
    let (bench, rival) = stores(case.kind).await;
    let (bench, rival) = (&bench, &rival);
    match case.kind {
        // Our own transactions begin with the write lock, so nobody can overtake them.
        Kind::Serialization => {
            in_the_callers_transaction(bench, case, &mut Overtaken { rival, case }, "517").await;
        }
        Kind::Deadlock | Kind::LockNotGot => {
            let code = if case.kind == Kind::Deadlock { "262" } else { "5" };
            in_the_callers_transaction(bench, case, &mut Locked { rival, case, held: None }, code).await;
            match case.step {
                Step::Claim => a_claim_is_answered_in_progress(bench, rival, case).await,
                Step::Complete => in_our_own(bench, rival, case, code).await,
            }
        }
    }
}

/// A bench and a rival's store on the same file; for the like of a deadlock both share one cache.
async fn stores(kind: Kind) -> (Bench<SqliteStore>, SqliteStore) {
    let bench = Bench::<SqliteStore>::on(
        Database::create(testkit::Backend::Sqlite).await,
        &options(),
        onced::store::deliveries::LogDeliveries::Off,
    )
    .await;
    let shared = if kind == Kind::Deadlock { "?cache=shared" } else { "" };
    let open = async |options: &StoreOptions| {
        SqliteStore::open_at(&format!("{}{shared}", bench.database.url()), options).await.unwrap()
    };
    let (store, rival) = (open(&options()).await, open(&patient()).await);
    let guard = onced::guard::Guard::new(store.clone(), onced::store::deliveries::LogDeliveries::Off);
    (Bench { database: bench.database, store, guard }, rival)
}

/// The caller has read, and another commits before it writes.
struct Overtaken<'s> {
    rival: &'s SqliteStore,
    case: Transient,
}

impl Trouble<SqliteStore> for Overtaken<'_> {
    async fn before_opening(&mut self, _: u64) {}

    async fn before_the_step(&mut self, number: u64) {
        if number == 1 || self.case.times == Times::Always {
            let mut tx = self.rival.transaction().await.unwrap();
            SqliteStore::run(&mut tx, "INSERT INTO orders (key) VALUES ('another')").await.unwrap();
            tx.commit().await.unwrap();
        }
    }

    async fn open(&self, bench: &Bench<SqliteStore>) -> Result<Tx, StoreError> {
        Ok(bench.store.plain_transaction().await)
    }
}

/// Another holds the write lock.
struct Locked<'s> {
    rival: &'s SqliteStore,
    case: Transient,
    held: Option<Tx>,
}

impl Trouble<SqliteStore> for Locked<'_> {
    async fn before_opening(&mut self, number: u64) {
        if number == 1 {
            self.held = Some(self.rival.transaction().await.unwrap());
        } else if self.case.times == Times::Once
            && let Some(held) = self.held.take()
        {
            held.rollback().await.unwrap();
        }
    }

    async fn before_the_step(&mut self, _: u64) {}

    async fn open(&self, bench: &Bench<SqliteStore>) -> Result<Tx, StoreError> {
        bench.store.transaction().await
    }
}

/// Our own claim takes a write lock that it does not get for what it is: a rival is at work. That is an answer, and
/// the next delivery executes.
async fn a_claim_is_answered_in_progress(bench: &Bench<SqliteStore>, rival: &SqliteStore, case: Transient) {
    let key = fresh_key();
    let held = rival.transaction().await.unwrap();
    let tries = if case.times == Times::Once { 1 } else { super::TRIES };
    for _ in 0..tries {
        let begun = bench.guard.begin(&delivery(&key)).await.unwrap();
        assert!(matches!(begun, Begun::InProgress { .. }), "{begun:?}");
    }
    assert!(bench.record(&key).await.is_empty());
    held.rollback().await.unwrap();
    let Begun::Execute(permit) = bench.guard.begin(&delivery(&key)).await.unwrap() else { panic!("the lock is free") };
    assert_eq!(permit.attempt(), 1);
}

async fn in_our_own(bench: &Bench<SqliteStore>, rival: &SqliteStore, case: Transient, code: &str) {
    let held = std::cell::RefCell::new(None);
    let hold = async || {
        let tx = rival.transaction().await.unwrap();
        held.replace(Some(tx));
    };
    let let_go = async || {
        if case.times == Times::Once {
            let tx: Option<Tx> = held.take();
            tx.unwrap().rollback().await.unwrap();
        }
    };
    in_our_own_transaction(bench, case, hold, let_go, code).await;
}
