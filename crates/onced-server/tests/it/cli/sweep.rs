//! `onced sweep`: what is said before, by scope, and afterwards; and where it refuses.

use std::time::Duration;

use onced_harness::{Recorder, RecorderOptions};
use testkit::http_client::{Request, send};
use testkit::{Backend, Database};

use super::{onced, onced_in};
use crate::fixture::{Gateway, route, sql};

const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

async fn by_scope(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    let routes = [("mail", "/mail"), ("orders", "/orders")]
        .map(|(name, path)| route(name, path, &upstream.url(), "external", ""))
        .join("\n");
    let gateway = Gateway::start(&database, &routes).await;
    // Three keys, one of them delivered twice, so that there are four lines.
    for (path, key) in [("/mail", "a"), ("/mail", "b"), ("/orders", "a")] {
        assert_eq!(send(gateway.address, &Request::post(path, "{}").key(key)).await.status, 200);
    }
    sql::put_the_clock_ahead(database.sql(), backend, LONG).await;
    let args = ["sweep", "--store", database.url()];
    let dry = onced(&[&args[..], &["--dry-run"]].concat()).await;
    assert_eq!((dry.code, dry.err.as_str()), (Some(0), ""));
    let table: Vec<Vec<&str>> = dry.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(table[..3], [["SCOPE", "KEYS", "DELIVERIES"], ["mail", "2", "2"], ["orders", "1", "1"]]);
    assert_eq!(dry.out.lines().last(), Some("3 keys and 3 lines of deliveries would be deleted. Nothing was."));
    let swept = onced(&args).await;
    assert!(swept.code == Some(0) && swept.out.starts_with("3 keys and 3 lines of deliveries deleted, in 2 batches"));
    assert_eq!(database.sql().count(&format!("SELECT count(*) FROM {}", sql::table(backend))).await, 0);
    let again = onced(&args).await;
    assert!(again.out.starts_with("0 keys and 0 lines of deliveries deleted, in 0 batches"), "{again:?}");
    let dry = onced(&[&args[..], &["--dry-run"]].concat()).await;
    assert_eq!(dry.out, "0 keys and 0 lines of deliveries would be deleted. Nothing was.");
}

#[tokio::test]
async fn a_dry_run_counts_by_scope_what_the_next_run_deletes_sqlite() {
    by_scope(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_dry_run_counts_by_scope_what_the_next_run_deletes_postgres() {
    by_scope(Backend::Postgres).await;
}

#[tokio::test]
async fn a_dry_run_counts_by_scope_what_the_next_run_deletes_mariadb() {
    by_scope(Backend::MariaDb).await;
}

/// How long lines are kept is read from the file, unless the command says it.
#[tokio::test]
async fn the_file_says_how_long_lines_are_kept() {
    let database = Database::create(Backend::Sqlite).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    let gateway = Gateway::start(&database, &route("mail", "/mail", &upstream.url(), "external", "")).await;
    assert_eq!(send(gateway.address, &Request::post("/mail", "{}").key("a")).await.status, 200);
    // A day: the key stays, its line is older than an hour.
    sql::put_the_clock_ahead(database.sql(), Backend::Sqlite, Duration::from_secs(24 * 3600)).await;
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!(
        "upstream = \"http://127.0.0.1:1\"\n[store]\nurl = \"{}\"\n[sweep]\nkeep_deliveries = \"1h\"\n",
        database.url()
    );
    std::fs::write(folder.path().join("onced.toml"), text).expect("the file can be written");
    for (args, lines) in [
        (&["sweep", "--dry-run", "--store", database.url()][..], "0 lines"),
        (&["sweep", "--dry-run", "--config", "onced.toml"], "1 line "),
        (&["sweep", "--dry-run", "--config", "onced.toml", "--keep-deliveries", "2days"], "0 lines"),
        (&["sweep", "--config", "onced.toml"], "1 line "),
    ] {
        let ran = onced_in(folder.path(), args).await;
        let last = ran.out.lines().last().unwrap_or_default();
        assert!(ran.code == Some(0) && last.starts_with(&format!("0 keys and {lines}")), "{args:?}: {ran:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_swept_is_said_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let absent = onced_in(folder.path(), &["sweep"]).await;
    assert!(absent.code == Some(1) && absent.err.contains("onced.db"), "{absent:?}");
    assert!(!folder.path().join("onced.db").exists(), "no ledger is made");
    for args in
        [&["sweep", "--batch", "0"][..], &["sweep", "--batch", "10001"], &["sweep", "--keep-deliveries", "soon"]]
    {
        let wrong = onced_in(folder.path(), args).await;
        assert!(wrong.code == Some(2) && wrong.err.contains("invalid value"), "{wrong:?}");
    }
    let help = onced_in(folder.path(), &["sweep", "--help"]).await;
    assert!(help.code == Some(0) && help.out.contains("Examples:\n  onced sweep --dry-run"), "{help:?}");
}
