//! A person resolves an unknown outcome: only a pending one whose lease is over, not before `settle` has passed where
//! it is said not to have happened, by the token that was read, and with a reason that is kept.

use std::time::Duration;

use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced::store::upkeep::{Because, Filter, Resolution};
use onced_core::decision_table;
use onced_core::key::Key;
use onced_core::record::{LeaseToken, Record, Status, StoredResponse};
use onced_core::time::Timestamp;

use crate::bench::{Bench, Tested, fresh_key, line, scope};
use crate::functions::SqlFunctions;
use crate::plant;

const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_123_000);
const MICRO: Duration = Duration::from_micros(1);
const SETTLE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn only_a_pending_record_whose_lease_is_over_is_resolved() {
    resolves_pending_only::<SqliteStore>().await;
    resolves_pending_only::<PgStore>().await;
    resolves_pending_only::<MySqlStore>().await;
    resolves_pending_only::<SqlFunctions>().await;
}

async fn resolves_pending_only<S: Tested>() {
    let bench = stopped::<S>().await;
    for line in decision_table::lines() {
        let Some(record) = line.found(NOW).record else { continue };
        let may = record.status == Status::PendingExternal && !record.lease_is_alive(NOW);
        for resolution in [happened(), did_not_happen(Duration::from_secs(1))] {
            assert_eq!(resolve(&bench, &record, &resolution).await, may, "{}, {resolution:?}", line.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bounds_of_lease_and_settle_are_kept_on_both_sides() {
    keeps_bounds::<SqliteStore>().await;
    keeps_bounds::<PgStore>().await;
    keeps_bounds::<MySqlStore>().await;
    keeps_bounds::<SqlFunctions>().await;
}

async fn keeps_bounds<S: Tested>() {
    let bench = stopped::<S>().await;
    let pending = line("pending-over-reconcile").found(NOW).record.unwrap();
    let leased = |until| Record { lease_until: Some(until), ..pending.clone() };
    assert!(resolve(&bench, &leased(NOW), &happened()).await, "over at the bound itself");
    assert!(!resolve(&bench, &leased(NOW.plus(MICRO)), &happened()).await, "alive by a microsecond");

    let settled = NOW.minus(SETTLE);
    assert!(resolve(&bench, &leased(settled), &did_not_happen(SETTLE)).await, "settled at the bound itself");
    assert!(!resolve(&bench, &leased(settled.plus(MICRO)), &did_not_happen(SETTLE)).await);
    assert!(resolve(&bench, &leased(settled.plus(MICRO)), &happened()).await, "settle is nothing to what happened");

    // A reconciler's own lease is not the caller's: the last caller's end counts.
    let called = |until| Record { called_until: Some(until), ..leased(NOW) };
    assert!(resolve(&bench, &called(settled), &did_not_happen(SETTLE)).await);
    assert!(!resolve(&bench, &called(settled.plus(MICRO)), &did_not_happen(SETTLE)).await);
}

/// A step that was left without an outcome would keep the whole from ever being swept.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_of_the_whole_is_true_of_its_steps_without_an_outcome() {
    resolves_steps::<SqliteStore>().await;
    resolves_steps::<PgStore>().await;
    resolves_steps::<MySqlStore>().await;
    resolves_steps::<SqlFunctions>().await;
}

async fn resolves_steps<S: Tested>() {
    let bench = stopped::<S>().await;
    let pending = line("pending-over-reconcile").found(NOW).record.unwrap();
    let recorded = line("completed").found(NOW).record.unwrap();
    for (resolution, status) in [(happened(), "completed"), (did_not_happen(Duration::from_secs(1)), "failed")] {
        let (key, other) = (fresh_key(), fresh_key());
        let step = |name| format!("{}#{name}", scope().as_str());
        plant::record(&bench, scope().as_str(), &key, &pending).await;
        plant::record(&bench, &step("open"), &key, &pending).await;
        plant::record(&bench, &step("recorded"), &key, &recorded).await;
        plant::record(&bench, &step("open"), &other, &pending).await;
        let rows = async || {
            let sql = "SELECT scope, status FROM {keys} WHERE scope LIKE '%#%' AND key IN";
            bench.rows(&format!("{sql} ('{}', '{}') ORDER BY scope, status", key.as_str(), other.as_str())).await
        };
        let before = rows().await;
        let stale = LeaseToken::from_row("of-somebody-else".to_owned());
        assert!(!by(&bench, &key, Some(&stale), &resolution).await);
        assert_eq!(rows().await, before);
        assert!(by(&bench, &key, pending.lease_token.as_ref(), &resolution).await);
        let mut expected = [[step("open"), status.to_owned()], [step("open"), "pending_external".to_owned()]];
        expected.sort();
        assert_eq!(rows().await[..2], expected);
        assert_eq!(rows().await[2], [step("recorded"), "completed".to_owned()]);
        let ends = "SELECT lease_token IS NULL, lease_until IS NULL, completed_at IS NULL FROM {keys}";
        let of_open = format!("{ends} WHERE key = '{}' AND scope LIKE '%#open'", key.as_str());
        let truth = bench.rows(&of_open).await.concat();
        assert!(truth[0] == truth[1] && (truth[1] == truth[2]) == (status == "failed"), "{truth:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_read_an_older_claim_resolves_nothing() {
    refuses_stale::<SqliteStore>().await;
    refuses_stale::<PgStore>().await;
    refuses_stale::<MySqlStore>().await;
    refuses_stale::<SqlFunctions>().await;
}

async fn refuses_stale<S: Tested>() {
    let bench = stopped::<S>().await;
    let pending = line("pending-over-reconcile").found(NOW).record.unwrap();
    for resolution in [happened(), did_not_happen(Duration::ZERO)] {
        let key = fresh_key();
        plant::record(&bench, scope().as_str(), &key, &pending).await;
        let before = bench.record(&key).await;
        for stale in [Some(LeaseToken::from_random([9; 16])), None] {
            assert!(!by(&bench, &key, stale.as_ref(), &resolution).await);
        }
        assert!(!by(&bench, &fresh_key(), pending.lease_token.as_ref(), &resolution).await, "no row");
        assert_eq!(bench.record(&key).await, before);
        assert!(bench.store.clone().audit_of(&scope(), &key).await.unwrap().is_empty());
        assert_eq!(bench.count("SELECT count(*) FROM {audit}").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_listed_newest_change_first_without_their_steps() {
    lists::<SqliteStore>().await;
    lists::<PgStore>().await;
    lists::<MySqlStore>().await;
}

async fn lists<S: Tested>() {
    let bench = stopped::<S>().await;
    let mut keys = Vec::new();
    for (age, name) in [(3, "completed"), (1, "pending-over-known"), (2, "failed")] {
        let (key, line) = (fresh_key(), line(name));
        let record = Record { updated_at: NOW.minus(Duration::from_secs(age)), ..line.found(NOW).record.unwrap() };
        plant::record(&bench, scope().as_str(), &key, &record).await;
        plant::step(&bench, &key, "call", &record).await;
        keys.push((age, key.as_str().to_owned()));
    }
    keys.sort();
    let list = async |filter: Filter| {
        let listed = bench.store.clone().list(&filter).await.unwrap();
        listed.into_iter().map(|record| record.key).collect::<Vec<_>>()
    };
    let newest_first: Vec<String> = keys.into_iter().map(|(_, key)| key).collect();
    assert_eq!(list(Filter { limit: 10, ..Filter::default() }).await, newest_first);
    assert_eq!(list(Filter { limit: 2, ..Filter::default() }).await, newest_first[..2]);
    assert_eq!(list(Filter { status: Some(Status::Failed), limit: 10, scope: None }).await, newest_first[1..2]);
    let another = Some(onced_core::key::Scope::new("conf.other").unwrap());
    assert!(list(Filter { scope: another, limit: 10, status: None }).await.is_empty());
}

/// Plants the record, resolves it, and checks that either everything was written or nothing.
async fn resolve<S: Tested>(bench: &Bench<S>, record: &Record, resolution: &Resolution) -> bool {
    let key = fresh_key();
    plant::record(bench, scope().as_str(), &key, record).await;
    let before = bench.record(&key).await;
    let resolved = by(bench, &key, record.lease_token.as_ref(), resolution).await;
    let audit = bench.store.clone().audit_of(&scope(), &key).await.unwrap();
    let audit: Vec<[String; 3]> = audit.into_iter().map(|line| [line.who, line.action, line.reason]).collect();
    if !resolved {
        assert_eq!((bench.record(&key).await, audit.len()), (before, 0));
        return false;
    }
    let (status, action) = match resolution {
        Resolution::Happened(_) => ("completed", "resolve --happened"),
        Resolution::DidNotHappen { .. } => ("failed", "resolve --did-not-happen"),
    };
    assert_eq!(audit, [["mara", action, "asked the bank"]]);
    let row = bench.columns(&key, "status, attempt, response_code, lease_until, {micros}(updated_at)").await;
    let code = if status == "completed" { "201" } else { "NULL" };
    assert_eq!(row, [status, &record.attempt.to_string(), code, "NULL", &NOW.as_micros().to_string()]);
    true
}

async fn by<S: Tested>(bench: &Bench<S>, key: &Key, token: Option<&LeaseToken>, resolution: &Resolution) -> bool {
    let because = Because { who: "mara".to_owned(), reason: "asked the bank".to_owned() };
    bench.store.clone().resolve(&scope(), key, token, resolution, &because).await.unwrap()
}

async fn stopped<S: Tested>() -> Bench<S> {
    let bench = Bench::<S>::new().await;
    bench.stop_the_clock_at(NOW).await;
    bench
}

fn happened() -> Resolution {
    Resolution::Happened(StoredResponse::bare(201))
}

fn did_not_happen(settle: Duration) -> Resolution {
    Resolution::DidNotHappen { settle }
}
