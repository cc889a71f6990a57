//! Errors that pass, at the claim and at the completion, once and always: once, the work is done with one effect;
//! always, the error comes out as transient after a bounded number of tries, and nothing has changed.
//!
//! PostgreSQL and MariaDB raise their codes from planted triggers. SQLite raises nothing on demand, so the like of each is brought
//! about: for a serialization failure, a transaction that has read and is overtaken by another's commit
//! (`SQLITE_BUSY_SNAPSHOT`); for a deadlock, a connection that shares its cache with a writer (`SQLITE_LOCKED`, which
//! no waiting mends); for a lock not got in time, a held write lock (`SQLITE_BUSY`).

mod locked_table;
mod mariadb;
mod postgres;
mod sqlite;
mod tries;

use onced::guard::{Begun, EndError, GuardError, Permit, Tries, TxPermit};
use onced::store::StoreError;
use onced_core::key::Key;
use onced_core::record::StoredResponse;
use testkit::Backend;

use self::tries::counting;
use crate::bench::{Bench, Tested, delivery, executes, fresh_key};

/// Which error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Serialization,
    Deadlock,
    LockNotGot,
}

/// What it hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Claim,
    Complete,
}

/// How often it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    Once,
    Always,
}

/// How often a transaction is tried before its error comes out.
const TRIES: u64 = 5;

/// One case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transient {
    pub(crate) kind: Kind,
    pub(crate) step: Step,
    pub(crate) times: Times,
}

impl Transient {
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for kind in [Kind::Serialization, Kind::Deadlock, Kind::LockNotGot] {
            for step in [Step::Claim, Step::Complete] {
                all.extend([Times::Once, Times::Always].map(|times| Self { kind, step, times }));
            }
        }
        all
    }

    pub(crate) fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Serialization => "serialization failure",
            Kind::Deadlock => "deadlock",
            Kind::LockNotGot => "lock not got in time",
        };
        let step = if self.step == Step::Claim { "claim" } else { "complete" };
        let times = if self.times == Times::Once { "once" } else { "always" };
        format!("{kind} | {step} | {times}")
    }

    pub(crate) async fn run<S: Tested>(&self, bench: &Bench<S>) {
        match S::BACKEND {
            Backend::Postgres => postgres::run(bench, *self).await,
            Backend::Sqlite => sqlite::run(bench, *self).await,
            Backend::MariaDb => mariadb::run(bench, *self).await,
        }
    }
}

/// Plants the case's error alone; what is done meanwhile is the test's own. Not on SQLite, which raises nothing on demand.
pub(crate) async fn plant<S: Tested>(bench: &Bench<S>, case: Transient) {
    match S::BACKEND {
        Backend::Postgres => postgres::plant(bench, case).await,
        Backend::MariaDb => mariadb::plant(bench, case).await,
        Backend::Sqlite => unreachable!("there is no trigger that raises a code"),
    }
}

/// Takes it away, having checked that the statement came to it as often as the case says.
pub(crate) async fn clear<S: Tested>(bench: &Bench<S>, case: Transient) {
    match S::BACKEND {
        Backend::Postgres => postgres::clear(bench, case).await,
        Backend::MariaDb => mariadb::clear(bench, case).await,
        Backend::Sqlite => unreachable!("nothing is planted"),
    }
}

/// Brings an error about around a caller's transaction. `number` counts the tries from 1.
trait Trouble<S: Tested> {
    /// Before the transaction is opened.
    async fn before_opening(&mut self, number: u64);
    /// Right before the step that is to be hit.
    async fn before_the_step(&mut self, number: u64);
    /// Opens the caller's transaction.
    async fn open(&self, bench: &Bench<S>) -> Result<S::Tx, StoreError>;
}

/// What a caller does: everything in one transaction, run again as a whole while the error is transient.
async fn in_the_callers_transaction<S: Tested>(
    bench: &Bench<S>,
    case: Transient,
    trouble: &mut impl Trouble<S>,
    code: &str,
) {
    let key = fresh_key();
    let permit = match case.step {
        Step::Claim => None,
        Step::Complete => Some(begun(bench, &key).await),
    };
    let before = bench.record(&key).await;
    let (mut tries, mut number) = (Tries::default(), 0);
    let ended = loop {
        number += 1;
        match one_try(bench, &key, permit.as_ref(), trouble, number).await {
            Err(error) if tries.again(error.is_transient()).await => {}
            ended => break ended,
        }
    };
    match case.times {
        Times::Once => {
            ended.unwrap();
            assert_eq!(number, 2);
            assert_done(bench, &key).await;
        }
        Times::Always => {
            assert_transient(&ended.unwrap_err(), code);
            assert_eq!(number, TRIES);
            assert_eq!((bench.record(&key).await, bench.orders(&key).await), (before, 0));
        }
    }
}

async fn one_try<S: Tested>(
    bench: &Bench<S>,
    key: &Key,
    permit: Option<&Permit<S>>,
    trouble: &mut impl Trouble<S>,
    number: u64,
) -> Result<(), StoreError> {
    trouble.before_opening(number).await;
    let mut tx = trouble.open(bench).await?;
    S::run(&mut tx, "SELECT count(*) FROM orders").await.unwrap();
    trouble.before_the_step(number).await;
    match work(bench, key, permit, &mut tx).await {
        Ok(()) => tx.commit().await.unwrap(),
        Err(error) => {
            // To the end: a transaction that is merely dropped may still hold the key when the next try comes.
            tx.rollback().await.unwrap();
            return Err(error);
        }
    }
    Ok(())
}

async fn work<S: Tested>(
    bench: &Bench<S>,
    key: &Key,
    permit: Option<&Permit<S>>,
    tx: &mut S::Tx,
) -> Result<(), StoreError> {
    match permit {
        None => {
            let permit: TxPermit<S> = executes(bench.guard.begin_tx(tx, &delivery(key)).await.map_err(of_guard)?);
            permit.complete(tx, StoredResponse::bare(201)).await.map_err(of_ending)?;
        }
        Some(permit) => drop(permit.complete_tx(tx, StoredResponse::bare(201)).await.map_err(of_ending)?),
    }
    S::run(tx, &format!("INSERT INTO orders (key) VALUES ('{}')", key.as_str())).await.unwrap();
    Ok(())
}

/// What a caller does that leaves transactions to the guard, which tries again by itself.
async fn in_our_own_transaction<S: Tested>(
    bench: &Bench<S>,
    case: Transient,
    plant: impl AsyncFnOnce(),
    after_a_failure: impl AsyncFnOnce(),
    code: &str,
) {
    let key = fresh_key();
    let permit = match case.step {
        Step::Claim => None,
        Step::Complete => Some(begun(bench, &key).await),
    };
    let before = bench.record(&key).await;
    plant().await;
    let work = async {
        match permit {
            None => {
                let permit = executes(bench.guard.begin(&delivery(&key)).await.map_err(of_guard)?);
                assert_eq!(permit.attempt(), 1);
                permit.complete(StoredResponse::bare(201)).await.map(drop).map_err(of_ending)
            }
            Some(permit) => permit.complete(StoredResponse::bare(201)).await.map(drop).map_err(of_ending),
        }
    };
    let (ended, failures) = counting(work, after_a_failure).await;
    match case.times {
        Times::Once => {
            ended.unwrap();
            assert!(failures >= 1, "no failure was seen");
            assert_eq!(bench.columns(&key, "status, attempt").await, ["completed", "1"]);
        }
        Times::Always => {
            assert_transient(&ended.unwrap_err(), code);
            assert_eq!(failures, TRIES - 1);
            assert_eq!(bench.record(&key).await, before);
        }
    }
}

async fn begun<S: Tested>(bench: &Bench<S>, key: &Key) -> Permit<S> {
    executes(bench.guard.begin(&delivery(key)).await.unwrap())
}

async fn assert_done<S: Tested>(bench: &Bench<S>, key: &Key) {
    assert_eq!(bench.columns(key, "status, attempt").await, ["completed", "1"]);
    assert_eq!(bench.orders(key).await, 1, "one effect");
    let again = bench.guard.begin(&delivery(key)).await.unwrap();
    assert!(matches!(again, Begun::Replay { .. }), "{again:?}");
}

fn of_guard(error: GuardError) -> StoreError {
    match error {
        GuardError::Store { source, .. } => source,
        GuardError::NotUnderstood { .. } => panic!("{error}"),
    }
}

fn of_ending(error: EndError) -> StoreError {
    match error {
        EndError::Store { source, .. } => source,
        EndError::ClaimLost { .. } | EndError::Misused { .. } => panic!("{error}"),
    }
}

/// Transient, and for the reason that was brought about.
fn assert_transient(error: &StoreError, code: &str) {
    assert!(error.is_transient(), "{error}");
    // The writer of SQLite shares one error among many waiters, in words only.
    let Some(source) = std::error::Error::source(error) else { return };
    let answer = source.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
    assert_eq!(answer.and_then(|answer| answer.code()).as_deref(), Some(code), "{error}");
}
