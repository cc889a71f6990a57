//! Work with several outside effects: each is a step of its own, and whoever takes the work over goes on after the last
//! recorded one.

use std::time::Duration;

use bytes::Bytes;
use onced::guard::{Begun, EndError, Guard, Permit, Request, Step};
use onced::store::keys::{InTransaction as _, ParentMove};
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::decision::OnUnknown;
use onced_core::key::{Key, downstream_key};
use onced_core::record::{LeaseToken, StoredResponse};
use testkit::Backend;

use crate::bench::{Bench, SCOPE, Tested, delivery, executes, fresh_key, options, patient, scope};
use crate::proxy::{Cut, Proxy, commit_of};
use crate::rival_process::RivalProcess;

const STEPS: [&str; 3] = ["charge", "book", "mail"];
/// Where a process that does the work may be killed: before it calls, between the call and its record, after that.
const POINTS: [&str; 3] = ["begun", "called", "recorded"];

fn request(key: &Key, on_unknown: OnUnknown) -> Request {
    let mut request = delivery(key);
    request.policy.on_unknown = on_unknown;
    request
}

/// An outside system without a unique constraint: it would hide a second effect.
async fn with_outside<S: Tested>() -> Bench<S> {
    let bench = Bench::<S>::with(&patient()).await;
    let place = if S::BACKEND == Backend::Postgres { "public." } else { "" };
    bench
        .execute(&format!("CREATE TABLE {place}calls (key text NOT NULL, step text NOT NULL, sent text NOT NULL)"))
        .await;
    bench
}

async fn call<S: Tested>(guard: &Guard<S>, key: &Key, step: &str, sent: &str) {
    let place = if S::BACKEND == Backend::Postgres { "public." } else { "" };
    let mut tx = guard.store().transaction().await.unwrap();
    let sql = format!("INSERT INTO {place}calls VALUES ('{}', '{step}', '{sent}')", key.as_str());
    S::run(&mut tx, &sql).await.unwrap();
    tx.commit().await.unwrap();
}

/// Does the work up to that point; all of it without one.
pub(crate) async fn work<S: Tested>(guard: &Guard<S>, key: &Key, stop_at: Option<(&str, &str)>) -> Option<Permit<S>> {
    let mut permit = executes(guard.begin(&request(key, OnUnknown::Retry)).await.unwrap());
    for name in STEPS {
        let stops_at = |point| stop_at == Some((name, point));
        let step = match permit.step(name).await.unwrap() {
            Step::Recorded(response) => {
                assert_eq!(response, answer(name));
                continue;
            }
            Step::Execute(step) => step,
        };
        if stops_at("begun") {
            return Some(permit);
        }
        assert!(step.may_start_call());
        call(guard, key, name, step.downstream_key()).await;
        if stops_at("called") {
            return Some(permit);
        }
        step.complete(answer(name)).await.unwrap();
        if stops_at("recorded") {
            return Some(permit);
        }
    }
    let mut tx = guard.store().transaction().await.unwrap();
    S::run(&mut tx, &format!("INSERT INTO orders (key) VALUES ('{}')", key.as_str())).await.unwrap();
    permit.complete_tx(&mut tx, StoredResponse::bare(201)).await.unwrap();
    tx.commit().await.unwrap();
    None
}

fn answer(step: &str) -> StoredResponse {
    StoredResponse { body: Some(Bytes::from(step.to_owned())), ..StoredResponse::bare(200) }
}

async fn calls<S: Tested>(bench: &Bench<S>, key: &Key) -> Vec<String> {
    let sql = format!("SELECT step FROM calls WHERE key = '{}' ORDER BY step", key.as_str());
    bench.rows(&sql).await.concat()
}

/// Counted by SQL of its own, not by what the library says.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_is_followed_by_one_that_repeats_no_recorded_step() {
    killed::<SqliteStore>().await;
    killed::<PgStore>().await;
    killed::<MySqlStore>().await;
}

async fn killed<S: Tested>() {
    let bench = with_outside::<S>().await;
    for (number, name) in STEPS.into_iter().enumerate() {
        for point in POINTS {
            let key = fresh_key();
            let mut process = RivalProcess::start(bench.database.url());
            let said = process.ask(&format!("work {} {name} {point}", key.as_str())).await;
            assert_eq!(said, format!("{point} {name}"));
            drop(process);

            let status = if point == "recorded" { "in_progress" } else { "pending_external" };
            assert_eq!(bench.columns(&key, "status, attempt").await, [status, "1"], "{name} {point}");
            let recorded = number + usize::from(point == "recorded");
            let steps = format!("SELECT count(*) FROM {{keys}} WHERE key = '{}' AND scope <> '{SCOPE}'", key.as_str());
            assert_eq!(bench.count(&format!("{steps} AND status = 'completed'")).await as usize, recorded);

            bench.let_the_lease_be_over(&key).await;
            assert!(work(&bench.guard, &key, None).await.is_none());
            assert_eq!(bench.columns(&key, "status, attempt").await, ["completed", "2"]);
            let mut expected = vec!["book", "charge", "mail"];
            if point == "called" {
                // Nobody knew what came of that call: it was sent again, with the same downstream key.
                expected.push(name);
                expected.sort_unstable();
            }
            assert_eq!(calls(&bench, &key).await, expected, "{name} {point}");
            let sent = format!("SELECT DISTINCT sent FROM calls WHERE key = '{}'", key.as_str());
            let mut sent = bench.rows(&sent).await.concat();
            // Each database has an order of its own for text.
            sent.sort_unstable();
            let mut keys = STEPS.map(|step| downstream_key(&scope(), &key, step));
            keys.sort_unstable();
            assert_eq!(sent, keys, "{name} {point}");
            assert_eq!(bench.orders(&key).await, 1);
            assert!(matches!(bench.guard.begin(&request(&key, OnUnknown::Retry)).await, Ok(Begun::Replay { .. })));
        }
    }
}

/// Only a step without an outcome makes the whole unknown.
#[tokio::test(flavor = "multi_thread")]
async fn where_unknown_calls_are_not_repeated_only_an_unfinished_step_stands_in_the_way() {
    unknown::<SqliteStore>().await;
    unknown::<PgStore>().await;
    unknown::<MySqlStore>().await;
}

async fn unknown<S: Tested>() {
    let bench = Bench::<S>::with(&options()).await;
    for on_unknown in [OnUnknown::Hold, OnUnknown::Reconcile] {
        let key = fresh_key();
        let request = request(&key, on_unknown);
        let mut first = executes(bench.guard.begin(&request).await.unwrap());
        execute(&mut first, "charge").await;
        drop(first);
        bench.let_the_lease_be_over(&key).await;
        let mut second = executes(bench.guard.begin(&request).await.unwrap());
        assert!(second.is_resumed() && !second.earlier_call_is_unknown());
        assert!(matches!(second.step("charge").await, Ok(Step::Recorded(_))));
        let step = second.step("book").await.unwrap();
        drop(step);
        drop(second);
        bench.let_the_lease_be_over(&key).await;
        let before = bench.record(&key).await;
        assert!(matches!(bench.guard.begin(&request).await, Ok(Begun::Unknown { .. })));
        assert_eq!(bench.record(&key).await, before);
        assert_eq!(bench.columns(&key, "status, attempt").await, ["pending_external", "2"]);
    }
}

async fn execute<S: Tested>(permit: &mut Permit<S>, name: &str) {
    let Step::Execute(step) = permit.step(name).await.unwrap() else { panic!("{name} was executed before") };
    step.complete(answer(name)).await.unwrap();
}

/// The window of the downstream counts from the first call that has no outcome, not from the first of all.
#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_step_does_not_use_up_the_downstreams_memory() {
    window::<SqliteStore>().await;
    window::<PgStore>().await;
    window::<MySqlStore>().await;
}

async fn window<S: Tested>() {
    let bench = Bench::<S>::with(&options()).await;
    let key = fresh_key();
    let request = request(&key, OnUnknown::Retry);
    let mut first = executes(bench.guard.begin(&request).await.unwrap());
    execute(&mut first, "charge").await;
    assert_eq!(bench.columns(&key, "called_at").await, ["NULL"]);
    let now = bench.now().await;
    bench.stop_the_clock_at(now.plus(request.policy.downstream_window)).await;
    let step = first.step("book").await.unwrap();
    drop(step);
    drop(first);
    bench.let_the_lease_be_over(&key).await;
    let mut second = executes(bench.guard.begin(&request).await.unwrap());
    assert!(second.earlier_call_is_unknown() && second.has_unknown_call());
    execute(&mut second, "mail").await;
    assert!(second.has_unknown_call(), "the step that the first attempt was cut off in has no outcome");
    execute(&mut second, "book").await;
    assert!(!second.earlier_call_is_unknown() && !second.has_unknown_call());
    let Step::Execute(step) = second.step("ship").await.unwrap() else { panic!("has no outcome") };
    assert_eq!(step.attempt(), 1);
    drop(step);
    drop(second);
    bench.stop_the_clock_at(now.plus(request.policy.downstream_window * 2)).await;
    bench.let_the_lease_be_over(&key).await;
    assert!(matches!(bench.guard.begin(&request).await, Ok(Begun::Unknown { .. })));
    bench.let_the_clock_run().await;
}

/// Another release of the work may take its steps in another order: the one without an outcome keeps the whole pending.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_step_does_not_hide_an_earlier_one_without_an_outcome() {
    hidden::<SqliteStore>().await;
    hidden::<PgStore>().await;
    hidden::<MySqlStore>().await;
}

async fn hidden<S: Tested>() {
    let bench = Bench::<S>::with(&options()).await;
    let key = fresh_key();
    let request = request(&key, OnUnknown::Retry);
    let mut first = executes(bench.guard.begin(&request).await.unwrap());
    drop(first.step("charge").await.unwrap());
    drop(first);
    // What was sent along then stays, whatever this release would make of it.
    let step = format!("scope = '{SCOPE}#charge' AND key = '{}'", key.as_str());
    assert_eq!(bench.execute(&format!("UPDATE {{keys}} SET downstream_key = 'older' WHERE {step}")).await, 1);
    let called_at = bench.rows(&format!("SELECT called_at FROM {{keys}} WHERE {step}")).await.concat();
    bench.let_the_lease_be_over(&key).await;
    let mut second = executes(bench.guard.begin(&request).await.unwrap());
    execute(&mut second, "book").await;
    assert_eq!(bench.columns(&key, "status, called_at").await, ["pending_external", &called_at[0]]);
    // As a whole it would be completed without that step.
    let mut tx = bench.store.transaction().await.unwrap();
    let refused = second.complete_tx(&mut tx, StoredResponse::bare(200)).await;
    assert!(matches!(refused, Err(EndError::Misused { .. })), "{refused:?}");
    tx.rollback().await.unwrap();
    let Step::Execute(step) = second.step("charge").await.unwrap() else { panic!("has no outcome") };
    assert_eq!((step.attempt(), step.downstream_key()), (2, "older"));
    step.complete(answer("charge")).await.unwrap();
    assert_eq!(bench.columns(&key, "status, called_at").await, ["in_progress", "NULL"]);
    second.complete(StoredResponse::bare(200)).await.unwrap();
}

/// A step's moves carry the whole's token.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_takeover_the_slow_owners_step_changes_nothing() {
    slow::<SqliteStore>().await;
    slow::<PgStore>().await;
    slow::<MySqlStore>().await;
}

async fn slow<S: Tested>() {
    let bench = Bench::<S>::with(&patient()).await;
    for ending in ["complete", "fail", "begin"] {
        let key = fresh_key();
        let request = request(&key, OnUnknown::Retry);
        let mut slow = executes(bench.guard.begin(&request).await.unwrap());
        execute(&mut slow, "charge").await;
        if ending == "begin" {
            bench.let_the_lease_be_over(&key).await;
            let _quick = executes(bench.guard.begin(&request).await.unwrap());
            let before = bench.record(&key).await;
            let begun = slow.step("book").await.map(drop);
            assert!(matches!(begun, Err(EndError::ClaimLost { .. })), "{begun:?}");
            assert_eq!(bench.record(&key).await, before);
            continue;
        }
        let Step::Execute(step) = slow.step("book").await.unwrap() else { panic!("nobody executed it") };
        bench.let_the_lease_be_over(&key).await;
        // Once before the other has got to the step, and once after.
        let mut quick = executes(bench.guard.begin(&request).await.unwrap());
        if ending == "fail" {
            let begun = quick.step("book").await.unwrap();
            assert!(matches!(begun, Step::Execute(_)));
        }
        let before = bench.record(&key).await;
        let ended =
            if ending == "fail" { step.fail("woke up late").await } else { step.complete(answer("book")).await };
        assert!(matches!(ended, Err(EndError::ClaimLost { .. })), "{ending}: {ended:?}");
        assert_eq!(bench.record(&key).await, before, "{ending}");
    }
}

/// A step that is known not to have happened may begin again at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_step_begins_again_under_the_same_downstream_key() {
    failed::<SqliteStore>().await;
    failed::<PgStore>().await;
    failed::<MySqlStore>().await;
}

async fn failed<S: Tested>() {
    let bench = Bench::<S>::with(&options()).await;
    let key = fresh_key();
    let mut permit = executes(bench.guard.begin(&request(&key, OnUnknown::Hold)).await.unwrap());
    let (mut sent, mut first_call) = (Vec::new(), None);
    for attempt in 1..=3 {
        let Step::Execute(step) = permit.step("charge").await.unwrap() else { panic!("it has failed") };
        assert_eq!(step.attempt(), attempt);
        sent.push(step.downstream_key().to_owned());
        assert_eq!(bench.columns(&key, "status").await, ["pending_external"]);
        step.fail("the bank did not answer the door").await.unwrap();
        // It may have been repeatable and not undone: the downstream's memory counts from its first call.
        let row = bench.columns(&key, "status, called_at").await;
        assert_eq!(row[0], "in_progress");
        assert_ne!(row[1], "NULL");
        first_call.get_or_insert_with(|| row[1].clone());
        assert_eq!(first_call.as_ref(), Some(&row[1]));
    }
    sent.dedup();
    assert_eq!(sent, [downstream_key(&scope(), &key, "charge")]);
    permit.fail("no bank", None).await.unwrap();
    assert_eq!(bench.columns(&key, "status").await, ["failed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_out_of_turn_is_refused_and_writes_nothing() {
    out_of_turn::<SqliteStore>().await;
    out_of_turn::<PgStore>().await;
    out_of_turn::<MySqlStore>().await;
}

async fn out_of_turn<S: Tested>() {
    let bench = Bench::<S>::with(&options()).await;
    let misused = |ended: Result<(), EndError>| assert!(matches!(ended, Err(EndError::Misused { .. })), "{ended:?}");
    let begin = async |key: &Key| executes(bench.guard.begin(&request(key, OnUnknown::Retry)).await.unwrap());

    let key = fresh_key();
    let mut permit = begin(&key).await;
    let before = bench.record(&key).await;
    for name in ["", "call", "two words", "a#b", "a:b", &"x".repeat(31)] {
        misused(permit.step(name).await.map(drop));
    }
    assert_eq!(bench.record(&key).await, before);
    drop(permit.step(&"x".repeat(30)).await.unwrap());
    // Its outcome is not known: nothing that this permit could say would be true.
    let before = bench.record(&key).await;
    misused(permit.step("charge").await.map(drop));
    misused(permit.external().await);
    let mut tx = bench.store.transaction().await.unwrap();
    misused(permit.complete_tx(&mut tx, StoredResponse::bare(200)).await.map(drop));
    tx.rollback().await.unwrap();
    misused(permit.complete(StoredResponse::bare(200)).await.map(drop));
    assert_eq!(bench.record(&key).await, before);

    let key = fresh_key();
    let mut permit = begin(&key).await;
    execute(&mut permit, "charge").await;
    misused(permit.external().await);
    let released = permit.release().await;
    assert!(matches!(released, Err(EndError::ClaimLost { .. })), "a key with steps stays: {released:?}");

    // A call that is no step, in this attempt or an earlier one.
    let key = fresh_key();
    let mut first = begin(&key).await;
    first.external().await.unwrap();
    misused(first.step("charge").await.map(drop));
    drop(first);
    bench.let_the_lease_be_over(&key).await;
    let mut second = begin(&key).await;
    let before = bench.record(&key).await;
    misused(second.step("charge").await.map(drop));
    assert_eq!(bench.record(&key).await, before);
    second.complete(StoredResponse::bare(200)).await.unwrap();
}

/// The record of the whole is moved by its owner alone; and people who count what is unfinished see the whole, not its parts.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_token_moves_no_whole_and_a_step_is_not_counted_beside_it() {
    stale::<SqliteStore>().await;
    stale::<PgStore>().await;
    stale::<MySqlStore>().await;
}

async fn stale<S: Tested>() {
    let (bench, key) = (Bench::<S>::with(&patient()).await, fresh_key());
    let mut permit = executes(bench.guard.begin(&delivery(&key)).await.unwrap());
    let begins = ParentMove::StepBegun { lease: Duration::from_secs(30) };
    let foreign = LeaseToken::from_row("of another".to_owned());
    let moves = async |token: &LeaseToken, parent_move| {
        let mut tx = bench.store.transaction().await.unwrap();
        let moved = bench.store.within(&mut tx).parent_move(&scope(), &key, token, parent_move).await.unwrap();
        tx.commit().await.unwrap();
        moved.is_some()
    };
    assert!(!moves(&foreign, begins).await);
    assert_eq!(bench.columns(&key, "status").await, ["in_progress"]);
    let Step::Execute(step) = permit.step("charge").await.unwrap() else { panic!("nobody executed it") };
    let unfinished = bench.store.clone().unfinished().await.unwrap();
    let counted: Vec<_> = unfinished.iter().map(|of| (of.status.as_str(), of.count)).collect();
    assert_eq!(counted, [("pending_external", 1)], "{unfinished:?}");
    assert!(!moves(&foreign, begins).await && !moves(&foreign, ParentMove::StepEnded).await);
    assert_eq!(bench.columns(&key, "status").await, ["pending_external"]);
    step.complete(answer("charge")).await.unwrap();
    let own = permit.lease_token().clone();
    assert!(moves(&own, begins).await && !moves(&foreign, ParentMove::StepEnded).await);
    assert_eq!(bench.columns(&key, "status").await, ["pending_external"]);
    assert!(moves(&own, ParentMove::StepEnded).await && bench.columns(&key, "status").await == ["in_progress"]);
}

/// Not on SQLite: there is no wire between us and it.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_reply_was_lost_is_known_again() {
    lost::<PgStore>().await;
    lost::<MySqlStore>().await;
}

async fn lost<S: Tested>() {
    let bench = Bench::<S>::with(&options()).await;
    let proxy = Proxy::before(bench.database.url()).await;
    let store = S::open_at(&proxy.url, &options()).await.unwrap();
    let guard = Guard::new(store, onced::store::deliveries::LogDeliveries::Executed);
    for cut in [Cut::BeforeTheReply, Cut::BeforeItIsSent] {
        let key = fresh_key();
        let mut permit = executes(guard.begin(&request(&key, OnUnknown::Hold)).await.unwrap());
        proxy.cut_at(commit_of(S::BACKEND), &[cut]);
        let begun = permit.step("charge").await;
        assert_eq!(proxy.cuts_made(), 1, "{cut:?} {begun:?}");
        let step = match (cut, begun) {
            (_, Ok(Step::Execute(step))) => step,
            // What never arrived is said to be lost; nobody was called, and the step may begin again.
            (Cut::BeforeItIsSent, Err(EndError::Store { .. })) => {
                assert_eq!(bench.columns(&key, "status").await, ["in_progress"]);
                // For all that the permit knows, it was committed: without that step the work is not complete.
                let mut tx = bench.store.transaction().await.unwrap();
                let completed = permit.complete_tx(&mut tx, StoredResponse::bare(200)).await;
                assert!(matches!(completed, Err(EndError::Misused { .. })) && permit.has_unknown_call());
                tx.rollback().await.unwrap();
                let Step::Execute(step) = permit.step("charge").await.unwrap() else { panic!("nobody executed it") };
                step
            }
            (_, other) => panic!("{cut:?}: {other:?}"),
        };
        assert_eq!(step.attempt(), 1);
        assert_eq!(bench.columns(&key, "status").await, ["pending_external"]);
        proxy.cut_at(commit_of(S::BACKEND), &[cut]);
        let ended = step.complete(answer("charge")).await;
        assert_eq!(proxy.cuts_made(), 1);
        let recorded = format!(
            "SELECT count(*) FROM {{keys}} WHERE key = '{}' AND scope = '{SCOPE}#charge' AND status = 'completed'",
            key.as_str()
        );
        assert_eq!(bench.count(&recorded).await == 1, ended.is_ok(), "{cut:?}: {ended:?}");
        assert_eq!(ended.is_ok(), cut == Cut::BeforeTheReply, "{ended:?}");
        if ended.is_ok() {
            permit.complete(StoredResponse::bare(200)).await.unwrap();
        } else {
            // The outcome is known to this process and to nobody else: the whole is left as it stands.
            assert!(matches!(permit.complete(StoredResponse::bare(200)).await, Err(EndError::Misused { .. })));
        }
    }
}

/// Before its commit was sent nothing can have been committed: what is known is written again.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_not_forgotten_for_a_connection_that_was_cut_before_the_commit() {
    let bench = Bench::<PgStore>::with(&options()).await;
    let proxy = Proxy::before(bench.database.url()).await;
    let store = PgStore::open_at(&proxy.url, &options()).await.unwrap();
    let guard = Guard::new(store, onced::store::deliveries::LogDeliveries::Executed);
    let key = fresh_key();
    let mut permit = executes(guard.begin(&request(&key, OnUnknown::Hold)).await.unwrap());
    let Step::Execute(step) = permit.step("charge").await.unwrap() else { panic!("nobody executed it") };
    // The statement that moves the whole, the last before the commit.
    proxy.cut_at("left_over", &[Cut::BeforeItIsSent]);
    step.complete(answer("charge")).await.unwrap();
    assert_eq!(proxy.cuts_made(), 1);
    assert_eq!(bench.columns(&key, "status").await, ["in_progress"]);
    assert!(matches!(permit.step("charge").await, Ok(Step::Recorded(_))));
}
