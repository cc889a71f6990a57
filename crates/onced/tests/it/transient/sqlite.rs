//! SQLite: real situations that bring about the codes.

use onced::guard::Begun;
use onced::store::StoreError;

use super::{Kind, Step, Times, Transient, Trouble, in_our_own_transaction, in_the_callers_transaction};
use crate::bench::{Bench, Tested, delivery, fresh_key, options, patient};

pub(super) async fn run<S: Tested>(bench: &Bench<S>, case: Transient) {
    // For the like of a deadlock both share one cache.
    let shared = if case.kind == Kind::Deadlock { "?cache=shared" } else { "" };
    let (bench, rival) = (&bench.beside(shared, &options()).await, &bench.beside(shared, &patient()).await.store);
    match case.kind {
        // Our own transactions begin with the write lock, so nobody can overtake them.
        Kind::Serialization => {
            in_the_callers_transaction(bench, case, &mut Overtaken { rival, case }, "517").await;
        }
        Kind::Deadlock | Kind::LockNotGot => {
            let code = if case.kind == Kind::Deadlock { "262" } else { "5" };
            let mut locked = Locked { rival, case, held: None };
            in_the_callers_transaction(bench, case, &mut locked, code).await;
            if let Some(held) = locked.held.take() {
                held.rollback().await.unwrap();
            }
            match case.step {
                Step::Claim => a_claim_is_answered_in_progress(bench, rival, case).await,
                Step::Complete => in_our_own(bench, rival, case, code).await,
            }
        }
    }
}

/// The caller has read, and another commits before it writes.
struct Overtaken<'s, S> {
    rival: &'s S,
    case: Transient,
}

impl<S: Tested> Trouble<S> for Overtaken<'_, S> {
    async fn before_opening(&mut self, _: u64) {}

    async fn before_the_step(&mut self, number: u64) {
        if number == 1 || self.case.times == Times::Always {
            let mut tx = self.rival.transaction().await.unwrap();
            S::run(&mut tx, "INSERT INTO orders (key) VALUES ('another')").await.unwrap();
            tx.commit().await.unwrap();
        }
    }

    async fn open(&self, bench: &Bench<S>) -> Result<S::Tx, StoreError> {
        Ok(bench.store.plain_transaction().await)
    }
}

/// Another holds the write lock.
struct Locked<'s, S: Tested> {
    rival: &'s S,
    case: Transient,
    held: Option<S::Tx>,
}

impl<S: Tested> Trouble<S> for Locked<'_, S> {
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

    async fn open(&self, bench: &Bench<S>) -> Result<S::Tx, StoreError> {
        bench.store.transaction().await
    }
}

/// Our own claim takes a write lock that it does not get for what it is: a rival is at work. That is an answer, and
/// the next delivery executes.
async fn a_claim_is_answered_in_progress<S: Tested>(bench: &Bench<S>, rival: &S, case: Transient) {
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

async fn in_our_own<S: Tested>(bench: &Bench<S>, rival: &S, case: Transient, code: &str) {
    let held = std::cell::RefCell::new(None);
    let hold = async || {
        let tx = rival.transaction().await.unwrap();
        held.replace(Some(tx));
    };
    let let_go = async || {
        if case.times == Times::Once {
            let tx: Option<S::Tx> = held.take();
            tx.unwrap().rollback().await.unwrap();
        }
    };
    in_our_own_transaction(bench, case, hold, let_go, code).await;
}
