//! The whole list of cases on a PostgreSQL of the newest version, beside the system's.

use onced::store::postgres::PgStore;
use testkit::Database;

use crate::bench::Surrounding;
use crate::conformance;
use crate::functions::SqlFunctions;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_case_of_the_list_passes_on_the_newest_postgresql() {
    let database = Database::on_new_postgres().await;
    assert!(database.sql().count("SHOW server_version_num").await >= 180_000);
    let version = &database.sql().text("SHOW server_version").await[0][0];
    let newest = Surrounding { newest: true, ..Surrounding::NONE };
    conformance::whole_list_within::<PgStore>(newest, &format!("PostgreSQL {version}")).await;
    conformance::whole_list_within::<SqlFunctions>(newest, &format!("SQL functions, PostgreSQL {version}")).await;
}
