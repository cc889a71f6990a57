//! One transaction for all: the claim, the business rows and the outcome commit or roll back together.

use std::time::Duration;

use onced::guard::{Begun, EndError, Guard, GuardError, Tries, TxPermit};
use onced::store::deliveries::LogDeliveries;
use onced::store::keys::Transactional;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::key::Key;
use onced_core::lease::Lease;
use onced_core::record::StoredResponse;
use sqlx::PgPool;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};

use crate::bench::{Bench, LIMIT, Tested, delivery, executes, fresh_key, line, request_of, until};
use crate::plant;

#[tokio::test(flavor = "multi_thread")]
async fn rows_and_outcome_commit_together_or_not_at_all() {
    together_or_not_at_all::<SqliteStore>().await;
    together_or_not_at_all::<PgStore>().await;
    together_or_not_at_all::<MySqlStore>().await;
}

async fn together_or_not_at_all<S: Tested>() {
    let bench = Bench::<S>::new().await;
    for dropped_after in ["the claim", "the row", "the outcome"] {
        let key = fresh_key();
        let (mut tx, permit) = begun(&bench, &key).await;
        if dropped_after != "the claim" {
            order::<S>(&mut tx, &key).await;
        }
        if dropped_after == "the outcome" {
            permit.complete(&mut tx, StoredResponse::bare(201)).await.unwrap();
        }
        drop(tx);
        assert!(bench.record(&key).await.is_empty(), "dropped after {dropped_after}");
        assert_eq!(bench.orders(&key).await, 0, "dropped after {dropped_after}");
        let lines = format!("SELECT count(*) FROM {{deliveries}} WHERE key = '{}'", key.as_str());
        assert_eq!(bench.count(&lines).await, 0, "dropped after {dropped_after}");
        // The driver rolls back once it gets round to it; then the key is as new.
        until("the key is free again", async || {
            matches!(bench.guard.begin(&delivery(&key)).await.unwrap(), Begun::Execute(permit) if permit.attempt() == 1)
        })
        .await;
    }
    let key = fresh_key();
    let (mut tx, permit) = begun(&bench, &key).await;
    order::<S>(&mut tx, &key).await;
    permit.complete(&mut tx, StoredResponse::bare(201)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(bench.columns(&key, "status, attempt, response_code").await, ["completed", "1", "201"]);
    assert_eq!(bench.orders(&key).await, 1);
    assert!(matches!(bench.guard.begin(&delivery(&key)).await.unwrap(), Begun::Replay { .. }));
}

/// A failure that is to be remembered is recorded after rolling back to a savepoint that stands behind `begin_tx`.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_remembered_without_the_rows_of_its_work() {
    remembers_a_failure::<SqliteStore>().await;
    remembers_a_failure::<PgStore>().await;
    remembers_a_failure::<MySqlStore>().await;
}

async fn remembers_a_failure<S: Tested>() {
    let bench = Bench::<S>::new().await;
    let key = fresh_key();
    let (mut tx, permit) = begun(&bench, &key).await;
    S::run(&mut tx, "SAVEPOINT work").await.unwrap();
    order::<S>(&mut tx, &key).await;
    S::run(&mut tx, "ROLLBACK TO SAVEPOINT work").await.unwrap();
    permit.fail(&mut tx, "no stock", None).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(bench.columns(&key, "status, attempt, error").await, ["failed", "1", "no stock"]);
    assert_eq!(bench.orders(&key).await, 0);
    let Begun::Execute(permit) = bench.guard.begin(&delivery(&key)).await.unwrap() else { panic!("may run again") };
    assert_eq!((permit.attempt(), permit.is_resumed()), (2, false));
}

/// A permit whose row has changed hands writes nothing, and says so: the caller rolls back.
#[tokio::test(flavor = "multi_thread")]
async fn a_permit_of_a_transaction_is_fenced_too() {
    fenced::<SqliteStore>().await;
    fenced::<PgStore>().await;
    fenced::<MySqlStore>().await;
}

async fn fenced<S: Tested>() {
    let bench = Bench::<S>::new().await;
    for fails in [false, true] {
        for set in ["lease_token = 'another'", "status = 'completed'", "status = 'failed'"] {
            let key = fresh_key();
            let (mut tx, permit) = begun(&bench, &key).await;
            let keys = crate::bench::of_backend(S::BACKEND, "{keys}");
            S::run(&mut tx, &format!("UPDATE {keys} SET {set} WHERE key = '{}'", key.as_str())).await.unwrap();
            let ended = if fails {
                permit.fail(&mut tx, "late", None).await
            } else {
                permit.complete(&mut tx, StoredResponse::bare(201)).await.map(drop)
            };
            assert!(matches!(ended, Err(EndError::ClaimLost { .. })), "{set}: {ended:?}");
            tx.rollback().await.unwrap();
        }
    }
}

/// O-30.1: the caller's own rows stand before and after a replay, and its transaction is not aborted.
#[tokio::test(flavor = "multi_thread")]
async fn a_known_key_within_a_callers_transaction_replays_and_leaves_it_usable() {
    known_key_within::<SqliteStore>().await;
    known_key_within::<PgStore>().await;
    known_key_within::<MySqlStore>().await;
}

async fn known_key_within<S: Tested>() {
    let bench = Bench::<S>::new().await;
    for name in ["completed", "completed-foreign", "in-progress-alive", "pending-over-hold", "failed-none-left-bare"] {
        let (key, line) = (fresh_key(), line(name));
        plant::line(&bench, &line, &key).await;
        let mut tx = bench.store.transaction().await.unwrap();
        order::<S>(&mut tx, &key).await;
        let begun = bench.guard.begin_tx(&mut tx, &request_of(&line, &key)).await.unwrap();
        assert!(!matches!(begun, Begun::Execute(_)), "{name}");
        assert_eq!(matches!(begun, Begun::Replay { .. }), name == "completed");
        order::<S>(&mut tx, &key).await;
        tx.commit().await.unwrap();
        assert_eq!(bench.orders(&key).await, 2, "{name}");
    }
}

/// Under a snapshot that is older than a rival's claim, the claim cannot say what stands there: the whole transaction
/// is run again.
#[tokio::test(flavor = "multi_thread")]
async fn under_stricter_isolation_a_conflict_is_transient_and_the_whole_is_run_again() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let bench = Bench::<PgStore>::new().await;
        let key = fresh_key();
        let (mut tries, mut number, mut conflicts) = (Tries::default(), 0, 0);
        let replayed = loop {
            number += 1;
            match one_try(&bench, level, &key, number).await {
                Err(GuardError::Store { source, .. }) => {
                    conflicts += 1;
                    assert!(tries.again(source.is_transient()).await, "{level}: {source}");
                }
                begun => break begun.unwrap(),
            }
        };
        assert!(matches!(replayed, Begun::Replay { .. }), "{level}: {replayed:?}");
        assert_eq!(conflicts, 1, "{level}");
        assert_eq!(bench.orders(&key).await, 1, "{level}: only the rival's order");
    }
}

async fn one_try(
    bench: &Bench<PgStore>,
    level: &str,
    key: &Key,
    number: u32,
) -> Result<Begun<TxPermit<PgStore>>, GuardError> {
    let pool: &PgPool = bench.store.pool();
    let mut tx = pool.begin().await.unwrap();
    PgStore::run(&mut tx, &format!("SET TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
    // The snapshot is taken here.
    PgStore::run(&mut tx, "SELECT count(*) FROM orders").await.unwrap();
    if number == 1 {
        let (mut rivals, permit) = begun(bench, key).await;
        order::<PgStore>(&mut rivals, key).await;
        permit.complete(&mut rivals, StoredResponse::bare(201)).await.unwrap();
        rivals.commit().await.unwrap();
    }
    bench.guard.begin_tx(&mut tx, &delivery(key)).await
}

/// There is no lease to save anyone from an owner that hangs inside its own transaction: where the application has set
/// no bound, the lease is one. A tighter bound of its own stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_callers_transaction_is_bounded_by_the_lease() {
    let bench = Bench::<PgStore>::new().await;
    let own = PgPool::connect(bench.database.url()).await.unwrap();
    let guard = Guard::new(PgStore::from_pool(own.clone(), "onced").unwrap(), LogDeliveries::Off);
    for (set, expected) in [("0", ["30s", "30s"]), ("7s", ["7s", "7s"])] {
        let mut tx = own.begin().await.unwrap();
        for setting in ["idle_in_transaction_session_timeout", "statement_timeout"] {
            PgStore::run(&mut tx, &format!("SET LOCAL {setting} = '{set}'")).await.unwrap();
        }
        drop(guard.begin_tx(&mut tx, &delivery(&fresh_key())).await.unwrap());
        let query = "SELECT ARRAY[current_setting('idle_in_transaction_session_timeout'), \
                     current_setting('statement_timeout')]";
        let bounds: Vec<String> = sqlx::query_scalar(query).fetch_one(&mut *tx).await.unwrap();
        assert_eq!(bounds, expected);
        tx.rollback().await.unwrap();
    }
}

/// The claim itself is bounded too, where the application has set nothing: a change of the ledger's schema holds it up.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_within_a_transaction_waits_for_nothing_beyond_the_lease() {
    let bench = Bench::<PgStore>::new().await;
    let mut migration = bench.store.transaction().await.unwrap();
    PgStore::run(&mut migration, "LOCK TABLE onced.idempotency_keys IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let own = PgPool::connect(bench.database.url()).await.unwrap();
    let guard = Guard::new(PgStore::from_pool(own.clone(), "onced").unwrap(), LogDeliveries::Off);
    let mut request = delivery(&fresh_key());
    request.policy.lease = Lease::new(Duration::from_secs(1));
    let mut tx = own.begin().await.unwrap();
    let begun = tokio::time::timeout(LIMIT, guard.begin_tx(&mut tx, &request)).await.expect("it is bounded");
    assert!(matches!(&begun, Err(GuardError::Store { source, .. }) if source.is_transient()), "{begun:?}");
    migration.rollback().await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = own.begin().await.unwrap();
    assert!(matches!(guard.begin_tx(&mut tx, &request).await.unwrap(), Begun::Execute(_)), "nothing was left behind");
}

/// A snapshot that is older than a rival's commit hides the rival's record, and still nothing is executed twice, nor waited
/// for: until the transaction begins anew the key is in progress.
#[tokio::test(flavor = "multi_thread")]
async fn under_an_old_snapshot_of_mariadb_a_key_is_in_progress() {
    let bench = Bench::<MySqlStore>::new().await;
    let own = MySqlPool::connect(bench.database.url()).await.unwrap();
    let guard = Guard::new(MySqlStore::from_pool(own.clone()), LogDeliveries::Off);
    for finished in [false, true] {
        let key = fresh_key();
        let mut tx = own.begin().await.unwrap();
        let level: String = sqlx::query_scalar("SELECT @@tx_isolation").fetch_one(&mut *tx).await.unwrap();
        assert_eq!(level, "REPEATABLE-READ");
        // The snapshot is taken here.
        MySqlStore::run(&mut tx, "SELECT count(*) FROM orders").await.unwrap();
        let (mut rivals, permit) = begun(&bench, &key).await;
        if finished {
            order::<MySqlStore>(&mut rivals, &key).await;
            permit.complete(&mut rivals, StoredResponse::bare(201)).await.unwrap();
        }
        let rivals = if finished { rivals.commit().await.map(|()| None).unwrap() } else { Some(rivals) };
        let begun = tokio::time::timeout(LIMIT, guard.begin_tx(&mut tx, &delivery(&key))).await.expect("nothing waits");
        assert!(matches!(begun.as_ref().unwrap(), Begun::InProgress { .. }), "{begun:?}");
        tx.rollback().await.unwrap();
        if let Some(rivals) = rivals {
            rivals.rollback().await.unwrap();
        }
        let mut tx = own.begin().await.unwrap();
        let begun = guard.begin_tx(&mut tx, &delivery(&key)).await.unwrap();
        assert_eq!(matches!(begun, Begun::Replay { .. }), finished, "{begun:?}");
        assert_eq!(matches!(begun, Begun::Execute(_)), !finished, "{begun:?}");
    }
}

/// At each level many begin one key at once in transactions of their own: one commits its order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn at_every_level_of_mariadb_one_of_many_commits() {
    let bench = Bench::<MySqlStore>::new().await;
    let own = MySqlPool::connect(bench.database.url()).await.unwrap();
    let guard = Guard::new(MySqlStore::from_pool(own.clone()), LogDeliveries::Off);
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let key = fresh_key();
        let deliveries: Vec<_> = (0..8)
            .map(|_| {
                let (own, guard, key) = (own.clone(), guard.clone(), key.clone());
                tokio::spawn(async move {
                    // A sender that comes again until it is told that the work is done.
                    loop {
                        let mut conn = own.acquire().await.unwrap();
                        let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
                        sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut *conn).await.unwrap();
                        let mut tx = sqlx::Transaction::begin(conn, None).await.unwrap();
                        match guard.begin_tx(&mut tx, &delivery(&key)).await {
                            Ok(Begun::Execute(permit)) => {
                                order::<MySqlStore>(&mut tx, &key).await;
                                match permit.complete(&mut tx, StoredResponse::bare(201)).await {
                                    Ok(_) => tx.commit().await.unwrap(),
                                    Err(EndError::Store { source, .. }) => {
                                        assert!(source.is_transient(), "{source}");
                                        tx.rollback().await.unwrap();
                                    }
                                    Err(error) => panic!("{error}"),
                                }
                            }
                            Ok(Begun::Replay { .. }) => return,
                            Ok(Begun::InProgress { .. }) => tx.rollback().await.unwrap(),
                            Ok(other) => panic!("{other:?}"),
                            Err(GuardError::Store { source, .. }) => {
                                assert!(source.is_transient(), "{source}");
                                tx.rollback().await.unwrap();
                            }
                            Err(error) => panic!("{error}"),
                        }
                        // Apart from each other, as senders come.
                        let apart = u64::from(uuid::Uuid::new_v4().as_bytes()[0]);
                        tokio::time::sleep(Duration::from_millis(apart)).await;
                    }
                })
            })
            .collect();
        for delivery in deliveries {
            tokio::time::timeout(LIMIT, delivery)
                .await
                .unwrap_or_else(|_| panic!("{level}: it takes too long"))
                .unwrap();
        }
        assert_eq!(bench.orders(&key).await, 1, "{level}");
    }
}

/// On MariaDB the bound stays with the session, and each claim sets it anew from what was the application's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_callers_transaction_on_mariadb_is_bounded_by_each_lease() {
    let bench = Bench::<MySqlStore>::new().await;
    let own = MySqlPoolOptions::new().max_connections(1).connect(bench.database.url()).await.unwrap();
    let guard = Guard::new(MySqlStore::from_pool(own.clone()), LogDeliveries::Off);
    let bounds = "SELECT CAST(@@idle_write_transaction_timeout AS SIGNED), CAST(@@idle_transaction_timeout AS SIGNED)";
    for (set, lease, expected) in [
        ("SELECT 1", 30, (30, 0)),
        ("SELECT 1", 2, (2, 0)),
        ("SELECT 1", 60, (60, 0)),
        ("SET SESSION idle_transaction_timeout = 7", 30, (0, 7)),
        ("SELECT 1", 5, (5, 7)),
        ("SET SESSION idle_write_transaction_timeout = 3", 30, (3, 7)),
        ("SELECT 1", 2, (2, 7)),
        ("SELECT 1", 30, (3, 7)),
    ] {
        let mut tx = own.begin().await.unwrap();
        MySqlStore::run(&mut tx, set).await.unwrap();
        let mut request = delivery(&fresh_key());
        request.policy.lease = Lease::new(Duration::from_secs(lease));
        drop(executes(guard.begin_tx(&mut tx, &request).await.unwrap()));
        let found: (i64, i64) = sqlx::query_as(bounds).fetch_one(&mut *tx).await.unwrap();
        assert_eq!(found, expected, "{set}, a lease of {lease} s");
        tx.rollback().await.unwrap();
    }

    // Whoever hangs beyond the lease is cut off, and the key is free.
    let mut request = delivery(&fresh_key());
    request.policy.lease = Lease::new(Duration::from_secs(1));
    let mut tx = own.begin().await.unwrap();
    drop(executes(guard.begin_tx(&mut tx, &request).await.unwrap()));
    until("the hung transaction is ended", async || {
        matches!(bench.guard.begin(&request).await.unwrap(), Begun::Execute(_))
    })
    .await;
    tx.commit().await.expect_err("it is gone");
}

/// What a claim asks is bounded on MariaDB too, whatever the session's own bounds: a change of the ledger's schema holds
/// it up.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_within_a_transaction_of_mariadb_waits_for_nothing_without_bound() {
    let bench = Bench::<MySqlStore>::new().await;
    let mut migration = bench.store.transaction().await.unwrap();
    MySqlStore::run(&mut migration, "LOCK TABLES onced_idempotency_keys WRITE").await.unwrap();
    let own = MySqlPool::connect(bench.database.url()).await.unwrap();
    let guard = Guard::new(MySqlStore::from_pool(own.clone()), LogDeliveries::Off);
    let mut request = delivery(&fresh_key());
    request.policy.lease = Lease::new(Duration::from_secs(1));
    let mut tx = own.begin().await.unwrap();
    let begun = tokio::time::timeout(LIMIT, guard.begin_tx(&mut tx, &request)).await.expect("it is bounded");
    assert!(matches!(&begun, Err(GuardError::Store { source, .. }) if source.is_transient()), "{begun:?}");
    MySqlStore::run(&mut migration, "UNLOCK TABLES").await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = own.begin().await.unwrap();
    assert!(matches!(guard.begin_tx(&mut tx, &request).await.unwrap(), Begun::Execute(_)), "nothing was left behind");
}

/// Whoever is told that a key is known in its own transaction keeps no lock of the record from its owner.
#[tokio::test(flavor = "multi_thread")]
async fn a_known_key_within_a_callers_transaction_leaves_its_owner_free() {
    let bench = Bench::<MySqlStore>::new().await;
    let own = MySqlPool::connect(bench.database.url()).await.unwrap();
    let guard = Guard::new(MySqlStore::from_pool(own.clone()), LogDeliveries::Off);
    let key = fresh_key();
    let mut owner = executes(bench.guard.begin(&delivery(&key)).await.unwrap());
    let mut tx = own.begin().await.unwrap();
    let begun = guard.begin_tx(&mut tx, &delivery(&key)).await.unwrap();
    assert!(matches!(begun, Begun::InProgress { .. }), "{begun:?}");
    // Neither of these waits: a lock that is missed is an error at once, or after five seconds.
    let asked = std::time::Instant::now();
    owner.external().await.unwrap();
    owner.complete(StoredResponse::bare(201)).await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(4));
    tx.rollback().await.unwrap();
}

/// A lease is counted from the statement, not from the start of the transaction that takes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_taken_late_in_a_transaction_is_whole() {
    lease_is_whole::<SqliteStore>().await;
    lease_is_whole::<PgStore>().await;
    lease_is_whole::<MySqlStore>().await;
}

async fn lease_is_whole<S: Tested>() {
    let bench = Bench::<S>::new().await;
    let key = fresh_key();
    let mut tx = bench.store.transaction().await.unwrap();
    S::run(&mut tx, "SELECT 1").await.unwrap();
    let started = bench.now().await;
    until("time passes", async || bench.now().await.since(started) > Duration::from_millis(50)).await;
    let asked = bench.now().await;
    let begun = bench.guard.begin_tx(&mut tx, &delivery(&key)).await.unwrap();
    assert!(matches!(begun, Begun::Execute(_)));
    tx.commit().await.unwrap();
    let until: i64 = bench.columns(&key, "{micros}(lease_until)").await[0].parse().unwrap();
    let whole = asked.plus(line("none").policy().lease.length);
    assert!(until >= whole.as_micros(), "{} µs are missing", whole.as_micros() - until);
}

async fn begun<S: Tested>(bench: &Bench<S>, key: &Key) -> (S::Tx, TxPermit<S>) {
    let mut tx = bench.store.transaction().await.unwrap();
    let permit = executes(bench.guard.begin_tx(&mut tx, &delivery(key)).await.unwrap());
    (tx, permit)
}

async fn order<S: Tested>(tx: &mut S::Tx, key: &Key) {
    S::run(tx, &format!("INSERT INTO orders (key) VALUES ('{}')", key.as_str())).await.unwrap();
}
