//! Opening a store says whether a pooler is in the way: found when it has nothing to do and when it has much, in every
//! mode, and never where there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use onced::store::postgres::PgStore;
use onced::store::{Pooler, StoreErrorKind, StoreOptions};
use sqlx::postgres::PgPoolOptions;
use testkit::pgbouncer::{PgBouncer, PoolMode, PoolOptions};
use testkit::{Backend, Database};

use crate::bench::{options, until};

/// How often each is looked at: what is found by luck would be missed once.
const ROUNDS: u32 = 20;

fn expecting(pooler: Pooler) -> StoreOptions {
    StoreOptions { pooler, acquire_timeout: Duration::from_secs(20), ..options() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_pooler_is_never_taken_for_one() {
    let database = Database::create(Backend::Postgres).await;
    let load = Load::on(database.url(), 4).await;
    for _ in 0..ROUNDS {
        PgStore::open(database.url(), &expecting(Pooler::None)).await.unwrap();
        // It is slower, and works.
        PgStore::open(database.url(), &expecting(Pooler::Transaction)).await.unwrap();
    }
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_by_transaction_is_found_idle_and_busy() {
    for size in [1, 2, 3, 5] {
        for in_turn in [false, true] {
            let pooler = PgBouncer::start(PoolOptions {
                size,
                in_turn,
                // It would give itself away by its words.
                ignores_settings: true,
                ..PoolOptions::transaction()
            });
            let database = Database::create(Backend::Postgres).await;
            let url = pooler.url(database.url());
            let what = format!("{size} connections, in turn: {in_turn}");
            finds_it(&url, &format!("{what}, idle")).await;
            let load = Load::on(&url, size + 1).await;
            finds_it(&url, &format!("{what}, busy")).await;
            PgStore::open(&url, &expecting(Pooler::Transaction)).await.unwrap();
            load.end().await;
        }
    }
}

async fn finds_it(url: &str, what: &str) {
    for round in 0..ROUNDS {
        let Err(error) = PgStore::open(url, &expecting(Pooler::None)).await else {
            panic!("{what}, round {round}: no pooler was found");
        };
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{what}, round {round}: {error}");
        assert!(error.words().contains("set pooler = \"transaction\""), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_refuses_settings_is_named_in_the_refusal() {
    let pooler = PgBouncer::start(PoolOptions::transaction());
    let database = Database::create(Backend::Postgres).await;
    let error = PgStore::open(&pooler.url(database.url()), &expecting(Pooler::None)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    let said = error.to_string();
    assert!(said.contains("set pooler = \"transaction\"") && said.contains("name PostgreSQL itself"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_by_statement_is_refused_whatever_is_said_of_it() {
    let statement = PoolOptions { mode: PoolMode::Statement, ignores_settings: true, ..PoolOptions::transaction() };
    let pooler = PgBouncer::start(statement);
    let database = Database::create(Backend::Postgres).await;
    let url = pooler.url(database.url());
    for _ in 0..ROUNDS {
        for said in [Pooler::None, Pooler::Transaction] {
            let error = PgStore::open(&url, &expecting(said)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Refused, "{said:?}: {error}");
            assert!(error.words().contains("pool_mode = session"), "{said:?}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_by_session_is_as_good_as_none() {
    let session =
        PoolOptions { mode: PoolMode::Session, size: 20, ignores_settings: true, ..PoolOptions::transaction() };
    let pooler = PgBouncer::start(session);
    let database = Database::create(Backend::Postgres).await;
    let url = pooler.url(database.url());
    for _ in 0..ROUNDS {
        PgStore::open(&url, &expecting(Pooler::None)).await.unwrap();
    }
    // The pooler drops the settings of the session; they hold all the same.
    let store = PgStore::open(&url, &expecting(Pooler::None)).await.unwrap();
    let bounds = "SELECT current_setting('lock_timeout') || ' ' || current_setting('statement_timeout') || ' ' || \
                  current_setting('idle_in_transaction_session_timeout')";
    let bounds: String = sqlx::query_scalar(bounds).fetch_one(store.pool()).await.unwrap();
    assert_eq!(bounds, "5s 10s 30s");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_applications_own_pool_is_checked_when_asked() {
    let pooler = PgBouncer::start(PoolOptions { ignores_settings: true, ..PoolOptions::transaction() });
    let database = Database::create(Backend::Postgres).await;
    let own = PgPoolOptions::new().max_connections(2).connect(&pooler.url(database.url())).await.unwrap();
    let store = PgStore::from_pool(own, "onced").unwrap();
    let error = store.check_pooler().await.unwrap_err();
    assert!(error.words().contains("set pooler = \"transaction\""), "{error}");
    let store = store.behind(Pooler::Transaction);
    store.check_pooler().await.unwrap();
    store.migrate().await.unwrap();
    store.check_ready().await.unwrap();
    let own = PgPoolOptions::new().max_connections(2).connect(database.url()).await.unwrap();
    PgStore::from_pool(own, "onced").unwrap().check_pooler().await.unwrap();
}

/// Others who keep a database busy: statements and transactions, one after the other.
struct Load {
    stopped: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    async fn on(url: &str, clients: u32) -> Self {
        let pool = PgPoolOptions::new().max_connections(clients).acquire_timeout(Duration::from_secs(60));
        // Without names: behind a pooler those would be mixed up.
        let pool = pool.connect(url).await.unwrap();
        let (stopped, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..clients)
            .map(|_| {
                let (pool, stopped, done) = (pool.clone(), stopped.clone(), done.clone());
                tokio::spawn(async move {
                    let mut conn = pool.acquire().await.unwrap();
                    while !stopped.load(Ordering::Relaxed) {
                        sqlx::raw_sql("SELECT 1").execute(&mut *conn).await.unwrap();
                        sqlx::raw_sql("BEGIN; SELECT pg_sleep(0.002)").execute(&mut *conn).await.unwrap();
                        sqlx::raw_sql("COMMIT").execute(&mut *conn).await.unwrap();
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        until("the load runs", async || done.load(Ordering::Relaxed) > 10).await;
        Self { stopped, clients }
    }

    async fn end(self) {
        self.stopped.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
    }
}
