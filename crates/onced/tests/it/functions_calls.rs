//! The SQL functions as another language calls them: what they return and refuse, in either schema, and from which hash.
//! What they decide is the suite's (functions.rs).

use onced::store::StoreOptions;
use onced::store::keys::Transactional as _;
use onced::store::postgres::PgStore;
use onced_core::fingerprint::{BodyRecipe, Fingerprint, RequestParts, boundary_of, media_type_of};
use sqlx::PgConnection;
use testkit::{Backend, Database};

use crate::bench::{Bench, Tested, patient};

const HASH: &str = "{s}.raw_hash('POST', '/charges', '', 'application/json', '{\"amount\":100}')";
const OTHER: &str = "{s}.raw_hash('POST', '/charges', '', 'application/json', '{\"amount\":900}')";

/// One database with the functions in a schema of that name.
struct Ledger {
    database: Database,
    schema: &'static str,
}

impl Ledger {
    async fn in_schema(schema: &'static str) -> Self {
        let database = Database::create(Backend::Postgres).await;
        let options = StoreOptions { schema: schema.to_owned(), ..patient() };
        PgStore::open(database.url(), &options).await.unwrap().migrate().await.unwrap();
        Self { database, schema }
    }

    fn text(&self, sql: &str) -> String {
        sql.replace("{hash}", HASH).replace("{other}", OTHER).replace("{s}", self.schema)
    }

    async fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        self.database.sql().text(&self.text(sql)).await
    }

    async fn row(&self, sql: &str) -> Vec<String> {
        let mut rows = self.rows(sql).await;
        assert_eq!(rows.len(), 1, "{sql}: {rows:?}");
        rows.remove(0)
    }

    /// The SQLSTATE and the hint of a call that fails.
    async fn refused(&self, sql: &str) -> (String, String) {
        let error = self.database.sql().try_execute(&self.text(sql)).await.expect_err(sql);
        refusal(&error)
    }
}

fn refusal(error: &sqlx::Error) -> (String, String) {
    let answer = error.as_database_error().unwrap();
    let hint = answer.downcast_ref::<sqlx::postgres::PgDatabaseError>().hint().unwrap_or_default();
    (answer.code().unwrap_or_default().into_owned(), hint.to_owned())
}

/// A life of a key through every function, where there is no schema of the usual name to fall back on as well.
#[tokio::test(flavor = "multi_thread")]
async fn every_function_works_in_either_schema() {
    for schema in ["onced", "ledger_2"] {
        every_function(&Ledger::in_schema(schema).await).await;
    }
}

async fn every_function(ledger: &Ledger) {
    let begun =
        "SELECT decision, attempt, resumed FROM {s}.begin('a.b', 'k', {hash}, lease_token => 'token-of-the-first')";
    assert_eq!(ledger.row(begun).await, ["execute", "1", "f"]);
    assert_eq!(ledger.row(begun).await, ["execute", "1", "f"], "a lost reply: the caller's own token is recognised");
    let other = "SELECT decision, retry_after, attempt FROM {s}.begin('a.b', 'k', {hash})";
    assert_eq!(ledger.row(other).await, ["in_progress", "30", "1"]);
    let foreign = "SELECT decision FROM {s}.begin('a.b', 'k', {other})";
    assert_eq!(ledger.row(foreign).await, ["mismatch"]);
    for call in ["renew('a.b', 'k', 'token-of-the-first')", "external('a.b', 'k', 'token-of-the-first', '40 s')"] {
        assert_eq!(ledger.row(&format!("SELECT {{s}}.{call} > now() + interval '6 days'")).await, ["t"], "{call}");
    }
    let left = "SELECT status, extract(epoch FROM lease_until - {s}.clock()) > 32 FROM {s}.idempotency_keys";
    assert_eq!(ledger.row(left).await, ["pending_external", "t"]);
    let complete =
        "SELECT {s}.complete('a.b', 'k', 'token-of-the-first', 201, '[[\"location\",\"/ch/1\"]]', 'done') IS NOT NULL";
    assert_eq!(ledger.row(complete).await, ["t"]);
    let replay = "SELECT decision, response_code, response_headers, convert_from(response_body, 'UTF8'), body_omitted \
                  FROM {s}.begin('a.b', 'k', {hash})";
    assert_eq!(ledger.row(replay).await, ["replay", "201", "[[\"location\",\"/ch/1\"]]", "done", "f"]);
    assert_eq!(ledger.refused(complete).await.0, "OC001", "an ended record is nobody's");
    ledger.rows("UPDATE {s}.idempotency_keys SET expires_at = {s}.clock()").await;
    assert_eq!(ledger.row(begun).await, ["execute", "1", "f"], "an expired key is as good as new");

    // An attempt that fails, one that is cut off, and the end of them.
    let begun = "SELECT decision, attempt, resumed FROM {s}.begin('a.b', 'f', {hash}, max_attempts => 2, lease_token => 'token-of-the-second')";
    assert_eq!(ledger.row(begun).await, ["execute", "1", "f"]);
    ledger.row("SELECT {s}.fail('a.b', 'f', 'token-of-the-second', E'no\\nstock')").await;
    assert_eq!(
        ledger.row("SELECT status, error FROM {s}.idempotency_keys WHERE key = 'f'").await,
        ["failed", "nostock"]
    );
    assert_eq!(ledger.row(begun).await, ["execute", "2", "f"]);
    ledger.rows("UPDATE {s}.idempotency_keys SET lease_until = {s}.clock() WHERE key = 'f'").await;
    let last = "SELECT decision FROM {s}.begin('a.b', 'f', {hash}, max_attempts => 2)";
    assert_eq!(ledger.row(last).await, ["exhausted"]);
    ledger
        .rows("UPDATE {s}.idempotency_keys SET status = 'in_progress', lease_until = {s}.clock() WHERE key = 'f'")
        .await;
    let unlimited = "SELECT decision, attempt, resumed FROM {s}.begin('a.b', 'f', {hash}, max_attempts => NULL)";
    assert_eq!(ledger.row(unlimited).await, ["execute", "3", "t"]);

    ledger.row("SELECT {s}.begin('a.b', 'r', {hash}, lease_token => 'token-of-the-third')").await;
    ledger.row("SELECT {s}.release('a.b', 'r', 'token-of-the-third')").await;
    assert_eq!(ledger.row("SELECT count(*) FROM {s}.idempotency_keys WHERE key = 'r'").await, ["0"]);

    for (outcome, after) in [("did_not_happen", "failed"), ("happened", "completed")] {
        ledger
            .row("SELECT {s}.begin('a.b', 'u', {hash}, enter => 'pending_external', lease_token => 'token-of-the-fourth')")
            .await;
        let resolve = format!(
            "SELECT {{s}}.resolve('a.b', 'u', 'token-of-the-fourth', '{outcome}', 'mara', 'asked the bank', settle => '0')"
        );
        assert_eq!(ledger.row(&resolve).await, ["f"], "its owner may be alive");
        ledger.rows("UPDATE {s}.idempotency_keys SET lease_until = {s}.clock() WHERE key = 'u'").await;
        assert_eq!(ledger.row(&resolve).await, ["t"]);
        assert_eq!(ledger.row("SELECT status FROM {s}.idempotency_keys WHERE key = 'u'").await, [after]);
    }
    assert_eq!(ledger.row("SELECT count(*) FROM {s}.audit").await, ["2"]);
    assert_eq!(
        ledger.row("SELECT decision, response_code FROM {s}.begin('a.b', 'u', {hash})").await,
        ["replay", "204"]
    );

    let log = "SELECT decision, count(*) FROM {s}.deliveries WHERE key IN ('k', 'f') GROUP BY 1 ORDER BY 1";
    let log: Vec<String> = ledger.rows(log).await.into_iter().map(|row| row.join(" ")).collect();
    assert_eq!(log, ["execute 5", "exhausted 1", "in-progress 1", "mismatch 1", "replay 1"]);
    let ids = "SELECT count(*) FROM {s}.deliveries WHERE abs(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint - {s}.micros(received_at) / 1000) > 1000";
    assert_eq!(ledger.row(ids).await, ["0"], "ids are ordered by time, as sweeping needs it");
}

/// What is hashed is what the library hashes, whatever the schema is called.
#[tokio::test(flavor = "multi_thread")]
async fn hashes_and_downstream_keys_are_those_of_the_library() {
    let (mut raw, mut keys) = (0, 0);
    for schema in ["onced", "ledger_2"] {
        let ledger = Ledger::in_schema(schema).await;
        let options = StoreOptions { schema: schema.to_owned(), ..patient() };
        let store = PgStore::open(ledger.database.url(), &options).await.unwrap();
        let hash = ledger.text("SELECT encode({s}.raw_hash($1, $2, $3, $4, $5, $6), 'hex')");
        let of = async |parts: [&str; 4], body: &[u8], coding: &str| -> String {
            let query = sqlx::query_scalar(sqlx::AssertSqlSafe(hash.clone()));
            let query = parts.into_iter().fold(query, |query, part| query.bind(part.to_owned()));
            query.bind(body.to_vec()).bind(coding.to_owned()).fetch_one(store.pool()).await.unwrap()
        };
        let vectors = include_str!("../../../onced-core/vectors/fingerprints.tsv").lines();
        let bodies: Vec<[&str; 8]> = vectors
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split('\t').collect::<Vec<_>>().try_into().unwrap())
            .collect();
        for [version, method, path, query, content_type, coding, body, expected] in bodies {
            let body = bytes_of(body);
            let packed = ["gzip", "deflate"].contains(&coding);
            let came = of([method, path, query, content_type], &body, coding).await;
            if version == "1:raw" && !packed {
                assert_eq!(came, expected, "{method} {path} {content_type}");
                raw += 1;
            }
            // Whatever its recipe there, each row is a request of which the raw bytes can count.
            let parts = RequestParts {
                method: method.into(),
                path: path.into(),
                query: query.into(),
                media_type: media_type_of(content_type),
                boundary: boundary_of(content_type),
                coding: coding.into(),
                body: body.into(),
            };
            assert_eq!(came, Fingerprint::new(parts, BodyRecipe::Raw).hash().to_string(), "{content_type}");
        }
        for content_type in ["TEXT/Plain; charset=UTF-8", " Application/JSON\t;a=b", "TEXT/İ", ";", ""] {
            let parts = RequestParts { media_type: media_type_of(content_type), ..RequestParts::default() };
            let expected = Fingerprint::new(parts, BodyRecipe::Raw).hash().to_string();
            assert_eq!(of(["", "", "", content_type], b"", "").await, expected, "{content_type}");
        }
        let nulls = "SELECT {s}.raw_hash(NULL, NULL, NULL, NULL, NULL) = {s}.raw_hash('', '', '', '', '')";
        assert_eq!(ledger.row(nulls).await, ["t"], "what a caller lacks is empty");

        let vectors = include_str!("../../../onced-core/vectors/downstream-keys.tsv").lines();
        for line in vectors.filter(|line| !line.starts_with('#')) {
            let [scope, key, step, expected]: [&str; 4] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            let sql = ledger.text("SELECT {s}.downstream_key($1, $2, $3)");
            let query = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).bind(scope).bind(key).bind(step);
            assert_eq!(
                query.fetch_one(store.pool()).await.map(|made: String| made == expected).ok(),
                Some(true),
                "{line}"
            );
            keys += 1;
        }
    }
    assert!(raw >= 2 && keys >= 16, "{raw} and {keys} vectors");
}

/// The body in a row of the vectors: text, or `hex:` and its bytes.
fn bytes_of(column: &str) -> Vec<u8> {
    let Some(hex) = column.strip_prefix("hex:") else { return column.as_bytes().to_vec() };
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_cannot_be_meant_are_refused_with_a_hint_and_nothing_is_written() {
    let ledger = Ledger::in_schema("onced").await;
    let long_key = format!("'{}'", "k".repeat(256));
    let begins = [
        "NULL, 'k', {hash}",
        "'', 'k', {hash}",
        "'a b', 'k', {hash}",
        "'a#call', 'k', {hash}",
        "repeat('s', 97), 'k', {hash}",
        "'a', NULL, {hash}",
        "'a', '', {hash}",
        "'a', ' k', {hash}",
        "'a', 'é', {hash}",
        &format!("'a', {long_key}, {{hash}}"),
        "'a', 'k', NULL",
        "'a', 'k', 'short'",
        "'a', 'k', {hash}, '2:raw'",
        "'a', 'k', {hash}, NULL",
        "'a', 'k', {hash}, lease => '999 ms'",
        "'a', 'k', {hash}, lease => NULL",
        "'a', 'k', {hash}, retention => '0'",
        "'a', 'k', {hash}, retention => NULL",
        "'a', 'k', {hash}, retry_window => '-1 s'",
        "'a', 'k', {hash}, max_attempts => 0",
        "'a', 'k', {hash}, on_unknown => 'guess'",
        "'a', 'k', {hash}, on_unknown => NULL",
        "'a', 'k', {hash}, downstream_window => NULL",
        "'a', 'k', {hash}, mismatch => 'ignore'",
        "'a', 'k', {hash}, enter => 'completed'",
        "'a', 'k', {hash}, log_deliveries => 'some'",
        "'a', 'k', {hash}, log_deliveries => NULL",
        "'a', 'k', {hash}, lease_token => 'short'",
        "'a', 'k', {hash}, lease_token => 'with a space in it'",
    ];
    for arguments in begins {
        let (code, hint) = ledger.refused(&format!("SELECT * FROM {{s}}.begin({arguments})")).await;
        assert!(code == "OC003" && !hint.is_empty(), "{arguments}: {code} {hint}");
    }
    assert_eq!(ledger.row("SELECT count(*) FROM {s}.idempotency_keys").await, ["0"]);
    ledger.row("SELECT {s}.begin('a', 'k', {hash}, lease_token => 'a-token-of-ours-')").await;
    let endings = [
        "complete(N, 99)",
        "complete(N, 1000)",
        "complete(N, NULL, '[]')",
        "complete(N, NULL, NULL, 'body')",
        "complete(N, 200, '{}')",
        "complete(N, 200, 'nonsense')",
        "complete(N, 200, '[[\"a\"]]')",
        "complete(N, 200, '[[\"a\",1]]')",
        "complete(N, 200, '[[\"Upper\",\"v\"]]')",
        "complete(N, 200, '[[\"a\",\"\\u20ac\"]]')",
        "complete(N, 200, '[[\"a\",\"\\u0000\"]]')",
        "complete(N, 200, '[[\"a\",\"two\\nlines\"]]')",
        "complete(N, 200, NULL, 'body', true)",
        "complete(N, 200, NULL, NULL, NULL)",
        "fail(N, 'e', 99)",
        "external(N, '0')",
        "renew(N, NULL)",
        "resolve(N, 'perhaps', 'mara', 'r')",
        "resolve(N, 'happened', ' ', 'r')",
        "resolve(N, 'happened', 'mara', NULL)",
        "resolve(N, 'did_not_happen', 'mara', 'r', 200)",
        "resolve(N, 'did_not_happen', 'mara', 'r', settle => '-1 s')",
    ];
    for call in endings {
        let call = call.replace('N', "'a', 'k', 'a-token-of-ours-'").replace("'a', 'k', 'a-token-of-ours-'ULL", "NULL");
        let (code, hint) = ledger.refused(&format!("SELECT {{s}}.{call}")).await;
        assert!(code == "OC003" && !hint.is_empty(), "{call}: {code} {hint}");
    }
    for call in ["complete(N)", "fail(N, 'e')", "external(N)", "renew(N)", "release(N)"] {
        for lost in
            ["'a', 'k', 'another-token-16'", "'a', 'other', 'a-token-of-ours-'", "'a', 'k', NULL", "NULL, NULL, NULL"]
        {
            let (code, hint) = ledger.refused(&format!("SELECT {{s}}.{}", call.replacen('N', lost, 1))).await;
            assert!(code == "OC001" && hint.starts_with("Roll back."), "{call}: {code} {hint}");
        }
    }
    assert_eq!(ledger.row("SELECT status, attempt FROM {s}.idempotency_keys").await, ["in_progress", "1"]);
}

/// I7: what was made by another recipe cannot be compared by this hash, so nothing is executed and nothing replayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_another_recipe_is_not_understood_unless_the_decision_does_not_depend_on_it() {
    let ledger = Ledger::in_schema("onced").await;
    ledger.row("SELECT {s}.begin('a', 'k', {hash}, '1:all', lease_token => 'a-token-of-ours-')").await;
    ledger.row("SELECT {s}.complete('a', 'k', 'a-token-of-ours-', 201)").await;
    let (code, hint) = ledger.refused("SELECT * FROM {s}.begin('a', 'k', {hash})").await;
    assert!(code == "OC002" && hint.contains("503"), "{code} {hint}");
    // Where a difference is merely noted, this is one; but not where the rules are those of tomorrow.
    let noted = "SELECT decision, payload_differs FROM {s}.begin('a', 'k', {hash}, mismatch => 'note')";
    assert_eq!(ledger.row(noted).await, ["replay", "t"]);
    ledger.rows("UPDATE {s}.idempotency_keys SET hash_version = '2:raw'").await;
    assert_eq!(ledger.refused(noted).await.0, "OC002");
    // All requests are the same there, and none was compared here.
    ledger.rows("UPDATE {s}.idempotency_keys SET hash_version = '1:none'").await;
    assert_eq!(ledger.row("SELECT decision FROM {s}.begin('a', 'k', {other})").await, ["replay"]);
    ledger.rows("UPDATE {s}.idempotency_keys SET hash_version = '2:raw', expires_at = {s}.clock()").await;
    assert_eq!(
        ledger.row("SELECT decision FROM {s}.begin('a', 'k', {hash})").await,
        ["execute"],
        "it counts as absent"
    );
}

/// Under a snapshot that is older than a rival's outcome the function cannot see what stands there.
#[tokio::test(flavor = "multi_thread")]
async fn under_stricter_isolation_a_hidden_outcome_is_a_serialization_failure() {
    let bench = Bench::<PgStore>::new().await;
    let delivery = "SELECT decision FROM onced.begin('a', 'k', onced.raw_hash('', '', '', '', ''), lease_token => 'a-token-of-ours-')";
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let mut late = bench.store.plain_transaction().await;
        let set = format!("SET TRANSACTION ISOLATION LEVEL {level}; SELECT count(*) FROM orders");
        PgStore::run(&mut late, &set).await.unwrap();
        bench.rows(delivery).await;
        bench.rows("SELECT onced.complete('a', 'k', 'a-token-of-ours-', 201)").await;
        let error = PgStore::run(&mut late, delivery).await.unwrap_err();
        assert_eq!(refusal(&error).0, "40001", "{level}");
        late.rollback().await.unwrap();
        assert_eq!(bench.rows(delivery).await, [["replay"]], "{level}: run again, it is seen");
        bench.rows("DELETE FROM onced.idempotency_keys").await;
    }
}

/// A function's own settings end with it; what bounds the caller's transaction stays, and a tighter bound too.
#[tokio::test(flavor = "multi_thread")]
async fn a_callers_transaction_is_bounded_and_keeps_its_other_settings() {
    let bench = Bench::<PgStore>::new().await;
    let settings = async |conn: &mut PgConnection| -> Vec<String> {
        let query = "SELECT ARRAY[current_setting('idle_in_transaction_session_timeout'), \
                     current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('search_path')]";
        sqlx::query_scalar(query).fetch_one(conn).await.unwrap()
    };
    for (number, (set, expected)) in [("0", ["20s", "20s"]), ("7s", ["7s", "7s"])].into_iter().enumerate() {
        let mut tx = bench.store.transaction().await.unwrap();
        let sets = format!(
            "SET LOCAL idle_in_transaction_session_timeout = '{set}'; SET LOCAL statement_timeout = '{set}'; \
             SET LOCAL lock_timeout = '3s'; SET LOCAL search_path = 'elsewhere'; \
             SELECT onced.begin('a', 'k{number}', onced.raw_hash('', '', '', '', ''), lease => '20 s')"
        );
        PgStore::run(&mut tx, &sets).await.unwrap();
        assert_eq!(settings(&mut tx).await, [expected[0], expected[1], "3s", "elsewhere"]);
        tx.commit().await.unwrap();
    }
}

/// A day is 24 hours, whatever the session's time zone says of its summer time.
#[tokio::test(flavor = "multi_thread")]
async fn times_do_not_depend_on_the_sessions_settings() {
    let bench = Bench::<PgStore>::new().await;
    let mut tx = bench.store.transaction().await.unwrap();
    // Within the next 365 days Berlin changes its clocks twice; the second time makes up for the first.
    let calls = "SET LOCAL TimeZone = 'Europe/Berlin'; SET LOCAL IntervalStyle = 'sql_standard'; SET LOCAL DateStyle = 'German'; \
                 SELECT onced.begin('a', n::text, onced.raw_hash('', '', '', '', ''), retention => n * interval '1 day') FROM generate_series(1, 365, 30) n";
    PgStore::run(&mut tx, calls).await.unwrap();
    tx.commit().await.unwrap();
    let odd = "SELECT key FROM onced.idempotency_keys \
               WHERE onced.micros(expires_at) - onced.micros(created_at) <> key::bigint * 86400000000 \
                  OR extract(epoch FROM retry_window) <> key::integer * 43200";
    assert!(bench.rows(odd).await.is_empty());
}

/// The schema as the first step left it, with a key in it, becomes the one that an empty database gets.
#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_of_the_first_version_is_upgraded_with_its_keys() {
    let printed = PgStore::migrations("onced");
    let (first, rest) = printed.split_once("-- The protocol as functions").unwrap();
    let (_, list) = rest.split_once("-- Which steps have run.").unwrap();
    let second = list.rfind("INSERT INTO").unwrap();
    let old = Database::create(Backend::Postgres).await;
    old.sql().execute(&format!("{first}\n{}", &list[list.find("CREATE TABLE").unwrap()..second])).await;
    assert_eq!(old.sql().count("SELECT max(version) FROM onced.migrations").await, 1);
    let key = "INSERT INTO onced.idempotency_keys (scope, key, request_hash, hash_version, status, attempt, response_code, \
               retry_window, created_at, updated_at, expires_at) VALUES ('a', 'k', decode(repeat('00', 32), 'hex'), \
               '1:raw', 'completed', 1, 201, '1 day', now(), now(), now() + interval '1 day')";
    old.sql().execute(key).await;
    let store = PgStore::open(old.url(), &patient()).await.unwrap();
    let error = store.check_schema().await.unwrap_err();
    assert!(error.to_string().contains("onced migrate"), "{error}");
    store.migrate().await.unwrap();
    store.check_schema().await.unwrap();
    let begun = "SELECT decision, response_code FROM onced.begin('a', 'k', decode(repeat('00', 32), 'hex'))";
    assert_eq!(old.sql().text(begun).await, [["replay", "201"]]);
    let shape = "SELECT proname, pg_get_functiondef(oid), proacl FROM pg_proc WHERE pronamespace = 'onced'::regnamespace ORDER BY 1";
    let new = Bench::<PgStore>::new().await;
    assert_eq!(old.sql().text(shape).await, new.rows(shape).await);
}
