//! `onced migrate`, what it prints, and schemas that this version does not know.

use testkit::http_client::{Request, send};
use testkit::{Backend, Database, SqlText};

use super::{onced, serve_in, start_in};
use crate::fixture::{LIMIT, sql};

const STEPS: (&str, &str) = ("SELECT version FROM onced_migrations", "SELECT version FROM onced.migrations");

/// How many steps this version knows: the functions are PostgreSQL's alone.
fn known(backend: Backend) -> usize {
    match backend {
        Backend::Sqlite | Backend::MariaDb => 1,
        Backend::Postgres => 2,
    }
}

async fn migrated_and_migrated_again(backend: Backend) {
    let database = Database::create(backend).await;
    let url = database.url();
    let early = onced(&["keys", "--store", url, "list"]).await;
    assert!(early.code == Some(1) && early.err.contains("run `onced migrate`"), "{early:?}");
    for _ in 0..2 {
        let ran = onced(&["migrate", "--store", url]).await;
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
        assert!(ran.out.starts_with("The ledger ") && ran.out.ends_with(" is up to date."), "{}", ran.out);
        assert_eq!(database.sql().text(SqlText::each(STEPS.0, STEPS.1, STEPS.0)).await.len(), known(backend));
    }
    assert_eq!(sql::keys_at(database.sql(), backend, "completed").await, 0);
    // The option is taken on either side of the action.
    for args in [["keys", "--store", url, "list"], ["keys", "list", "--store", url]] {
        assert_eq!(onced(&args).await.code, Some(0), "{args:?}");
    }
}

#[tokio::test]
async fn migrated_and_migrated_again_sqlite() {
    migrated_and_migrated_again(Backend::Sqlite).await;
}

#[tokio::test]
async fn migrated_and_migrated_again_postgres() {
    migrated_and_migrated_again(Backend::Postgres).await;
}

#[tokio::test]
async fn migrated_and_migrated_again_mariadb() {
    migrated_and_migrated_again(Backend::MariaDb).await;
}

/// Who runs the printed text by hand has a ledger that works.
async fn printed_and_run_by_hand(backend: Backend) {
    let database = Database::create(backend).await;
    let printed = onced(&["migrate", "--print", "--store", database.url()]).await;
    assert_eq!((printed.code, printed.err.as_str()), (Some(0), ""));
    let tables = SqlText::each(
        "SELECT count(*) FROM sqlite_schema",
        "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'onced'",
        "SELECT count(*) FROM information_schema.tables WHERE table_schema = database()",
    );
    assert_eq!(database.sql().count(tables).await, 0, "printing changes nothing");
    database.sql().execute(&printed.out).await;

    let ran = onced(&["migrate", "--store", database.url()]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(database.sql().text(SqlText::each(STEPS.0, STEPS.1, STEPS.0)).await.len(), known(backend));
    let upstream = onced_harness::Recorder::start(onced_harness::RecorderOptions::default()).await.unwrap();
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["--upstream", &upstream.url(), "--store", database.url()];
    let (address, _process) = serve_in(folder.path(), &args).await;
    for _ in 0..2 {
        assert_eq!(send(address, &Request::post("/", "{}").key("k1")).await.status, 200);
    }
    assert_eq!(upstream.count(), 1);
    assert_eq!(sql::keys_at(database.sql(), backend, "completed").await, 1);
}

#[tokio::test]
async fn printed_and_run_by_hand_sqlite() {
    printed_and_run_by_hand(Backend::Sqlite).await;
}

#[tokio::test]
async fn printed_and_run_by_hand_postgres() {
    printed_and_run_by_hand(Backend::Postgres).await;
}

#[tokio::test]
async fn printed_and_run_by_hand_mariadb() {
    printed_and_run_by_hand(Backend::MariaDb).await;
}

#[tokio::test]
async fn printing_needs_no_database_and_names_the_schema() {
    let ran = onced(&["migrate", "--print", "--store", "postgres://nobody@127.0.0.1:1/nothing"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.starts_with("CREATE SCHEMA IF NOT EXISTS onced;"), "{}", ran.out);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("onced.toml");
    let text = "upstream = \"http://127.0.0.1:1\"\n[store]\nurl = \"postgres://a@b/c\"\nschema = \"ledger\"\n";
    std::fs::write(&file, text).unwrap();
    let ran = onced(&["migrate", "--print", "--config", file.to_str().unwrap()]).await;
    assert!(ran.code == Some(0) && ran.out.contains("CREATE TABLE ledger.idempotency_keys"), "{ran:?}");
    assert!(!ran.out.contains("onced.idempotency_keys"), "another schema is used throughout");
}

/// A newer schema is refused in words, by everything that would use it, and left as it is.
async fn a_newer_schema(backend: Backend) {
    let database = Database::create(backend).await;
    assert_eq!(onced(&["migrate", "--store", database.url()]).await.code, Some(0));
    let newer = SqlText::each(
        "INSERT INTO onced_migrations (version, description, success, checksum, execution_time) \
         VALUES (99, 'from the future', true, x'00', 0)",
        "INSERT INTO onced.migrations (version, description, success, checksum, execution_time) \
         VALUES (99, 'from the future', true, '\\x00', 0)",
        "INSERT INTO onced_migrations (version, description, success, checksum, execution_time) \
         VALUES (99, 'from the future', true, x'00', 0)",
    );
    database.sql().execute(newer).await;
    let url = database.url();
    let folder = tempfile::tempdir().expect("a folder");
    for args in [
        &["serve", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--store", url][..],
        &["migrate", "--store", url],
        &["keys", "--store", url, "list"],
        &["sweep", "--store", url],
        &["observe", "report", "--store", url],
    ] {
        let mut process = start_in(folder.path(), args);
        let status = process.wait(LIMIT).await;
        let said = process.stderr().all().join("\n");
        assert_eq!(status.code(), Some(1), "{args:?}: {said}");
        let words = format!("is at version 99, newer than this onced knows ({}): run the newer onced", known(backend));
        assert!(said.contains(&words), "{said}");
    }
    assert_eq!(database.sql().text(SqlText::each(STEPS.0, STEPS.1, STEPS.0)).await.len(), known(backend) + 1);
}

#[tokio::test]
async fn a_newer_schema_is_refused_in_words_sqlite() {
    a_newer_schema(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_newer_schema_is_refused_in_words_postgres() {
    a_newer_schema(Backend::Postgres).await;
}

#[tokio::test]
async fn a_newer_schema_is_refused_in_words_mariadb() {
    a_newer_schema(Backend::MariaDb).await;
}

/// A role may call the functions afterwards; what cannot be granted is said in words.
#[tokio::test]
async fn a_role_is_let_call_the_functions() {
    let database = Database::create(Backend::Postgres).await;
    let url = database.url();
    let role = format!("granted \"{}", std::process::id());
    let quoted = format!("\"{}\"", role.replace('"', "\"\""));
    let early = onced(&["migrate", "--store", url, "--grant", &role]).await;
    assert!(early.code == Some(1) && early.err.contains("cannot be let call"), "{early:?}");
    database.sql().execute(&format!("CREATE ROLE {quoted}")).await;
    for _ in 0..2 {
        let ran = onced(&["migrate", "--store", url, "--grant", &role]).await;
        assert!(ran.code == Some(0) && ran.out.ends_with("may call its functions."), "{ran:?}");
    }
    let may = |table_or_function: &str| format!("SELECT has_{table_or_function}::int");
    let function = format!("function_privilege('{role}', 'onced.release(text,text,text)', 'EXECUTE')");
    assert_eq!(database.sql().count(&may(&function)).await, 1);
    assert_eq!(
        database.sql().count(&may(&format!("table_privilege('{role}', 'onced.idempotency_keys', 'SELECT')"))).await,
        0
    );
    let everybody = onced(&["migrate", "--store", url, "--grant", "public"]).await;
    assert!(everybody.code == Some(1) && everybody.err.contains("everybody"), "{everybody:?}");
    database.sql().execute(&format!("DROP OWNED BY {quoted} CASCADE; DROP ROLE {quoted}")).await;

    let sqlite = Database::create(Backend::Sqlite).await;
    let ran = onced(&["migrate", "--store", sqlite.url(), "--grant", "app"]).await;
    assert!(ran.code == Some(1) && ran.err.contains("--grant is for PostgreSQL"), "{ran:?}");
}
