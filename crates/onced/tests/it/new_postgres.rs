//! The whole list of cases on a PostgreSQL of the newest version, beside the system's.

use onced::store::postgres::PgStore;
use onced::store::{StoreError, StoreOptions};
use testkit::Database;

use crate::conformance;
use crate::variant::{Surrounding, Variant};

#[derive(Clone, Debug)]
struct NewPostgres;

impl Surrounding for NewPostgres {
    async fn database() -> Database {
        Database::on_new_postgres().await
    }

    async fn open(url: &str, options: &StoreOptions) -> Result<PgStore, StoreError> {
        PgStore::open(url, options).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_case_of_the_list_passes_on_the_newest_postgresql() {
    let database = Database::on_new_postgres().await;
    assert!(database.sql().count("SHOW server_version_num").await >= 180_000);
    let version = &database.sql().text("SHOW server_version").await[0][0];
    conformance::whole_list::<Variant<NewPostgres>>(&format!("PostgreSQL {version}")).await;
}
