//! Every line of the decision table: planted, delivered to, alone and under each rival; then what the row says.

use std::time::Duration;

use onced::guard::{Begun, Guard, GuardError, Permit, Request, TxPermit};
use onced_core::decision::Enter;
use onced_core::decision_table::{Expected, Line};
use onced_core::key::{Key, downstream_key};
use onced_core::record::{CallAnswer, LeaseToken, Record, Status, StoredResponse};
use testkit::Backend;

use crate::bench::{Bench, Tested, fresh_key, request_of, scope};
use crate::plant;
use crate::rival::{Rival, Rivals};

/// Whose transaction a delivery begins in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Its own.
    Begin,
    /// The caller's.
    BeginTx,
}

impl Form {
    pub(crate) const ALL: [Self; 2] = [Self::Begin, Self::BeginTx];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::BeginTx => "begin_tx",
        }
    }
}

/// What a delivery came to, in the table's terms, with all that can be asked about it.
#[derive(Debug)]
pub(crate) struct Came {
    pub(crate) to: Expected,
    pub(crate) permit: Option<Given>,
    pub(crate) response: Option<StoredResponse>,
    pub(crate) retry_after: Option<Duration>,
}

impl Came {
    pub(crate) fn executes(&self) -> bool {
        matches!(self.to, Expected::Execute { .. })
    }
}

/// What a permit says.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) token: LeaseToken,
    pub(crate) downstream_key: String,
    /// `None` where the permit cannot be asked.
    pub(crate) call_answer: Option<Option<StoredResponse>>,
}

/// A line, alone.
pub(crate) async fn alone<S: Tested>(bench: &Bench<S>, line: &Line, form: Form) {
    let key = fresh_key();
    let planted = plant::line(bench, line, &key).await;
    let before = bench.record(&key).await;
    let came = deliver(bench, line, &key, form).await;
    assert_eq!(came.to, line.expected);
    check_after(bench, line, &key, planted.as_ref(), &before, &came).await;
}

/// A line while a rival's transaction is open, and once more after that was rolled back.
pub(crate) async fn under<S: Tested>(bench: &Bench<S>, rivals: &mut Rivals<S>, line: &Line, form: Form, rival: Rival) {
    let key = fresh_key();
    let planted = plant::line(bench, line, &key).await;
    let before = bench.record(&key).await;
    rivals.hold(bench, rival, line, &key).await;
    let came = deliver(bench, line, &key, form).await;
    rivals.let_go().await;
    assert_eq!(came.to, rival.expected(S::BACKEND, line));
    assert_eq!(bench.record(&key).await, before, "something was written under a rival");
    let wanted_to_write = matches!(line.expected, Expected::Execute { .. }) || line.gives_up();
    if came.to == Expected::InProgress && wanted_to_write {
        assert_eq!(came.retry_after, Some(Duration::from_secs(1)), "a rival is waited for one tick");
    }
    check_response(&came, planted.as_ref());
    let came = deliver(bench, line, &key, form).await;
    assert_eq!(came.to, line.expected, "after the rival's rollback");
    check_after(bench, line, &key, planted.as_ref(), &before, &came).await;
}

/// Sends the line's delivery. The caller's transaction is one that it opened itself: on SQLite a deferred one, as
/// `BEGIN IMMEDIATE` would meet the rival before we do.
pub(crate) async fn deliver<S: Tested>(bench: &Bench<S>, line: &Line, key: &Key, form: Form) -> Came {
    let request = request_of(line, key);
    match form {
        Form::Begin => S::deliver(&bench.guard, &request).await,
        Form::BeginTx => {
            let mut tx = bench.store.plain_transaction().await;
            let came = S::deliver_tx(&bench.guard, &mut tx, &request).await;
            if S::goes_on_after(&came.to) {
                // Whatever it came to, the caller's transaction goes on.
                S::run(&mut tx, "SELECT 1").await.unwrap();
            }
            tx.commit().await.unwrap();
            came
        }
    }
}

/// In a transaction of its own, by the guard.
pub(crate) async fn by_guard<S: Tested>(guard: &Guard<S>, request: &Request) -> Came {
    let begun = guard.begin(request).await;
    came(begun, |permit: Permit<S>| {
        let execution = Expected::Execute { attempt: permit.attempt(), resumed: permit.is_resumed() };
        let given = Given {
            token: permit.lease_token().clone(),
            downstream_key: permit.downstream_key().to_owned(),
            call_answer: Some(permit.call_answer().cloned()),
        };
        (execution, given)
    })
}

/// In the caller's, by the guard.
pub(crate) async fn by_guard_tx<S: Tested>(guard: &Guard<S>, tx: &mut S::Tx, request: &Request) -> Came {
    let begun = guard.begin_tx(tx, request).await;
    came(begun, |permit: TxPermit<S>| {
        let execution = Expected::Execute { attempt: permit.attempt(), resumed: permit.is_resumed() };
        let given = Given {
            token: permit.lease_token().clone(),
            downstream_key: permit.downstream_key().to_owned(),
            call_answer: None,
        };
        (execution, given)
    })
}

fn came<P>(begun: Result<Begun<P>, GuardError>, of_permit: impl FnOnce(P) -> (Expected, Given)) -> Came {
    let plain = |to| Came { to, permit: None, response: None, retry_after: None };
    match begun {
        Ok(Begun::Execute(permit)) => {
            let (to, given) = of_permit(permit);
            Came { permit: Some(given), ..plain(to) }
        }
        Ok(Begun::Replay { response, .. }) => Came { response: Some(response), ..plain(Expected::Replay) },
        Ok(Begun::InProgress { retry_after, .. }) => {
            Came { retry_after: Some(retry_after), ..plain(Expected::InProgress) }
        }
        Ok(Begun::Mismatch { .. }) => plain(Expected::Mismatch),
        Ok(Begun::Unknown { retry_after, .. }) => Came { retry_after: Some(retry_after), ..plain(Expected::Unknown) },
        Ok(Begun::Exhausted { .. }) => plain(Expected::Exhausted),
        Err(GuardError::NotUnderstood { .. }) => plain(Expected::NotUnderstood),
        Err(error) => panic!("nothing was decided: {error}"),
    }
}

async fn check_after<S: Tested>(
    bench: &Bench<S>,
    line: &Line,
    key: &Key,
    planted: Option<&Record>,
    before: &[Vec<String>],
    came: &Came,
) {
    check_response(came, planted);
    if let Some(wait) = came.retry_after {
        let longest = line.policy().lease.length;
        assert!(wait >= Duration::from_secs(1) && wait <= longest, "told to wait {wait:?}");
    }
    match &line.expected {
        Expected::Execute { attempt, .. } => {
            check_taken(bench, line, key, planted, *attempt, came.permit.as_ref().unwrap()).await;
        }
        _ if line.gives_up() => {
            let attempt = planted.unwrap().attempt;
            let row = bench.columns(key, "status, attempt, error, lease_until").await;
            let error = format!("gave up after {attempt} starts");
            assert_eq!(row, [line.after.as_str(), &attempt.to_string(), &error, "NULL"]);
        }
        Expected::Replay
        | Expected::InProgress
        | Expected::Mismatch
        | Expected::Unknown
        | Expected::Exhausted
        | Expected::NotUnderstood => {
            assert_eq!(bench.record(key).await, before, "the row must stay as it is");
        }
    }
}

/// The row of an attempt that may run.
async fn check_taken<S: Tested>(
    bench: &Bench<S>,
    line: &Line,
    key: &Key,
    planted: Option<&Record>,
    attempt: u32,
    given: &Given,
) {
    let row = bench.columns(key, "status, attempt, lease_token, downstream_key").await;
    let token = given.token.as_str();
    assert_eq!(row, [line.after.as_str(), &attempt.to_string(), token, &given.downstream_key]);
    assert_ne!(planted.and_then(|record| record.lease_token.as_ref()), Some(&given.token), "a new claim, a new token");

    let left = bench.columns(key, "{micros}(lease_until) - {micros}({now})").await;
    let (left, lease): (i64, i64) = (left[0].parse().unwrap(), 30_000_000);
    assert!(left > lease - 15_000_000 && left <= lease, "{left} µs are left of the lease");

    // A finished record that has expired counts as absent: nothing of it is left.
    let kept = planted.filter(|record| !(record.status.is_finished() && record.expires_at < Some(record_now(record))));
    let by_recipe = downstream_key(&scope(), key, "call");
    let known_downstream = kept.and_then(|record| record.downstream_key.clone()).unwrap_or(by_recipe);
    assert_eq!(given.downstream_key, known_downstream, "the same downstream key for every attempt");

    let times = bench.columns(key, "{micros}(created_at), {micros}(called_at), response_code").await;
    let micros = |time: onced_core::time::Timestamp| time.as_micros().to_string();
    if let Some(record) = kept {
        assert_eq!(times[0], micros(record.created_at), "a taking is no new life");
        if let Some(called_at) = record.called_at {
            assert_eq!(times[1], micros(called_at), "when the first call began is set once");
        }
        check_answer_is_handed_on(line, record, given);
    } else {
        assert_eq!(times[2], "NULL", "the old life's response is gone");
        let born: i64 = times[0].parse().unwrap();
        assert!((bench.now().await.as_micros() - born) < 15_000_000);
        assert_eq!(times[1] != "NULL", line.policy().enter == Enter::PendingExternal);
        let planted = bench.record(key).await.len();
        assert_eq!(planted, 1, "the old life's steps are gone");
    }
    if line.after == Status::PendingExternal {
        assert_ne!(times[1], "NULL", "a pending record says when its first call began");
    }
}

fn check_answer_is_handed_on(line: &Line, record: &Record, given: &Given) {
    if let Some(call_answer) = &given.call_answer {
        let known = line.call_answer == CallAnswer::Known && record.status == Status::PendingExternal;
        assert_eq!(call_answer.as_ref(), known.then(plant::call_answer).as_ref());
    }
}

/// A planted record was made two hours before its `now`.
fn record_now(record: &Record) -> onced_core::time::Timestamp {
    record.created_at.plus(Duration::from_secs(7200))
}

fn check_response(came: &Came, planted: Option<&Record>) {
    if came.to == Expected::Replay {
        // An outcome without a response is replayed as one that says nothing.
        let stored = planted.unwrap().response.clone().unwrap_or_else(|| StoredResponse::bare(204));
        assert_eq!(came.response, Some(stored), "byte for byte");
    } else {
        assert!(came.response.is_none());
    }
}

/// SQLite has one write lock: who asks for it under a rival is told so within the bound, and may try again.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_under_a_rivals_write_lock_is_a_transient_error_within_the_bound() {
    use onced::store::keys::Transactional as _;
    use onced::store::sqlite::SqliteStore;

    let bench = Bench::<SqliteStore>::new().await;
    let mut rivals = Rivals::on(&bench).await;
    assert_eq!(SqliteStore::BACKEND, Backend::Sqlite);
    for rival in [Rival::Lock, Rival::Process] {
        rivals.hold(&bench, rival, &crate::bench::line("none"), &fresh_key()).await;
        let asked = std::time::Instant::now();
        let error = bench.store.transaction().await.expect_err("the write lock is held");
        assert!(error.is_transient(), "{error}");
        assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
        rivals.let_go().await;
        bench.store.transaction().await.unwrap();
    }
}
