//! A ledger without room: SQLite on a small disk that is full, and PostgreSQL and MariaDB whose tables lie on such a disk
//! (in a tablespace; in the database's folder), so that the server itself says 53100, or 1114.

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use testkit::{Backend, Database};

use super::Illness;
use super::course::{at_the_claim, before_each_outcome_is_stored};
use super::disk::{Disk, give};

/// Both small enough to be filled in no time, and large enough for the ledger.
const SIZE: &str = "8m";

struct FullDisk(Disk);

impl Illness for FullDisk {
    async fn admit() -> (Self, Database) {
        let disk = Disk::mount(SIZE);
        let database = Database::sqlite_in(disk.path()).await;
        (Self(disk), database)
    }

    async fn strike(&mut self, _: &Database) {
        self.0.fill();
    }

    async fn heal(&mut self, _: &Database) {
        self.0.make_room();
    }
}

/// A tablespace on a disk of its own. The database that uses it must be gone first.
struct FullTablespace {
    name: String,
    disk: Disk,
}

impl Illness for FullTablespace {
    async fn admit() -> (Self, Database) {
        let database = Database::create(Backend::Postgres).await;
        let disk = Disk::mount(SIZE);
        let data = database.sql().text("SHOW data_directory").await;
        give(disk.path(), data[0][0].as_ref());
        let name = format!("full_{}", database.url().rsplit_once('/').expect("the URL names a database").1);
        let create = format!("CREATE TABLESPACE {name} LOCATION '{}'", disk.path().display());
        database.sql().execute(&create).await;
        (Self { name, disk }, database)
    }

    async fn prepare(&mut self, database: &Database) {
        let moved = format!(
            "ALTER TABLE onced.idempotency_keys SET TABLESPACE {0}; \
             ALTER TABLE onced.deliveries SET TABLESPACE {0};",
            self.name
        );
        database.sql().execute(&moved).await;
    }

    async fn strike(&mut self, database: &Database) {
        self.disk.fill();
        // Rows still fit into the pages that are there: they are made full as well.
        let filler = "INSERT INTO onced.idempotency_keys \
            (scope, key, request_hash, hash_version, status, attempt, retry_window, created_at, updated_at) \
            VALUES ('filler', gen_random_uuid()::text, decode(repeat('00', 32), 'hex'), '', 'failed', 1, '1s', now(), now())";
        loop {
            if let Err(error) = database.sql().try_execute(filler).await {
                let code = error.as_database_error().and_then(|said| said.code().map(|code| code.into_owned()));
                assert_eq!(code.as_deref(), Some("53100"), "{error}");
                break;
            }
        }
    }

    async fn heal(&mut self, database: &Database) {
        self.disk.make_room();
        database.sql().execute("DELETE FROM onced.idempotency_keys WHERE scope = 'filler'").await;
    }
}

impl Drop for FullTablespace {
    /// Best effort, on a thread of its own as the runtime of the test cannot be blocked on from within.
    fn drop(&mut self) {
        let statement = format!("DROP TABLESPACE {}", self.name);
        let dropper = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let server = testkit::postgres::server_url();
                let mut admin = PgConnection::connect(&server).await.map_err(std::io::Error::other)?;
                admin.execute(AssertSqlSafe(statement)).await.map_err(std::io::Error::other)
            })
        });
        drop(dropper.join());
    }
}

/// The folder of a MariaDB database on a disk of its own.
struct FullFolder(Disk);

impl Illness for FullFolder {
    async fn admit() -> (Self, Database) {
        let database = Database::create(Backend::MariaDb).await;
        let disk = Disk::mount(SIZE);
        let data = database.sql().text("SELECT @@datadir").await;
        give(disk.path(), data[0][0].as_ref());
        let name = database.url().rsplit_once('/').expect("the URL names a database").1;
        let folder = std::path::Path::new(&data[0][0]).join(name);
        // What the server has put there when it made the database: its character set.
        let options = disk.path().join("db.opt");
        std::fs::copy(folder.join("db.opt"), &options).expect("the test runs as root");
        give(&options, data[0][0].as_ref());
        std::fs::remove_dir_all(&folder).expect("the test runs as root");
        std::os::unix::fs::symlink(disk.path(), &folder).expect("the test runs as root");
        (Self(disk), database)
    }

    async fn strike(&mut self, database: &Database) {
        self.0.fill();
        // Rows still fit into the pages that are there: they are made full as well, wherever a key of the test may go.
        let filler = "INSERT INTO onced_idempotency_keys \
            (scope, key, request_hash, hash_version, status, attempt, retry_window, created_at, updated_at) \
            VALUES ('api.order', CONCAT(SUBSTRING('abjknz', 1 + FLOOR(RAND() * 6), 1), UUID()), \
                    UNHEX(REPEAT('00', 32)), 'filler', 'failed', 1, 1, NOW(), NOW())";
        let mut refused = 0;
        while refused < 50 {
            match database.sql().try_execute(filler).await {
                Ok(_) => refused = 0,
                Err(error) => {
                    assert!(error.to_string().contains("1114"), "{error}");
                    refused += 1;
                }
            }
        }
    }

    async fn heal(&mut self, database: &Database) {
        self.0.make_room();
        database.sql().execute("DELETE FROM onced_idempotency_keys WHERE hash_version = 'filler'").await;
    }
}

#[tokio::test]
async fn full_at_the_claim_sqlite() {
    at_the_claim::<FullDisk>().await;
}

#[tokio::test]
async fn full_at_the_claim_postgres() {
    at_the_claim::<FullTablespace>().await;
}

#[tokio::test]
async fn full_at_the_claim_mariadb() {
    at_the_claim::<FullFolder>().await;
}

#[tokio::test]
async fn full_before_the_outcome_is_stored_mariadb() {
    before_each_outcome_is_stored::<FullFolder>().await;
}

#[tokio::test]
async fn full_before_the_outcome_is_stored_sqlite() {
    before_each_outcome_is_stored::<FullDisk>().await;
}

#[tokio::test]
async fn full_before_the_outcome_is_stored_postgres() {
    before_each_outcome_is_stored::<FullTablespace>().await;
}
