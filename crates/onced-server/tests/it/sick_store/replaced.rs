//! A SQLite ledger whose file is removed, or put aside for another, while the gateway runs. What is claimed in a file
//! that nobody else can find is no claim: nothing may be forwarded, and the gateway is not ready.

use std::fs;
use std::path::PathBuf;

use onced_harness::{Recorder, RecorderOptions};
use testkit::http_client::{Request, send};
use testkit::{Backend, Database, Signal};

use super::course::{at_the_claim, before_each_outcome_is_stored};
use super::{Illness, SHORT_LEASE};
use crate::case_crash::post;
use crate::case_store::assert_come_again;
use crate::fixture::{Gateway, LIMIT, route};

const FILES: [&str; 3] = ["test.db", "test.db-wal", "test.db-shm"];

/// All files of the ledger are in another folder for a while.
struct MovedAway;

impl Illness for MovedAway {
    const LEASE: &str = SHORT_LEASE;

    async fn admit() -> (Self, Database) {
        let database = Database::create(Backend::Sqlite).await;
        fs::create_dir(aside(&database)).expect("a folder can be made");
        (Self, database)
    }

    async fn strike(&mut self, database: &Database) {
        for file in FILES {
            fs::rename(folder(database).join(file), aside(database).join(file)).expect("the file can be moved");
        }
    }

    async fn heal(&mut self, database: &Database) {
        for file in FILES {
            assert!(!folder(database).join(file).exists(), "{file} was made anew");
            fs::rename(aside(database).join(file), folder(database).join(file)).expect("the file can be moved");
        }
    }
}

/// Another ledger, with the same tables, lies in its place for a while.
struct PutAside;

impl Illness for PutAside {
    const LEASE: &str = SHORT_LEASE;

    async fn admit() -> (Self, Database) {
        (Self, Database::create(Backend::Sqlite).await)
    }

    async fn prepare(&mut self, database: &Database) {
        back_up(database).await;
    }

    async fn strike(&mut self, database: &Database) {
        let (file, aside) = (folder(database).join("test.db"), aside(database));
        fs::rename(&file, aside).expect("the file can be moved");
        fs::rename(backup(database), file).expect("the backup can be moved");
    }

    async fn heal(&mut self, database: &Database) {
        fs::rename(aside(database), folder(database).join("test.db")).expect("the file can be moved");
    }
}

fn folder(database: &Database) -> PathBuf {
    database.folder().expect("SQLite has a folder").to_owned()
}

fn aside(database: &Database) -> PathBuf {
    folder(database).join("aside")
}

fn backup(database: &Database) -> PathBuf {
    folder(database).join("backup")
}

async fn back_up(database: &Database) {
    database.sql().execute(&format!("VACUUM INTO '{}'", backup(database).display())).await;
}

#[tokio::test]
async fn moved_away_at_the_claim_sqlite() {
    at_the_claim::<MovedAway>().await;
}

#[tokio::test]
async fn moved_away_before_the_outcome_is_stored_sqlite() {
    before_each_outcome_is_stored::<MovedAway>().await;
}

#[tokio::test]
async fn put_aside_at_the_claim_sqlite() {
    at_the_claim::<PutAside>().await;
}

#[tokio::test]
async fn put_aside_before_the_outcome_is_stored_sqlite() {
    before_each_outcome_is_stored::<PutAside>().await;
}

#[tokio::test]
async fn a_file_that_was_removed_takes_no_claims_sqlite() {
    let database = Database::create(Backend::Sqlite).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("a free port");
    let gateway = Gateway::start(&database, &route("api.order", "/order", &upstream.url(), "external", "")).await;
    assert_eq!(send(gateway.address, &post("/order", "before", "{}")).await.status, 200);

    for file in FILES {
        fs::remove_file(folder(&database).join(file)).expect("the file is there");
    }
    let answer = send(gateway.address, &post("/order", "new", "{}")).await;
    assert_come_again(&answer, 503, "store-unavailable");
    assert_eq!(upstream.count(), 1, "forwarded on a claim that nobody else can see");
    assert_eq!(send(gateway.address, &Request::new("GET", "/_onced/readyz")).await.status, 503);
    let said = gateway.process.stderr().all().join("\n");
    assert!(said.contains("test.db was removed or moved away"), "{said}");
}

/// A backup that is moved into place is worked with after a restart, and not before.
#[tokio::test]
async fn a_file_that_was_replaced_is_refused_until_the_restart_sqlite() {
    let database = Database::create(Backend::Sqlite).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("a free port");
    let mut gateway = Gateway::start(&database, &route("api.order", "/order", &upstream.url(), "external", "")).await;
    assert_eq!(send(gateway.address, &post("/order", "backed up", "{}")).await.status, 200);
    back_up(&database).await;

    for file in FILES {
        fs::remove_file(folder(&database).join(file)).expect("the file is there");
    }
    fs::rename(backup(&database), folder(&database).join("test.db")).expect("the backup can be moved");
    assert_come_again(&send(gateway.address, &post("/order", "new", "{}")).await, 503, "store-unavailable");
    assert_eq!(upstream.count(), 1, "forwarded on a claim that nobody else can see");
    let said = gateway.process.stderr().all().join("\n");
    assert!(said.contains("test.db is not the file that was opened"), "{said}");

    gateway.process.signal(Signal::Terminate);
    gateway.process.wait(LIMIT).await;
    gateway.restart().await;
    let known = send(gateway.address, &post("/order", "backed up", "{}")).await;
    assert_eq!((known.status, known.header("idempotent-replayed")), (200, Some("true")), "{known:?}");
    assert_eq!(send(gateway.address, &post("/order", "new", "{}")).await.status, 200);
    assert_eq!(upstream.count(), 2);
}
