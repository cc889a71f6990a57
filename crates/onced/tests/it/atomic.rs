//! A transaction that the guard opens itself: rows and outcome together, refusals and failures without their rows, waiting,
//! and a commit whose reply is lost.

use std::time::Duration;

use onced::guard::{Atomic, Begun, Completed, EndError, GuardError, Request};
use onced::store::StoreErrorKind;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::fingerprint::{BodyRecipe, Fingerprint, RequestParts};
use onced_core::key::Key;
use onced_core::record::StoredResponse;
use testkit::Backend;

use crate::bench::{Bench, Tested, delivery, executes, fresh_key, line, of_backend, patient, request_of, until};
use crate::plant;

const NOT: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(30);

async fn begun<S: Tested>(bench: &Bench<S>, key: &Key) -> Atomic<S> {
    executes(bench.guard.begin_atomic(&delivery(key), NOT).await.unwrap())
}

async fn order<S: Tested>(atomic: &mut Atomic<S>, key: &Key) {
    S::run(atomic.tx(), &format!("INSERT INTO orders (key) VALUES ('{}')", key.as_str())).await.unwrap();
}

async fn is_replayed<S: Tested>(bench: &Bench<S>, key: &Key, code: u16) -> bool {
    let begun = bench.guard.begin_atomic(&delivery(key), NOT).await.unwrap();
    matches!(begun, Begun::Replay { response, .. } if response.code == code)
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_and_outcome_commit_together_and_a_dropped_right_leaves_nothing() {
    commits_together::<SqliteStore>().await;
    commits_together::<PgStore>().await;
    commits_together::<MySqlStore>().await;
}

async fn commits_together<S: Tested>() {
    let bench = Bench::<S>::new().await;
    let key = fresh_key();
    let mut atomic = begun(&bench, &key).await;
    order(&mut atomic, &key).await;
    drop(atomic);
    let mut again = None;
    until("the key is free again", async || {
        let begun = bench.guard.begin_atomic(&delivery(&key), NOT).await.unwrap();
        again = if let Begun::Execute(atomic) = begun { Some(atomic) } else { None };
        again.is_some()
    })
    .await;
    let mut atomic = again.unwrap();
    assert_eq!(atomic.attempt(), 1, "the claim was rolled back too");
    order(&mut atomic, &key).await;
    let completed = atomic.commit(StoredResponse::bare(201)).await.unwrap();
    assert!(completed.expires_at.is_some());
    assert_eq!(bench.orders(&key).await, 1);
    assert!(is_replayed(&bench, &key, 201).await);
    let other = RequestParts { body: "another".into(), ..RequestParts::default() };
    let foreign = Request { fingerprint: Fingerprint::new(other, BodyRecipe::All), ..delivery(&key) };
    assert!(matches!(bench.guard.begin_atomic(&foreign, NOT).await.unwrap(), Begun::Mismatch { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_and_a_failure_are_kept_without_their_rows() {
    kept_without_rows::<SqliteStore>().await;
    kept_without_rows::<PgStore>().await;
    kept_without_rows::<MySqlStore>().await;
}

async fn kept_without_rows<S: Tested>() {
    let bench = Bench::<S>::new().await;
    let refused = fresh_key();
    let mut atomic = begun(&bench, &refused).await;
    order(&mut atomic, &refused).await;
    assert!(matches!(atomic.refuse(StoredResponse::bare(422)).await.unwrap(), Begun::Execute(_)));
    assert_eq!((bench.orders(&refused).await, is_replayed(&bench, &refused, 422).await), (0, true));

    let failed = fresh_key();
    for attempt in 1..=5 {
        let mut atomic = begun(&bench, &failed).await;
        assert_eq!(atomic.attempt(), attempt);
        order(&mut atomic, &failed).await;
        let recorded = atomic.fail("no stock", Some(StoredResponse::bare(500))).await.unwrap();
        assert!(matches!(recorded, Begun::Execute(_)), "{recorded:?}");
        assert_eq!(
            bench.columns(&failed, "status, attempt, error").await,
            ["failed", &attempt.to_string(), "no stock"]
        );
    }
    assert_eq!(bench.orders(&failed).await, 0);
    assert!(is_replayed(&bench, &failed, 500).await, "no attempts are left: the last failure is the answer");
    let lines =
        format!("SELECT count(*) FROM {{deliveries}} WHERE key = '{}' AND decision = 'execute'", failed.as_str());
    assert_eq!(bench.count(&lines).await, 5, "one line for each attempt");
}

/// The text of a failure is for people: its beginning, on one line.
#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_failure_is_kept_short() {
    shortened::<SqliteStore>().await;
    shortened::<PgStore>().await;
    shortened::<MySqlStore>().await;
}

async fn shortened<S: Tested>() {
    let bench = Bench::<S>::new().await;
    let (key, leased, text) = (fresh_key(), fresh_key(), format!("no\n\0{}", "\u{e9}".repeat(300)));
    begun(&bench, &key).await.fail(&text, None).await.unwrap();
    executes(bench.guard.begin(&delivery(&leased)).await.unwrap()).fail(&text, None).await.unwrap();
    for key in [key, leased] {
        assert_eq!(bench.columns(&key, "error").await, [format!("no{}", "\u{e9}".repeat(198))]);
    }
}

/// Between the rollback of an attempt and the recording of its failure another may come to an outcome: it stands.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_recorded_over_nobodys_outcome() {
    recorded_over_nobody::<SqliteStore>().await;
    recorded_over_nobody::<PgStore>().await;
    recorded_over_nobody::<MySqlStore>().await;
}

async fn recorded_over_nobody<S: Tested>() {
    let bench = Bench::<S>::new().await;
    for name in ["completed", "in-progress-alive", "pending-over-hold"] {
        let (key, line) = (fresh_key(), line(name));
        plant::line(&bench, &line, &key).await;
        let before = bench.record(&key).await;
        let request = request_of(&line, &key);
        let failed = bench.guard.record_failure(&request, "late", None).await.unwrap();
        let refused = bench.guard.record_refusal(&request, StoredResponse::bare(422)).await.unwrap();
        assert!(!matches!(failed, Begun::Execute(_)) && !matches!(refused, Begun::Execute(_)), "{name}");
        assert_eq!(bench.record(&key).await, before, "{name}");
    }
}

/// A record that is out of attempts is marked so on the way to the answer, and the mark stays.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_out_of_attempts_is_given_up_for_good() {
    given_up::<SqliteStore>().await;
    given_up::<PgStore>().await;
    given_up::<MySqlStore>().await;
}

async fn given_up<S: Tested>() {
    let (bench, key, line) = (Bench::<S>::new().await, fresh_key(), line("in-progress-over-none-left"));
    plant::line(&bench, &line, &key).await;
    let begun = bench.guard.begin_atomic(&request_of(&line, &key), NOT).await.unwrap();
    assert!(matches!(begun, Begun::Exhausted { .. }), "{begun:?}");
    assert_eq!(bench.columns(&key, "status, attempt, error").await, ["failed", "5", "gave up after 5 starts"]);
}

/// The fence within the transaction: where the record is no longer the attempt's own, its rows are not committed either.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_claim_takes_the_rows_with_it() {
    fenced::<SqliteStore>().await;
    fenced::<PgStore>().await;
    fenced::<MySqlStore>().await;
}

async fn fenced<S: Tested>() {
    let (bench, key) = (Bench::<S>::new().await, fresh_key());
    let mut atomic = begun(&bench, &key).await;
    order(&mut atomic, &key).await;
    let stolen = format!("UPDATE {{keys}} SET lease_token = 'of another' WHERE key = '{}'", key.as_str());
    S::run(atomic.tx(), &of_backend(S::BACKEND, &stolen)).await.unwrap();
    let ended = atomic.commit(StoredResponse::bare(201)).await;
    assert!(matches!(ended, Err(EndError::ClaimLost { attempt: 1, .. })), "{ended:?}");
    assert_eq!((bench.orders(&key).await, bench.record(&key).await.len()), (0, 0));
}

/// What passes is run again, the claim as well as the recording of a failure and of a refusal. Not on SQLite, which raises
/// nothing on demand.
#[tokio::test(flavor = "multi_thread")]
async fn what_passes_is_run_again_at_the_claim_and_at_the_recording() {
    run_again::<PgStore>().await;
    run_again::<MySqlStore>().await;
}

async fn run_again<S: Tested>() {
    for (event, again) in [("INSERT", 2), ("UPDATE", 0)] {
        let bench = Bench::<S>::new().await;
        let (statements, last) = match S::BACKEND {
            Backend::MariaDb => (
                vec![
                    "CREATE SEQUENCE tries NOCACHE".to_owned(),
                    format!(
                        "CREATE TRIGGER fail_some BEFORE {event} ON {{keys}} FOR EACH ROW BEGIN
                             IF NEXTVAL(tries) % 3 > 0 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213; END IF;
                         END"
                    ),
                ],
                "next_not_cached_value - 1",
            ),
            Backend::Postgres | Backend::Sqlite => (
                vec![
                    "CREATE SEQUENCE tries".to_owned(),
                    "CREATE FUNCTION fail_some() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                         IF nextval('tries') % 3 > 0 THEN RAISE EXCEPTION USING ERRCODE = '40001'; END IF;
                         RETURN NEW;
                     END $$"
                        .to_owned(),
                    format!(
                        "CREATE TRIGGER fail_some BEFORE {event} ON {{keys}} FOR EACH ROW EXECUTE FUNCTION fail_some()"
                    ),
                ],
                "last_value",
            ),
        };
        for statement in statements {
            bench.execute(&statement).await;
        }
        let (failed, refused) = (fresh_key(), fresh_key());
        let recorded = begun(&bench, &failed).await.fail("no stock", None).await.unwrap();
        assert!(matches!(recorded, Begun::Execute(_)), "{event}: {recorded:?}");
        assert_eq!(bench.columns(&failed, "status, attempt").await, ["failed", "1"], "{event}");
        let recorded = begun(&bench, &refused).await.refuse(StoredResponse::bare(422)).await.unwrap();
        assert!(matches!(recorded, Begun::Execute(_)), "{event}: {recorded:?}");
        assert!(is_replayed(&bench, &refused, 422).await, "{event}");
        // Two that fail and one that passes, for each claim (of an attempt and of its recording) or each recording.
        assert_eq!(bench.count(&format!("SELECT {last} FROM tries")).await, 6 + 3 * again, "{event}");
    }
}

/// A duplicate waits without a transaction of its own, and then gets the outcome; without patience it is told at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_waits_for_the_outcome() {
    waits::<SqliteStore>().await;
    waits::<PgStore>().await;
    waits::<MySqlStore>().await;
}

async fn waits<S: Tested>() {
    let bench = Bench::<S>::with(&patient()).await;
    let key = fresh_key();
    let mut atomic = begun(&bench, &key).await;
    order(&mut atomic, &key).await;
    if S::BACKEND != Backend::Sqlite {
        let told = bench.guard.begin_atomic(&delivery(&key), NOT).await.unwrap();
        assert!(matches!(told, Begun::InProgress { .. }), "{told:?}");
    }
    let (guard, request) = (bench.guard.clone(), delivery(&key));
    let mut waiting = tokio::spawn(async move { guard.begin_atomic(&request, LONG).await.unwrap() });
    let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
    assert!(early.is_err(), "nothing to be told yet: {early:?}");
    atomic.commit(StoredResponse::bare(201)).await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Begun::Replay { .. }));
    assert_eq!(bench.orders(&key).await, 1);
}

/// SQLite has one writer: a duplicate that waits in vain for the write lock is told that somebody is at work.
#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_a_write_lock_that_is_not_got_is_in_progress_and_a_known_outcome_is_still_replayed() {
    let bench = Bench::<SqliteStore>::new().await;
    let (known, key) = (fresh_key(), fresh_key());
    begun(&bench, &known).await.commit(StoredResponse::bare(201)).await.unwrap();
    let stranger = bench.beside("", &crate::bench::options()).await;
    let atomic = begun(&bench, &key).await;
    for guard in [&bench.guard, &stranger.guard] {
        let told = guard.begin_atomic(&delivery(&key), NOT).await.unwrap();
        assert!(matches!(told, Begun::InProgress { .. }), "{told:?}");
        let told = guard.begin_atomic(&delivery(&known), NOT).await.unwrap();
        assert!(matches!(told, Begun::Replay { .. }), "{told:?}");
    }
    atomic.commit(StoredResponse::bare(201)).await.unwrap();
}

/// What `savepoint` protects, `fail` undoes; what was written before it stays the caller's.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_within_the_callers_transaction_undoes_what_came_after_the_savepoint() {
    undoes_to_the_savepoint::<SqliteStore>().await;
    undoes_to_the_savepoint::<PgStore>().await;
    undoes_to_the_savepoint::<MySqlStore>().await;
}

async fn undoes_to_the_savepoint<S: Tested>() {
    let bench = Bench::<S>::new().await;
    let (key, before) = (fresh_key(), fresh_key());
    let mut tx = bench.store.transaction().await.unwrap();
    let permit = executes(bench.guard.begin_tx(&mut tx, &delivery(&key)).await.unwrap());
    insert::<S>(&mut tx, &before).await;
    let mut work = permit.savepoint(&mut tx).await.unwrap();
    insert::<S>(work.tx(), &key).await;
    work.fail("no stock", Some(StoredResponse::bare(409))).await.unwrap();
    bench.store.commit(tx).await.unwrap();
    assert_eq!(bench.columns(&key, "status, error, response_code").await, ["failed", "no stock", "409"]);
    assert_eq!((bench.orders(&key).await, bench.orders(&before).await), (0, 1));
}

/// Two keys in one transaction: the failure of one undoes its own rows, and the other's record stays true to its rows.
#[tokio::test(flavor = "multi_thread")]
async fn two_keys_in_one_transaction_do_not_undo_each_others_rows_unseen() {
    two_keys::<SqliteStore>().await;
    two_keys::<PgStore>().await;
    two_keys::<MySqlStore>().await;
}

async fn two_keys<S: Tested>() {
    let bench = Bench::<S>::new().await;
    // Which of the two fails, and what is found of the outer's and the inner's afterwards: status and rows.
    let cases = [
        (Fails::Inner, ("completed", 1), ("failed", 0)),
        (Fails::Outer, ("failed", 0), ("", 0)),
        (Fails::Neither, ("completed", 1), ("completed", 1)),
    ];
    for (fails, outers, inners) in cases {
        let (outer, inner) = (fresh_key(), fresh_key());
        let mut tx = bench.store.transaction().await.unwrap();
        let permit = executes(bench.guard.begin_tx(&mut tx, &delivery(&outer)).await.unwrap());
        let mut work = permit.savepoint(&mut tx).await.unwrap();
        insert::<S>(work.tx(), &outer).await;
        let permit = executes(bench.guard.begin_tx(work.tx(), &delivery(&inner)).await.unwrap());
        let mut within = permit.savepoint(work.tx()).await.unwrap();
        insert::<S>(within.tx(), &inner).await;
        match fails {
            Fails::Inner => within.fail("no stock", None).await.unwrap(),
            Fails::Outer | Fails::Neither => drop(within.complete(StoredResponse::bare(201)).await.unwrap()),
        }
        match fails {
            Fails::Outer => work.fail("no stock", None).await.unwrap(),
            Fails::Inner | Fails::Neither => drop(work.complete(StoredResponse::bare(201)).await.unwrap()),
        }
        bench.store.commit(tx).await.unwrap();
        for (key, (status, rows)) in [(outer, outers), (inner, inners)] {
            let found = bench.columns(&key, "status").await.join("");
            assert_eq!((found.as_str(), bench.orders(&key).await), (status, rows), "{fails:?}");
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Fails {
    Inner,
    Outer,
    Neither,
}

async fn insert<S: Tested>(tx: &mut S::Tx, key: &Key) {
    S::run(tx, &format!("INSERT INTO orders (key) VALUES ('{}')", key.as_str())).await.unwrap();
}

/// An attempt that goes on with the known answer of an earlier one's call cannot fail: the next would call again.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_knows_the_answer_of_a_call_is_told_of_it_and_cannot_fail() {
    cannot_fail::<SqliteStore>().await;
    cannot_fail::<PgStore>().await;
    cannot_fail::<MySqlStore>().await;
}

async fn cannot_fail<S: Tested>() {
    let (bench, key, line) = (Bench::<S>::new().await, fresh_key(), line("pending-over-known"));
    plant::line(&bench, &line, &key).await;
    let (planted, request, answer) = (bench.record(&key).await, request_of(&line, &key), plant::call_answer());

    let atomic = executes(bench.guard.begin_atomic(&request, NOT).await.unwrap());
    assert_eq!((atomic.call_answer(), atomic.earlier_call_is_unknown()), (Some(&answer), true));
    assert!(atomic.is_resumed());
    is_refused(atomic.fail("late", None).await);
    is_refused(bench.guard.record_failure(&request, "late", None).await);

    for behind_a_savepoint in [false, true] {
        let mut tx = bench.store.transaction().await.unwrap();
        let permit = executes(bench.guard.begin_tx(&mut tx, &request).await.unwrap());
        assert_eq!((permit.call_answer(), permit.earlier_call_is_unknown()), (Some(&answer), true));
        let failed = if behind_a_savepoint {
            permit.savepoint(&mut tx).await.unwrap().fail("late", None).await
        } else {
            permit.fail(&mut tx, "late", None).await
        };
        assert!(matches!(failed, Err(EndError::Misused { .. })), "{failed:?}");
        bench.store.rollback(tx).await.unwrap();
    }
    assert_eq!(bench.record(&key).await, planted);

    let permit = executes(bench.guard.begin(&request).await.unwrap());
    let failed = permit.fail("late", None).await;
    assert!(matches!(failed, Err(EndError::Misused { .. })), "{failed:?}");
    assert_eq!(bench.columns(&key, "status, attempt").await, ["pending_external", "2"]);
    bench.let_the_lease_be_over(&key).await;
    let atomic = executes(bench.guard.begin_atomic(&request, NOT).await.unwrap());
    assert_eq!((atomic.attempt(), atomic.call_answer()), (3, Some(&answer)));
    atomic.commit(StoredResponse::bare(201)).await.unwrap();
    assert_eq!(bench.columns(&key, "status").await, ["completed"]);

    // Where the answer is not known, the policy may say that calling again is safe.
    let (key, line) = (fresh_key(), crate::bench::line("pending-over-retry"));
    plant::line(&bench, &line, &key).await;
    let atomic = executes(bench.guard.begin_atomic(&request_of(&line, &key), NOT).await.unwrap());
    assert_eq!((atomic.call_answer(), atomic.earlier_call_is_unknown()), (None, true));
    assert!(matches!(atomic.fail("late", None).await.unwrap(), Begun::Execute(_)));
    assert_eq!(bench.columns(&key, "status").await, ["failed"]);
}

fn is_refused(recorded: Result<Begun<Completed>, GuardError>) {
    let Err(GuardError::Store { source, .. }) = recorded else { panic!("{recorded:?}") };
    assert_eq!(source.kind(), StoreErrorKind::Refused, "{source}");
}

/// What the database does not take is told apart from a ledger that is down, and can be recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_the_database_refuses_is_told_apart() {
    let bench = Bench::<PgStore>::new().await;
    bench.execute("CREATE TABLE public.late (ref text UNIQUE DEFERRABLE INITIALLY DEFERRED)").await;
    refuses_to_commit(&bench, &["INSERT INTO late VALUES ('a'), ('a')"]).await;
    // A statement that failed, and was not heeded.
    refuses_to_commit(&bench, &["SELECT 1 / 0"]).await;
    let bench = Bench::<SqliteStore>::new().await;
    bench.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)").await;
    bench.execute("CREATE TABLE late (id INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED)").await;
    refuses_to_commit(&bench, &["INSERT INTO late VALUES (1)"]).await;
}

async fn refuses_to_commit<S: Tested>(bench: &Bench<S>, statements: &[&str]) {
    let key = fresh_key();
    let mut atomic = begun(bench, &key).await;
    for statement in statements {
        let _ = S::run(atomic.tx(), statement).await;
    }
    match atomic.commit(StoredResponse::bare(201)).await {
        Err(EndError::Store { source, .. }) => assert_eq!(source.kind(), StoreErrorKind::Refused, "{source}"),
        other => panic!("{statements:?}: {other:?}"),
    }
    assert!(bench.record(&key).await.is_empty(), "{statements:?}");
    let recorded = bench.guard.record_failure(&delivery(&key), "refused", Some(StoredResponse::bare(500))).await;
    assert!(matches!(recorded.unwrap(), Begun::Execute(_)));
    assert_eq!(bench.columns(&key, "status, attempt").await, ["failed", "1"], "{statements:?}");
}
