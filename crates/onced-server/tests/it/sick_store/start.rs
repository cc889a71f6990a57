//! A ledger that is sick when the gateway starts. Where it cannot be opened, or not brought up to date, `onced serve`
//! ends and says so in one line; it never listens in front of a ledger of which it knows nothing.

use onced_harness::{Recorder, RecorderOptions};
use testkit::process::{Process, free_port};
use testkit::{Backend, Database, Sql};

use super::disk::{Disk, ReadOnlyView};
use super::read_only::{ReadOnlyUser, set_read_only};
use crate::case_crash::post;
use crate::case_store::assert_come_again;
use crate::fixture::{Gateway, LIMIT, route};

/// Starts a gateway on that ledger, which must end by itself. Gives its last words.
async fn refused(store: &str) -> String {
    let listen = format!("127.0.0.1:{}", free_port());
    let args = ["serve", "--upstream", "http://127.0.0.1:9", "--listen", &listen, "--store", store];
    let mut process = Process::spawn(env!("CARGO_BIN_EXE_onced"), args, [("RUST_BACKTRACE", "0")]);
    let status = process.wait(LIMIT).await;
    let said = process.stderr().all();
    assert_eq!(status.code(), Some(1), "{said:?}");
    assert!(!said.iter().any(|line| line.contains("listening") || line.contains("panicked")), "{said:?}");
    said.last().expect("it says why").clone()
}

#[tokio::test]
async fn a_ledger_that_is_gone_ends_the_start_with_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = format!("sqlite:{}/no/such/folder/onced.db", folder.path().display());
    let is_folder = format!("sqlite:{}", folder.path().display());
    let nobody = format!("postgres://postgres@127.0.0.1:{}/onced", free_port());
    let no_server = format!("mysql://root@127.0.0.1:{}/onced", free_port());
    let no_such = format!("{}no_such_database", testkit::mariadb::server_url());
    let (server, _) =
        testkit::postgres::server_url().rsplit_once('/').map(|(s, n)| (s.to_owned(), n.to_owned())).unwrap();
    let no_database = format!("{server}/no_such_database");
    for (store, why) in [
        (missing, "unable to open database file"),
        (is_folder, "unable to open database file"),
        (nobody, "Connection refused"),
        (no_database, "does not exist"),
        (no_server, "Connection refused"),
        (no_such, "Unknown database"),
    ] {
        let said = refused(&store).await;
        assert!(said.contains("cannot be opened") && said.contains(why), "{store}: {said}");
    }
}

#[tokio::test]
async fn a_ledger_that_takes_no_tables_ends_the_start_with_words() {
    // SQLite, where nothing may be written: not even the file can be made.
    let folder = tempfile::tempdir().expect("a folder");
    let view = ReadOnlyView::of(folder.path());
    let said = refused(&format!("sqlite:{}/onced.db", view.path().display())).await;
    assert!(said.contains("cannot be opened"), "{said}");

    // SQLite, without room.
    let disk = Disk::mount("4m");
    disk.fill();
    let said = refused(&format!("sqlite:{}/onced.db", disk.path().display())).await;
    assert!(said.contains("full"), "{said}");

    // PostgreSQL, read-only and without our tables.
    let database = Database::create(Backend::Postgres).await;
    set_read_only(&database, "SET default_transaction_read_only = on").await;
    let said = refused(database.url()).await;
    assert!(said.contains("read-only transaction"), "{said}");

    // MariaDB, without the right to make tables.
    let database = Database::create(Backend::MariaDb).await;
    ReadOnlyUser::may(&database, "SELECT").await;
    let said = refused(&ReadOnlyUser::url(&database)).await;
    assert!(said.contains("CREATE command denied"), "{said}");
}

/// A gateway that finds its tables can tell what it knows; what it cannot claim it does not forward.
async fn starts_and_forwards_nothing(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("a free port");
    let routes = route("api.order", "/order", &upstream.url(), "external", "");
    let mut first = Gateway::start(&database, &routes).await;
    // As of an application that uses the same file. Without any reader the last one to close it takes the write-ahead log
    // away, and then a file that takes no writes cannot be opened at all.
    let mut reader = None;
    if let Sql::Sqlite(pool) = database.sql() {
        let mut tx = pool.begin().await.expect("the file can be read");
        sqlx::query("SELECT count(*) FROM onced_idempotency_keys").fetch_one(&mut *tx).await.expect("a count");
        reader = Some(tx);
    }
    first.process.signal(testkit::Signal::Terminate);
    first.process.wait(LIMIT).await;

    let view;
    let url = match backend {
        Backend::Sqlite => {
            view = ReadOnlyView::of(database.folder().expect("SQLite has a folder"));
            format!("sqlite:{}/test.db", view.path().display())
        }
        Backend::Postgres => {
            set_read_only(&database, "SET default_transaction_read_only = on").await;
            database.url().to_owned()
        }
        Backend::MariaDb => {
            ReadOnlyUser::may(&database, "SELECT").await;
            ReadOnlyUser::url(&database)
        }
    };
    let gateway = Gateway::start_on(&url, "", "", &routes, &[]).await;
    let ready = testkit::http_client::request(gateway.address, "GET", "/_onced/readyz", &[], "").await;
    assert_eq!(ready.status, 503, "{ready:?}");
    let answer = testkit::http_client::send(gateway.address, &post("/order", "k", "{}")).await;
    assert_come_again(&answer, 503, "store-unavailable");
    assert_eq!(upstream.count(), 0);
    drop(reader);
}

#[tokio::test]
async fn a_read_only_ledger_with_its_tables_forwards_nothing_sqlite() {
    starts_and_forwards_nothing(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_read_only_ledger_with_its_tables_forwards_nothing_postgres() {
    starts_and_forwards_nothing(Backend::Postgres).await;
}

#[tokio::test]
async fn a_read_only_ledger_with_its_tables_forwards_nothing_mariadb() {
    starts_and_forwards_nothing(Backend::MariaDb).await;
}
