//! MariaDB: triggers raise the codes a given number of times. A sequence counts, as it is not rolled back.
//!
//! A claim's lock that is not got for what it is means that a rival is at work, which is an answer; the error hits the
//! line of the delivery then, which is written in the claim's transaction.

use onced::store::StoreError;

use super::{Kind, Step, Times, Transient, Trouble, in_our_own_transaction, in_the_callers_transaction};
use crate::bench::{Bench, Tested};

/// A record that has changed since the snapshot, a deadlock, a lock that was not got.
fn number(case: Transient) -> (u16, &'static str) {
    match case.kind {
        Kind::Serialization => (1020, "HY000"),
        Kind::Deadlock => (1213, "40001"),
        Kind::LockNotGot => (1205, "HY000"),
    }
}

pub(super) async fn run<S: Tested>(bench: &Bench<S>, case: Transient) {
    let (_, code) = number(case);
    in_our_own_transaction(bench, case, async || plant(bench, case).await, async || {}, code).await;
    clear(bench, case).await;
    let mut trouble = Trigger { bench, case };
    in_the_callers_transaction(bench, case, &mut trouble, code).await;
    clear(bench, case).await;
}

struct Trigger<'b, S> {
    bench: &'b Bench<S>,
    case: Transient,
}

impl<S: Tested> Trouble<S> for Trigger<'_, S> {
    async fn before_opening(&mut self, number: u64) {
        if number == 1 {
            plant(self.bench, self.case).await;
        }
    }

    async fn before_the_step(&mut self, _: u64) {}

    async fn open(&self, bench: &Bench<S>) -> Result<S::Tx, StoreError> {
        bench.store.transaction().await
    }
}

pub(super) async fn plant<S: Tested>(bench: &Bench<S>, case: Transient) {
    let often = if case.times == Times::Once { 1 } else { 1_000_000 };
    let (number, code) = number(case);
    let (on, met) = match (case.step, case.kind) {
        (Step::Claim, Kind::LockNotGot) => ("BEFORE INSERT ON {deliveries}", "true"),
        (Step::Claim, Kind::Serialization | Kind::Deadlock) => ("BEFORE INSERT ON {keys}", "true"),
        (Step::Complete, _) => ("BEFORE UPDATE ON {keys}", "NEW.status = 'completed'"),
    };
    bench.execute("CREATE SEQUENCE trouble_count NOCACHE").await;
    bench
        .execute(&format!(
            "CREATE TRIGGER trouble {on} FOR EACH ROW BEGIN
                 IF {met} THEN
                     IF NEXTVAL(trouble_count) <= {often} THEN
                         SIGNAL SQLSTATE '{code}' SET MESSAGE_TEXT = 'planted trouble', MYSQL_ERRNO = {number};
                     END IF;
                 END IF;
             END"
        ))
        .await;
}

/// Takes the trigger away, having checked how often the statement came as far as it.
pub(super) async fn clear<S: Tested>(bench: &Bench<S>, case: Transient) {
    let expected = match case.times {
        Times::Once => 2,
        Times::Always => 5,
    };
    assert_eq!(bench.count("SELECT next_not_cached_value - 1 FROM trouble_count").await, expected);
    bench.execute("DROP TRIGGER trouble").await;
    bench.execute("DROP SEQUENCE trouble_count").await;
}
