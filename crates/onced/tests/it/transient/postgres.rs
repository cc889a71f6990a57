//! PostgreSQL: triggers raise the codes a given number of times. A sequence counts, as it is not rolled back.

use onced::store::StoreError;

use super::{Kind, Step, Times, Transient, Trouble, in_our_own_transaction, in_the_callers_transaction};
use crate::bench::{Bench, Tested};

fn code(case: Transient) -> &'static str {
    match case.kind {
        Kind::Serialization => "40001",
        Kind::Deadlock => "40P01",
        Kind::LockNotGot => "55P03",
    }
}

pub(super) async fn run<S: Tested>(bench: &Bench<S>, case: Transient) {
    let code = code(case);
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
    let code = code(case);
    let often = if case.times == Times::Once { 1 } else { 1_000_000 };
    let on = match case.step {
        Step::Claim => "BEFORE INSERT ON {keys} FOR EACH ROW",
        Step::Complete => "BEFORE UPDATE ON {keys} FOR EACH ROW WHEN (NEW.status = 'completed')",
    };
    bench
        .execute(&format!(
            "CREATE SEQUENCE trouble_count;
             CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF nextval('public.trouble_count') <= {often} THEN
                     RAISE EXCEPTION 'planted trouble' USING ERRCODE = '{code}';
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER trouble {on} EXECUTE FUNCTION trouble();"
        ))
        .await;
}

/// Takes the trigger away, having checked how often the statement came as far as it.
pub(super) async fn clear<S: Tested>(bench: &Bench<S>, case: Transient) {
    let expected = match case.times {
        Times::Once => 2,
        Times::Always => 5,
    };
    assert_eq!(bench.count("SELECT last_value FROM trouble_count").await, expected);
    bench.execute("DROP TRIGGER trouble ON {keys}; DROP FUNCTION trouble(); DROP SEQUENCE trouble_count;").await;
}
