//! A cancelled `begin` of the driver can leave a pooled connection inside an open transaction, and what its next
//! borrower writes is never committed. So one function opens transactions, and this guards that it stays the only one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use onced::store::health::Health as _;
use onced::store::keys::Transactional as _;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::{Pooler, StoreOptions};
use sqlx::postgres::PgPoolOptions;

use crate::bench::{Bench, LIMIT, Tested, options};
use crate::proxy::Proxy;

/// Where transactions are opened: the one function, the connections that are lent to PostgreSQL's statements (closed where
/// whoever waits is cancelled), and the connection that the writer of SQLite has for itself.
const KNOWN: [&str; 5] = [
    "onced/src/store/mod.rs: tokio::spawn(async move { pool.begin_with(statement).await })",
    "onced/src/store/postgres/lent.rs: const BEGIN: &str = \"BEGIN ISOLATION LEVEL READ COMMITTED\";",
    "onced/src/store/postgres/lent.rs: const BEGIN_WITH_BOUNDS: &str = \"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '5s'; \\",
    "onced/src/store/sqlite/writer.rs: let mut tx = match conn.begin_with(\"BEGIN IMMEDIATE\").await {",
    "onced/src/store/sqlite/writer.rs: let mut unit = match tx.begin().await {",
];

#[test]
fn only_one_function_opens_transactions() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for folder in ["onced/src", "onced-server/src"] {
        let files = sources(&crates.join(folder));
        assert!(!files.is_empty(), "{folder} has no sources");
        for file in files {
            // The demonstration plays an application, with a database of its own.
            if file.starts_with(crates.join("onced-server/src/demo")) {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap();
            let name = file.strip_prefix(crates).unwrap().display().to_string();
            found.extend(
                text.lines().filter(|line| opens_a_transaction(line)).map(|line| format!("{name}: {}", line.trim())),
            );
        }
    }
    found.sort();
    assert_eq!(found, KNOWN, "transactions are opened by store::open_transaction, and lent, alone");
}

/// The driver's calls take no argument or a statement; a guard's `begin` takes a request.
fn opens_a_transaction(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or("");
    let calls = [".begin()", ".begin_with(", ".try_begin(", ".try_begin_with(", "Pool::begin", "Connection::begin"];
    let texts = ["query(\"BEGIN", "raw_sql(\"BEGIN", "execute(\"BEGIN", "= \"BEGIN"];
    calls.iter().chain(&texts).any(|call| code.contains(call))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push(path);
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_borrowers_write_is_committed_after_cancelled_begins() {
    cancels(Pooler::None, |store: PgStore| async move { drop(store.transaction().await) }, into_postgres).await;
}

/// On MariaDB a transaction switches off that single statements commit by themselves: it must be on again for whoever
/// comes next.
#[tokio::test(flavor = "multi_thread")]
async fn a_borrowers_write_is_committed_after_cancelled_begins_on_mariadb() {
    cancels(Pooler::None, |store: MySqlStore| async move { drop(store.transaction().await) }, into_mariadb).await;
}

/// Behind a pooler a single statement is a transaction too.
#[tokio::test(flavor = "multi_thread")]
async fn a_borrowers_write_is_committed_after_cancelled_statements_behind_a_pooler() {
    cancels(Pooler::Transaction, |mut store: PgStore| async move { drop(store.database_time().await) }, into_postgres)
        .await;
}

async fn into_postgres(store: &PgStore) {
    sqlx::query("INSERT INTO orders (key) VALUES ('borrowed')").execute(store.pool()).await.unwrap();
}

async fn into_mariadb(store: &MySqlStore) {
    sqlx::query("INSERT INTO orders (`key`) VALUES ('borrowed')").execute(store.pool()).await.unwrap();
}

/// The check opens transactions by statements that the driver does not know for such.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_check_for_a_pooler_leaves_no_transaction_open() {
    // Cancelled while the reply to each of its messages is on its way.
    for (pooler, messages) in [(Pooler::None, 8), (Pooler::Transaction, 3)] {
        let bench = Bench::<PgStore>::new().await;
        for seen in 1..=messages {
            let proxy = Proxy::before(bench.database.url()).await;
            let own = PgPoolOptions::new().max_connections(2).connect(&proxy.url).await.unwrap();
            let store = PgStore::from_pool(own.clone(), "onced").unwrap().behind(pooler);
            let held = proxy.be_silent_at("/* onced ", seen);
            let checking = tokio::spawn(async move { store.check_pooler().await });
            tokio::time::timeout(LIMIT, held).await.expect("it asks").unwrap();
            checking.abort();
            assert!(checking.await.unwrap_err().is_cancelled());
            proxy.speak_again();
            // Both at once: none can be the other's.
            let mut conns = (own.acquire().await.unwrap(), own.acquire().await.unwrap());
            for conn in [&mut conns.0, &mut conns.1] {
                sqlx::raw_sql("INSERT INTO orders (key) VALUES ('borrowed')").execute(&mut **conn).await.unwrap();
            }
            let count = bench.count("SELECT count(*) FROM orders").await;
            assert_eq!(count, i64::from(seen) * 2, "{pooler:?}, message {seen}: a write was not committed");
        }
    }
}

async fn cancels<S: Tested, F: Future<Output = ()> + Send + 'static>(
    pooler: Pooler,
    what: impl Fn(S) -> F,
    write: impl AsyncFn(&S),
) {
    // One connection: whoever comes next gets the one that was left behind.
    let options = StoreOptions { max_connections: 1, acquire_timeout: Duration::from_secs(20), pooler, ..options() };
    let bench = Bench::<S>::with(&options).await;
    let rounds: u32 = if testkit::soaking() { 1000 } else { 50 };
    for round in 0..rounds {
        let store = bench.store.clone();
        let opening = tokio::spawn(what(store));
        // Not to wait for anything: another point of the opening each time.
        if round % 5 > 0 {
            tokio::time::sleep(Duration::from_micros(u64::from(round * 37 % 900))).await;
        } else {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
        }
        opening.abort();
        // Cancelled or done, it has ended.
        drop(opening.await);
        write(&bench.store).await;
        let seen = bench.count("SELECT count(*) FROM orders").await;
        assert_eq!(seen, i64::from(round) + 1, "round {round}: the write was not committed");
    }
}
