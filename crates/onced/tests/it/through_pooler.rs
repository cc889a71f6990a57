//! Behind a PgBouncer that lends connections by transaction: the whole list of cases, and what goes over the wire.

use std::sync::OnceLock;

use onced::guard::{Begun, EndError, Guard};
use onced::store::deliveries::LogDeliveries;
use onced::store::keys::Keys as _;
use onced::store::postgres::PgStore;
use onced::store::{Pooler, StoreErrorKind, StoreOptions};
use onced_core::record::StoredResponse;
use testkit::pgbouncer::{PgBouncer, PoolOptions};

use crate::bench::{Bench, Surrounding, Tested as _, delivery, executes, fresh_key, options};
use crate::conformance;
use crate::proxy::{Cut, Proxy};

/// One pooler for all of a process, with four connections for each database.
fn pooler() -> &'static PgBouncer {
    static POOLER: OnceLock<PgBouncer> = OnceLock::new();
    POOLER.get_or_init(|| PgBouncer::start(PoolOptions::transaction()))
}

const POOLED: Surrounding = Surrounding { newest: false, url: |url| pooler().url(url), pooler: Pooler::Transaction };

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_case_of_the_list_passes_behind_a_pooler() {
    a_client_meets_two_processes().await;
    conformance::whole_list_within::<PgStore>(POOLED, "postgres behind PgBouncer").await;
}

/// That there is a pooler at all: while another holds the process that has answered, the next answer is another's.
async fn a_client_meets_two_processes() {
    let bench = Bench::<PgStore>::within(POOLED, &options()).await;
    let pool = bench.store.pool();
    let (mut client, mut other) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
    let mut processes = Vec::new();
    for holds in [false, true] {
        if holds {
            // The one that came back last is lent next.
            sqlx::raw_sql("BEGIN; SELECT pg_backend_pid()").execute(&mut *other).await.unwrap();
        }
        let asked = sqlx::raw_sql("SELECT pg_backend_pid()::text AS pid").fetch_one(&mut *client).await.unwrap();
        processes.push(sqlx::Row::get::<String, _>(&asked, "pid"));
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut *other).await.unwrap();
    assert_ne!(processes[0], processes[1], "one process for one client: there is no pooler");
}

fn behind_a_pooler() -> StoreOptions {
    StoreOptions { pooler: Pooler::Transaction, ..options() }
}

/// As it goes over the wire; the opening of a transaction has the word in it.
const COMMIT: &str = "COMMIT\0";

/// The reply to a commit is lost: what it committed is known again, and where it never arrived that is said.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_reply_was_lost_is_asked_about() {
    let bench = Bench::<PgStore>::with(&behind_a_pooler()).await;
    let proxy = Proxy::before(bench.database.url()).await;
    let store = PgStore::open_at(&proxy.url, &behind_a_pooler()).await.unwrap();
    let guard = Guard::new(store, LogDeliveries::Executed);
    for cut in [Cut::BeforeTheReply, Cut::BeforeItIsSent] {
        let key = fresh_key();
        proxy.cut_at(COMMIT, &[cut]);
        let permit = executes(guard.begin(&delivery(&key)).await.unwrap());
        assert_eq!((proxy.cuts_made(), permit.attempt(), permit.is_resumed()), (1, 1, false), "{cut:?}");
        proxy.cut_at(COMMIT, &[cut]);
        let ended = permit.complete(StoredResponse::bare(201)).await;
        assert_eq!(proxy.cuts_made(), 1, "{cut:?}");
        let status = &bench.columns(&key, "status").await[0];
        match (cut, ended) {
            (Cut::BeforeTheReply, Ok(_)) => assert_eq!(status, "completed"),
            (Cut::BeforeItIsSent, Err(EndError::Store { source, .. })) => {
                assert_eq!((source.kind(), status.as_str()), (StoreErrorKind::Lost, "in_progress"), "{source}");
            }
            (_, ended) => panic!("{cut:?}: {ended:?}"),
        }
    }
}

/// Nobody says when a pooler goes to another server, so nothing is answered from memory.
#[tokio::test(flavor = "multi_thread")]
async fn no_outcome_is_kept_in_memory() {
    for (options, from_memory) in [(options(), true), (behind_a_pooler(), false)] {
        // What is kept is of the connections that there were: a second one would be opened while the first is on its way back.
        let options = StoreOptions { max_connections: 1, ..options };
        let bench = Bench::<PgStore>::with(&options).await;
        assert_eq!(bench.store.epoch() == bench.store.epoch(), from_memory);
        let (key, guard) = (fresh_key(), bench.guard.clone().keeping_outcomes(1 << 20));
        executes(guard.begin(&delivery(&key)).await.unwrap()).complete(StoredResponse::bare(201)).await.unwrap();
        // The first replay is read, and may be kept.
        assert!(matches!(guard.begin(&delivery(&key)).await.unwrap(), Begun::Replay { .. }));
        bench.execute("DELETE FROM {keys}").await;
        let again = guard.begin(&delivery(&key)).await.unwrap();
        assert_eq!(matches!(again, Begun::Replay { .. }), from_memory, "{again:?}");
    }
}
