//! `docs/reference/statements.md` is true: its statements are run as they stand there, against the lines of the table of decisions
//! and beside the library, with nothing but the parameters put in.

use onced::guard::Begun;
use onced::store::mysql::MySqlStore;
use onced::store::sqlite::SqliteStore;
use onced_core::decision::{Enter, OnUnknown};
use onced_core::decision_table::{self, Expected, Line};
use onced_core::key::Key;
use onced_core::record::{CallAnswer, StoredResponse};
use testkit::Backend;

use crate::bench::{Bench, SCOPE, Tested, delivery, executes, fresh_key, scope};
use crate::plant;

const PAGE: &str = include_str!("../../../../docs/reference/statements.md");
const LEASE: u64 = 30_000_000;
const KEEP: u64 = 86_400_000_000;

/// The page's statement of that name, with its parameters put in as literals. The longest names first, so that none is cut.
fn statement<S: Tested>(name: &str, parameters: &[(&str, String)]) -> String {
    let backend = if S::BACKEND == Backend::Sqlite { "SQLite" } else { "MariaDB" };
    let (_, rest) = PAGE.split_once(&format!("\n### {name} ({backend})\n")).unwrap();
    let (_, block) = rest.split_once("```sql\n").unwrap();
    let mut sql = block.split_once("\n```").unwrap().0.to_owned();
    let mut parameters = parameters.to_vec();
    parameters.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    for (name, value) in parameters {
        sql = sql.replace(&format!(":{name}"), &value);
    }
    assert!(!sql.contains(" :") && !sql.contains("(:"), "a parameter is missing: {sql}");
    sql
}

fn text(value: &str) -> String {
    if value == "NULL" { value.to_owned() } else { format!("'{value}'") }
}

/// What an application gives to every statement.
fn of_request(line: &Line, key: &Key, token: &str) -> Vec<(&'static str, String)> {
    let fingerprint = line.request();
    let hash: String = fingerprint.hash().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    vec![
        ("scope", text(SCOPE)),
        ("key", text(key.as_str())),
        ("request_hash", format!("x'{hash}'")),
        ("hash_version", text(&fingerprint.version().to_string())),
        ("token", text(token)),
        ("lease", LEASE.to_string()),
        ("downstream_key", text("by-hand")),
        ("keep", KEEP.to_string()),
        ("max_attempts", line.policy().max_attempts.unwrap_or(u32::MAX).to_string()),
        ("code", "201".to_owned()),
        ("headers", text(r#"[["content-type","text/plain"]]"#)),
        ("body", "x'6100ff'".to_owned()),
        ("error", text("no")),
    ]
}

async fn look<S: Tested>(bench: &Bench<S>, given: &[(&str, String)]) -> Option<Vec<String>> {
    bench.rows(&statement::<S>("look", given)).await.into_iter().next()
}

/// Whether the statement has changed one row.
async fn did<S: Tested>(bench: &Bench<S>, name: &str, given: &[(&str, String)]) -> bool {
    let changed = bench.execute(&statement::<S>(name, given)).await;
    assert!(changed <= 1);
    changed == 1
}

fn seen(given: &[(&'static str, String)], row: &[String]) -> Vec<(&'static str, String)> {
    let seen = [("seen_status", text(&row[1])), ("seen_attempt", row[2].clone()), ("seen_token", text(&row[3]))];
    given.iter().cloned().chain(seen).collect()
}

/// The lines of a policy that the page is about.
fn lines() -> Vec<Line> {
    let mut lines = decision_table::lines();
    lines.retain(|line| {
        let policy = line.policy();
        let rejects = policy.mismatch == onced_core::decision::MismatchPolicy::Reject;
        let alone = line.call_answer == CallAnswer::NotKnown && policy.enter == Enter::InProgress;
        rejects && alone && policy.on_unknown != OnUnknown::Retry
    });
    assert!(lines.len() >= 20, "{}", lines.len());
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn the_statements_decide_as_the_table_says_and_take_what_they_decided_on_once() {
    table::<SqliteStore>().await;
    table::<MySqlStore>().await;
}

async fn table<S: Tested>() {
    let bench = Bench::<S>::new().await;
    for line in lines() {
        let key = fresh_key();
        plant::line(&bench, &line, &key).await;
        let given = of_request(&line, &key, "by-hand-token-16");
        let before = bench.record(&key).await;
        let row = look(&bench, &given).await;
        assert_eq!(bench.record(&key).await, before);
        let (expected, takes) = match (&line.expected, &row) {
            (Expected::Execute { .. }, None) => (None, Some("claim")),
            // An expired record begins a new life, others go on.
            (Expected::Execute { .. }, Some(row)) if row[1] == "completed" => (Some("replace"), Some("replace")),
            (Expected::Execute { attempt: 1, .. }, Some(row)) if row[1] == "failed" => {
                (Some("replace"), Some("replace"))
            }
            (Expected::Execute { .. }, Some(_)) => (Some("take"), Some("take")),
            (Expected::Replay, _) => (Some("replay"), None),
            (Expected::InProgress, _) => (Some("in_progress"), None),
            (Expected::Mismatch, _) => (Some("mismatch"), None),
            (Expected::Unknown, _) => (Some("unknown"), None),
            (Expected::Exhausted, _) => (Some("exhausted"), None),
            (Expected::NotUnderstood, _) => (Some("not_understood"), None),
        };
        assert_eq!(row.as_ref().map(|row| row[0].as_str()), expected, "{} {row:?}", line.name);
        let nothing = ["", "failed", "0", "NULL"].map(str::to_owned);
        let given = seen(&given, row.as_deref().unwrap_or(&nothing));
        // An owner that is presumed alive, an unknown outcome and one that is replayed are not taken, whatever was decided.
        let stands = line.expected == Expected::InProgress || given.contains(&("seen_status", text("completed")));
        if stands || line.expected == Expected::Unknown {
            assert!(!did(&bench, "take", &given).await, "{}", line.name);
        }
        if takes != Some("replace") {
            assert!(!did(&bench, "replace", &given).await, "{}", line.name);
        }
        if row.is_some() {
            let mut tx = bench.store.transaction().await.unwrap();
            let claimed = S::run(&mut tx, &statement::<S>("claim", &given)).await;
            // No row, or MariaDB's error of a duplicate.
            let is_duplicate = |error: &sqlx::Error| error.as_database_error().is_some_and(|e| e.is_unique_violation());
            assert!(claimed.as_ref().map_or_else(is_duplicate, |rows| *rows == 0), "{} {claimed:?}", line.name);
            bench.store.rollback(tx).await.unwrap();
        }
        let Some(taking) = takes else {
            assert_eq!(bench.record(&key).await, before, "{}", line.name);
            continue;
        };
        assert!(did(&bench, taking, &given).await, "{} {taking}", line.name);
        let Expected::Execute { attempt, .. } = line.expected else { panic!("{} takes", line.name) };
        let row = bench.columns(&key, "status, attempt, lease_token").await;
        assert_eq!(row, ["in_progress", &attempt.to_string(), "by-hand-token-16"], "{}", line.name);
        if taking != "claim" {
            assert!(!did(&bench, taking, &given).await, "{}: a second {taking}", line.name);
        }
        let again = look(&bench, &given).await.unwrap();
        let wait: u64 = again[4].parse().unwrap();
        assert!(again[0] == "in_progress" && 0 < wait && wait <= LEASE, "{}: {again:?}", line.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_by_hand_the_library_goes_on_with() {
    beside::<SqliteStore>().await;
    beside::<MySqlStore>().await;
}

async fn beside<S: Tested>() {
    let bench = Bench::<S>::new().await;
    let line = crate::bench::line("none");
    let claimed = async || {
        let key = fresh_key();
        let given = of_request(&line, &key, "by-hand-token-16");
        assert!(look(&bench, &given).await.is_none() && did(&bench, "claim", &given).await);
        (key, given)
    };
    let begin = async |key: &Key| bench.guard.begin(&delivery(key)).await.unwrap();

    // Completed once, by the token of this attempt alone.
    let (key, given) = claimed().await;
    assert!(matches!(begin(&key).await, Begun::InProgress { .. }));
    let mut of_another = given.clone();
    of_another.retain(|(name, _)| *name != "token");
    of_another.push(("token", text("of-somebody-else")));
    for statement in ["complete", "fail", "external", "renew", "release"] {
        let before = bench.record(&key).await;
        assert!(!did(&bench, statement, &of_another).await, "{statement}");
        assert_eq!(bench.record(&key).await, before, "{statement}");
    }
    bench.let_the_lease_be_over(&key).await;
    assert!(did(&bench, "renew", &given).await);
    assert!(matches!(begin(&key).await, Begun::InProgress { .. }));
    assert!(did(&bench, "complete", &given).await);
    let Begun::Replay { response, about } = begin(&key).await else { panic!("is complete") };
    let expected = StoredResponse {
        headers: vec![("content-type".to_owned(), b"text/plain".to_vec())],
        body: Some(bytes::Bytes::from_static(b"a\0\xff")),
        ..StoredResponse::bare(201)
    };
    assert_eq!(response, expected);
    assert!(about.expires_at.is_some());
    assert_eq!(look(&bench, &given).await.unwrap()[0], "replay");
    for statement in ["complete", "fail", "external", "renew", "release"] {
        assert!(!did(&bench, statement, &given).await, "{statement} after the end");
    }

    // An announced call that was cut off is unknown, to both.
    let (key, given) = claimed().await;
    assert!(did(&bench, "external", &given).await);
    assert!(!did(&bench, "release", &given).await);
    bench.let_the_lease_be_over(&key).await;
    assert!(matches!(begin(&key).await, Begun::Unknown { .. }));
    assert_eq!(look(&bench, &given).await.unwrap()[0], "unknown");

    // A failed attempt is followed by the library's, and that one by the hand's.
    let (key, given) = claimed().await;
    assert!(did(&bench, "fail", &given).await);
    let second = executes(begin(&key).await);
    assert_eq!((second.attempt(), second.downstream_key()), (2, "by-hand"));
    second.fail("no", None).await.unwrap();
    let row = look(&bench, &given).await.unwrap();
    assert_eq!(row[0], "take");
    assert!(did(&bench, "take", &seen(&given, &row)).await);
    assert_eq!(bench.columns(&key, "attempt").await, ["3"]);

    let (key, given) = claimed().await;
    assert!(did(&bench, "release", &given).await);
    assert!(look(&bench, &given).await.is_none());
    assert_eq!(executes(begin(&key).await).attempt(), 1);
    assert_eq!(scope().as_str(), SCOPE);
}
