//! Settings under which commits can be lost are refused when the store is opened, in words, unless accepted.

use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced::store::{AnyStore, Durability, StoreErrorKind, StoreOptions};
use testkit::{Backend, Database};

use crate::bench::{Tested, options};

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_that_confirms_before_it_has_written_is_refused_unless_accepted() {
    let database = Database::create(Backend::Postgres).await;
    check::<PgStore>(database.url(), None).await;
    let name = database.url().rsplit('/').next().unwrap().to_owned();
    for (setting, refused) in
        [("off", true), ("local", true), ("remote_write", true), ("on", false), ("remote_apply", false)]
    {
        database.sql().execute(&format!("ALTER DATABASE {name} SET synchronous_commit = {setting}")).await;
        check::<PgStore>(database.url(), refused.then_some("synchronous_commit is below on")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sqlite_database_that_cannot_keep_a_write_ahead_log_is_refused_unless_accepted() {
    let database = Database::create(Backend::Sqlite).await;
    check::<SqliteStore>(database.url(), None).await;
    check::<SqliteStore>("sqlite::memory:", Some("WAL")).await;
    // Without shared memory there is no such log, as on many network file systems.
    let lone = format!("sqlite:{}?vfs=unix-dotfile", database.folder().unwrap().join("lone.db").display());
    check::<SqliteStore>(&lone, Some("WAL")).await;
}

/// Settings of the whole server, which other tests share: what weaker ones come to is shown in `store::mysql`.
#[tokio::test(flavor = "multi_thread")]
async fn a_mariadb_that_commits_durably_is_opened_and_a_url_without_a_database_is_not() {
    let database = Database::create(Backend::MariaDb).await;
    check::<MySqlStore>(database.url(), None).await;
    let (server, _) = database.url().rsplit_once('/').unwrap();
    for odd in [server.to_owned(), format!("{server}/"), "mysql://".to_owned()] {
        let error = MySqlStore::open(&odd, &options()).await.unwrap_err();
        assert!(error.words().contains("it looks like mysql://"), "{odd}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_names_its_backend_or_is_refused() {
    let error = AnyStore::open("oracle://localhost/x", &StoreOptions::default()).await.err().unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    for backend in Backend::ALL {
        let database = Database::create(backend).await;
        let store = AnyStore::open(database.url(), &options()).await.unwrap();
        store.migrate().await.unwrap();
        store.check_schema().await.unwrap();
    }
}

async fn check<S: Tested>(url: &str, refused: Option<&str>) {
    let opened = S::open_at(url, &options()).await;
    match (opened, refused) {
        (Ok(_), None) => {}
        (Err(error), Some(words)) => {
            assert_eq!(error.kind(), StoreErrorKind::Refused);
            let said = error.to_string();
            assert!(said.contains(words) && said.contains("allow_weak_durability"), "{said}");
            let accepting = StoreOptions { durability: Durability::WeakAccepted, ..options() };
            S::open_at(url, &accepting).await.unwrap();
        }
        (Ok(_), Some(words)) => panic!("{url} was opened in spite of: {words}"),
        (Err(error), None) => panic!("{url}: {error}"),
    }
}
