//! `onced keys`: what is in the ledger, and a person's word on an outcome that nobody knows.

use std::time::{Duration, Instant};

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Answer, Request, send};
use testkit::{Backend, Database, SqlText};

use super::{Ran, code, onced};
use crate::fixture::{Gateway, LIMIT, route, sql};

/// A gateway whose upstream takes effect and loses its answer, and one key of which that is so.
struct Unknown {
    database: Database,
    upstream: Recorder,
    gateway: Gateway,
    scope: &'static str,
}

impl Unknown {
    async fn start(backend: Backend) -> Self {
        Self::in_scope(backend, "mail").await
    }

    /// In the scope of a route, or in `http`, that of an upstream without routes.
    async fn in_scope(backend: Backend, scope: &'static str) -> Self {
        let database = Database::create(backend).await;
        let script = [Rule::always(Reply::lose_answer())];
        let upstream =
            Recorder::start(RecorderOptions::default().script(script)).await.expect("the upstream can listen");
        let url = upstream.url();
        // The lease is long: it ends when the test says so.
        let (top, routes) = match scope {
            "http" => (format!("upstream = \"{url}\""), "[defaults]\nlease = \"10min\"".to_owned()),
            route_name => (String::new(), route(route_name, "/mail", &url, "external", "lease = \"10min\"")),
        };
        let gateway = Gateway::start_with(&database, &top, "", &routes).await;
        let unknown = Self { database, upstream, gateway, scope };
        let answer = unknown.deliver().await;
        assert_eq!((answer.status, code(&answer).as_str()), (504, "outcome-unknown"));
        unknown
    }

    async fn deliver(&self) -> Answer {
        send(self.gateway.address, &Request::post("/mail", r#"{"to":"a"}"#).key("k1")).await
    }

    async fn keys(&self, args: &[&str]) -> Ran {
        onced(&[&["keys", "--store", self.database.url()], args].concat()).await
    }

    async fn resolve(&self, args: &[&str]) -> Ran {
        self.keys(&[&["resolve", self.scope, "k1", "--reason", "looked it up", "--who", "anna"], args].concat()).await
    }

    async fn refused(&self, args: &[&str], words: &str) {
        let before = self.row().await;
        let ran = self.resolve(args).await;
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
        assert!(ran.err.contains(words), "{}", ran.err);
        assert_eq!(self.row().await, before, "nothing was changed");
    }

    async fn row(&self) -> Vec<Vec<String>> {
        let table = sql::table(self.database.backend());
        self.database.sql().text(&format!("SELECT * FROM {table}")).await
    }

    async fn status(&self) -> String {
        let table = sql::table(self.database.backend());
        let rows = self.database.sql().text(&format!("SELECT status FROM {table} WHERE key = 'k1'")).await;
        rows[0][0].clone()
    }

    /// As if the last caller's lease had ended that long ago.
    async fn lease_ended(&self, seconds_ago: u32) {
        let sqlite = format!(
            "UPDATE onced_idempotency_keys SET lease_until = (SELECT now FROM onced_clock) - {seconds_ago} * 1000000"
        );
        let postgres = format!(
            "UPDATE onced.idempotency_keys SET lease_until = onced.clock() - {seconds_ago} * interval '1 second'"
        );
        let mariadb = format!(
            "UPDATE onced_idempotency_keys SET lease_until = (SELECT now FROM onced_clock) - INTERVAL {seconds_ago} SECOND"
        );
        assert_eq!(self.database.sql().execute(SqlText::each(&sqlite, &postgres, &mariadb)).await, 1);
    }

    /// The audit: who, action, scope, key, reason, and whether it is of the last minute by the database's clock.
    async fn audit(&self) -> Vec<Vec<String>> {
        let what = "SELECT who, action, scope, key, reason,";
        let sqlite = format!(
            "{what} CASE WHEN abs((SELECT now FROM onced_clock) - at) < 60000000 THEN 'now' END FROM onced_audit"
        );
        let postgres =
            format!("{what} CASE WHEN onced.clock() - at BETWEEN '0 s' AND '60 s' THEN 'now' END FROM onced.audit");
        let mariadb = format!(
            "{what} CASE WHEN (SELECT now FROM onced_clock) BETWEEN at AND at + INTERVAL 60 SECOND THEN 'now' END \
               FROM onced_audit"
        );
        self.database.sql().text(SqlText::each(&sqlite, &postgres, &mariadb)).await
    }

    fn audited(action: &str) -> Vec<Vec<String>> {
        vec![["anna", action, "mail", "k1", "looked it up", "now"].map(str::to_owned).to_vec()]
    }

    /// Waits until that many deliveries have been written down with their answers: the log is written behind them.
    async fn deliveries_written(&self, count: i64) {
        let written = SqlText::each(
            "SELECT count(*) FROM onced_deliveries WHERE answered_status IS NOT NULL",
            "SELECT count(*) FROM onced.deliveries WHERE answered_status IS NOT NULL",
            "SELECT count(*) FROM onced_deliveries WHERE answered_status IS NOT NULL",
        );
        let started = Instant::now();
        while self.database.sql().count(written).await < count {
            assert!(started.elapsed() < LIMIT, "the deliveries are not written down");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The words of the line that begins with `start`.
fn line<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.trim_start().starts_with(start));
    line.unwrap_or_else(|| panic!("no line {start:?} in\n{text}")).split_whitespace().collect()
}

async fn list_and_show(backend: Backend) {
    let unknown = Unknown::start(backend).await;
    let listed = unknown.keys(&["list"]).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert_eq!(line(&listed.out, "SCOPE")[..5], ["SCOPE", "KEY", "STATUS", "ATTEMPT", "RESPONSE"]);
    assert_eq!(line(&listed.out, "mail")[..4], ["mail", "k1", "pending_external", "1"]);
    assert!(!listed.out.contains("resolve"), "its owner may be at work: {}", listed.out);

    sql::let_leases_run_out(unknown.database.sql(), backend).await;
    let duplicate = unknown.deliver().await;
    assert_eq!((duplicate.status, code(&duplicate).as_str()), (409, "outcome-unknown"));
    unknown.deliveries_written(2).await;
    let listed = unknown.keys(&["list", "--status", "pending_external", "--scope", "mail"]).await;
    assert!(listed.out.contains("outcome unknown: onced keys resolve"), "{}", listed.out);
    for other in [["--status", "completed"], ["--scope", "letters"]] {
        let listed = unknown.keys(&[&["list"], &other[..]].concat()).await;
        assert!(listed.code == Some(0) && !listed.out.contains("k1"), "{other:?}: {listed:?}");
    }
    let wrong = unknown.keys(&["list", "--status", "lost"]).await;
    assert!(wrong.code == Some(1) && wrong.err.contains("write queued, in_progress"), "{wrong:?}");

    let shown = unknown.keys(&["show", "mail", "k1"]).await;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert_eq!(line(&shown.out, "status"), ["status", "pending_external"]);
    let downstream = unknown.upstream.calls()[0].key.clone().expect("the call has a downstream key");
    assert_eq!(line(&shown.out, "downstream key"), ["downstream", "key", &downstream]);
    assert!(shown.out.contains("Deliveries (2):"), "{}", shown.out);
    let deliveries: Vec<Vec<&str>> = shown.out.lines().map(|line| line.split_whitespace().collect()).collect();
    let decided = |word: &str, answered: &str| {
        deliveries.iter().any(|line| line.len() == 5 && line[1..] == [word, "attempt", "1", answered])
    };
    assert!(decided("execute", "504") && decided("unknown", "409"), "{}", shown.out);
    assert!(shown.out.contains("onced keys resolve mail k1 --happened | --did-not-happen"), "{}", shown.out);

    let absent = unknown.keys(&["show", "mail", "k2"]).await;
    assert_eq!((absent.code, absent.out.as_str()), (Some(1), "There is no key k2 in scope mail."));
}

async fn happened(backend: Backend) {
    let unknown = Unknown::start(backend).await;
    unknown.refused(&["--happened"], "its owner may still be at work, until ").await;
    assert_eq!(unknown.audit().await, Vec::<Vec<String>>::new());
    sql::let_leases_run_out(unknown.database.sql(), backend).await;

    let ran = unknown.resolve(&["--happened"]).await;
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "mail k1 is completed."), "{ran:?}");
    assert_eq!(unknown.audit().await, Unknown::audited("resolve --happened"));
    for _ in 0..2 {
        let answer = unknown.deliver().await;
        assert_eq!((answer.status, answer.header("idempotent-replayed")), (204, Some("true")));
        assert_eq!((answer.body.len(), answer.header("content-type")), (0, None));
    }
    assert_eq!((unknown.upstream.count(), unknown.status().await.as_str()), (1, "completed"));
    for word in ["--happened", "--did-not-happen"] {
        unknown.refused(&[word], "the key is completed: only pending_external keys").await;
    }
    assert_eq!(unknown.audit().await.len(), 1, "what was refused is not written down as done");
    let shown = unknown.keys(&["show", "mail", "k1"]).await;
    assert!(shown.out.contains(" by anna: resolve --happened, because: looked it up"), "{}", shown.out);
}

async fn happened_with_an_answer(backend: Backend) {
    let unknown = Unknown::start(backend).await;
    sql::let_leases_run_out(unknown.database.sql(), backend).await;
    let folder = tempfile::tempdir().expect("a folder");
    let body = folder.path().join("answer.txt");
    let text = "{ \"id\": 1.0 }\n\u{e9}";
    std::fs::write(&body, text).expect("the body can be written");
    let body = body.to_str().expect("a path of plain characters");
    let answer = ["--happened", "--status", "201", "--body", body, "--content-type", "text/x-odd"];
    // Without --who it is the user of the shell.
    let args = [&["resolve", "mail", "k1", "--reason", "it is there"], &answer[..]].concat();
    assert_eq!(unknown.keys(&args).await.code, Some(0));
    let answer = unknown.deliver().await;
    assert_eq!((answer.status, answer.text().as_str()), (201, text));
    assert_eq!(answer.header("content-type"), Some("text/x-odd"));
    assert_eq!(unknown.audit().await[0][0], "the-shell-user");
    assert_eq!(unknown.upstream.count(), 1);
}

async fn did_not_happen(backend: Backend) {
    let unknown = Unknown::start(backend).await;
    unknown.refused(&["--did-not-happen"], "its owner may still be at work, until ").await;
    unknown.lease_ended(55).await;
    // How long its upstream may go on is guessed for nobody.
    unknown.refused(&["--did-not-happen"], "Name the gateway's file with --config, or say it with --settle").await;
    unknown.refused(&["--did-not-happen", "--settle", "60s"], "the upstream may still be working").await;
    unknown.lease_ended(61).await;
    unknown.refused(&["--did-not-happen", "--settle", "2min"], "(2m after the last caller's lease)").await;
    let ran = unknown.resolve(&["--did-not-happen", "--settle", "60s"]).await;
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "mail k1 is failed, and may run again."), "{ran:?}");
    assert_eq!(unknown.audit().await, Unknown::audited("resolve --did-not-happen"));

    unknown.upstream.script([Rule::always(Reply::ok())]);
    let answer = unknown.deliver().await;
    assert_eq!((answer.status, answer.header("idempotent-replayed")), (200, None), "it is executed");
    assert_eq!(unknown.upstream.calls()[1].headers["onced-attempt"], "2");
    let again = unknown.deliver().await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!((unknown.upstream.count(), unknown.status().await.as_str()), (2, "completed"));
}

async fn the_routes_own_settle(backend: Backend) {
    let unknown = Unknown::start(backend).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("onced.toml");
    let mail = route("mail", "/mail", "http://127.0.0.1:1", "external", "lease = \"5s\"\nsettle = \"3min\"");
    std::fs::write(&file, format!("[store]\nurl = \"{}\"\n{mail}", unknown.database.url())).unwrap();
    let config = ["--config", file.to_str().expect("a path of plain characters")];
    unknown.lease_ended(175).await;
    let args = [&config[..], &["--did-not-happen"]].concat();
    unknown.refused(&args, "(3m after the last caller's lease)").await;
    unknown.lease_ended(181).await;
    let shorter = [&args[..], &["--settle", "2min"]].concat();
    unknown.refused(&shorter, "--settle 2m is less than the route's settle, 3m").await;
    assert_eq!(unknown.resolve(&args).await.code, Some(0));
    assert_eq!(unknown.status().await, "failed");
}

async fn the_settle_of_an_upstream_alone(backend: Backend) {
    let unknown = Unknown::in_scope(backend, "http").await;
    unknown.lease_ended(55).await;
    unknown.refused(&["--did-not-happen"], "(1m after the last caller's lease)").await;
    unknown.lease_ended(61).await;
    assert_eq!(unknown.resolve(&["--did-not-happen"]).await.code, Some(0));
    assert_eq!(unknown.status().await, "failed");
}

async fn what_is_not_said_is_asked_for(backend: Backend) {
    let unknown = Unknown::start(backend).await;
    sql::let_leases_run_out(unknown.database.sql(), backend).await;
    let before = unknown.row().await;
    for (args, words) in [
        (&["resolve", "mail", "k1", "--happened"][..], "--reason"),
        (&["resolve", "mail", "k1", "--reason", "x"], "--did-not-happen"),
        (&["resolve", "mail", "k1", "--reason", "x", "--happened", "--did-not-happen"], "cannot be used with"),
        (&["resolve", "mail", "k1", "--reason", "x", "--did-not-happen", "--status", "200"], "cannot be used with"),
        (&["resolve", "mail", "k1", "--reason", "x", "--happened", "--settle", "1s"], "cannot be used with"),
        (&["resolve", "mail", "k1", "--reason", "x", "--happened", "--status", "100"], "200"),
    ] {
        let ran = unknown.keys(args).await;
        assert!(ran.code == Some(2) && ran.err.contains(words), "{args:?}: {ran:?}");
    }
    let absent = unknown.keys(&["resolve", "mail", "k2", "--reason", "x", "--happened"]).await;
    assert!(absent.code == Some(1) && absent.err.contains("there is no key k2 in scope mail"), "{absent:?}");
    assert_eq!((unknown.row().await, unknown.audit().await.len()), (before, 0));
}

macro_rules! on_all {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test] async fn $name() { super::$name(testkit::Backend::Sqlite).await; })*
        }
        mod postgres {
            $(#[tokio::test] async fn $name() { super::$name(testkit::Backend::Postgres).await; })*
        }
        mod mariadb {
            $(#[tokio::test] async fn $name() { super::$name(testkit::Backend::MariaDb).await; })*
        }
    };
}

on_all!(
    list_and_show,
    happened,
    happened_with_an_answer,
    did_not_happen,
    the_routes_own_settle,
    the_settle_of_an_upstream_alone,
    what_is_not_said_is_asked_for,
);
