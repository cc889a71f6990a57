//! The bounds of time, on both sides, with the ledger's clock stopped: alive iff now < `lease_until`, expired iff
//! now ≥ `expires_at`, an ending moves the expiry only later.

use std::time::Duration;

use onced::store::keys::OwnerMove;
use onced_core::decision_table::{Expected, Line};
use onced_core::record::StoredResponse;
use onced_core::record::{Record, Status};
use onced_core::time::Timestamp;
use testkit::Backend;

use crate::bench::{Bench, Tested, at, fresh_key, line, scope};
use crate::decisions::{Form, deliver};
use crate::plant;

const MICRO: Duration = Duration::from_micros(1);

/// One case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Edge {
    LeaseAliveByOne,
    LeaseOverAtTheBound,
    PendingAliveByOne,
    PendingOverAtTheBound,
    FreshByOne,
    ExpiredAtTheBound,
    FailedFreshByOne,
    FailedExpiredAtTheBound,
    UnfinishedNeverExpires,
    EarlyEndingKeepsTheExpiry,
    LateEndingMovesTheExpiry,
    LateFailureMovesTheExpiry,
    GivingUpMovesTheExpiry,
    ClaimSetsTheTimes,
}

impl Edge {
    pub(crate) const ALL: [Self; 14] = [
        Self::LeaseAliveByOne,
        Self::LeaseOverAtTheBound,
        Self::PendingAliveByOne,
        Self::PendingOverAtTheBound,
        Self::FreshByOne,
        Self::ExpiredAtTheBound,
        Self::FailedFreshByOne,
        Self::FailedExpiredAtTheBound,
        Self::UnfinishedNeverExpires,
        Self::EarlyEndingKeepsTheExpiry,
        Self::LateEndingMovesTheExpiry,
        Self::LateFailureMovesTheExpiry,
        Self::GivingUpMovesTheExpiry,
        Self::ClaimSetsTheTimes,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::LeaseAliveByOne => "in-progress | a microsecond is left of the lease | in-progress",
            Self::LeaseOverAtTheBound => "in-progress | the lease ends now | execute",
            Self::PendingAliveByOne => "pending | a microsecond is left of the lease | in-progress",
            Self::PendingOverAtTheBound => "pending | the lease ends now | execute",
            Self::FreshByOne => "completed | expires in a microsecond | replay",
            Self::ExpiredAtTheBound => "completed | expires now | execute",
            Self::FailedFreshByOne => "failed | expires in a microsecond | execute again",
            Self::FailedExpiredAtTheBound => "failed | expires now | execute anew",
            Self::UnfinishedNeverExpires => "in-progress | expired long ago | in-progress",
            Self::EarlyEndingKeepsTheExpiry => "complete | early | the expiry stays",
            Self::LateEndingMovesTheExpiry => "complete | late | the expiry moves",
            Self::LateFailureMovesTheExpiry => "fail | late | the expiry moves",
            Self::GivingUpMovesTheExpiry => "give up | late | the expiry moves",
            Self::ClaimSetsTheTimes => "claim | now | lease and expiry are counted from the statement",
        }
    }

    pub(crate) async fn run<S: Tested>(self, bench: &Bench<S>) {
        let now = Timestamp::from_micros(1_790_000_000_123_456);
        bench.stop_the_clock_at(now).await;
        self.check(bench, now).await;
        bench.let_the_clock_run().await;
    }

    async fn check<S: Tested>(self, bench: &Bench<S>, now: Timestamp) {
        let later = |by| now.plus(by);
        match self {
            Self::LeaseAliveByOne => lease(bench, now, "in-progress-over", later(MICRO), None).await,
            Self::LeaseOverAtTheBound => lease(bench, now, "in-progress-over", now, Some((2, true))).await,
            Self::PendingAliveByOne => lease(bench, now, "pending-over-retry", later(MICRO), None).await,
            Self::PendingOverAtTheBound => lease(bench, now, "pending-over-retry", now, Some((2, true))).await,
            Self::FreshByOne => expiry(bench, now, "completed", later(MICRO), Expected::Replay).await,
            Self::ExpiredAtTheBound => expiry(bench, now, "completed", now, execute(1, false)).await,
            Self::FailedFreshByOne => expiry(bench, now, "failed", later(MICRO), execute(2, false)).await,
            Self::FailedExpiredAtTheBound => expiry(bench, now, "failed", now, execute(1, false)).await,
            Self::UnfinishedNeverExpires => {
                let expired = now.minus(Duration::from_secs(86_400));
                expiry(bench, now, "in-progress-alive", expired, Expected::InProgress).await;
            }
            Self::EarlyEndingKeepsTheExpiry => {
                let early = later(Duration::from_secs(3600) + MICRO);
                ending(bench, now, &complete(), early, early).await;
            }
            Self::LateEndingMovesTheExpiry => {
                let late = later(Duration::from_secs(3600) - MICRO);
                ending(bench, now, &complete(), late, later(Duration::from_secs(3600))).await;
            }
            Self::LateFailureMovesTheExpiry => {
                let fail = OwnerMove::Fail { error: "late".to_owned(), response: None };
                ending(bench, now, &fail, now.minus(MICRO), later(Duration::from_secs(3600))).await;
            }
            Self::GivingUpMovesTheExpiry => giving_up(bench, now).await,
            Self::ClaimSetsTheTimes => claim(bench, now).await,
        }
    }
}

fn execute(attempt: u32, resumed: bool) -> Expected {
    Expected::Execute { attempt, resumed }
}

fn complete() -> OwnerMove {
    OwnerMove::Complete(StoredResponse::bare(201))
}

/// A line's record with other times, delivered to in both forms.
async fn check<S: Tested>(bench: &Bench<S>, line: &Line, record: &Record, expected: &Expected) {
    for form in Form::ALL {
        let key = fresh_key();
        plant::record(bench, scope().as_str(), &key, record).await;
        assert_eq!(&deliver(bench, line, &key, form).await.to, expected, "{form:?}");
    }
}

async fn lease<S: Tested>(bench: &Bench<S>, now: Timestamp, name: &str, until: Timestamp, taken: Option<(u32, bool)>) {
    let line = line(name);
    let record = Record { lease_until: Some(until), ..line.found(now).record.unwrap() };
    let expected = taken.map_or(Expected::InProgress, |(attempt, resumed)| execute(attempt, resumed));
    check(bench, &line, &record, &expected).await;
}

async fn expiry<S: Tested>(bench: &Bench<S>, now: Timestamp, name: &str, expires_at: Timestamp, expected: Expected) {
    let line = line(name);
    let record = Record { expires_at: Some(expires_at), ..line.found(now).record.unwrap() };
    check(bench, &line, &record, &expected).await;
}

/// The retry window of a planted record is an hour.
async fn ending<S: Tested>(bench: &Bench<S>, now: Timestamp, ending: &OwnerMove, before: Timestamp, after: Timestamp) {
    let key = fresh_key();
    let record = Record { expires_at: Some(before), ..line("in-progress-alive").found(now).record.unwrap() };
    plant::record(bench, scope().as_str(), &key, &record).await;
    let token = record.lease_token.unwrap();
    let moved = bench.store.clone().owner_move(&scope(), &key, &token, None, ending).await.unwrap().unwrap();
    assert_eq!(moved.expires_at, Some(after));
    let times = bench.columns(&key, "{micros}(expires_at), {micros}(updated_at)").await;
    assert_eq!(times, [after.as_micros().to_string(), now.as_micros().to_string()]);
}

async fn giving_up<S: Tested>(bench: &Bench<S>, now: Timestamp) {
    let line = line("in-progress-over-none-left");
    let record = Record { expires_at: Some(now), ..line.found(now).record.unwrap() };
    for form in Form::ALL {
        let key = fresh_key();
        plant::record(bench, scope().as_str(), &key, &record).await;
        assert_eq!(deliver(bench, &line, &key, form).await.to, Expected::Exhausted);
        let row = bench.columns(&key, "status, {micros}(expires_at)").await;
        let moved = now.plus(Duration::from_secs(3600)).as_micros().to_string();
        assert_eq!(row, [Status::Failed.as_str(), &moved]);
    }
}

async fn claim<S: Tested>(bench: &Bench<S>, now: Timestamp) {
    let line = line("none");
    for form in Form::ALL {
        let key = fresh_key();
        deliver(bench, &line, &key, form).await;
        let policy = line.policy();
        let columns = "{micros}(created_at), {micros}(lease_until), {micros}(expires_at)";
        let times = [now, now.plus(policy.lease.length), now.plus(policy.retention.keep)];
        assert_eq!(bench.columns(&key, columns).await, times.map(|time| time.as_micros().to_string()));
        // A number of microseconds on MariaDB, where nothing else can be added to a time.
        let retry_window =
            if S::BACKEND == Backend::MariaDb { "INTERVAL retry_window MICROSECOND" } else { "retry_window" };
        let window = format!(
            "SELECT count(*) FROM {{keys}} WHERE key = '{}' AND {} + {retry_window} = {}",
            key.as_str(),
            at(S::BACKEND, now),
            at(S::BACKEND, now.plus(policy.retention.retry_window))
        );
        assert_eq!(bench.count(&window).await, 1, "the retry window is the scope's");
    }
}
