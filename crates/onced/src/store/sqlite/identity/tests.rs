//! Files that are moved, replaced and reached by other ways, as the store sees them: what it opens, and what it refuses.

use std::os::unix::fs::symlink;
use std::time::Duration;

use sqlx::Executor;
use tempfile::TempDir;

use super::*;
use crate::store::keys::Transactional;
use crate::store::sqlite::SqliteStore;
use crate::store::{Durability, StoreOptions};

/// Set in the process alone that changes its working directory: the folder of its database.
const VARIABLE: &str = "ONCED_TEST_IDENTITY";

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.at(from), self.at(to)).unwrap();
    }

    /// A ledger of that name, which nobody has open.
    async fn make(&self, name: &str) {
        let store = self.open(name).await;
        store.migrate().await.unwrap();
        store.pool().close().await;
    }

    async fn open(&self, name: &str) -> SqliteStore {
        open(&format!("sqlite:{}", self.at(name).display())).await
    }
}

async fn open(url: &str) -> SqliteStore {
    let options = StoreOptions { acquire_timeout: Duration::from_millis(100), ..StoreOptions::default() };
    SqliteStore::open(url, &options).await.unwrap()
}

async fn works(store: &SqliteStore) {
    store.check_ready().await.unwrap();
    store.transaction().await.unwrap().rollback().await.unwrap();
}

async fn give_the_writers_connection_up(store: &SqliteStore) {
    let unit = store.writer.write("test", |conn| {
        Box::pin(async move {
            sqlx::raw_sql("ROLLBACK").execute(conn).await.map(drop).map_err(|source| error::of(source, "test"))
        })
    });
    unit.await.unwrap_err();
}

async fn until_idle(store: &SqliteStore, count: usize) {
    while store.pool().num_idle() != count {
        tokio::task::yield_now().await;
    }
}

/// Reads on new connections, writes and transactions of the caller's are all refused, in those words.
async fn is_refused(store: &SqliteStore, words: &str) {
    let read = store.check_schema().await;
    let written = store.writer.write("test", |_| Box::pin(async { Ok(()) })).await;
    let transaction = store.transaction().await.map(drop);
    for (what, refused) in [("read", read), ("written", written), ("transaction", transaction)] {
        let error = refused.expect_err(what);
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{what}: {error}");
        assert!(error.words().contains(words), "{what}: {error}");
    }
    assert!(store.pool().acquire().await.is_err(), "a connection to another file was lent");
}

#[tokio::test]
async fn a_file_that_is_gone_is_refused_and_not_made_anew() {
    let place = Place::new();
    place.make("onced.db").await;
    let store = place.open("onced.db").await;
    place.rename("onced.db", "away.db");
    is_refused(&store, "onced.db was removed or moved away").await;
    assert!(!place.at("onced.db").exists());
    place.rename("away.db", "onced.db");
    works(&store).await;
}

#[tokio::test]
async fn a_file_that_was_replaced_is_refused() {
    let place = Place::new();
    place.make("onced.db").await;
    place.make("other.db").await;
    let store = place.open("onced.db").await;
    place.rename("onced.db", "away.db");
    place.rename("other.db", "onced.db");
    is_refused(&store, "onced.db is not the file that was opened").await;
    place.rename("away.db", "onced.db");
    works(&store).await;
}

#[tokio::test]
async fn a_file_that_is_moved_while_a_transaction_waits_for_the_lock_is_refused() {
    let place = Place::new();
    place.make("onced.db").await;
    let store = place.open("onced.db").await;
    // Two connections that are open already.
    let two = [store.pool().acquire().await.unwrap(), store.pool().acquire().await.unwrap()];
    drop(two);
    until_idle(&store, 2).await;
    let rival = store.transaction().await.unwrap();
    assert_eq!(store.pool().num_idle(), 1);
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.transaction().await.map(drop) }
    });
    until_idle(&store, 0).await;
    place.rename("onced.db", "away.db");
    rival.rollback().await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.words().contains("moved away"), "{error}");
}

/// A path that cannot be looked at may lead anywhere.
#[tokio::test]
async fn a_path_that_leads_nowhere_is_refused() {
    let place = Place::new();
    fs::create_dir(place.at("folder")).unwrap();
    place.make("folder/onced.db").await;
    let store = place.open("folder/onced.db").await;
    place.rename("folder", "away");
    fs::write(place.at("folder"), "").unwrap();
    is_refused(&store, "onced.db cannot be looked at").await;
    fs::remove_file(place.at("folder")).unwrap();
    place.rename("away", "folder");
    works(&store).await;
}

#[tokio::test]
async fn a_symbolic_link_is_followed_each_time() {
    let place = Place::new();
    place.make("first.db").await;
    place.make("second.db").await;
    symlink(place.at("first.db"), place.at("onced.db")).unwrap();
    let store = place.open("onced.db").await;
    works(&store).await;
    // One that has no connection to read on yet.
    let store = place.open("onced.db").await;
    fs::remove_file(place.at("onced.db")).unwrap();
    symlink(place.at("second.db"), place.at("onced.db")).unwrap();
    is_refused(&store, "onced.db is not the file that was opened").await;
    // A hard link is the same file, but SQLite would look for a write-ahead log of another name beside it.
    fs::remove_file(place.at("onced.db")).unwrap();
    fs::hard_link(place.at("first.db"), place.at("onced.db")).unwrap();
    store.pool().acquire().await.unwrap_err();
    fs::remove_file(place.at("onced.db")).unwrap();
    symlink(place.at("first.db"), place.at("onced.db")).unwrap();
    works(&store).await;
}

/// The same file, and another write-ahead log beside it for whoever comes later.
#[tokio::test]
async fn a_file_that_was_moved_and_linked_back_is_refused() {
    let place = Place::new();
    place.make("onced.db").await;
    let store = place.open("onced.db").await;
    fs::create_dir(place.at("elsewhere")).unwrap();
    place.rename("onced.db", "elsewhere/onced.db");
    symlink(place.at("elsewhere/onced.db"), place.at("onced.db")).unwrap();
    is_refused(&store, "onced.db is not the file that was opened").await;
    fs::remove_file(place.at("onced.db")).unwrap();
    place.rename("elsewhere/onced.db", "onced.db");
    works(&store).await;
}

/// In a process of its own: there is one working directory for all threads.
#[tokio::test]
async fn a_relative_path_stays_where_it_was_when_the_working_directory_changes() {
    if let Some(folder) = std::env::var_os(VARIABLE) {
        std::env::set_current_dir(&folder).unwrap();
        let stores = [open("sqlite:onced.db").await, open("sqlite:file:onced.db").await];
        std::env::set_current_dir("elsewhere").unwrap();
        for store in &stores {
            give_the_writers_connection_up(store).await;
        }
        works(&stores[0]).await;
        // An URI is SQLite's to read. It leads to another file now, which is not opened.
        stores[1].pool().acquire().await.unwrap_err();
        let written = stores[1].writer.write("test", |_| Box::pin(async { Ok(()) })).await.unwrap_err();
        assert_eq!(written.kind(), StoreErrorKind::Unavailable, "{written}");
        println!("\nworks");
        return;
    }
    let place = Place::new();
    place.make("onced.db").await;
    fs::create_dir(place.at("elsewhere")).unwrap();
    place.make("elsewhere/onced.db").await;
    let name = "store::sqlite::identity::tests::a_relative_path_stays_where_it_was_when_the_working_directory_changes";
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap());
    let child = child.args([name, "--exact", "--nocapture"]).env(VARIABLE, place.folder.path());
    let said = child.output().await.unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success() && text.contains("\nworks"), "{text}{}", String::from_utf8_lossy(&said.stderr));
}

#[tokio::test]
async fn an_uri_is_watched_by_the_path_that_sqlite_made_of_it() {
    let place = Place::new();
    place.make("onced.db").await;
    let store = open(&format!("sqlite:file:{}", place.at("onced.db").display())).await;
    store.transaction().await.unwrap();
    place.rename("onced.db", "away.db");
    store.transaction().await.unwrap_err();
    place.rename("away.db", "onced.db");
    works(&store).await;
}

#[tokio::test]
async fn a_database_without_a_file_is_not_watched() {
    let options = StoreOptions { durability: Durability::WeakAccepted, ..StoreOptions::default() };
    for url in ["sqlite::memory:", "sqlite:"] {
        let store = SqliteStore::open(url, &options).await.unwrap();
        let mut tx = store.transaction().await.unwrap();
        tx.execute("CREATE TABLE rows (name TEXT)").await.unwrap();
        tx.commit().await.unwrap();
        store.writer.write("test", |_| Box::pin(async { Ok(()) })).await.unwrap();
    }
}
