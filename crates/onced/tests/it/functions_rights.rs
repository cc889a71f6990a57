//! Who may do what with the SQL functions: a role that was granted them calls them and can do nothing else, whatever it
//! puts into its search path.

use std::str::FromStr as _;
use std::sync::atomic::{AtomicU32, Ordering};

use onced::store::postgres::PgStore;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use crate::bench::Bench;

const PUBLIC: [&str; 8] = ["begin", "complete", "downstream_key", "external", "fail", "raw_hash", "release", "renew"];

/// A role that may log in, and is gone with this.
struct Role<'b> {
    bench: &'b Bench<PgStore>,
    name: String,
}

impl<'b> Role<'b> {
    async fn create(bench: &'b Bench<PgStore>, likeness: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{likeness}{}_{count}", std::process::id());
        let role = Self { bench, name };
        bench.execute(&format!("CREATE ROLE {} LOGIN PASSWORD 'of-a-test'", role.quoted())).await;
        role
    }

    fn quoted(&self) -> String {
        format!("\"{}\"", self.name.replace('"', "\"\""))
    }

    async fn connect(&self) -> PgConnection {
        let options = PgConnectOptions::from_str(self.bench.database.url()).unwrap();
        options.username(&self.name).password("of-a-test").connect().await.unwrap()
    }

    async fn drop(self) {
        let quoted = self.quoted();
        self.bench.execute(&format!("DROP OWNED BY {quoted} CASCADE; DROP ROLE {quoted}")).await;
    }
}

async fn run(conn: &mut PgConnection, sql: &str) -> Result<(), String> {
    let ran = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await;
    ran.map(drop).map_err(|error| error.as_database_error().unwrap().code().unwrap().into_owned())
}

const BEGIN: &str =
    "SELECT onced.begin('a', 'k', onced.raw_hash('', '', '', '', ''), lease_token => 'a-token-of-ours-')";

#[tokio::test(flavor = "multi_thread")]
async fn a_granted_role_calls_the_functions_for_applications_and_can_do_nothing_else() {
    let bench = Bench::<PgStore>::new().await;
    // A name that has to be quoted, and quoted rightly.
    let role = Role::create(&bench, r#"app "; DROP TABLE onced.audit; --"#).await;
    let mut app = role.connect().await;
    assert_eq!(run(&mut app, BEGIN).await, Err("42501".to_owned()), "nothing was granted yet");
    bench.store.grant(&role.name).await.unwrap();
    bench.store.grant(&role.name).await.unwrap();

    for call in [
        BEGIN,
        "SELECT onced.renew('a', 'k', 'a-token-of-ours-')",
        "SELECT onced.external('a', 'k', 'a-token-of-ours-')",
        "SELECT onced.fail('a', 'k', 'a-token-of-ours-', 'refused')",
        BEGIN,
        "SELECT onced.complete('a', 'k', 'a-token-of-ours-', 201)",
        "SELECT onced.begin('a', 'r', onced.raw_hash('', '', '', '', ''), lease_token => 'a-token-of-ours-')",
        "SELECT onced.release('a', 'r', 'a-token-of-ours-')",
        "SELECT onced.downstream_key('a', 'k')",
    ] {
        assert_eq!(run(&mut app, call).await, Ok(()), "{call}");
    }
    assert_eq!(bench.rows("SELECT key, status FROM {keys}").await, [["k", "completed"]]);

    for table in ["idempotency_keys", "deliveries", "audit", "migrations"] {
        for statement in [
            format!("SELECT * FROM onced.{table}"),
            format!("DELETE FROM onced.{table}"),
            format!("TRUNCATE onced.{table}"),
            format!("INSERT INTO onced.{table} SELECT * FROM onced.{table}"),
            format!("UPDATE onced.{table} SET {} = NULL", if table == "migrations" { "success" } else { "scope" }),
        ] {
            let refused = run(&mut app, &statement).await;
            assert_eq!(refused, Err("42501".to_owned()), "{statement}");
        }
    }
    for statement in
        ["CREATE TABLE onced.mine (a integer)", "DROP FUNCTION onced.begin", "ALTER TABLE {keys} DISABLE TRIGGER ALL"]
    {
        let statement = statement.replace("{keys}", "onced.idempotency_keys");
        assert_eq!(run(&mut app, &statement).await, Err("42501".to_owned()), "{statement}");
    }
    // Of the first version, and harmless: the documented plain statements call them.
    let mut may: Vec<&str> = ["clock", "lock_id", "micros"].into_iter().chain(PUBLIC).collect();
    may.sort_unstable();
    let query = format!(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'onced'::regnamespace \
         AND has_function_privilege('{}', oid, 'EXECUTE') ORDER BY proname COLLATE \"C\"",
        role.name
    );
    assert_eq!(bench.rows(&query).await.concat(), may);
    for call in [
        "SELECT onced._give_up('a', 'k', NULL, 'why')",
        "SELECT onced._find('a', 'k')",
        "SELECT onced.resolve('a', 'k', NULL, 'happened', 'app', 'because')",
    ] {
        assert_eq!(run(&mut app, call).await, Err("42501".to_owned()), "{call}");
    }
    drop(app);
    role.drop().await;
}

/// Whatever a caller puts before the catalogue, none of it runs with the owner's rights.
#[tokio::test(flavor = "multi_thread")]
async fn a_callers_search_path_and_temporary_objects_reach_no_function() {
    let bench = Bench::<PgStore>::new().await;
    let role = Role::create(&bench, "trap").await;
    bench.store.grant(&role.name).await.unwrap();
    let mut app = role.connect().await;
    bench.execute(&format!("CREATE SCHEMA traps AUTHORIZATION {}", role.quoted())).await;
    let boom = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'caught' USING ERRCODE = 'TRAP1'; END $$";
    let traps = format!(
        "CREATE FUNCTION traps.equals(text, text) RETURNS boolean {boom};
         CREATE OPERATOR traps.= (LEFTARG = text, RIGHTARG = text, FUNCTION = traps.equals);
         CREATE OPERATOR traps.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = traps.equals);
         CREATE FUNCTION traps.now() RETURNS timestamptz {boom};
         CREATE FUNCTION traps.clock_timestamp() RETURNS timestamptz {boom};
         CREATE FUNCTION traps.sha256(bytea) RETURNS bytea {boom};
         CREATE FUNCTION traps.gen_random_uuid() RETURNS uuid {boom};
         CREATE FUNCTION traps.pg_try_advisory_xact_lock(bigint) RETURNS boolean {boom};
         CREATE FUNCTION traps.current_setting(text) RETURNS text {boom};
         CREATE TEMPORARY TABLE idempotency_keys (a integer);
         CREATE TEMPORARY TABLE deliveries (a integer);
         CREATE DOMAIN pg_temp.text AS integer;
         SET search_path = traps, pg_temp, pg_catalog"
    );
    assert_eq!(run(&mut app, &traps).await, Ok(()));
    assert_eq!(run(&mut app, "SELECT 'a'::pg_catalog.text = 'b'::pg_catalog.text").await, Err("TRAP1".to_owned()));
    for call in [BEGIN, BEGIN, "SELECT onced.complete('a', 'k', 'a-token-of-ours-', 201, '[[\"a\",\"b\"]]')", BEGIN] {
        assert_eq!(run(&mut app, call).await, Ok(()), "{call}");
    }
    assert_eq!(bench.rows("SELECT key, status FROM {keys}").await, [["k", "completed"]]);
    // Each function that runs with the owner's rights says by which path, and waits for no lock without bound.
    let query =
        "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'onced'::regnamespace AND prosecdef ORDER BY 1";
    for row in bench.rows(query).await {
        assert_eq!(row[1], "{\"search_path=pg_catalog, pg_temp\",lock_timeout=5s}", "{}", row[0]);
    }
    drop(app);
    role.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_and_nobody_are_no_roles_to_grant_to() {
    let bench = Bench::<PgStore>::new().await;
    for name in ["", "public", "none", "no_such_role", "a\0b"] {
        bench.store.grant(name).await.expect_err(name);
    }
    let query = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'onced'::regnamespace AND proname = 'begin' \
                 AND has_function_privilege('public', oid, 'EXECUTE')";
    assert_eq!(bench.count(query).await, 0);
}
