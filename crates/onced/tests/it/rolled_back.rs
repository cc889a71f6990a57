//! SQLite rolls a transaction back by itself where its disk is full, and where a constraint or a trigger says so; the driver
//! goes on believing that it is inside. SQLite alone: PostgreSQL refuses what comes after an error instead.

use std::time::Duration;

use onced::guard::{Atomic, Begun, EndError};
use onced::store::keys::Transactional as _;
use onced::store::sqlite::SqliteStore;
use onced::store::{StoreErrorKind, StoreOptions};
use onced_core::key::Key;
use onced_core::record::StoredResponse;

use crate::bench::{Bench, Tested as _, delivery, executes, fresh_key, options};

const NOT: Duration = Duration::ZERO;

/// What makes SQLite roll back: the statements, of which the last one fails.
const WAYS: [(&str, &[&str]); 3] = [
    ("a constraint", &["INSERT INTO subs VALUES ('taken')"]),
    ("a trigger", &["INSERT INTO subs VALUES ('refused')"]),
    (
        "a full disk",
        &["PRAGMA max_page_count = 1", "PRAGMA cache_size = 1", "INSERT INTO blobs VALUES (zeroblob(20000000))"],
    ),
];

/// One connection for transactions: whoever comes next gets the one that was left behind.
async fn bench() -> Bench<SqliteStore> {
    let bench = Bench::with(&StoreOptions { max_connections: 1, ..options() }).await;
    for statement in [
        "CREATE TABLE blobs (b blob)",
        "CREATE TABLE subs (ref text NOT NULL UNIQUE ON CONFLICT ROLLBACK)",
        "INSERT INTO subs VALUES ('taken')",
        "CREATE TRIGGER refuses BEFORE INSERT ON subs WHEN NEW.ref = 'refused'
             BEGIN SELECT RAISE(ROLLBACK, 'refused'); END",
    ] {
        bench.execute(statement).await;
    }
    bench
}

async fn fails(tx: &mut <SqliteStore as onced::store::keys::Transactional>::Tx, statements: &[&str]) {
    let (last, before) = statements.split_last().unwrap();
    for statement in before {
        SqliteStore::run(tx, statement).await.unwrap();
    }
    SqliteStore::run(tx, last).await.unwrap_err();
}

async fn begun(bench: &Bench<SqliteStore>, key: &Key) -> Atomic<SqliteStore> {
    executes(bench.guard.begin_atomic(&delivery(key), NOT).await.unwrap())
}

async fn order(tx: &mut <SqliteStore as onced::store::keys::Transactional>::Tx, key: &Key) {
    SqliteStore::run(tx, &format!("INSERT INTO orders (key) VALUES ('{}')", key.as_str())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_transaction_has_gone_is_not_used_again() {
    let bench = bench().await;
    for (way, statements) in WAYS {
        for end in ["dropped", "failed", "refused", "rolled back"] {
            let (key, case) = (fresh_key(), format!("{way}, {end}"));
            if end == "rolled back" {
                let mut tx = bench.store.transaction().await.unwrap();
                fails(&mut tx, statements).await;
                // What there was to undo is undone.
                drop(bench.store.rollback(tx).await);
            } else {
                let mut atomic = begun(&bench, &key).await;
                order(atomic.tx(), &key).await;
                fails(atomic.tx(), statements).await;
                match end {
                    "failed" => {
                        assert!(matches!(atomic.fail("full", None).await.unwrap(), Begun::Execute(_)), "{case}")
                    }
                    "refused" => {
                        let refused = atomic.refuse(StoredResponse::bare(422)).await.unwrap();
                        assert!(matches!(refused, Begun::Execute(_)), "{case}");
                    }
                    _ => drop(atomic),
                }
            }
            assert_eq!(bench.orders(&key).await, 0, "{case}");
            let next = fresh_key();
            let mut atomic = begun(&bench, &next).await;
            order(atomic.tx(), &next).await;
            atomic.commit(StoredResponse::bare(201)).await.unwrap();
            assert_eq!(
                (bench.orders(&next).await, bench.columns(&next, "status").await),
                (1, vec!["completed".to_owned()])
            );
        }
    }
}

/// What was written after that stands alone, and nobody can undo it; but nothing is said to be completed.
#[tokio::test(flavor = "multi_thread")]
async fn an_ending_says_that_the_transaction_has_gone() {
    let bench = bench().await;
    let (way, statements) = WAYS[0];
    let key = fresh_key();
    let mut atomic = begun(&bench, &key).await;
    fails(atomic.tx(), statements).await;
    SqliteStore::run(atomic.tx(), "INSERT INTO orders (key) VALUES ('noted')").await.unwrap();
    says_that_it_has_gone(atomic.commit(StoredResponse::bare(200)).await.map(drop), way);
    assert!(bench.record(&key).await.is_empty(), "the claim went with it");
    assert!(!bench.rows("SELECT * FROM orders").await.is_empty(), "if it were undone, no more would have to be said");

    // The claim of leased work is committed before; its rows have gone all the same.
    let leased = fresh_key();
    let permit = executes(bench.guard.begin(&delivery(&leased)).await.unwrap());
    let mut tx = bench.store.transaction().await.unwrap();
    order(&mut tx, &leased).await;
    fails(&mut tx, statements).await;
    says_that_it_has_gone(permit.complete_tx(&mut tx, StoredResponse::bare(201)).await.map(drop), way);
    drop(tx);
    assert_eq!(
        (bench.orders(&leased).await, bench.columns(&leased, "status").await),
        (0, vec!["in_progress".to_owned()])
    );
}

fn says_that_it_has_gone(ended: Result<(), EndError>, way: &str) {
    let Err(EndError::Store { source, .. }) = ended else { panic!("{way}: {ended:?}") };
    assert_eq!(source.kind(), StoreErrorKind::Refused, "{way}: {source}");
    assert!(source.words().contains("rolled the transaction back by itself"), "{way}: {source}");
}
