//! `onced config check`: a wrong file is refused with its place and what would be right; a sound one really works.

use std::time::{Duration, Instant};

use onced_harness::{Recorder, RecorderOptions};
use testkit::http_client::{Request, send};
use testkit::{Backend, Database, SqlText};

use super::{code, onced};
use crate::fixture::{Gateway, LIMIT, route};

const ROUTE: &str = "[[route]]\nname = \"orders\"\npath = \"/o\"\nupstream = \"http://127.0.0.1:1\"\n";

/// Checks the file; what it says has its name taken out.
async fn check(text: &str) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("onced.toml");
    std::fs::write(&file, text).expect("the file can be written");
    let file = file.to_str().expect("a path of plain characters");
    let ran = onced(&["config", "check", file]).await;
    let served = onced(&["serve", "--config", file]).await;
    if ran.code == Some(1) {
        assert_eq!(served.code, Some(1), "what the check refuses is not served: {served:?}");
        let first = ran.err.lines().next().unwrap_or_default();
        assert!(served.err.contains(first), "serve says the same: {}", served.err);
    }
    (ran.code, ran.out.replace(file, "FILE"), ran.err.replace(file, "FILE"))
}

#[tokio::test]
async fn a_wrong_file_is_refused_with_its_line_and_what_would_be_right() {
    let rows = [
        (
            "effect = \"external\"\nlease = \"30s\"\nheartbeat = \"11s\"\n",
            "FILE:7:1: ",
            "heartbeat = \"11s\" is slower than a third of the lease (30s); write at most \"10s\"",
        ),
        ("effect = \"external\"\nleese = \"30s\"\n", "FILE:6:1: ", "no setting `leese`; did you mean `lease`?"),
        ("effect = \"external\"\nlease = \"200ms\"\n", "FILE:6:1: ", "\"1s\""),
        ("effect = \"external\"\nlease = 30\n", "FILE:6:1: ", "write it in quotes with its unit: lease = \"30s\""),
        (
            "effect = \"external\"\nupstream_timeout = \"40s\"\nsettle = \"79s\"\n",
            "FILE:7:1: ",
            "is less than twice the upstream timeout (40s)",
        ),
        ("effect = \"external\"\non_unknown = \"retry\"\n", "FILE:6:1: ", "write effect = \"idempotent\" instead"),
    ];
    for (more, place, words) in rows {
        let (code, out, err) = check(&format!("{ROUTE}{more}")).await;
        assert_eq!((code, out.as_str()), (Some(1), ""), "{more}: {err}");
        assert!(err.starts_with(place) && err.contains(words), "{more}: {err}");
    }
}

#[tokio::test]
async fn a_route_without_effect_is_asked_what_its_upstream_does() {
    let (code, _, err) = check(ROUTE).await;
    assert_eq!(code, Some(1));
    assert!(err.starts_with("FILE:1:1: [[route]] \"orders\" has no `effect`. What does its upstream do"), "{err}");
    let answers: Vec<&str> = err.lines().skip(1).map(|line| line.trim().split("  ").next().unwrap_or("")).collect();
    assert_eq!(answers, ["effect = \"same-database\"", "effect = \"idempotent\"", "effect = \"external\""], "{err}");
}

#[tokio::test]
async fn everything_wrong_is_told_at_once() {
    let text = format!("nonsense = 1\n{ROUTE}effect = \"magic\"\nheartbeat = \"1h\"\n");
    let (code, _, err) = check(&text).await;
    let places: Vec<&str> = err.lines().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!((code, places), (Some(1), vec!["FILE:1:1", "FILE:6:1", "FILE:7:1"]), "{err}");
}

#[tokio::test]
async fn a_file_that_is_not_there_is_said_to_be_missing() {
    let ran = onced(&["config", "check", "/nowhere/onced.toml"]).await;
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.starts_with("/nowhere/onced.toml: cannot be read ("), "{}", ran.err);
}

#[tokio::test]
async fn a_sound_file_is_said_to_be_sound_and_an_external_route_what_it_means() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("onced.toml");
    std::fs::write(&file, format!("{ROUTE}effect = \"external\"\nlease = \"1s\"\nupstream_timeout = \"30s\"\n"))
        .unwrap();
    let file = file.to_str().expect("a path of plain characters");
    let ran = onced(&["config", "check", file]).await;
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "a lease shorter than the upstream's timeout is fine");
    assert!(ran.out.contains("note: route \"orders\": effect = \"external\": where it stays unknown"), "{}", ran.out);
    assert!(ran.out.ends_with("is sound: 1 routes, ledger sqlite:onced.db."), "{}", ran.out);
}

/// A lease that is shorter than the work: heartbeats renew it.
async fn work_outlasts_its_lease(backend: Backend) {
    let lease = if testkit::soaking() { Duration::from_secs(1) } else { Duration::from_millis(300) };
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen");
    let more = format!("lease = \"{}ms\"\nupstream_timeout = \"60s\"\n", lease.as_millis());
    let gateway = Gateway::start(&database, &route("slow", "/slow", &upstream.url(), "external", &more)).await;
    let (address, request) = (gateway.address, Request::post("/slow", "{}").key("k1"));
    upstream.hold();
    let first = tokio::spawn({
        let request = request.clone();
        async move { send(address, &request).await }
    });
    upstream.wait_for_held(1, LIMIT).await.expect("the request reaches the upstream");

    // By the database's clock: the end of the lease moves on past three leases.
    let until = SqlText::each(
        "SELECT lease_until FROM onced_idempotency_keys",
        "SELECT onced.micros(lease_until) FROM onced.idempotency_keys",
        "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', lease_until) FROM onced_idempotency_keys",
    );
    let (before, started) = (database.sql().count(until).await, Instant::now());
    let wanted = before + i64::try_from(3 * lease.as_micros()).unwrap();
    while database.sql().count(until).await < wanted {
        assert!(started.elapsed() < LIMIT, "the lease is not renewed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let duplicate = send(address, &request).await;
    assert_eq!((duplicate.status, code(&duplicate).as_str()), (409, "in-progress"));
    upstream.release();
    let first = first.await.expect("the client got its answer");
    assert_eq!((first.status, first.text().as_str()), (200, r#"{"ok":true}"#));
    let again = send(address, &request).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!((upstream.count(), upstream.effects()), (1, 1));
}

#[tokio::test]
async fn a_lease_shorter_than_the_work_is_renewed_sqlite() {
    work_outlasts_its_lease(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_lease_shorter_than_the_work_is_renewed_postgres() {
    work_outlasts_its_lease(Backend::Postgres).await;
}

#[tokio::test]
async fn a_lease_shorter_than_the_work_is_renewed_mariadb() {
    work_outlasts_its_lease(Backend::MariaDb).await;
}
