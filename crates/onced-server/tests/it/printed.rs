//! `onced print`: the printed files, in the examples that stand on them, as a stranger would run them. One list of cases for
//! each example that answers HTTP; R counts runs of the handler's work, rolled back or not, B the orders, by SQL past onced.

mod atomic;
mod files;
mod first_handler_page;
mod gateway;
mod leased;
mod queue;
mod sick_ledger;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use sqlx::{Connection as _, PgConnection};
use testkit::http_client::Request;
use testkit::process::{Process, free_port};
use testkit::{Backend, Database};
use tokio::process::Command;

use crate::case_store::wire::Wire;
use crate::fixture::LIMIT;

const ONCED: &str = env!("CARGO_BIN_EXE_onced");
const SCHEMA: &str = include_str!("../../../../examples/schema.sql");
const TENANTS: &str = r#"{"secret-1":"t1","secret-2":"t2"}"#;

/// Makes of each case a test of each example.
macro_rules! on_each {
    ($($case:ident: $fastapi:ident, $express:ident;)+) => { $(
        #[tokio::test]
        async fn $fastapi() {
            $case(Example::FastApi).await;
        }

        #[tokio::test]
        async fn $express() {
            $case(Example::Express).await;
        }
    )+ };
}
use on_each;

/// An example that answers HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Example {
    FastApi,
    SqlAlchemy,
    BehindGateway,
    Express,
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// The Python that has what the examples need.
fn python() -> PathBuf {
    testkit::inputs().join("python-examples/bin/python")
}

/// A folder with what `onced print` prints, for either language.
async fn printed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (language, file) in [("python", "onced.py"), ("node", "onced.mjs")] {
        let output = Command::new(ONCED).args(["print", language]).output().await.expect("onced runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::write(folder.path().join(file), output.stdout).expect("the file can be written");
    }
    let packages = testkit::inputs().join("node-examples/node_modules");
    std::os::unix::fs::symlink(packages, folder.path().join("node_modules")).expect("a link");
    folder
}

/// One process of an example.
struct App {
    address: SocketAddr,
    process: Process,
    _folder: tempfile::TempDir,
}

impl App {
    async fn start(example: Example, database: &str, provider: &str) -> Self {
        let folder = printed().await;
        let python_app = |name: &str| {
            let mut command = Command::new(python());
            command.args(["-m", "uvicorn", "--port", "0", "--app-dir"]).arg(examples().join("python").join(name));
            command.arg("app:app").env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONPATH", folder.path());
            command
        };
        let mut command = match example {
            Example::FastApi => python_app("fastapi_psycopg"),
            Example::SqlAlchemy => python_app("sqlalchemy_orders"),
            Example::BehindGateway => python_app("behind_gateway"),
            Example::Express => {
                // A module finds its neighbours where it lies.
                std::fs::copy(examples().join("node/express_pg/app.mjs"), folder.path().join("app.mjs"))
                    .expect("a copy");
                let mut command = Command::new("node");
                command.arg("app.mjs").env("PORT", "0");
                command
            }
        };
        command
            .current_dir(folder.path())
            .env("DATABASE_URL", database)
            .env("PROVIDER", provider)
            .env("TENANTS", TENANTS);
        command.env("no_proxy", "*");
        let process = Process::start(command);
        let line = process.wait_for_line(|line| line.contains("running on"), LIMIT).await;
        let port = line.split("127.0.0.1:").nth(1).map(|rest| rest.chars().take_while(char::is_ascii_digit).collect());
        let port = port.and_then(|port: String| port.parse().ok()).expect("it says its port");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Self { address, process, _folder: folder }
    }
}

/// A database with the ledger and the examples' tables, where each order that is written counts as a run.
async fn database() -> Database {
    let database = Database::create(Backend::Postgres).await;
    let mut migrate = Process::spawn(ONCED, ["migrate", "--store", database.url()], [("ONCED_LOG", "warn")]);
    assert!(migrate.wait(LIMIT).await.success(), "{:?}", migrate.stderr().all());
    database.sql().execute(SCHEMA).await;
    // A sequence counts what was rolled back, too.
    database
        .sql()
        .execute(
            "CREATE SEQUENCE runs; \
             CREATE FUNCTION run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('runs'); RETURN new; END $$; \
             CREATE TRIGGER run BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION run()",
        )
        .await;
    database
}

/// That database behind a wire that the test can cut, and its URL there.
async fn wired(database: &Database) -> (Wire, String) {
    let (server, name) = database.url().rsplit_once('/').expect("the URL names a database");
    let (user, server) = server.rsplit_once('@').expect("the URL names a user");
    let wire = Wire::start_to_postgres(server).await;
    // Encryption would hide what the wire has to see.
    let url = format!("{user}@{}/{name}?sslmode=disable", wire.address);
    (wire, url)
}

/// What a run does besides: statements of the trigger, in which `run` is its number.
async fn runs_also(database: &Database, statements: &str) {
    let function = format!(
        "CREATE OR REPLACE FUNCTION run() RETURNS trigger LANGUAGE plpgsql AS \
         $$ DECLARE run bigint := nextval('runs'); BEGIN {statements} RETURN new; END $$"
    );
    database.sql().execute(&function).await;
}

/// R.
async fn runs(database: &Database) -> i64 {
    database.sql().count("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM runs").await
}

/// B.
async fn orders(database: &Database) -> i64 {
    database.sql().count("SELECT count(*) FROM orders").await
}

/// Holds each run before its order is written, until it is dropped or opened.
struct Gate(PgConnection);

impl Gate {
    async fn close(database: &Database) -> Self {
        runs_also(database, "PERFORM pg_advisory_xact_lock_shared(7);").await;
        let mut connection = PgConnection::connect(database.url()).await.expect("the database can be reached");
        sqlx::query("SELECT pg_advisory_lock(7)").execute(&mut connection).await.expect("a lock");
        Self(connection)
    }

    /// Waits until so many runs are held.
    async fn holds(&mut self, count: i64) {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted \
                       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let held: i64 = sqlx::query_scalar(waiting).fetch_one(&mut self.0).await.expect("pg_locks");
            if held == count {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{held} runs are held, not {count}");
        }
    }

    async fn open(self) {
        self.0.close().await.expect("the connection can be closed");
    }
}

/// A request of tenant t1 under a key.
fn post(path: &str, key: &str, body: &str) -> Request {
    of_tenant(1, "POST", path, key, body)
}

fn of_tenant(number: u32, method: &str, path: &str, key: &str, body: &str) -> Request {
    let request = Request::new(method, path).body(body.to_owned()).key(key).header("content-type", "application/json");
    request.header("authorization", format!("Bearer secret-{number}"))
}

fn order(key: &str) -> Request {
    post("/api/order", key, r#"{"sku":"A","qty":1}"#)
}
