//! PostgreSQL: triggers raise the codes a given number of times. A sequence counts, as it is not rolled back.

use onced::store::StoreError;
use onced::store::keys::Transactional as _;
use onced::store::postgres::PgStore;

use super::{Kind, Step, Times, Transient, Trouble, in_our_own_transaction, in_the_callers_transaction};
use crate::bench::Bench;

type Tx = <PgStore as onced::store::keys::Transactional>::Tx;

pub(super) async fn run(case: Transient) {
    let code = match case.kind {
        Kind::Serialization => "40001",
        Kind::Deadlock => "40P01",
        Kind::LockNotGot => "55P03",
    };
    let bench = Bench::<PgStore>::new().await;
    in_our_own_transaction(&bench, case, async || plant(&bench, case, code).await, async || {}, code).await;
    assert_eq!(raised(&bench).await, expected_count(case));

    let bench = Bench::<PgStore>::new().await;
    let mut trouble = Trigger { bench: &bench, case, code };
    in_the_callers_transaction(&bench, case, &mut trouble, code).await;
    assert_eq!(raised(&bench).await, expected_count(case));
}

struct Trigger<'b> {
    bench: &'b Bench<PgStore>,
    case: Transient,
    code: &'static str,
}

impl Trouble<PgStore> for Trigger<'_> {
    async fn before_opening(&mut self, number: u64) {
        if number == 1 {
            plant(self.bench, self.case, self.code).await;
        }
    }

    async fn before_the_step(&mut self, _: u64) {}

    async fn open(&self, bench: &Bench<PgStore>) -> Result<Tx, StoreError> {
        bench.store.transaction().await
    }
}

async fn plant(bench: &Bench<PgStore>, case: Transient, code: &str) {
    let often = if case.times == Times::Once { 1 } else { 1_000_000 };
    let on = match case.step {
        Step::Claim => "BEFORE INSERT ON {keys} FOR EACH ROW",
        Step::Complete => "BEFORE UPDATE ON {keys} FOR EACH ROW WHEN (NEW.status = 'completed')",
    };
    bench
        .execute(&format!(
            "CREATE SEQUENCE trouble_count;
             CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF nextval('trouble_count') <= {often} THEN
                     RAISE EXCEPTION 'planted trouble' USING ERRCODE = '{code}';
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER trouble {on} EXECUTE FUNCTION trouble();"
        ))
        .await;
}

/// How often the statement came as far as the trigger.
async fn raised(bench: &Bench<PgStore>) -> i64 {
    bench.count("SELECT last_value FROM trouble_count").await
}

fn expected_count(case: Transient) -> i64 {
    match case.times {
        Times::Once => 2,
        Times::Always => 5,
    }
}
