//! Behind a PgBouncer that lends connections by transaction: the whole list of cases, and what goes over the wire.

use std::sync::OnceLock;

use onced::store::postgres::PgStore;
use onced::store::{Pooler, StoreError, StoreOptions};
use testkit::pgbouncer::{PgBouncer, PoolOptions};

use crate::bench::{Bench, options};
use crate::conformance;
use crate::variant::{Surrounding, Variant};

/// One pooler for all of a process, with four connections for each database.
fn pooler() -> &'static PgBouncer {
    static POOLER: OnceLock<PgBouncer> = OnceLock::new();
    POOLER.get_or_init(|| PgBouncer::start(PoolOptions::transaction()))
}

#[derive(Clone, Debug)]
struct Pooled;

impl Surrounding for Pooled {
    async fn open(url: &str, options: &StoreOptions) -> Result<PgStore, StoreError> {
        let options = StoreOptions { pooler: Pooler::Transaction, ..options.clone() };
        PgStore::open(&pooler().url(url), &options).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_case_of_the_list_passes_behind_a_pooler() {
    a_client_meets_two_processes().await;
    conformance::whole_list::<Variant<Pooled>>("postgres behind PgBouncer").await;
}

/// That there is a pooler at all: while another holds the process that has answered, the next answer is another's.
async fn a_client_meets_two_processes() {
    let bench = Bench::<Variant<Pooled>>::with(&options()).await;
    let pool = bench.store.0.pool();
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
