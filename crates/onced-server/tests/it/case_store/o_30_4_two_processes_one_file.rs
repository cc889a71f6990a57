//! O-30, item 4, SQLite: two gateways write to one file, 200 requests each, while their application writes to it too,
//! and another client reads and then writes in one transaction, which is the shape that SQLite refuses when somebody
//! else has written in between. No sender sees an error, nothing is said to be locked as long as the wait for the lock
//! is within its bound, and no write is lost.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use testkit::http_client::send;
use testkit::{Backend, Database};
use tokio::sync::watch;

use super::{LONG_LEASE, order};
use crate::fixture::{Gateway, route, sql};
use crate::same_database_app::{self, Work};

const WRITES: usize = 200;
/// How many requests each gateway has at a time.
const AT_ONCE: usize = 8;

/// Counts up by reading first and writing then; runs until it is told to stop, and gives the number of its commits.
async fn read_then_write(mut conn: SqliteConnection, stop: watch::Receiver<bool>) -> i64 {
    let mut commits = 0;
    while !*stop.borrow() || commits == 0 {
        let mut tx = conn.begin().await.expect("a deferred transaction waits for nobody");
        let read: Result<i64, _> = sqlx::query_scalar("SELECT n FROM tally").fetch_one(&mut *tx).await;
        let read = read.expect("reading waits for nobody");
        let written = sqlx::query("UPDATE tally SET n = ?1").bind(read + 1).execute(&mut *tx).await;
        // Somebody has written since the read: the whole transaction is run again.
        if written.is_err_and(|error| is_busy(&error)) {
            tx.rollback().await.expect("rolled back");
            continue;
        }
        tx.commit().await.expect("the write lock is held");
        commits += 1;
    }
    commits
}

fn is_busy(error: &sqlx::Error) -> bool {
    const BUSY: i32 = 5;
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<i32>().ok());
    assert_eq!(code.map(|code| code & 0xff), Some(BUSY), "{error}");
    true
}

#[tokio::test]
async fn o_30_4_two_processes_write_one_file_sqlite() {
    let database = Database::create(Backend::Sqlite).await;
    let app = same_database_app::start(&database, |call| Work::ok(&format!(r#"{{"run":{}}}"#, call.seq))).await;
    database.sql().execute("CREATE TABLE tally (n INTEGER NOT NULL); INSERT INTO tally VALUES (0)").await;
    let routes = route("api.order", "/api/order", &app.url(), "same-database", LONG_LEASE);
    let store = "busy_timeout = \"20s\"\n";
    let gateways = [
        Gateway::start_with(&database, "", store, &routes).await,
        Gateway::start_with(&database, "", store, &routes).await,
    ];

    let file: SqliteConnectOptions = database.url().parse().expect("the URL of a file");
    let conn = file.busy_timeout(std::time::Duration::from_secs(20)).connect().await.expect("the file can be opened");
    let (stop, stopped) = watch::channel(false);
    let other = tokio::spawn(read_then_write(conn, stopped));

    let addresses: Vec<_> = gateways.iter().map(|gateway| gateway.address).collect();
    let requests = (0..WRITES * addresses.len()).map(|number| {
        let address = addresses[number % addresses.len()];
        async move { send(address, &order(&format!("o30-4-{number}"))).await }
    });
    let answers: Vec<_> =
        futures_util::stream::iter(requests).buffer_unordered(AT_ONCE * addresses.len()).collect().await;
    stop.send_replace(true);
    let commits = other.await.expect("the other client has written");

    let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
    for answer in &answers {
        *statuses.entry(answer.status).or_default() += 1;
    }
    let all = WRITES * addresses.len();
    assert_eq!(statuses, BTreeMap::from([(200, all)]));
    for gateway in &gateways {
        let lines = gateway.process.stderr().all();
        let locked: Vec<_> =
            lines.iter().filter(|line| line.contains("locked") || line.contains("run again")).collect();
        assert!(locked.is_empty(), "{locked:#?}");
    }
    let all = i64::try_from(all).expect("a small number");
    assert_eq!((same_database_app::orders(&database).await, app.count()), (all, WRITES * addresses.len()));
    assert_eq!(sql::keys_at(database.sql(), Backend::Sqlite, "completed").await, all);
    assert_eq!(database.sql().count("SELECT n FROM tally").await, commits);
}
