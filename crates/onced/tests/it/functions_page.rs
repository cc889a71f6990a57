//! `docs/reference/sql.md` is true: its examples are run as they stand, by psql and as a role that was granted the functions, and
//! its tables name the parameters, columns, rights and codes that there are. So are the statements of the guide.

use std::process::Stdio;

use onced::store::postgres::PgStore;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::bench::Bench;

const PAGE: &str = include_str!("../../../../docs/reference/sql.md");
const GUIDE: &str = include_str!("../../../../docs/guides/same-database.md");
const MOVING: &str = include_str!("../../../../docs/guides/from-your-own-table.md");
const STATEMENTS: [&str; 2] = [
    include_str!("../../../../docs/guides/sql/complete-function.postgres.sql"),
    include_str!("../../../../docs/guides/sql/complete.postgres.sql"),
];

/// The fenced blocks of a page: their language and text.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = page.split("```").collect();
    parts.iter().skip(1).step_by(2).map(|block| block.split_once('\n').unwrap()).collect()
}

async fn psql(url: &str, role: &str, script: &str) -> String {
    let mut child = Command::new("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", &format!("SET ROLE {role}"), "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psql, PostgreSQL's client, is needed to run the examples of docs/reference/sql.md");
    child.stdin.take().unwrap().write_all(script.as_bytes()).await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{script}\n{said}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_come_out_as_the_page_says() {
    let bench = Bench::<PgStore>::new().await;
    let role = format!("page_{}", std::process::id());
    bench.execute(&format!("CREATE ROLE {role}; GRANT CREATE ON SCHEMA public TO {role}; DROP TABLE orders")).await;
    bench.store.grant(&role).await.unwrap();
    assert_eq!(run_examples(&bench, &role, PAGE).await, (5, 4));
    bench.execute(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await;
}

/// Whoever moves has the rights of the schema's owner. What is there already stays as it is.
#[tokio::test(flavor = "multi_thread")]
async fn the_guide_from_your_own_table_moves_it_as_it_says() {
    let bench = Bench::<PgStore>::new().await;
    assert_eq!(run_examples(&bench, "NONE", MOVING).await, (3, 1));
    let keys = "SELECT key, status, attempt::text FROM onced.idempotency_keys ORDER BY key";
    let moved = bench.rows(keys).await;
    assert_eq!(moved, [["evt_1", "completed", "1"], ["evt_2", "in_progress", "2"], ["evt_3", "pending_external", "1"]]);
    let (_, import) = blocks(MOVING)[1];
    psql(bench.database.url(), "NONE", import).await;
    assert_eq!(bench.rows(keys).await, moved, "what onced has is changed by another move");
}

/// Runs the examples of a page in their order; how many there are, and how many say what comes out.
async fn run_examples(bench: &Bench<PgStore>, role: &str, page: &str) -> (usize, usize) {
    let blocks = blocks(page);
    let (mut ran, mut compared) = (0, 0);
    for (at, (language, script)) in blocks.iter().enumerate() {
        if *language != "psql" {
            continue;
        }
        let came = psql(bench.database.url(), role, script).await;
        let says = blocks.get(at + 1).filter(|(language, _)| *language == "text").map_or("", |(_, text)| text);
        assert_eq!(came, says, "{script}");
        ran += 1;
        compared += usize::from(!says.is_empty());
    }
    (ran, compared)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_names_every_function_parameter_column_and_code() {
    let bench = Bench::<PgStore>::new().await;
    let section = |name: &str| {
        let (_, rest) =
            PAGE.split_once(&format!("\n### onced.{name}\n")).unwrap_or_else(|| panic!("no section on {name}"));
        rest.split("\n### ").next().unwrap()
    };
    let parameters = bench
        .rows(
            "SELECT p.proname, a.name, format_type(a.type, NULL), a.number > p.pronargs - p.pronargdefaults \
               FROM pg_proc p, unnest(p.proargnames, p.proargtypes::oid[]) WITH ORDINALITY AS a (name, type, number) \
              WHERE p.pronamespace = 'onced'::regnamespace AND left(p.proname, 1) <> '_' \
                AND p.proname NOT IN ('clock', 'micros', 'lock_id') ORDER BY p.proname, a.number",
        )
        .await;
    assert!(parameters.len() >= 60, "{parameters:?}");
    for row in parameters {
        let [function, name, kind, has_default] = row.as_slice() else { panic!("{row:?}") };
        let begins = format!("| `{name}` | {kind} | ");
        let line = section(function).lines().find(|line| line.starts_with(&begins));
        let line = line.unwrap_or_else(|| panic!("the page lacks, of {function}: {begins}"));
        assert_eq!(!line[begins.len()..].starts_with("- |"), has_default == "t", "{function}: {line}");
    }
    let columns = "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'onced.begun'::regclass ORDER BY attnum";
    let columns = bench.rows(columns).await;
    assert_eq!(columns.len(), 17);
    for row in columns {
        let begins = format!("| `{}` | {} | ", row[0], row[1]);
        assert!(section("begin").lines().any(|line| line.starts_with(&begins)), "the page lacks: {begins}");
    }
    let bodies =
        bench.rows("SELECT string_agg(prosrc, '') FROM pg_proc WHERE pronamespace = 'onced'::regnamespace").await;
    for code in ["OC001", "OC002", "OC003"] {
        assert!(bodies[0][0].contains(code) && PAGE.contains(&format!("| `{code}` | ")), "{code}");
    }
    assert_eq!(bodies[0][0].matches("ERRCODE = 'OC").count(), 3, "a code that the page does not name");
    let granted = include_str!("../../src/store/postgres/sql/grant.sql");
    let granted: Vec<&str> = granted.lines().filter(|line| !line.starts_with("--")).collect();
    let granted = granted.join("\n").replace(":role", "app");
    assert!(blocks(PAGE).contains(&("sql", &format!("{granted}\n"))), "{granted}");
}

/// Both statements of the guide leave the same record, byte for byte, and refuse the same.
#[tokio::test(flavor = "multi_thread")]
async fn either_statement_of_the_guide_completes_a_record() {
    let bench = Bench::<PgStore>::new().await;
    let mut left = Vec::new();
    for (number, statement) in STATEMENTS.into_iter().enumerate() {
        let text = statement.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
        assert!(GUIDE.contains(&text), "the guide shows another statement than: {text}");
        let key = format!("k{number}");
        let begin = format!(
            "SELECT onced.begin('a', '{key}', onced.raw_hash('', '', '', '', ''), lease_token => 'a-token-of-ours-')"
        );
        bench.rows(&begin).await;
        let complete = async |token: &str| {
            sqlx::query(statement)
                .bind("a")
                .bind(&key)
                .bind(token)
                .bind(201)
                .bind(r#"[["content-type","text/plain"]]"#)
                .bind(b"a\0\xff".as_slice())
                .execute(bench.store.pool())
                .await
                .map(|done| done.rows_affected())
        };
        let lost = complete("another-token-16").await;
        assert!(lost.as_ref().is_ok_and(|rows| *rows == 0) || lost.is_err(), "{lost:?}");
        assert_eq!(complete("a-token-of-ours-").await.unwrap(), 1);
        let row = "SELECT status, lease_token, lease_until, response_code, response_headers, encode(response_body, 'hex'), \
                   body_omitted, error, completed_at IS NULL FROM onced.idempotency_keys WHERE key = ";
        left.push(bench.rows(&format!("{row}'{key}'")).await);
    }
    assert_eq!(left[0], left[1]);
}
