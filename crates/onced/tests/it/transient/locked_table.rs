//! PostgreSQL: a table that somebody holds locked for longer than a statement waits. It is waited for once, and not for
//! as many times as an error that comes at once is tried.

use onced::guard::Begun;
use onced::store::keys::Transactional;
use onced::store::postgres::PgStore;
use onced_core::record::StoredResponse;

use super::tries::counting;
use super::{assert_transient, begun, of_guard};
use crate::bench::{Bench, Tested, delivery, executes, fresh_key};

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_is_waited_for_once() {
    let bench = Bench::<PgStore>::new().await;
    let (new, known) = (fresh_key(), fresh_key());
    begun(&bench, &known).await.complete(StoredResponse::bare(201)).await.unwrap();
    let mut lock = bench.store.transaction().await.unwrap();
    PgStore::run(&mut lock, "LOCK TABLE onced.idempotency_keys IN ACCESS EXCLUSIVE MODE").await.unwrap();

    let (new_request, known_request) = (delivery(&new), delivery(&known));
    let (claimed, read) = tokio::join!(
        counting(bench.guard.begin(&new_request), async || {}),
        counting(bench.guard.begin(&known_request), async || {})
    );
    for ((answer, failures), what) in [(claimed, "claim: "), (read, "read a key: ")] {
        let error = of_guard(answer.unwrap_err());
        assert_transient(&error, "55P03");
        // Of a known key the read is the first statement, and the last.
        assert!(error.words().starts_with(what), "{error}");
        assert_eq!(failures, 0, "{what}was tried again");
    }
    lock.rollback().await.unwrap();
    assert_eq!(executes(bench.guard.begin(&new_request).await.unwrap()).attempt(), 1);
    assert!(matches!(bench.guard.begin(&known_request).await.unwrap(), Begun::Replay { .. }));
}
