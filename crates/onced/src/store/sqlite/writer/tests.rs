//! Shared commits: who has queued up meanwhile pays one commit together, stands or falls alone, and is answered only
//! once the commit is there.

#![allow(clippy::panic)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;

use onced_core::decision_table;
use onced_core::key::{Key, Scope};
use sqlx::AssertSqlSafe;
use testkit::{Backend, Database};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::task::JoinHandle;

use super::*;
use crate::guard::{Begun, Guard, GuardError, Pace, Permit, Request};
use crate::store::StoreOptions;
use crate::store::deliveries::LogDeliveries;
use crate::store::sqlite::SqliteStore;

/// Set in the process alone that is to be killed: the URL of its database.
const VARIABLE: &str = "ONCED_TEST_WRITER";
/// A constraint that is looked at in the commit and not before.
const TABLES: &str = "CREATE TABLE parents (id INTEGER PRIMARY KEY);
    CREATE TABLE rows (name TEXT NOT NULL PRIMARY KEY,
                       parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)";
/// More than the file may hold: SQLite rolls the whole transaction back by itself.
const FULL: &str = "PRAGMA max_page_count = 1; INSERT INTO rows (name) VALUES (hex(zeroblob(100000)))";

type Answer = Result<(), StoreError>;
type Claiming = Result<Begun<Permit<SqliteStore>>, GuardError>;

/// Lets the writer go on.
type Go = oneshot::Sender<()>;

struct Bench {
    database: Database,
    store: SqliteStore,
}

impl Bench {
    async fn new() -> Self {
        let database = Database::create(Backend::Sqlite).await;
        let store = SqliteStore::open(database.url(), &StoreOptions::default()).await.unwrap();
        store.migrate().await.unwrap();
        database.sql().execute(TABLES).await;
        Self { database, store }
    }

    async fn rows(&self) -> Vec<String> {
        self.database.sql().text("SELECT name FROM rows ORDER BY name").await.into_iter().flatten().collect()
    }

    fn move_away(&self) -> Away {
        let from = PathBuf::from(self.database.url().trim_start_matches("sqlite:"));
        let to = from.with_extension("away");
        std::fs::rename(&from, &to).unwrap();
        Away { from, to }
    }

    /// How many commits the write-ahead log holds, by its file format: a commit's last frame says how large the
    /// database is after it.
    fn commits(&self) -> usize {
        let path = format!("{}-wal", self.database.url().trim_start_matches("sqlite:"));
        let log = std::fs::read(path).unwrap();
        let page = u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
        let frames = log[32..].chunks_exact(24 + page).filter(|frame| frame[8..16] == log[16..24]);
        frames.filter(|frame| frame[4..8] != [0; 4]).count()
    }
}

/// Brings the file back, where none was made meanwhile.
struct Away {
    from: PathBuf,
    to: PathBuf,
}

impl Drop for Away {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(!self.from.exists(), "another file was made");
            std::fs::rename(&self.to, &self.from).unwrap();
        }
    }
}

/// Keeps the writer busy with a unit that writes nothing, once it has begun, and until it is told to go on.
async fn hold(store: &SqliteStore) -> Go {
    let (begun, has_begun) = oneshot::channel();
    let (go, told) = oneshot::channel();
    let writer = store.writer.clone();
    tokio::spawn(async move {
        let unit = writer.write("hold", move |_| {
            Box::pin(async move {
                begun.send(()).unwrap();
                told.await.unwrap();
                Ok(())
            })
        });
        unit.await.unwrap();
    });
    has_begun.await.unwrap();
    go
}

fn queued(store: &SqliteStore) -> usize {
    store.writer.jobs.max_capacity() - store.writer.jobs.capacity()
}

async fn until_queued(store: &SqliteStore, count: usize) {
    while queued(store) != count {
        tokio::task::yield_now().await;
    }
}

/// Queues a unit behind one that holds the writer.
async fn queue(store: &SqliteStore, sql: &str) -> JoinHandle<Answer> {
    let (before, writer, sql) = (queued(store), store.writer.clone(), sql.to_owned());
    let waiting = tokio::spawn(async move {
        writer.write("test", move |conn| Box::pin(async move { run_sql(conn, &sql).await })).await
    });
    until_queued(store, before + 1).await;
    waiting
}

async fn queue_alone(store: &SqliteStore, sql: &str) -> Answer {
    let sql = sql.to_owned();
    store.writer.write("test", move |conn| Box::pin(async move { run_sql(conn, &sql).await })).await
}

async fn run_sql(conn: &mut SqliteConnection, sql: &str) -> Answer {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut *conn).await;
    done.map(|_| ()).map_err(|source| error::of(source, "test"))
}

/// Queues a claim behind a unit that holds the writer.
async fn claim(store: &SqliteStore, guard: &Guard<SqliteStore>, key: &str) -> JoinHandle<Claiming> {
    let line = decision_table::lines().into_iter().find(|line| line.name == "none").unwrap();
    let request = Request {
        scope: Scope::new("test").unwrap(),
        key: Key::new(key).unwrap(),
        fingerprint: line.request(),
        policy: line.policy(),
        pace: Pace::default(),
    };
    let (before, guard) = (queued(store), guard.clone());
    let claiming = tokio::spawn(async move { guard.begin(&request).await });
    until_queued(store, before + 1).await;
    claiming
}

fn row(name: &str) -> String {
    format!("INSERT INTO rows (name) VALUES ('{name}')")
}

/// Room for an answer that comes too early to show itself.
async fn a_while() {
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_have_queued_up_share_one_commit() {
    let bench = Bench::new().await;
    let guard = Guard::new(bench.store.clone(), LogDeliveries::Executed);
    let go = hold(&bench.store).await;
    let mut claims = Vec::new();
    for n in 0..30 {
        claims.push(claim(&bench.store, &guard, &format!("evt_{n}")).await);
    }
    let before = bench.commits();
    go.send(()).unwrap();
    for claim in claims {
        assert!(matches!(claim.await.unwrap(), Ok(Begun::Execute(_))));
    }
    assert_eq!(bench.commits(), before + 1, "thirty claims, one commit");
    assert_eq!(bench.database.sql().count("SELECT count(*) FROM onced_idempotency_keys").await, 30);
    assert_eq!(bench.database.sql().count("SELECT count(*) FROM onced_deliveries").await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_answered_before_the_commit() {
    let bench = Bench::new().await;
    let go = hold(&bench.store).await;
    let first = queue(&bench.store, &row("first")).await;
    let (middle, in_the_middle) = oneshot::channel();
    let (end, ended) = oneshot::channel::<()>();
    let writer = bench.store.writer.clone();
    let last = tokio::spawn(async move {
        let unit = writer.write("last", move |_| {
            Box::pin(async move {
                middle.send(()).unwrap();
                ended.await.unwrap();
                Ok(())
            })
        });
        unit.await
    });
    until_queued(&bench.store, 2).await;
    go.send(()).unwrap();
    in_the_middle.await.unwrap();
    a_while().await;
    assert!(!first.is_finished(), "its row is written and not committed");
    assert!(bench.rows().await.is_empty());
    end.send(()).unwrap();
    first.await.unwrap().unwrap();
    last.await.unwrap().unwrap();
    assert_eq!(bench.rows().await, ["first"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_fails_harms_no_other_of_its_commit() {
    let bench = Bench::new().await;
    let go = hold(&bench.store).await;
    let first = queue(&bench.store, &row("first")).await;
    // Its own first row goes with it.
    let failing = queue(&bench.store, &format!("{}; {}", row("half"), row("first"))).await;
    let last = queue(&bench.store, &row("last")).await;
    let before = bench.commits();
    go.send(()).unwrap();
    first.await.unwrap().unwrap();
    let error = failing.await.unwrap().unwrap_err();
    assert!(error.words().contains("UNIQUE"), "{error}");
    last.await.unwrap().unwrap();
    assert_eq!(bench.rows().await, ["first", "last"]);
    assert_eq!(bench.commits(), before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_fails_fails_all_who_share_it() {
    let bench = Bench::new().await;
    let orphan = "INSERT INTO rows (name, parent) VALUES ('orphan', 7)";
    let go = hold(&bench.store).await;
    let alone = queue(&bench.store, orphan).await;
    go.send(()).unwrap();
    let alone = alone.await.unwrap().unwrap_err();
    let go = hold(&bench.store).await;
    let all = [
        queue(&bench.store, &row("first")).await,
        queue(&bench.store, orphan).await,
        queue(&bench.store, &row("last")).await,
    ];
    go.send(()).unwrap();
    for one in all {
        let error = one.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.words()), (alone.kind(), alone.words()));
    }
    assert!(bench.rows().await.is_empty());
    // A connection that could not commit is given up; the next one works.
    writes_again(&bench).await;
}

/// SQLite rolls back by itself: what an earlier unit has written is gone, and none may be told that it stands, not
/// even a unit that has overlooked its error.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_rollback_of_sqlites_own_nobody_is_told_that_it_stands() {
    for overlooked in [false, true] {
        let bench = Bench::new().await;
        let go = hold(&bench.store).await;
        let first = queue(&bench.store, &row("first")).await;
        let writer = bench.store.writer.clone();
        let culprit = tokio::spawn(async move {
            let unit = writer.write("test", move |conn| {
                Box::pin(async move {
                    let full = run_sql(conn, FULL).await;
                    if overlooked { Ok(()) } else { full }
                })
            });
            unit.await
        });
        until_queued(&bench.store, 2).await;
        let last = queue(&bench.store, &row("last")).await;
        go.send(()).unwrap();
        let error = culprit.await.unwrap().unwrap_err();
        assert!(overlooked || error.words().contains("full"), "{error}");
        for other in [first, last] {
            let error = other.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}: it may be written again");
        }
        assert!(bench.rows().await.is_empty());
        writes_again(&bench).await;
    }
}

/// The file is looked at just before the commit: the lock, and the units, may have taken their time.
#[tokio::test(flavor = "multi_thread")]
async fn what_would_be_committed_in_a_file_that_was_moved_away_is_rolled_back() {
    let bench = Bench::new().await;
    let go = hold(&bench.store).await;
    let all = [queue(&bench.store, &row("first")).await, queue(&bench.store, &row("last")).await];
    let away = bench.move_away();
    go.send(()).unwrap();
    for one in all {
        assert_moved_away(&one.await.unwrap());
    }
    drop(away);
    assert!(bench.rows().await.is_empty());
    writes_again(&bench).await;
}

/// Nor does a connection that is opened anew make a file of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_opened_anew_to_the_same_file_only() {
    let bench = Bench::new().await;
    let go = hold(&bench.store).await;
    let given_up = queue(&bench.store, "INSERT INTO rows (name, parent) VALUES ('orphan', 7)").await;
    go.send(()).unwrap();
    given_up.await.unwrap().unwrap_err();
    let away = bench.move_away();
    let missed = queue_alone(&bench.store, &row("missed")).await;
    assert_moved_away(&missed);
    drop(away);
    writes_again(&bench).await;
}

fn assert_moved_away(answer: &Answer) {
    let error = answer.as_ref().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.words().contains("moved away"), "{error}");
}

/// A claim and its line are one command, which has no savepoint of the driver's around it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_fails_at_any_point_leaves_nothing_and_harms_no_other() {
    let bench = Bench::new().await;
    let refuse = |table: &str, key: &str, how: &str| {
        format!(
            "CREATE TRIGGER {key} BEFORE INSERT ON {table} WHEN NEW.key = '{key}' BEGIN SELECT RAISE({how}, 'no'); END;"
        )
    };
    let (keys, lines) = ("onced_idempotency_keys", "onced_deliveries");
    let triggers =
        [refuse(keys, "early", "ABORT"), refuse(lines, "late", "ABORT"), refuse(lines, "entire", "ROLLBACK")];
    bench.database.sql().execute(&triggers.concat()).await;
    let guard = Guard::new(bench.store.clone(), LogDeliveries::Executed);
    for (culprit, stand) in [("early", true), ("late", true), ("entire", false)] {
        let go = hold(&bench.store).await;
        let first = claim(&bench.store, &guard, &format!("before_{culprit}")).await;
        let failing = claim(&bench.store, &guard, culprit).await;
        let last = claim(&bench.store, &guard, &format!("after_{culprit}")).await;
        let before = bench.commits();
        go.send(()).unwrap();
        assert!(matches!(failing.await.unwrap(), Err(GuardError::Store { .. })), "{culprit}");
        for other in [first, last] {
            match other.await.unwrap() {
                Ok(Begun::Execute(_)) => assert!(stand, "{culprit}"),
                Err(GuardError::Store { source, .. }) => {
                    assert!(!stand, "{culprit}: {source}");
                    assert_eq!(source.kind(), StoreErrorKind::Unavailable, "{source}");
                }
                odd => panic!("{culprit}: {odd:?}"),
            }
        }
        assert_eq!(bench.commits() - before, usize::from(stand), "{culprit}");
        for table in [keys, lines] {
            let left = format!("SELECT count(*) FROM {table} WHERE key LIKE '%{culprit}'");
            assert_eq!(bench.database.sql().count(&left).await, if stand { 2 } else { 0 }, "{culprit} in {table}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_nobody_waits_for_is_not_begun() {
    let bench = Bench::new().await;
    let go = hold(&bench.store).await;
    let gone = queue(&bench.store, &row("gone")).await;
    let stays = queue(&bench.store, &row("stays")).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    go.send(()).unwrap();
    stays.await.unwrap().unwrap();
    assert_eq!(bench.rows().await, ["stays"]);
}

async fn writes_again(bench: &Bench) {
    let go = hold(&bench.store).await;
    let again = queue(&bench.store, &row("again")).await;
    go.send(()).unwrap();
    again.await.unwrap().unwrap();
    assert_eq!(bench.rows().await, ["again"]);
}

/// SIGKILL between the units of a shared commit: what was answered is there, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_the_middle_of_a_shared_commit_loses_only_who_was_not_answered() {
    if let Ok(url) = std::env::var(VARIABLE) {
        return write_until_killed(&url).await;
    }
    let bench = Bench::new().await;
    let name = "store::sqlite::writer::tests::a_crash_in_the_middle_of_a_shared_commit_loses_only_who_was_not_answered";
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(VARIABLE, bench.database.url())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut answered = BTreeSet::new();
    while let Some(line) = said.next_line().await.unwrap() {
        if line.contains("in the middle") {
            child.kill().await.unwrap();
        } else if let Some((_, row)) = line.split_once("answered ") {
            answered.insert(row.to_owned());
        }
    }
    assert!(!child.wait().await.unwrap().success(), "it was to be killed");
    let rows: BTreeSet<_> = bench.rows().await.into_iter().collect();
    assert_eq!(answered, rows, "answered, and there");
    assert_eq!(rows, BTreeSet::from(["early".to_owned()]));
}

async fn write_until_killed(url: &str) {
    let store = SqliteStore::open(url, &StoreOptions::default()).await.unwrap();
    let go = hold(&store).await;
    let early = queue(&store, &row("early")).await;
    go.send(()).unwrap();
    early.await.unwrap().unwrap();
    println!("\nanswered early");
    let go = hold(&store).await;
    for n in 0..5 {
        let late = queue(&store, &row(&format!("late{n}"))).await;
        tokio::spawn(async move {
            late.await.unwrap().unwrap();
            println!("\nanswered late{n}");
        });
    }
    let writer = store.writer.clone();
    let endless = tokio::spawn(async move {
        let unit = writer.write("endless", |_| {
            Box::pin(async {
                a_while().await;
                println!("\nin the middle");
                std::future::pending::<Answer>().await
            })
        });
        unit.await
    });
    until_queued(&store, 6).await;
    go.send(()).unwrap();
    endless.await.unwrap().unwrap();
}
