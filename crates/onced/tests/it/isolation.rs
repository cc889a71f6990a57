//! A PostgreSQL whose transactions are serializable by default, as a stand-in for engines that know nothing else: the
//! whole decision table once more.

use onced::store::deliveries::LogDeliveries;
use onced::store::postgres::PgStore;
use onced_core::decision_table;
use testkit::{Backend, Database};

use crate::bench::{Bench, Tested, options};
use crate::decisions::{self, Form};
use crate::functions::SqlFunctions;
use crate::rival::{Rival, Rivals};

#[tokio::test(flavor = "multi_thread")]
async fn every_line_of_the_table_holds_where_transactions_are_serializable_by_default() {
    holds::<PgStore>().await;
    holds::<SqlFunctions>().await;
}

async fn holds<S: Tested>() {
    let bench = serializable::<S>().await;
    let mut rivals = Rivals::on(&bench).await;
    for line in decision_table::lines() {
        println!("line {}", line.name);
        for form in Form::ALL {
            decisions::alone(&bench, &line, form).await;
        }
        decisions::under(&bench, &mut rivals, &line, Form::Begin, Rival::Transaction).await;
    }
}

async fn serializable<S: Tested>() -> Bench<S> {
    let database = Database::create(Backend::Postgres).await;
    let name = database.url().rsplit('/').next().unwrap().to_owned();
    let set = format!("ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'");
    database.sql().execute(&set).await;
    let bench = Bench::<S>::on(database, &options(), LogDeliveries::Executed).await;
    // Asked on a connection of the store: the test's own may be older than the setting.
    let check = "DO $$ BEGIN ASSERT current_setting('transaction_isolation') = 'serializable'; END $$";
    let mut tx = bench.store.plain_transaction().await;
    S::run(&mut tx, check).await.unwrap();
    tx.rollback().await.unwrap();
    bench
}
