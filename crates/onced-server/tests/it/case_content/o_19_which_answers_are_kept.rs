//! O-19: which answers are kept. What the gateway refuses is never stored, so that the same key may come again; what the
//! upstream answers is kept or not by its status and by what it proves.

use std::time::Duration;

use onced_harness::{Recorder, Reply, Rule};
use testkit::http_client::{Answer, Request, send};
use testkit::{Backend, Database};

use crate::case_crash::{STEADY, is_in_progress};
use crate::case_crash::{is_problem, is_replayed, lease, nothing_is_running, outside_app, post, record, replays, runs};
use crate::fixture::{Gateway, route, secs, sql};
use crate::same_database_app::{self, Work, orders_of};

const ANSWER: &str = r#"{"ok":true}"#;

async fn keys(database: &Database) -> i64 {
    database.sql().count(&format!("SELECT count(*) FROM {}", sql::table(database.backend()))).await
}

fn ran(answer: &Answer) {
    assert!(answer.status == 200 && !is_replayed(answer), "{answer:?}");
}

async fn what_the_gateway_refuses(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = outside_app(&database).await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "good").unwrap();
    let tokens = format!("tokens = [{{ tenant = \"t1\", file = \"{}\" }}]", token.display());
    let tenant = format!("tenant = {{ from = \"bearer\", {tokens} }}");
    let limit = "rate_limit = { requests = 1, per = \"5s\" }\ntenant = { from = \"header\", header = \"X-Tenant\" }";
    let routes = [("401", tenant.as_str()), ("429", limit), ("400", "body_syntax = \"json\"")]
        .map(|(name, more)| route(name, &format!("/{name}"), &upstream.url(), "external", more))
        .join("\n");
    let gateway = Gateway::start(&database, &routes).await;
    let to = async |request: Request| send(gateway.address, &request).await;

    is_problem(&to(post("/401", "a", "{}").header("authorization", "Bearer bad")).await, 401, "caller-unknown");
    assert_eq!((keys(&database).await, upstream.count()), (0, 0));
    ran(&to(post("/401", "a", "{}").header("authorization", "Bearer good")).await);

    let limited = |tenant, key| post("/429", key, "{}").header("x-tenant", tenant);
    ran(&to(limited("busy", "before")).await);
    let refused = to(limited("busy", "b")).await;
    is_problem(&refused, 429, "rate-limited");
    assert!(refused.header("retry-after").is_some_and(|wait| wait != "0"), "{refused:?}");
    assert_eq!((keys(&database).await, upstream.count()), (2, 2));
    ran(&to(limited("idle", "b")).await);
    let started = std::time::Instant::now();
    let answer = loop {
        // The sender's own pace.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let answer = to(limited("busy", "b")).await;
        if answer.status != 429 || started.elapsed() > Duration::from_secs(30) {
            break answer;
        }
    };
    ran(&answer);
    assert_eq!(runs(&upstream, "b"), 2, "one for each tenant");

    for body in ["", "{", "{}x", "\u{feff}{}", "{'a':1}"] {
        is_problem(&to(post("/400", "c", body)).await, 400, "body-invalid");
    }
    is_problem(&to(post("/400", "c", "").body(&b"{\"s\":\"\xff\"}"[..])).await, 400, "body-invalid");
    let deep = "[".repeat(500_000);
    is_problem(&to(post("/400", "c", &deep)).await, 400, "body-invalid");
    assert_eq!(runs(&upstream, "c"), 0);
    ran(&to(post("/400", "c", r#"{"amount":1}"#)).await);
    nothing_is_running(&database).await;
}

#[tokio::test]
async fn o_19_what_the_gateway_refuses_is_not_kept_sqlite() {
    what_the_gateway_refuses(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_19_what_the_gateway_refuses_is_not_kept_postgres() {
    what_the_gateway_refuses(Backend::Postgres).await;
}

#[tokio::test]
async fn o_19_what_the_gateway_refuses_is_not_kept_mariadb() {
    what_the_gateway_refuses(Backend::MariaDb).await;
}

/// The first answer, then the same request again with the upstream healthy.
async fn twice(gateway: &Gateway, upstream: &Recorder, path: &str, key: &str, first: Reply) -> [Answer; 2] {
    upstream.script([Rule::on_run(1, first).at(path), Rule::always(Reply::status(201).json(ANSWER))]);
    let request = post(path, key, "{}");
    let first = send(gateway.address, &request).await;
    [first, send(gateway.address, &request).await]
}

async fn what_the_upstream_answers(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = outside_app(&database).await;
    let paths = ["/429", "/402", "/404", "/409", "/422"];
    let routes = paths.map(|path| route(&path[1..], path, &upstream.url(), "external", &lease(STEADY))).join("\n");
    let gateway = Gateway::start(&database, &routes).await;

    let busy = Reply::status(429).header("retry-after", "2").json("{}");
    let [first, second] = twice(&gateway, &upstream, "/429", "busy", busy).await;
    assert_eq!((first.status, first.header("retry-after")), (429, Some("2")));
    assert_eq!((second.status, is_replayed(&second), runs(&upstream, "busy")), (201, false, 2), "{second:?}");

    for (path, status) in [("/402", 402), ("/404", 404), ("/409", 409), ("/422", 422)] {
        let own = Reply::status(status).json(r#"{"declined":true}"#);
        let [first, second] = twice(&gateway, &upstream, path, &path[1..], own).await;
        assert_eq!((first.status, first.header("content-type")), (status, Some("application/json")));
        // Not the gateway's own 409 or 422: those are problems, and never marked as replayed.
        replays(&second, &first);
        assert_eq!(runs(&upstream, &path[1..]), 1, "{path}");
    }
    nothing_is_running(&database).await;
}

#[tokio::test]
async fn o_19_which_answers_of_the_upstream_are_kept_sqlite() {
    what_the_upstream_answers(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_19_which_answers_of_the_upstream_are_kept_postgres() {
    what_the_upstream_answers(Backend::Postgres).await;
}

#[tokio::test]
async fn o_19_which_answers_of_the_upstream_are_kept_mariadb() {
    what_the_upstream_answers(Backend::MariaDb).await;
}

async fn failures(backend: Backend) {
    let database = Database::create(backend).await;
    let app = same_database_app::start(&database, |call| match (call.path.as_str(), call.run) {
        ("/nothing", 1) => Work::fails(500),
        // It commits, and something after that goes wrong.
        ("/after", 1) => Work { status: 201, then_answers: Some(500), ..Work::ok(ANSWER) },
        _ => Work { status: 201, ..Work::ok(ANSWER) },
    })
    .await;
    let outside = onced_harness::Recorder::start(onced_harness::RecorderOptions::default()).await.unwrap();
    outside.script([Rule::always(Reply::hang())]);
    let slow = format!(
        "upstream_timeout = \"{0}ms\"\nconnect_timeout = \"{1}ms\"\n{2}",
        secs(5.0).as_millis(),
        secs(2.0).as_millis(),
        lease(STEADY)
    );
    let routes = [
        route("nothing", "/nothing", &app.url(), "same-database", &lease(STEADY)),
        route("after", "/after", &app.url(), "same-database", &lease(STEADY)),
        route("slow", "/slow", &outside.url(), "external", &slow),
    ];
    let gateway = Gateway::start(&database, &routes.join("\n")).await;
    let to = async |path: &str, key: &str| send(gateway.address, &post(path, key, "{}")).await;

    assert_eq!(to("/nothing", "n").await.status, 500);
    let second = to("/nothing", "n").await;
    assert_eq!((second.status, is_replayed(&second)), (201, false), "{second:?}");
    assert_eq!((runs(&app, "n"), orders_of(&database, "n").await), (2, 1));

    // Whatever it answers: its row is completed, and no second order is written.
    let first = to("/after", "a").await;
    assert_eq!((first.status, record(&database, "a").await[0].as_str()), (500, "completed"));
    let second = to("/after", "a").await;
    assert_eq!((second.status, is_replayed(&second)), (201, true), "what it has stored");
    assert_eq!((runs(&app, "a"), orders_of(&database, "a").await), (1, 1));

    is_problem(&to("/slow", "s").await, 504, "outcome-unknown");
    is_in_progress(&to("/slow", "s").await, STEADY);
    sql::let_leases_run_out(database.sql(), backend).await;
    is_problem(&to("/slow", "s").await, 409, "outcome-unknown");
    assert_eq!(runs(&outside, "s"), 1);
    outside.release();
}

#[tokio::test]
async fn o_19_what_failures_leave_behind_sqlite() {
    failures(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_19_what_failures_leave_behind_postgres() {
    failures(Backend::Postgres).await;
}

#[tokio::test]
async fn o_19_what_failures_leave_behind_mariadb() {
    failures(Backend::MariaDb).await;
}
