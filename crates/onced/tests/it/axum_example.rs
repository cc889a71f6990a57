//! The example `axum` is true: the program itself, with many clients at once, killed and started again.

use std::net::SocketAddr;
use std::time::Duration;

use testkit::http_client::{Request, race_same, send};
use testkit::{Backend, Database, Process, free_port};
use tokio::process::Command;

const LIMIT: Duration = Duration::from_secs(60);
const SCHEMA: &str = include_str!("../../../../examples/schema.sql");

#[path = "../../examples/axum.rs"]
mod example;

/// Set in the other process alone: this test binary, started once more, is the example's program there.
const VARIABLE: &str = "ONCED_TEST_EXAMPLE";

fn program() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["axum_example::without_a_database_it_says_so", "--exact", "--nocapture"]).env(VARIABLE, "1");
    command.env_remove("DATABASE_URL");
    command
}

async fn start(database: &Database) -> (SocketAddr, Process) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = program();
    command.env("DATABASE_URL", database.url()).env("LISTEN", address.to_string());
    let process = Process::start(command);
    process.wait_for_line(|line| line.contains("running on"), LIMIT).await;
    (address, process)
}

#[test]
fn without_a_database_it_says_so() {
    if std::env::var_os(VARIABLE).is_some() {
        return example::main().expect("the example runs until it is killed");
    }
    let output = program().into_std().output().expect("it starts");
    assert!(!output.status.success(), "{output:?}");
    let said = [output.stdout, output.stderr].concat();
    assert!(String::from_utf8_lossy(&said).contains("NotPresent"), "{}", String::from_utf8_lossy(&said));
}

/// An example that needs more than ten lines to bring a framework and onced together would say that the layer is wrong.
#[test]
fn ten_lines_of_glue_are_enough() {
    let (_, glue) = include_str!("../../examples/axum.rs").split_once("// The glue:").unwrap();
    let (glue, _) = glue.split_once("let address").unwrap();
    let lines = glue.lines().skip(1).filter(|line| !line.trim().is_empty()).count();
    assert!((1..=10).contains(&lines), "{lines} lines of glue: {glue}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_takes_effect_once() {
    let database = Database::create(Backend::Postgres).await;
    database.sql().execute(SCHEMA).await;
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN new; END $$; \
                CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION slow()";
    database.sql().execute(slow).await;
    let (address, mut process) = start(&database).await;
    let order = |item: &str| {
        let body = format!(r#"{{"item":"{item}"}}"#);
        Request::post("/api/order", body).key("order-1").header("content-type", "application/json")
    };

    let answers = race_same(20, &[address], &order("tea")).await;
    let ran = answers.iter().filter(|answer| answer.status == 201 && answer.header("idempotent-replayed").is_none());
    let ran: Vec<_> = ran.collect();
    assert_eq!((ran.len(), ran[0].text().as_str()), (1, r#"{"order":1}"#), "{answers:?}");
    assert!(answers.iter().all(|answer| matches!(answer.status, 201 | 409)), "{answers:?}");
    assert_eq!(send(address, &order("gold")).await.status, 422);

    process.kill().await;
    let (address, _process) = start(&database).await;
    let replay = send(address, &order("tea")).await;
    let is_replay = replay.header("idempotent-replayed");
    assert_eq!((replay.status, replay.text().as_str(), is_replay), (201, r#"{"order":1}"#, Some("true")), "{replay:?}");
    assert_eq!(database.sql().count("SELECT count(*) FROM orders").await, 1);
}
