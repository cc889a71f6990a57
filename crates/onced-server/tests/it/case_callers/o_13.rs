//! O-13: a known key comes with another request while the first one is still running. That is a mismatch, 422, not
//! "still running": waiting would not help. The equal request is told that it is running.

use std::time::Duration;

use onced_harness::{Reply, Rule};
use testkit::http_client::{Answer, send};
use testkit::{Backend, Database};

use crate::case_crash::{STEADY, is_in_progress, is_problem, is_replayed, lease, outside_app, post, replays, runs};
use crate::fixture::{Gateway, LIMIT, route};
use crate::same_database_app::{self, Work, orders};

const ANSWER: &str = r#"{"ok":true}"#;

/// Not after the upstream, which takes 2 s in the case and is held here until both have been answered.
fn came_at_once(answer: &Answer) {
    let limit = if testkit::soaking() { Duration::from_millis(300) } else { Duration::from_secs(2) };
    assert!(answer.took < limit, "answered after {:?}", answer.took);
}

async fn mismatch_beats_in_progress(backend: Backend, effect: &str) {
    let database = Database::create(backend).await;
    let app = match effect {
        "same-database" => same_database_app::start(&database, |_| Work::ok(ANSWER)).await,
        _ => outside_app(&database).await,
    };
    app.script([Rule::on_run(1, Reply::hang())]);
    let routes = route("api.order", "/api/order", &app.url(), effect, &lease(STEADY));
    let gateway = Gateway::start(&database, &routes).await;
    let address = gateway.address;
    let (right, other) = (post("/api/order", "o13", r#"{"q":1}"#), post("/api/order", "o13", r#"{"q":2}"#));

    let first = tokio::spawn({
        let right = right.clone();
        async move { send(address, &right).await }
    });
    app.wait_for_held(1, LIMIT).await.unwrap();
    let second = send(address, &other).await;
    is_problem(&second, 422, "key-reused");
    came_at_once(&second);
    let third = send(address, &right).await;
    is_in_progress(&third, STEADY);
    came_at_once(&third);
    app.release();
    let first = first.await.unwrap();
    assert_eq!((first.status, first.text().as_str(), is_replayed(&first)), (200, ANSWER, false));

    let after = send(address, &other).await;
    is_problem(&after, 422, "key-reused");
    assert!(!after.text().contains(ANSWER), "another request's answer got out");
    replays(&send(address, &right).await, &first);
    assert_eq!((runs(&app, "o13"), orders(&database).await), (1, 1));
}

#[tokio::test]
async fn o_13_mismatch_beats_in_progress_sqlite() {
    for effect in ["same-database", "external"] {
        mismatch_beats_in_progress(Backend::Sqlite, effect).await;
    }
}

#[tokio::test]
async fn o_13_mismatch_beats_in_progress_postgres() {
    for effect in ["same-database", "external"] {
        mismatch_beats_in_progress(Backend::Postgres, effect).await;
    }
}

#[tokio::test]
async fn o_13_mismatch_beats_in_progress_mariadb() {
    for effect in ["same-database", "external"] {
        mismatch_beats_in_progress(Backend::MariaDb, effect).await;
    }
}
