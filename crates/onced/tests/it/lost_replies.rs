//! Replies that are lost after the server has committed, and statements that never reach it. Not on SQLite: there is no
//! wire between us and it.

use std::time::Duration;

use onced::guard::{Begun, EndError, Guard, GuardError, Permit};
use onced::store::deliveries::LogDeliveries;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::{StoreErrorKind, StoreOptions};
use onced_core::key::Key;
use onced_core::record::{Record, StoredResponse};
use testkit::Backend;

use crate::bench::{Bench, LIMIT, Tested, delivery, executes, fresh_key, line, options, request_of};
use crate::plant;
use crate::proxy::{Cut, Proxy, commit_of};

macro_rules! on_both {
    ($($name:ident => $of:ident;)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            $of::<PgStore>().await;
            $of::<MySqlStore>().await;
        })*
    };
}

on_both! {
    a_reading_whose_reply_was_lost_is_repeated => reading;
    anothers_completion_is_not_taken_for_the_one_that_was_lost => anothers;
    an_earlier_failure_is_not_taken_for_the_one_whose_recording_was_lost => earlier_failure;
    an_owner_whose_claims_reply_was_lost_knows_its_claim_again => claim;
    a_claim_whose_reply_was_lost_is_not_left_for_an_error_that_passes => claim_after_errors;
    an_owner_whose_takings_reply_was_lost_knows_which_attempt_it_is => taking;
    a_completion_whose_reply_was_lost_is_read_back_and_written_once => completion;
    each_other_ending_whose_reply_was_lost_is_read_back_too => other_endings;
    a_completion_that_was_never_sent_is_an_error_and_leaves_the_record => never_sent;
    a_commit_whose_reply_was_lost_is_read_back => commit;
    an_error_path_after_a_lost_reply_cannot_unmake_a_completion => error_path;
}

struct Wire<S: Tested> {
    bench: Bench<S>,
    proxy: Proxy,
    /// Over the proxy.
    guard: Guard<S>,
}

impl<S: Tested> Wire<S> {
    async fn new() -> Self {
        let bench = Bench::<S>::new().await;
        let proxy = Proxy::before(bench.database.url()).await;
        let store = S::open_at(&proxy.url, &options()).await.unwrap();
        Self { guard: Guard::new(store, LogDeliveries::Executed), proxy, bench }
    }

    async fn owner(&self, key: &Key) -> Permit<S> {
        executes(self.guard.begin(&delivery(key)).await.unwrap())
    }

    async fn lines(&self, key: &Key) -> i64 {
        let lines = format!("SELECT count(*) FROM {{deliveries}} WHERE key = '{}'", key.as_str());
        self.bench.count(&lines).await
    }
}

async fn claim<S: Tested>() {
    let wire = Wire::<S>::new().await;
    let all = [
        vec![Cut::BeforeTheReply],
        vec![Cut::BeforeItIsSent],
        // The claim, then the reading of the record, then all goes well.
        vec![Cut::BeforeTheReply, Cut::BeforeTheReply],
        vec![Cut::BeforeItIsSent, Cut::BeforeTheReply],
    ];
    for cuts in all {
        let key = fresh_key();
        wire.proxy.cut_claims(S::BACKEND, &key, &cuts);
        let permit = wire.owner(&key).await;
        assert_eq!(wire.proxy.cuts_made() as usize, cuts.len(), "{cuts:?}");
        assert_eq!((permit.attempt(), permit.is_resumed()), (1, false), "{cuts:?}");
        let row = wire.bench.columns(&key, "status, attempt, lease_token").await;
        assert_eq!(row, ["in_progress", "1", permit.lease_token().as_str()], "{cuts:?}");
        assert_eq!(wire.lines(&key).await, 1, "{cuts:?}: one line of one execution");
        permit.complete(StoredResponse::bare(201)).await.unwrap();
        assert!(matches!(wire.guard.begin(&delivery(&key)).await.unwrap(), Begun::Replay { .. }));
    }
}

/// All tries of an error that passes are used up, or nearly so, and then the reply is lost: what may have been claimed is
/// asked about none the less.
async fn claim_after_errors<S: Tested>() {
    let (wire, key) = (Wire::<S>::new().await, fresh_key());
    let postgres = [
        "CREATE SEQUENCE claims",
        "CREATE FUNCTION fail_some() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF nextval('claims') IN (1, 2, 3, 4, 6) THEN RAISE EXCEPTION USING ERRCODE = '40001'; END IF;
             RETURN NULL;
         END $$",
        "CREATE TRIGGER fail_some BEFORE INSERT ON {keys} EXECUTE FUNCTION fail_some()",
    ];
    let mariadb = [
        "CREATE SEQUENCE claims NOCACHE",
        "CREATE TRIGGER fail_some BEFORE INSERT ON {keys} FOR EACH ROW BEGIN
             IF NEXTVAL(claims) IN (1, 2, 3, 4) THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213; END IF;
         END",
    ];
    // A claim of PostgreSQL's fires the trigger where there is a record, too; on MariaDB it looks first.
    let (statements, last, tries) = match S::BACKEND {
        Backend::MariaDb => (&mariadb[..], "next_not_cached_value - 1", 5),
        Backend::Postgres | Backend::Sqlite => (&postgres[..], "last_value", 7),
    };
    for statement in statements {
        wire.bench.execute(statement).await;
    }
    wire.proxy.cut_claims(S::BACKEND, &key, &[Cut::Not, Cut::Not, Cut::Not, Cut::Not, Cut::BeforeTheReply]);
    let permit = wire.owner(&key).await;
    assert_eq!(wire.proxy.cuts_made(), 1);
    let row = wire.bench.columns(&key, "status, attempt, lease_token").await;
    assert_eq!(row, ["in_progress", "1", permit.lease_token().as_str()]);
    assert_eq!(wire.bench.count(&format!("SELECT {last} FROM claims")).await, tries);
}

/// The reply to a taking is lost: the attempt is what the taking made it, not a first one.
async fn taking<S: Tested>() {
    let wire = Wire::<S>::new().await;
    let takings = [
        ("failed", 2, false),
        ("in-progress-over", 2, true),
        ("pending-over-retry", 2, true),
        ("pending-over-known", 2, true),
        ("queued", 1, false),
        ("completed-expired", 1, false),
    ];
    for (name, attempt, resumed) in takings {
        let (key, line) = (fresh_key(), line(name));
        let planted = plant::line(&wire.bench, &line, &key).await;
        wire.proxy.cut_at(&only_in_the_taking(planted.as_ref()), &[Cut::BeforeTheReply]);
        let begun = wire.guard.begin(&request_of(&line, &key)).await.unwrap();
        let Begun::Execute(permit) = begun else { panic!("{name}: {begun:?}") };
        assert_eq!(wire.proxy.cuts_made(), 1, "{name}");
        assert_eq!((permit.attempt(), permit.is_resumed()), (attempt, resumed), "{name}");
        assert_eq!(permit.call_answer().is_some(), name == "pending-over-known", "{name}");
        let row = wire.bench.columns(&key, "status, attempt, lease_token").await;
        assert_eq!(row, [line.after.as_str(), &attempt.to_string(), permit.lease_token().as_str()], "{name}");
        assert_eq!(wire.lines(&key).await, 1, "{name}");
    }
}

async fn completion<S: Tested>() {
    let wire = Wire::<S>::new().await;
    let key = fresh_key();
    let permit = wire.owner(&key).await;
    // A sequence counts what is rolled back too.
    let (counting, last) = match S::BACKEND {
        Backend::MariaDb => (
            "CREATE SEQUENCE updates NOCACHE;
             CREATE TRIGGER updates BEFORE UPDATE ON {keys} FOR EACH ROW SET @ignored = NEXTVAL(updates);",
            "next_not_cached_value - 1",
        ),
        Backend::Postgres | Backend::Sqlite => (
            "CREATE SEQUENCE updates;
             CREATE FUNCTION count_update() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM nextval('updates');
                 RETURN NEW;
             END $$;
             CREATE TRIGGER updates BEFORE UPDATE ON {keys} FOR EACH ROW EXECUTE FUNCTION count_update();",
            "last_value",
        ),
    };
    wire.bench.execute(counting).await;
    wire.proxy.cut_at(key.as_str(), &[Cut::BeforeTheReply]);
    let completed = permit.complete(StoredResponse::bare(201)).await.unwrap();
    assert_eq!(wire.proxy.cuts_made(), 1);
    let row = wire.bench.columns(&key, "status, attempt, response_code, {micros}(expires_at)").await;
    assert_eq!(row, ["completed", "1", "201", &completed.expires_at.unwrap().as_micros().to_string()]);
    assert_eq!(wire.bench.count(&format!("SELECT {last} FROM updates")).await, 1, "nothing is written twice");
}

/// The reading is lost too, and is repeated: it changes nothing.
async fn reading<S: Tested>() {
    let (wire, key) = (Wire::<S>::new().await, fresh_key());
    let permit = wire.owner(&key).await;
    wire.proxy.cut_at(key.as_str(), &[Cut::BeforeTheReply; 3]);
    permit.complete(StoredResponse::bare(201)).await.unwrap();
    assert_eq!(wire.proxy.cuts_made(), 3);
}

/// The completion never arrived, and the record shows another's, which has taken over meanwhile: that is not its own.
async fn anothers<S: Tested>() {
    let (wire, key) = (Wire::<S>::new().await, fresh_key());
    let slow = wire.owner(&key).await;
    wire.bench.let_the_lease_be_over(&key).await;
    let quick = executes(wire.bench.guard.begin(&delivery(&key)).await.unwrap());
    quick.complete(StoredResponse::bare(202)).await.unwrap();
    wire.proxy.cut_at(key.as_str(), &[Cut::BeforeItIsSent]);
    let ended = slow.complete(StoredResponse::bare(201)).await;
    assert!(matches!(ended, Err(EndError::Store { .. })), "{ended:?}");
    assert_eq!(wire.proxy.cuts_made(), 1);
    assert_eq!(wire.bench.columns(&key, "status, attempt, response_code").await, ["completed", "2", "202"]);
}

async fn other_endings<S: Tested>() {
    let wire = Wire::<S>::new().await;
    let failing = fresh_key();
    let permit = wire.owner(&failing).await;
    wire.proxy.cut_at(failing.as_str(), &[Cut::BeforeTheReply]);
    permit.fail("no stock", None).await.unwrap();
    assert_eq!(wire.bench.columns(&failing, "status, error").await, ["failed", "no stock"]);

    let released = fresh_key();
    let permit = wire.owner(&released).await;
    wire.proxy.cut_at(released.as_str(), &[Cut::BeforeTheReply]);
    permit.release().await.unwrap();
    assert!(wire.bench.record(&released).await.is_empty());

    let calling = fresh_key();
    let mut permit = wire.owner(&calling).await;
    wire.proxy.cut_at(calling.as_str(), &[Cut::BeforeTheReply]);
    permit.external().await.unwrap();
    assert_eq!(wire.bench.columns(&calling, "status").await, ["pending_external"]);
    assert!(permit.may_start_call());
}

/// The statement never reached the server. The owner writes nothing more: least of all `failed`.
async fn never_sent<S: Tested>() {
    let wire = Wire::<S>::new().await;
    for external in [false, true] {
        let key = fresh_key();
        let mut permit = wire.owner(&key).await;
        if external {
            permit.external().await.unwrap();
        }
        let before = wire.bench.record(&key).await;
        wire.proxy.cut_at(key.as_str(), &[Cut::BeforeItIsSent]);
        match permit.complete(StoredResponse::bare(201)).await {
            Err(EndError::Store { source, .. }) => assert_eq!(source.kind(), StoreErrorKind::Lost),
            other => panic!("{other:?}"),
        }
        assert_eq!(wire.proxy.cuts_made(), 1);
        assert_eq!(wire.bench.record(&key).await, before);
    }
}

/// Nothing could be sent at all: what is known is worth waiting for the store, for as long as the lease lasts.
#[tokio::test(flavor = "multi_thread")]
async fn an_ending_waits_for_a_store_that_cannot_be_reached() {
    let options = StoreOptions { max_connections: 1, acquire_timeout: Duration::from_millis(100), ..options() };
    let (bench, key) = (Bench::<PgStore>::with(&options).await, fresh_key());
    let permit = executes(bench.guard.begin(&delivery(&key)).await.unwrap());
    let only = bench.store.pool().acquire().await.unwrap();
    let mut ending = tokio::spawn(permit.complete(StoredResponse::bare(201)));
    let early = tokio::time::timeout(Duration::from_millis(400), &mut ending).await;
    assert!(early.is_err(), "{early:?}");
    drop(only);
    ending.await.unwrap().unwrap();
    assert_eq!(bench.columns(&key, "status").await, ["completed"]);
}

/// One transaction for rows and outcome: after a lost reply of its commit the record says whether both are there.
async fn commit<S: Tested>() {
    let wire = Wire::<S>::new().await;
    for (cut, committed) in [(Cut::BeforeTheReply, true), (Cut::BeforeItIsSent, false)] {
        let key = fresh_key();
        let order = format!("INSERT INTO orders (key) VALUES ('{}')", key.as_str());
        let mut atomic = executes(wire.guard.begin_atomic(&delivery(&key), Duration::ZERO).await.unwrap());
        S::run(atomic.tx(), &order).await.unwrap();
        wire.proxy.cut_at("COMMIT", &[cut]);
        let ended = atomic.commit(StoredResponse::bare(201)).await;
        assert_eq!(wire.proxy.cuts_made(), 1);
        match ended {
            Ok(completed) => assert!(committed && completed.expires_at.is_some()),
            Err(EndError::Store { source, .. }) => assert!(!committed && source.kind() == StoreErrorKind::Lost),
            Err(error) => panic!("{error}"),
        }
        let expected: &[&str] = if committed { &["completed"] } else { &[] };
        assert_eq!(wire.bench.columns(&key, "status").await, expected);
        assert_eq!(wire.bench.orders(&key).await, i64::from(committed));
        assert_eq!(wire.lines(&key).await, i64::from(committed));
    }
}

/// MariaDB ends a commit that a person interrupts (1317) while it is waited for, and it may be in the log by then: it is read
/// back, like one whose reply was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_interrupted_is_read_back() {
    let wire = Wire::<MySqlStore>::new().await;
    let key = fresh_key();
    let order = format!("INSERT INTO orders (key) VALUES ('{}')", key.as_str());
    let mut atomic = executes(wire.guard.begin_atomic(&delivery(&key), Duration::ZERO).await.unwrap());
    MySqlStore::run(atomic.tx(), &order).await.unwrap();
    wire.proxy.cut_at(commit_of(Backend::MariaDb), &[Cut::ForAnInterruption]);
    let completed = atomic.commit(StoredResponse::bare(201)).await.unwrap();
    assert_eq!(wire.proxy.cuts_made(), 1);
    let row = wire.bench.columns(&key, "status, {micros}(expires_at)").await;
    assert_eq!(row, ["completed", &completed.expires_at.unwrap().as_micros().to_string()]);
    assert_eq!(wire.bench.orders(&key).await, 1);

    let key = fresh_key();
    let permit = wire.owner(&key).await;
    wire.proxy.cut_at(key.as_str(), &[Cut::ForAnInterruption]);
    permit.complete(StoredResponse::bare(202)).await.unwrap();
    assert_eq!(wire.proxy.cuts_made(), 1);
    assert_eq!(wire.bench.columns(&key, "status, response_code").await, ["completed", "202"]);
}

/// The commit came through, and the record cannot be read either: nobody knows, and nobody is told that nothing was committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_stays_lost_where_the_record_cannot_be_read() {
    // They mostly wait.
    tokio::join!(stays_lost::<PgStore>(), stays_lost::<MySqlStore>());
}

async fn stays_lost<S: Tested>() {
    let bench = Bench::<S>::new().await;
    let options = StoreOptions { acquire_timeout: Duration::from_millis(500), ..options() };
    for leased in [true, false] {
        let proxy = Proxy::before(bench.database.url()).await;
        let guard = Guard::new(S::open_at(&proxy.url, &options).await.unwrap(), LogDeliveries::Executed);
        let key = fresh_key();
        // After the cut nobody answers.
        let cut = |marker: &str| {
            proxy.cut_at(marker, &[Cut::BeforeTheReply]);
            drop(proxy.be_silent_at(marker, 1));
        };
        let ended = if leased {
            let permit = executes(guard.begin(&delivery(&key)).await.unwrap());
            // On MariaDB an ending is committed by a message of its own.
            cut(if S::BACKEND == Backend::MariaDb { commit_of(S::BACKEND) } else { key.as_str() });
            permit.complete(StoredResponse::bare(201)).await
        } else {
            let atomic = executes(guard.begin_atomic(&delivery(&key), Duration::ZERO).await.unwrap());
            cut(commit_of(S::BACKEND));
            atomic.commit(StoredResponse::bare(201)).await
        };
        match ended {
            Err(EndError::Store { source, .. }) => {
                assert_eq!(source.kind(), StoreErrorKind::Lost, "{leased}: {source}")
            }
            other => panic!("{leased}: {other:?}"),
        }
        assert_eq!(proxy.cuts_made(), 1);
        assert_eq!(bench.columns(&key, "status").await, ["completed"], "{leased}");
    }
}

/// The recording of a failure never arrived, and the record shows the failure of an earlier attempt: that is not its own.
async fn earlier_failure<S: Tested>() {
    let (wire, key) = (Wire::<S>::new().await, fresh_key());
    let commit = commit_of(S::BACKEND);
    // A connection that was cut keeps its locks until the server has noticed.
    let begin = async || executes(wire.guard.begin_atomic(&delivery(&key), LIMIT).await.unwrap());
    begin().await.fail("first", None).await.unwrap();
    let second = begin().await;
    wire.proxy.cut_at(commit, &[Cut::BeforeItIsSent]);
    match second.fail("second", None).await {
        Err(GuardError::Store { source, .. }) => assert_eq!(source.kind(), StoreErrorKind::Lost),
        other => panic!("{other:?}"),
    }
    assert_eq!(wire.proxy.cuts_made(), 1);
    assert_eq!(wire.bench.columns(&key, "status, attempt, error").await, ["failed", "1", "first"]);
    // What did arrive is known again.
    let third = begin().await;
    wire.proxy.cut_at(commit, &[Cut::BeforeTheReply]);
    assert!(matches!(third.fail("third", None).await.unwrap(), Begun::Execute(_)));
    assert_eq!(wire.proxy.cuts_made(), 1);
    assert_eq!(wire.bench.columns(&key, "status, attempt, error").await, ["failed", "2", "third"]);
}

/// The completion came through, and before its owner can read that, another delivery replays it: an owner that wrote
/// `failed` on its error path would turn an outcome into a failure.
async fn error_path<S: Tested>() {
    let wire = Wire::<S>::new().await;
    let key = fresh_key();
    let permit = wire.owner(&key).await;
    // The completion, and all three readings after it.
    wire.proxy.cut_at(key.as_str(), &[Cut::BeforeTheReply; 16]);
    let ended = permit.complete(StoredResponse::bare(201)).await;
    assert!(matches!(ended, Err(EndError::Store { .. })), "{ended:?}");
    assert_eq!(wire.bench.columns(&key, "status, attempt, response_code").await, ["completed", "1", "201"]);
    let replayed = wire.bench.guard.begin(&delivery(&key)).await.unwrap();
    assert!(matches!(replayed, Begun::Replay { .. }), "{replayed:?}");
}

/// What only the parameters of the taking contain: the token that was read, or the status of a row that has none.
fn only_in_the_taking(planted: Option<&Record>) -> String {
    let planted = planted.unwrap();
    planted.lease_token.as_ref().map_or(planted.status.to_string(), |token| token.as_str().to_owned())
}
