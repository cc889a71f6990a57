//! What the log and the commands never show: payloads, credentials, lease tokens, the database's password.

use std::net::SocketAddr;

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Request, send, try_send};
use testkit::process::{Process, free_port};
use testkit::{Backend, Database, SqlText};

use super::{ONCED, onced};
use crate::fixture::{LIMIT, route};
use crate::same_database_app::{self, Work};

/// Stands in every body, and wherever else a secret may be.
const MARK: &str = "pAyLoAd-mark";
const PASSWORD: &str = "geheim-passwort";

fn request(path: &str, key: &str, body: &str) -> Request {
    Request::post(&format!("{path}?token={MARK}-query"), format!("{{\"card\":\"{MARK}-{body}\"}}"))
        .key(key)
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {MARK}-credential"))
        .header("cookie", format!("session={MARK}-cookie"))
        .header("x-custom", format!("{MARK}-header"))
}

/// The URL of the database with a password in it. The PostgreSQL of the tests takes any; on MariaDB a user is made for it.
async fn with_password(database: &Database) -> String {
    let Some((server, place)) = database.url().split_once('@') else {
        return database.url().to_owned(); // a file has none
    };
    if database.backend() == Backend::Postgres {
        return format!("{server}:{PASSWORD}@{place}");
    }
    let (_, name) = place.rsplit_once('/').expect("the URL names a database");
    let user = format!("CREATE USER {name}@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON {name}.* TO {name}@'%'");
    database.sql().execute(&user).await;
    format!("mysql://{name}:{PASSWORD}@{place}")
}

async fn nothing_is_shown(backend: Backend, format: &str) {
    let database = Database::create(backend).await;
    let app = same_database_app::start(&database, |call| {
        let ok = Work::ok(&format!("{{\"secret\":\"{MARK}-answer\"}}"));
        Work { commits: !call.path.ends_with("forgets"), ..ok }
    });
    let app = app.await;
    let marked = || Reply::status(201).json(format!("{{\"secret\":\"{MARK}-answer\"}}"));
    let upstream = Recorder::start(RecorderOptions::default().script([Rule::always(marked())])).await.unwrap();
    let gone = format!("http://127.0.0.1:{}", free_port());
    let routes = [
        route("orders", "/orders", &app.url(), "same-database", ""),
        route("orders.forgets", "/forgets", &app.url(), "same-database", ""),
        route("mail", "/mail", &upstream.url(), "external", "max_request_bytes = \"1KiB\""),
        route("gone", "/gone", &gone, "external", ""),
        route("open", "/open", &upstream.url(), "external", "key = \"optional\""),
    ];
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("onced.toml");
    let text = format!(
        "listen = \"{address}\"\n[store]\nurl = {{ env = \"LEDGER\" }}\n[log]\nformat = \"{format}\"\nlevel = \"trace\"\n{}",
        routes.join("\n")
    );
    std::fs::write(&file, text).unwrap();
    let url = with_password(&database).await;
    let env = [("LEDGER", url.as_str()), ("ONCED_TEST_TENTHS", "1"), ("ONCED_LOG", "trace")];
    let mut process = Process::spawn(ONCED, ["serve", "--config", file.to_str().unwrap()], env);
    process.wait_for_line(|line| line.contains("listening"), LIMIT).await;

    let status = async |request: Request| send(address, &request).await.status;
    for path in ["/orders", "/forgets", "/mail"] {
        let executed = status(request(path, "k1", "one")).await;
        assert!(executed < 300, "{path}: {executed}");
        assert_eq!(status(request(path, "k1", "one")).await, executed, "replayed");
        assert_eq!(status(request(path, "k1", "another")).await, 422);
    }
    upstream.script([Rule::always(Reply::lose_answer())]);
    assert_eq!(status(request("/mail", "lost", "lost")).await, 504);
    upstream.script([Rule::always(Reply::status(500).body(format!("{MARK}-trace")))]);
    assert_eq!(status(request("/mail", "failed", "failed")).await, 500);
    upstream.script([Rule::always(Reply::cut_off(500, 20).body(format!("{MARK}-cut")))]);
    assert_eq!(status(request("/mail", "cut", "cut")).await, 504);
    assert_eq!(status(request("/gone", "k1", "gone")).await, 502);
    assert_eq!(status(request("/mail", "large", &"x".repeat(2000))).await, 413);
    assert_eq!(status(request("/mail", &format!("\"{MARK}-malformed"), "x")).await, 400);
    upstream.script([Rule::always(marked())]);
    assert_eq!(status(Request::post("/open", format!("{MARK}-open"))).await, 201);
    refused_by_the_database(&database).await;
    assert_eq!(status(request("/mail", "unstored", "unstored")).await, 503);
    drop(try_send(address, &Request::post("/nowhere", format!("{MARK}-nowhere"))).await);
    process.signal(testkit::Signal::Terminate);
    assert_eq!(process.wait(LIMIT).await.code(), Some(0));

    let tokens = tokens(&[&app, &upstream]);
    assert!(tokens.len() >= 6, "{tokens:?}");
    let (errors, output) = (process.stderr().all(), process.stdout().all());
    assert!(errors.len() > 40 && errors.iter().any(|line| line.contains("withheld")), "the log says something");
    for line in errors.iter().chain(&output) {
        assert!(!line.contains(MARK), "a payload: {line}");
        assert!(!line.contains(PASSWORD), "the password: {line}");
        assert!(!tokens.iter().any(|token| line.contains(token)), "a lease token: {line}");
    }
}

/// Makes the database refuse an outcome, with an error that holds the whole row.
async fn refused_by_the_database(database: &Database) {
    let refusal = SqlText::each(
        "CREATE TRIGGER refuse BEFORE UPDATE OF status ON onced_idempotency_keys WHEN new.response_code = 201 \
         BEGIN SELECT RAISE(ABORT, 'refused'); END",
        "ALTER TABLE onced.idempotency_keys ADD CHECK (response_code <> 201) NOT VALID",
        "CREATE TRIGGER refuse BEFORE UPDATE ON onced_idempotency_keys FOR EACH ROW BEGIN \
         IF NEW.response_code = 201 THEN BEGIN \
             DECLARE words TEXT DEFAULT LEFT(CONCAT('Incorrect value: ', NEW.response_body, NEW.lease_token), 120); \
             SIGNAL SQLSTATE '22007' SET MYSQL_ERRNO = 1366, MESSAGE_TEXT = words; END; END IF; END",
    );
    database.sql().execute(refusal).await;
}

fn tokens(recorders: &[&Recorder]) -> Vec<String> {
    let calls = recorders.iter().flat_map(|recorder| recorder.calls());
    let token = |call: onced_harness::Call| Some(call.headers.get("onced-lease-token")?.to_str().ok()?.to_owned());
    calls.filter_map(token).collect()
}

#[tokio::test]
async fn nothing_secret_is_logged_sqlite() {
    nothing_is_shown(Backend::Sqlite, "text").await;
}

#[tokio::test]
async fn nothing_secret_is_logged_postgres() {
    nothing_is_shown(Backend::Postgres, "json").await;
}

#[tokio::test]
async fn nothing_secret_is_logged_mariadb() {
    nothing_is_shown(Backend::MariaDb, "json").await;
}

#[tokio::test]
async fn no_command_shows_the_databases_password() {
    let database = Database::create(Backend::Postgres).await;
    let good = with_password(&database).await;
    let unreachable = format!("postgres://me:{PASSWORD}@127.0.0.1:1/ledger");
    let mistyped = format!("postgre://me:{PASSWORD}@127.0.0.1/ledger");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("onced.toml");
    std::fs::write(&file, format!("upstream = \"http://127.0.0.1:1\"\n[store]\nurl = \"{good}\"\n")).unwrap();
    let file = file.to_str().unwrap();
    for (args, code) in [
        (&["migrate", "--store", &good][..], 0),
        (&["keys", "--store", &good, "list"], 0),
        (&["config", "check", file], 0),
        (&["migrate", "--store", &unreachable], 1),
        (&["keys", "--store", &unreachable, "list"], 1),
        (&["serve", "--upstream", "http://127.0.0.1:1", "--store", &unreachable], 1),
        (&["serve", "--upstream", "http://127.0.0.1:1", "--store", &mistyped], 1),
    ] {
        let ran = onced(args).await;
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(!ran.out.contains(PASSWORD) && !ran.err.contains(PASSWORD), "{ran:?}");
        assert!(ran.out.contains(":***@") || ran.err.contains(":***@") || args[0] == "keys", "{ran:?}");
    }
}
