//! `docs/guides/first-handler.md` is true: its programs are run as they stand there, and its Rust stands in the example. The call to
//! an outside system is shown with the page's own lines put into a small program.

use serde_json::json;
use testkit::http_client::{race_same, send};

use super::*;
use crate::case_crash::{is_problem, is_replayed, replays};

const PAGE: &str = include_str!("../../../../../docs/guides/first-handler.md");
const AXUM: &str = include_str!("../../../../onced/examples/axum.rs");

/// The fenced blocks of that language.
fn blocks(language: &str) -> Vec<&'static str> {
    let blocks = PAGE.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    blocks.filter(|(of, _)| *of == language).map(|(_, text)| text).collect()
}

/// A database with what the page's SQL and its first shell lines make.
async fn prepared(folder: &Path, shell: &str) -> Database {
    let database = Database::create(Backend::Postgres).await;
    database.sql().execute(blocks("sql")[0]).await;
    let path = format!(
        "{}:{}",
        Path::new(ONCED).parent().expect("a folder").display(),
        std::env::var("PATH").expect("a path")
    );
    let mut command = Command::new("sh");
    command.args(["-e", "-c", shell]).current_dir(folder).env("PATH", path).env("DATABASE_URL", database.url());
    let output = command.output().await.expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    database
}

async fn runs_once(mut command: Command, address: SocketAddr, folder: &Path, database: &Database) {
    command.current_dir(folder).env("DATABASE_URL", database.url());
    let process = Process::start(command);
    process.wait_for_line(|line| line.contains("running"), LIMIT).await;
    let order = |item: &str| post("/orders", "k", &json!({ "item": item }).to_string());
    let answers = race_same(10, &[address], &order("tea")).await;
    let first = answers.iter().find(|answer| answer.status == 201 && !is_replayed(answer)).expect("one has run");
    replays(&send(address, &order("tea")).await, first);
    is_problem(&send(address, &order("gold")).await, 422, "key-reused");
    // A handler that fails leaves nothing.
    assert_eq!(send(address, &post("/orders", "null", r#"{"item":null}"#)).await.status, 500);
    assert_eq!(database.sql().text("SELECT item FROM orders").await, [["tea"]]);
    assert_eq!(database.sql().count("SELECT count(*) FROM onced.idempotency_keys").await, 1);
}

#[tokio::test]
async fn the_python_of_the_page_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = prepared(folder.path(), blocks("sh")[0]).await;
    std::fs::write(folder.path().join("app.py"), blocks("python")[0]).expect("the file can be written");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(python());
    command.args(["-m", "uvicorn", "--port", &address.port().to_string(), "app:app"]);
    runs_once(command, address, folder.path(), &database).await;
}

#[tokio::test]
async fn the_node_of_the_page_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = prepared(folder.path(), blocks("sh")[1]).await;
    std::fs::write(folder.path().join("app.mjs"), blocks("js")[0]).expect("the file can be written");
    let packages = testkit::inputs().join("node-examples/node_modules");
    std::os::unix::fs::symlink(packages, folder.path().join("node_modules")).expect("a link");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new("node");
    command.arg("app.mjs").env("PORT", address.port().to_string());
    runs_once(command, address, folder.path(), &database).await;
}

#[tokio::test]
async fn the_outside_call_of_the_page_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = prepared(folder.path(), blocks("sh")[0]).await;
    let program = "import os, psycopg, onced\n\
         class pool: connection = lambda: psycopg.connect(os.environ['DATABASE_URL'])\n\
         calls, amount, key, request_hash = [], 100, 'k', onced.raw_hash('', '', '', '', b'')\n\
         def charge(amount, idempotency_key): calls.append(idempotency_key); return onced.Answer(200, b'ch_1')\n\
         for _ in range(2):\n    exec(compile(open('page.py').read(), 'page.py', 'exec'))\n    \
         print(answer.status, answer.body.decode(), len(calls), calls[0][:7])\n";
    std::fs::write(folder.path().join("page.py"), blocks("python")[1]).expect("the file can be written");
    std::fs::write(folder.path().join("program.py"), program).expect("the file can be written");
    let mut command = Command::new(python());
    command.arg("program.py").current_dir(folder.path()).env("DATABASE_URL", database.url());
    let output = command.output().await.expect("Python runs");
    let said = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.0, "201 ch_1 1 onced1_\n201 ch_1 1 onced1_\n", "{}", said.1);
    assert_eq!(database.sql().text("SELECT item FROM orders").await, [["charge"]]);
}

#[test]
fn the_rust_of_the_page_is_the_examples() {
    let shown = blocks("rust");
    assert_eq!(shown.len(), 2);
    assert!(shown.iter().all(|block| AXUM.contains(block)), "the page shows other lines than examples/axum.rs");
}

#[test]
fn the_files_that_the_page_names_are_there() {
    let links = PAGE.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()).collect::<Vec<_>>();
    assert!(links.len() >= 8, "{links:?}");
    for link in links {
        let file = examples().join("../docs/guides").join(link);
        assert!(file.is_file(), "{}", file.display());
    }
}
