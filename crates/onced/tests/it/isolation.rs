//! A PostgreSQL whose transactions are not READ COMMITTED by default: the whole list of cases once more for each other
//! level. It is a stand-in, too, for engines that know nothing else. Our own transactions say what they need; our
//! single statements, and the transactions that an application opens, are at the default.

use onced::store::postgres::PgStore;

use crate::bench::{Bench, Surrounding, Tested as _, options};
use crate::conformance;
use crate::functions::SqlFunctions;

const REPEATABLE_READ: Surrounding = Surrounding { url: |url| at_level(url, "repeatable\\ read"), ..Surrounding::NONE };
const SERIALIZABLE: Surrounding = Surrounding { url: |url| at_level(url, "serializable"), ..Surrounding::NONE };

pub(crate) fn at_level(url: &str, level: &str) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    let level = level.replace('\\', "%5C").replace(' ', "%20");
    format!("{url}{sign}options=-c%20default_transaction_isolation%3D{level}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_case_of_the_list_passes_where_transactions_are_repeatable_read_by_default() {
    whole_list(REPEATABLE_READ, "repeatable read").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_case_of_the_list_passes_where_transactions_are_serializable_by_default() {
    whole_list(SERIALIZABLE, "serializable").await;
}

async fn whole_list(surrounding: Surrounding, level: &str) {
    let bench = Bench::<PgStore>::within(surrounding, &options()).await;
    let asked = "SELECT current_setting('transaction_isolation')";
    let single: String = sqlx::query_scalar(asked).fetch_one(bench.store.pool()).await.unwrap();
    assert_eq!(single, level);
    let mut plain = bench.store.plain_transaction().await;
    let within: String = sqlx::query_scalar(asked).fetch_one(&mut *plain).await.unwrap();
    assert_eq!(within, level);
    plain.rollback().await.unwrap();
    // One server has connections for one of the two at a time.
    conformance::whole_list_within::<PgStore>(surrounding, &format!("postgres, {level} by default")).await;
    conformance::whole_list_within::<SqlFunctions>(surrounding, &format!("SQL functions, {level} by default")).await;
}
