//! What is in the printed files: under 150 lines, the driver and nothing else, the gateway's problems by their names, the hashes of
//! the test vectors, and a key within a transaction that the application has opened itself (O-30, item 1).

use onced::core::key::KeyError;
use onced::http::respond::{Problem, problem};
use onced_core::lease::Lease;
use serde_json::{Value, json};
use std::time::Duration;

use super::*;

const PYTHON: &str = include_str!("../../../print/onced.py");
const NODE: &str = include_str!("../../../print/onced.mjs");
const VECTORS: &str = include_str!("../../../../onced-core/vectors/fingerprints.tsv");

#[test]
fn each_is_short_and_needs_the_driver_alone() {
    for (file, text) in [("onced.py", PYTHON), ("onced.mjs", NODE)] {
        assert!(text.lines().count() < 150, "{file} has {} lines", text.lines().count());
    }
    let imports: Vec<&str> =
        PYTHON.lines().filter(|line| line.starts_with("import ") || line.starts_with("from ")).collect();
    assert!(imports.contains(&"import psycopg, psycopg.rows"), "{imports:?}");
    let standard = "datetime email.utils hashlib json logging random re time uuid __future__ dataclasses typing psycopg psycopg.rows";
    for line in imports {
        let names = line.trim_start_matches("from ").trim_start_matches("import ");
        let names = names.split(" import ").next().unwrap_or_default();
        assert!(names.split(", ").all(|name| standard.split(' ').any(|known| known == name)), "{line}");
    }
    let imports: Vec<&str> =
        NODE.lines().filter(|line| line.contains("import ") || line.contains("require(")).collect();
    assert_eq!(imports, ["import { createHash, randomUUID } from 'node:crypto'"]);
}

/// An example that needs more than ten lines to bring a framework and onced together would say that the file is wrong.
#[test]
fn ten_lines_of_glue_are_enough() {
    for file in [
        "python/fastapi_psycopg/app.py",
        "python/sqlalchemy_orders/app.py",
        "python/job_queue/worker.py",
        "python/behind_gateway/app.py",
        "node/express_pg/app.mjs",
    ] {
        let text = std::fs::read_to_string(examples().join(file)).expect("the example is there");
        let (_, glue) =
            text.split_once(" The glue between ").unwrap_or_else(|| panic!("{file} does not name its glue"));
        let (glue, _) = glue.split_once(" The application.").unwrap_or_else(|| panic!("{file} does not end its glue"));
        let says_nothing = |line: &&str| ["", "#", "//"].contains(line) || line.starts_with("\"\"\"");
        let lines: Vec<&str> = glue.lines().skip(1).map(str::trim).filter(|line| !says_nothing(line)).collect();
        assert!((1..=10).contains(&lines.len()), "{file}: {} lines of glue: {lines:#?}", lines.len());
    }
}

#[tokio::test]
async fn the_help_has_examples_and_no_language_is_an_error() {
    let ran = |args: &'static [&str]| Command::new(ONCED).args(args).output();
    let help = ran(&["print", "--help"]).await.expect("it runs");
    let said = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success() && said.contains("Examples:\n  onced print python > onced.py"), "{said}");
    for args in [["print"].as_slice(), &["print", "cobol"]] {
        let refused = ran(args).await.expect("it runs");
        assert_eq!((refused.status.code(), refused.stdout.as_slice()), (Some(2), b"".as_slice()), "{args:?}");
    }
}

#[test]
fn problems_are_the_gateways_own() {
    let retry_after = Duration::from_secs(1);
    for shown in [
        Problem::InProgress { retry_after },
        Problem::OutcomeUnknown { retry_after },
        Problem::OutcomeLost { retry_after },
        Problem::StoreUnavailable,
        Problem::KeyReused,
        Problem::AttemptsExhausted,
        Problem::KeyMissing,
        Problem::KeyInvalid(KeyError::TooLong),
    ] {
        let told = problem(&shown, None, &Lease::new(retry_after));
        let body: Value = serde_json::from_slice(told.body()).expect("a problem is JSON");
        let text = |name: &str| body[name].as_str().expect("text").to_owned();
        let (status, code, retry, title) = (told.status().as_u16(), text("code"), text("retry"), text("title"));
        assert!(PYTHON.contains(&format!("({status}, \"{code}\", \"{retry}\", \"{title}\")")), "{code}");
        assert!(NODE.contains(&format!("[{status}, '{code}', '{retry}', '{title}']")), "{code}");
    }
}

/// Runs a script of this folder beside the printed files; gives the JSON that it prints.
async fn script(language: &str, args: &[&str]) -> Value {
    let folder = printed().await;
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/printed");
    let mut command = if language == "python" {
        let mut command = Command::new(python());
        command.arg(scripts.join("library.py")).env("PYTHONPATH", folder.path()).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    } else {
        std::fs::copy(scripts.join("library.mjs"), folder.path().join("library.mjs")).expect("a copy");
        let mut command = Command::new("node");
        command.arg(folder.path().join("library.mjs"));
        command
    };
    let output = command.args(args).output().await.expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

async fn makes_the_hashes_of_the_vectors(language: &str) {
    let fields =
        VECTORS.lines().filter(|line| line.starts_with("1:raw\t")).map(|line| line.split('\t').collect::<Vec<_>>());
    // A coding that the gateway undoes is not undone here.
    let vectors: Vec<Vec<&str>> = fields.filter(|fields| matches!(fields[5], "" | "br")).collect();
    assert!(vectors.len() >= 4, "{vectors:?}");
    let given = vectors.iter().map(|fields| {
        let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let body = fields[6].strip_prefix("hex:").map_or_else(|| hex(fields[6]), str::to_owned);
        json!([fields[1], fields[2], fields[3], fields[4], body, fields[5]])
    });
    let given = Value::from(given.collect::<Vec<_>>()).to_string();
    let expected: Vec<&str> = vectors.iter().map(|fields| fields[7]).collect();
    assert_eq!(script(language, &["hashes", &given]).await, json!(expected));
}

/// The application opens the transaction, writes, begins a known key, writes again and commits.
async fn o_30_1(language: &str) {
    let database = database().await;
    let told = script(language, &["own-transaction", database.url()]).await;
    assert_eq!(told, json!({ "status": 201, "replayed": "true", "body": "{\"order\":1}" }));
    let rows = database.sql().text("SELECT convert_from(body, 'UTF8') FROM orders ORDER BY id").await.concat();
    assert_eq!(rows, ["first", "before", "after"]);
}

/// What an application does wrong is told to it, and nothing of it is kept.
#[tokio::test]
async fn mistakes_are_raised_python() {
    let database = database().await;
    let told = script("python", &["mistakes", database.url()]).await;
    let expected = json!({
        "ended alone": false, "begun alone": false, "text kept": false, "rows of text": 0,
        "headers": ["content-type", "idempotent-replayed", "onced-key-expires"], "after a wait": 200,
    });
    assert_eq!(told, expected);
}

#[tokio::test]
async fn mistakes_are_raised_node() {
    let database = database().await;
    let told = script("node", &["mistakes", database.url()]).await;
    let expected = json!({
        "ended alone": "onced.complete needs a transaction: begin one", "begun alone": "onced.begin needs a transaction: begin one",
        "not of PostgreSQL": ["gone", 1], "named as ours": "onced.foo", "a late part": "refused",
        "headers": ["content-type", "idempotent-replayed", "onced-key-expires"], "same body": true, "after a wait": 200,
    });
    assert_eq!(told, expected);
    assert_eq!(orders(&database).await, 0);
}

#[tokio::test]
async fn python_makes_the_hashes_of_the_vectors() {
    makes_the_hashes_of_the_vectors("python").await;
}

#[tokio::test]
async fn node_makes_the_hashes_of_the_vectors() {
    makes_the_hashes_of_the_vectors("node").await;
}

#[tokio::test]
async fn o_30_1_in_the_callers_transaction_python() {
    o_30_1("python").await;
}

#[tokio::test]
async fn o_30_1_in_the_callers_transaction_node() {
    o_30_1("node").await;
}
