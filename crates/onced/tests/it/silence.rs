//! A server that does not answer, and does not hang up either: whatever is asked of it within a transaction is bounded by our
//! own clock, and the connection is closed. Not on SQLite: there is no wire between us and
//! it.

use std::time::{Duration, Instant};

use onced::guard::{EndError, Guard, GuardError};
use onced::store::deliveries::LogDeliveries;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::{StoreError, StoreErrorKind, StoreOptions};
use onced_core::key::Key;
use onced_core::record::StoredResponse;
use testkit::Backend;

use crate::bench::{Bench, LIMIT, Tested, delivery, executes, fresh_key, options, until};
use crate::proxy::Proxy;

const NOT: Duration = Duration::ZERO;

/// What is asked when the answers stop.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Begin,
    Claim,
    /// The reading within a transaction: on PostgreSQL of a key that is there, on MariaDB before anything is claimed.
    Find,
    Complete,
    CompleteLeased,
    Rollback,
    Savepoint,
    UndoToSavepoint,
    Migrate,
    CheckReady,
}

/// What a message says that is not answered; of those that name the key, which one.
trait Backed: Tested {
    const BEGIN: &str;
    const CLAIM: u32;
    const MIGRATE: &str;
    const CHECK: &str;

    async fn try_to_write(&self) -> Result<(), StoreError>;
    /// How many connections of the pool are at rest.
    fn at_rest(&self) -> usize;
}

impl Backed for PgStore {
    const BEGIN: &str = "BEGIN ISOLATION";
    const CLAIM: u32 = 1;
    const MIGRATE: &str = "onced migrate";
    const CHECK: &str = "SET LOCAL lock_timeout = '1s'";

    async fn try_to_write(&self) -> Result<(), StoreError> {
        self.check_ready().await
    }

    fn at_rest(&self) -> usize {
        self.pool().num_idle()
    }
}

impl Backed for MySqlStore {
    const BEGIN: &str = "START TRANSACTION";
    /// After a reading on its own and one within, and the look whether there is a record.
    const CLAIM: u32 = 4;
    const MIGRATE: &str = "onced_migrations";
    const CHECK: &str = "max_statement_time = 1.5";

    async fn try_to_write(&self) -> Result<(), StoreError> {
        self.check_ready().await
    }

    fn at_rest(&self) -> usize {
        self.pool().num_idle()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_keeps_nobody_without_bound_and_no_connection_to_it_is_used_again() {
    // They mostly wait.
    tokio::join!(is_bounded_throughout::<PgStore>(), is_bounded_throughout::<MySqlStore>());
}

async fn is_bounded_throughout<S: Backed>() {
    let bench = Bench::<S>::new().await;
    let all = [
        Asked::Begin,
        Asked::Claim,
        Asked::Find,
        Asked::Complete,
        Asked::CompleteLeased,
        Asked::Rollback,
        Asked::Savepoint,
        Asked::UndoToSavepoint,
        Asked::Migrate,
        Asked::CheckReady,
    ];
    futures_util::future::join_all(all.map(|asked| is_bounded(&bench, asked))).await;
}

async fn is_bounded<S: Backed>(bench: &Bench<S>, asked: Asked) {
    let proxy = Proxy::before(bench.database.url()).await;
    // One connection: whoever comes next gets the one that was left behind, or a new one.
    let options = StoreOptions { max_connections: 1, acquire_timeout: Duration::from_secs(4), ..options() };
    let store = S::open_at(&proxy.url, &options).await.unwrap();
    let (guard, key, opened) = (Guard::new(store.clone(), LogDeliveries::Executed), fresh_key(), store.epoch());
    // What opening asked is back: the driver itself asks a connection on its way back without a bound.
    until("the connection is back", async || store.at_rest() == 1).await;
    let started = Instant::now();
    let error = tokio::time::timeout(LIMIT, fails(&proxy, &guard, &store, &key, asked)).await;
    let error = error.unwrap_or_else(|_| panic!("{asked:?}: no answer after {:?}", started.elapsed()));
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{asked:?}: {error}");
    proxy.speak_to_newcomers();
    let next = fresh_key();
    let begun = guard.begin_atomic(&delivery(&next), NOT).await;
    let atomic = executes(begun.unwrap_or_else(|error| panic!("after {asked:?}: {error:?}")));
    atomic.commit(StoredResponse::bare(201)).await.unwrap();
    assert_eq!(bench.columns(&next, "status").await, ["completed"], "{asked:?}");
    assert!(store.epoch() > opened, "{asked:?}: the same connection was lent again");
}

async fn fails<S: Backed>(proxy: &Proxy, guard: &Guard<S>, store: &S, key: &Key, asked: Asked) -> StoreError {
    let request = delivery(key);
    let silent_at = |marker: &str| drop(proxy.be_silent_at(marker, 1));
    let begin = async || executes(guard.begin_atomic(&request, NOT).await.unwrap());
    match asked {
        Asked::Begin => {
            silent_at(S::BEGIN);
            of_guard(guard.begin_atomic(&request, NOT).await.unwrap_err())
        }
        Asked::Claim => {
            drop(proxy.be_silent_at(key.as_str(), S::CLAIM));
            of_guard(guard.begin_atomic(&request, NOT).await.unwrap_err())
        }
        Asked::Find => {
            if S::BACKEND == Backend::Postgres {
                begin().await.commit(StoredResponse::bare(201)).await.unwrap();
            }
            // Another guard, which has not met the key.
            let other = Guard::new(store.clone(), LogDeliveries::Off);
            drop(proxy.be_silent_at(key.as_str(), 2));
            of_guard(other.begin_atomic(&request, NOT).await.unwrap_err())
        }
        Asked::Complete => {
            let atomic = begin().await;
            silent_at(key.as_str());
            of_end(atomic.commit(StoredResponse::bare(201)).await.unwrap_err())
        }
        Asked::CompleteLeased => {
            let permit = executes(guard.begin(&request).await.unwrap());
            let mut tx = store.transaction().await.unwrap();
            silent_at(key.as_str());
            of_end(permit.complete_tx(&mut tx, StoredResponse::bare(201)).await.unwrap_err())
        }
        Asked::Rollback => {
            let tx = store.transaction().await.unwrap();
            silent_at("ROLLBACK");
            store.rollback(tx).await.unwrap_err()
        }
        Asked::Savepoint => {
            let mut tx = store.transaction().await.unwrap();
            let permit = executes(guard.begin_tx(&mut tx, &request).await.unwrap());
            silent_at("SAVEPOINT");
            of_end(permit.savepoint(&mut tx).await.map(drop).unwrap_err())
        }
        Asked::UndoToSavepoint => {
            let mut tx = store.transaction().await.unwrap();
            let permit = executes(guard.begin_tx(&mut tx, &request).await.unwrap());
            let work = permit.savepoint(&mut tx).await.unwrap();
            silent_at("ROLLBACK TO");
            of_end(work.fail("no stock", None).await.unwrap_err())
        }
        Asked::Migrate => {
            silent_at(S::MIGRATE);
            store.bring_up_to_date().await.unwrap_err()
        }
        Asked::CheckReady => {
            silent_at(S::CHECK);
            store.try_to_write().await.unwrap_err()
        }
    }
}

fn of_guard(error: GuardError) -> StoreError {
    let GuardError::Store { source, .. } = error else { panic!("{error}") };
    source
}

fn of_end(error: EndError) -> StoreError {
    let EndError::Store { source, .. } = error else { panic!("{error}") };
    source
}
