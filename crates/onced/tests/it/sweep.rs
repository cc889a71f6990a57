//! Cleaning up: what goes and what stays, to the microsecond, with the ledger's clock stopped.

use std::time::Duration;

use onced::store::keys::Transactional as _;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sweep::{Batch, Sweep as _};
use onced_core::key::Key;
use onced_core::record::Record;
use onced_core::time::Timestamp;

use crate::bench::{Bench, SCOPE, Tested, fresh_key, line, until};
use crate::plant;

const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_123_000);
const MICRO: Duration = Duration::from_micros(1);
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);
const KEEP: Duration = Duration::from_secs(30 * 24 * 3600);
const ENOUGH: u32 = 10_000;

/// One case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sweeping {
    CompletedAtTheBound,
    CompletedByOne,
    Failed,
    Queued,
    InProgress,
    Pending,
    Held,
    Never,
    WithItsSteps,
    StepOfUnfinished,
    StepOfKept,
    LoneStep,
    LoneFreshStep,
    UnfinishedStep,
    OthersSteps,
    OldLine,
    YoungLine,
    LineOfUnfinished,
    InBatches,
    LinesInBatches,
    Counted,
}

impl Sweeping {
    pub(crate) const ALL: [Self; 21] = [
        Self::CompletedAtTheBound,
        Self::CompletedByOne,
        Self::Failed,
        Self::Queued,
        Self::InProgress,
        Self::Pending,
        Self::Held,
        Self::Never,
        Self::WithItsSteps,
        Self::StepOfUnfinished,
        Self::StepOfKept,
        Self::LoneStep,
        Self::LoneFreshStep,
        Self::UnfinishedStep,
        Self::OthersSteps,
        Self::OldLine,
        Self::YoungLine,
        Self::LineOfUnfinished,
        Self::InBatches,
        Self::LinesInBatches,
        Self::Counted,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CompletedAtTheBound => "completed | expires now | goes",
            Self::CompletedByOne => "completed | expires in a microsecond | stays",
            Self::Failed => "failed | expires now | goes",
            Self::Queued => "queued | expired long ago | stays",
            Self::InProgress => "in-progress | expired long ago | stays",
            Self::Pending => "pending | expired long ago | stays",
            Self::Held => "failed | held | stays",
            Self::Never => "completed | never expires | stays",
            Self::WithItsSteps => "completed | has finished steps | all go",
            Self::StepOfUnfinished => "step | its record is unfinished | stays",
            Self::StepOfKept => "step | its record has not expired | stays",
            Self::LoneStep => "step | without a record, expired | goes",
            Self::LoneFreshStep => "step | without a record, not expired | stays",
            Self::UnfinishedStep => "completed | has an unfinished step | both stay",
            Self::OthersSteps => "step | of another key, of another scope | stays",
            Self::OldLine => "delivery | older than is kept | goes",
            Self::YoungLine => "delivery | younger by a microsecond | stays",
            Self::LineOfUnfinished => "delivery | old, its key unfinished | stays",
            Self::InBatches => "completed | more than a batch | the longest expired first",
            Self::LinesInBatches => "delivery | more than a batch | the oldest first",
            Self::Counted => "all | counted before | as many go, by scope",
        }
    }

    pub(crate) async fn run<S: Tested>(self, bench: &Bench<S>) {
        bench.stop_the_clock_at(NOW).await;
        // What other cases have left behind would fill the batches.
        sweep(bench, ENOUGH).await;
        self.check(bench).await;
        bench.let_the_clock_run().await;
    }

    async fn check<S: Tested>(self, bench: &Bench<S>) {
        let long_ago = Some(NOW.minus(LONG));
        match self {
            Self::CompletedAtTheBound => alone(bench, "completed", Some(NOW), 0).await,
            Self::CompletedByOne => alone(bench, "completed", Some(NOW.plus(MICRO)), 1).await,
            Self::Failed => alone(bench, "failed", Some(NOW), 0).await,
            Self::Queued => alone(bench, "queued", long_ago, 1).await,
            Self::InProgress => alone(bench, "in-progress-over", long_ago, 1).await,
            Self::Pending => alone(bench, "pending-over-hold", long_ago, 1).await,
            Self::Held => {
                let held = Record { held_at: long_ago, ..expiring("failed", long_ago) };
                stays(bench, SCOPE, &held, &[], 1).await;
            }
            Self::Never => alone(bench, "completed", None, 1).await,
            Self::WithItsSteps => {
                // Steps expire with their record, whatever they say themselves.
                let fresh = expiring("completed", Some(NOW.plus(LONG)));
                let steps = [("call", fresh.clone()), ("a", expiring("failed", Some(NOW))), ("zz/9", fresh)];
                stays(bench, SCOPE, &expiring("completed", Some(NOW)), &steps, 0).await;
            }
            Self::StepOfUnfinished => {
                let step = [("call", expiring("completed", long_ago))];
                stays(bench, SCOPE, &expiring("pending-over-hold", long_ago), &step, 2).await;
            }
            Self::StepOfKept => {
                let step = [("call", expiring("completed", long_ago))];
                stays(bench, SCOPE, &expiring("completed", Some(NOW.plus(MICRO))), &step, 2).await;
            }
            Self::LoneStep => stays(bench, &format!("{SCOPE}#call"), &expiring("completed", long_ago), &[], 0).await,
            Self::LoneFreshStep => {
                let fresh = expiring("completed", Some(NOW.plus(MICRO)));
                stays(bench, &format!("{SCOPE}#call"), &fresh, &[], 1).await;
            }
            Self::UnfinishedStep => {
                let step = [("call", expiring("pending-over-hold", long_ago))];
                stays(bench, SCOPE, &expiring("completed", long_ago), &step, 2).await;
            }
            Self::OthersSteps => others_steps(bench).await,
            Self::OldLine => line_stays(bench, None, NOW.minus(KEEP), 0).await,
            Self::YoungLine => line_stays(bench, None, NOW.minus(KEEP).plus(MICRO), 1).await,
            Self::LineOfUnfinished => line_stays(bench, Some("pending-over-hold"), NOW.minus(LONG), 1).await,
            Self::InBatches => in_batches(bench).await,
            Self::LinesInBatches => lines_in_batches(bench).await,
            Self::Counted => counted(bench).await,
        }
    }
}

/// The record of that line of the decision table, with another expiry.
fn expiring(name: &str, expires_at: Option<Timestamp>) -> Record {
    Record { expires_at, ..line(name).found(NOW).record.unwrap() }
}

async fn alone<S: Tested>(bench: &Bench<S>, name: &str, expires_at: Option<Timestamp>, left: i64) {
    stays(bench, SCOPE, &expiring(name, expires_at), &[], left).await;
}

/// Plants a record and its steps, sweeps, and counts what is left of them; what stays has not changed.
async fn stays<S: Tested>(bench: &Bench<S>, scope: &str, record: &Record, steps: &[(&str, Record)], left: i64) {
    let key = fresh_key();
    plant::record(bench, scope, &key, record).await;
    for (name, step) in steps {
        plant::record(bench, &format!("{scope}#{name}"), &key, step).await;
    }
    let before = bench.record(&key).await;
    assert_eq!(before.len(), steps.len() + 1);
    let planted = i64::try_from(before.len()).unwrap();
    assert_eq!(sweep(bench, ENOUGH).await, planted - left);
    let after = bench.record(&key).await;
    if left == 0 {
        assert!(after.is_empty(), "{after:?}");
    } else {
        assert_eq!(after, before);
    }
}

/// Sweeps until a batch finds nothing, and tells how many records went.
async fn sweep<S: Tested>(bench: &Bench<S>, limit: u32) -> i64 {
    let mut all = 0;
    loop {
        match bench.store.clone().sweep_keys(limit).await.unwrap() {
            Batch::Deleted(0) => return all,
            Batch::Deleted(count) => all += i64::try_from(count).unwrap(),
            Batch::OtherSweeper => panic!("nobody else sweeps"),
        }
    }
}

async fn others_steps<S: Tested>(bench: &Bench<S>) {
    let (key, other) = (fresh_key(), fresh_key());
    let (expired, fresh) = (expiring("completed", Some(NOW)), expiring("completed", Some(NOW.plus(MICRO))));
    plant::record(bench, SCOPE, &key, &expired).await;
    for (scope, key) in [
        (SCOPE.to_owned(), &other),
        (format!("{SCOPE}#call"), &other),
        (format!("{SCOPE}s"), &key),
        (format!("{SCOPE}s#call"), &key),
        (format!("x{SCOPE}#call"), &key),
    ] {
        plant::record(bench, &scope, key, &fresh).await;
    }
    assert_eq!(sweep(bench, ENOUGH).await, 1);
    assert_eq!((bench.record(&key).await.len(), bench.record(&other).await.len()), (3, 2));
}

async fn plant_line<S: Tested>(bench: &Bench<S>, scope: &str, key: &Key, received_at: Timestamp) {
    plant::delivery(bench, scope, key.as_str(), "execute", received_at, 1).await;
}

async fn lines_of<S: Tested>(bench: &Bench<S>, key: &Key) -> i64 {
    bench.count(&format!("SELECT count(*) FROM {{deliveries}} WHERE key = '{}'", key.as_str())).await
}

async fn line_stays<S: Tested>(bench: &Bench<S>, record: Option<&str>, received_at: Timestamp, left: i64) {
    let key = fresh_key();
    if let Some(name) = record {
        plant::record(bench, SCOPE, &key, &expiring(name, Some(NOW))).await;
    }
    plant_line(bench, SCOPE, &key, received_at).await;
    let swept = bench.store.clone().sweep_deliveries(KEEP, ENOUGH).await.unwrap();
    assert_eq!((swept, lines_of(bench, &key).await), (Batch::Deleted(u64::from(left == 0)), left));
}

async fn in_batches<S: Tested>(bench: &Bench<S>) {
    let keys: [Key; 5] = std::array::from_fn(|_| fresh_key());
    // Planted youngest first.
    for (age, key) in (1..).zip(&keys) {
        let expired = expiring("failed", Some(NOW.minus(MICRO * age)));
        plant::record(bench, SCOPE, key, &expired).await;
    }
    let mut left = Vec::new();
    for deleted in [2, 2, 1, 0] {
        assert_eq!(bench.store.clone().sweep_keys(2).await.unwrap(), Batch::Deleted(deleted));
        let mut there = 0;
        for key in &keys {
            there += bench.record(key).await.len();
        }
        left.push((there, bench.record(&keys[0]).await.len()));
    }
    assert_eq!(left, [(3, 1), (1, 1), (0, 0), (0, 0)]);
}

async fn lines_in_batches<S: Tested>(bench: &Bench<S>) {
    let keys: [Key; 3] = std::array::from_fn(|_| fresh_key());
    for (age, key) in (1..).zip(&keys) {
        plant_line(bench, SCOPE, key, NOW.minus(LONG).minus(Duration::from_secs(age))).await;
    }
    for (deleted, left) in [(2, [1, 0, 0]), (1, [0, 0, 0]), (0, [0, 0, 0])] {
        assert_eq!(bench.store.clone().sweep_deliveries(KEEP, 2).await.unwrap(), Batch::Deleted(deleted));
        for (key, left) in keys.iter().zip(left) {
            assert_eq!(lines_of(bench, key).await, left);
        }
    }
}

/// The count says what goes, and has changed nothing.
async fn counted<S: Tested>(bench: &Bench<S>) {
    let scopes: [String; 3] = std::array::from_fn(|_| format!("due.{}", fresh_key().as_str()));
    let (expired, fresh) = (expiring("completed", Some(NOW)), expiring("completed", Some(NOW.plus(MICRO))));
    let [with_steps, plain, kept] = &scopes;
    for _ in 0..2 {
        let key = fresh_key();
        plant::record(bench, with_steps, &key, &expired).await;
        plant::record(bench, &format!("{with_steps}#call"), &key, &fresh).await;
    }
    plant::record(bench, &format!("{with_steps}#call"), &fresh_key(), &expired).await;
    let key = fresh_key();
    plant::record(bench, plain, &key, &expired).await;
    plant_line(bench, plain, &key, NOW.minus(LONG)).await;
    plant_line(bench, plain, &key, NOW).await;
    let key = fresh_key();
    plant::record(bench, kept, &key, &fresh).await;
    plant::record(bench, &format!("{kept}#call"), &key, &expired).await;

    let due = bench.store.clone().due(KEEP).await.unwrap();
    let due: Vec<_> = due.into_iter().filter(|due| scopes.contains(&due.scope)).collect();
    let counts: Vec<_> = due.iter().map(|due| (&due.scope, due.keys, due.deliveries)).collect();
    assert_eq!(counts, [(with_steps, 5, 0), (plain, 1, 1)]);
    assert_eq!(sweep(bench, ENOUGH).await, 6);
    assert_eq!(bench.store.clone().sweep_deliveries(KEEP, ENOUGH).await.unwrap(), Batch::Deleted(1));
    assert!(bench.store.clone().due(KEEP).await.unwrap().is_empty());
}

/// A finished, expired record whose key begins its next life while the sweeper runs: the taker has it locked, and then
/// it is no longer what the sweeper was to delete.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_a_rival_replaces_meanwhile_is_not_deleted() {
    let bench = Bench::<PgStore>::new().await;
    let (taken, other) = (fresh_key(), fresh_key());
    let now = bench.now().await;
    for key in [&taken, &other] {
        let expired = Record { expires_at: Some(now), ..line("completed").found(now).record.unwrap() };
        plant::record(&bench, SCOPE, key, &expired).await;
    }
    let mut rival = bench.store.pool().begin().await.unwrap();
    let replace = format!(
        "UPDATE onced.idempotency_keys SET status = 'in_progress', lease_token = 'next', \
                lease_until = onced.clock() + interval '30 s', expires_at = onced.clock() + interval '1 day' \
          WHERE key = '{}'",
        taken.as_str()
    );
    assert_eq!(PgStore::run(&mut rival, &replace).await.unwrap(), 1);
    assert_eq!(bench.store.clone().sweep_keys(ENOUGH).await.unwrap(), Batch::Deleted(1), "what is locked is skipped");
    rival.commit().await.unwrap();
    assert_eq!(bench.store.clone().sweep_keys(ENOUGH).await.unwrap(), Batch::Deleted(0));
    assert_eq!(bench.columns(&taken, "status").await, ["in_progress"]);
    assert!(bench.columns(&other, "status").await.is_empty());
}

/// The same, committed after the sweeper's snapshot and before its delete: a trigger of the other record's deletion
/// cannot come in between, so the sweeper's clock does. It is read once, after the snapshot, and begins the next life.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_replaced_after_the_snapshot_is_not_deleted() {
    let bench = Bench::<PgStore>::new().await;
    let key = fresh_key();
    let now = bench.now().await;
    let expired = Record { expires_at: Some(now), ..line("completed").found(now).record.unwrap() };
    plant::record(&bench, SCOPE, &key, &expired).await;
    // The sweeper waits in its clock for this lock, its snapshot already taken.
    let mut gate = bench.store.pool().begin().await.unwrap();
    PgStore::run(&mut gate, "SELECT pg_advisory_xact_lock(7)").await.unwrap();
    bench
        .execute(
            "CREATE OR REPLACE FUNCTION onced.clock() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS \
             $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN clock_timestamp(); END $$",
        )
        .await;
    let mut store = bench.store.clone();
    let sweeping = tokio::spawn(async move { store.sweep_keys(ENOUGH).await });
    until("the sweeper waits", async || {
        bench.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").await == 1
    })
    .await;
    let replace = format!(
        "UPDATE onced.idempotency_keys SET status = 'in_progress', lease_token = 'next', \
                lease_until = clock_timestamp() + interval '30 s', expires_at = clock_timestamp() + interval '1 day' \
          WHERE key = '{}'",
        key.as_str()
    );
    assert_eq!(bench.execute(&replace).await, 1);
    gate.rollback().await.unwrap();
    assert_eq!(sweeping.await.unwrap().unwrap(), Batch::Deleted(0));
    assert_eq!(bench.columns(&key, "status").await, ["in_progress"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_sweeps_at_a_time() {
    let bench = Bench::<PgStore>::new().await;
    let key = fresh_key();
    let now = bench.now().await;
    plant::record(&bench, SCOPE, &key, &Record { expires_at: Some(now), ..line("failed").found(now).record.unwrap() })
        .await;
    let mut other = bench.store.pool().begin().await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock(1869505380, 'onced.idempotency_keys'::regclass::oid::integer)";
    PgStore::run(&mut other, lock).await.unwrap();
    let mut store = bench.store.clone();
    assert_eq!(store.sweep_keys(ENOUGH).await.unwrap(), Batch::OtherSweeper);
    assert_eq!(store.sweep_deliveries(KEEP, ENOUGH).await.unwrap(), Batch::OtherSweeper);
    other.rollback().await.unwrap();
    assert_eq!(store.sweep_keys(ENOUGH).await.unwrap(), Batch::Deleted(1));
}

/// On MariaDB: a taker has one record locked, and then it is no longer what the sweeper was to delete; and one sweeper
/// works at a time.
#[tokio::test(flavor = "multi_thread")]
async fn on_mariadb_a_locked_record_is_skipped_and_one_sweeper_works_at_a_time() {
    let bench = Bench::<MySqlStore>::new().await;
    let (taken, other) = (fresh_key(), fresh_key());
    let now = bench.now().await;
    for key in [&taken, &other] {
        let expired = Record { expires_at: Some(now), ..line("completed").found(now).record.unwrap() };
        plant::record(&bench, SCOPE, key, &expired).await;
    }
    let mut store = bench.store.clone();

    let mut sweeper = bench.store.transaction().await.unwrap();
    MySqlStore::run(&mut sweeper, "SELECT name FROM onced_locks WHERE name = 'sweep' FOR UPDATE").await.unwrap();
    assert_eq!(store.sweep_keys(ENOUGH).await.unwrap(), Batch::OtherSweeper);
    assert_eq!(store.sweep_deliveries(KEEP, ENOUGH).await.unwrap(), Batch::OtherSweeper);
    sweeper.rollback().await.unwrap();

    let mut rival = bench.store.transaction().await.unwrap();
    let replace = format!(
        "UPDATE onced_idempotency_keys SET status = 'in_progress', lease_token = 'next', \
                lease_until = UTC_TIMESTAMP(6) + INTERVAL 30 SECOND, expires_at = UTC_TIMESTAMP(6) + INTERVAL 1 DAY \
          WHERE key = '{}'",
        taken.as_str()
    );
    assert_eq!(MySqlStore::run(&mut rival, &replace).await.unwrap(), 1);
    assert_eq!(store.sweep_keys(ENOUGH).await.unwrap(), Batch::Deleted(1));
    assert!(bench.record(&other).await.is_empty());
    rival.commit().await.unwrap();
    assert_eq!(store.sweep_keys(ENOUGH).await.unwrap(), Batch::Deleted(0));
    assert_eq!(bench.columns(&taken, "status, lease_token").await, ["in_progress", "next"]);
}
