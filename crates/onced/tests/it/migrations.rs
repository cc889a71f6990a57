//! Migrations: many at once, twice, by hand, in another schema, and beside tables that are not ours.

use std::time::Duration;

use onced::guard::{Begun, Guard};
use onced::store::deliveries::{Deliveries as _, LogDeliveries};
use onced::store::health::Health as _;
use onced::store::keys::{Keys as _, OwnerMove, Transactional as _};
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced::store::sweep::Sweep as _;
use onced::store::upkeep::{Because, Filter, Resolution, Upkeep as _};
use onced::store::{StoreErrorKind, StoreOptions};
use onced_core::key::Key;
use onced_core::record::StoredResponse;
use sqlx::{Connection, Executor, SqliteConnection};
use testkit::{Backend, Database, Sql};

use crate::bench::{Bench, Surrounding, Tested, delivery, executes, fresh_key, of_backend, patient, scope};
use crate::rival_process::RivalProcess;

const INSTANCES: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn instances_that_start_at_once_on_an_empty_database_make_one_schema() {
    for round in 0..if testkit::soaking() { 30 } else { 3 } {
        start_at_once::<SqliteStore>(round).await;
        start_at_once::<PgStore>(round).await;
        start_at_once::<MySqlStore>(round).await;
    }
}

async fn start_at_once<S: Tested>(round: u32) {
    let database = Database::create(S::BACKEND).await;
    // On SQLite a file that is not there yet, so that its making is part of the race.
    let url = database
        .folder()
        .map_or(database.url().to_owned(), |folder| format!("sqlite:{}", folder.join("fresh.db").display()));
    let instances: Vec<_> = (0..INSTANCES)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move {
                let store = S::open_at(&url, &patient()).await?;
                store.bring_up_to_date().await?;
                store.check().await
            })
        })
        .collect();
    let (mut one, mut two) = (RivalProcess::start(&url), RivalProcess::start(&url));
    let answers = tokio::join!(one.ask("migrate"), two.ask("migrate"));
    assert_eq!(answers, ("migrated".to_owned(), "migrated".to_owned()), "{:?}, round {round}", S::BACKEND);
    for instance in instances {
        instance.await.unwrap().unwrap_or_else(|error| panic!("{:?}, round {round}: {error}", S::BACKEND));
    }
}

/// A file that is not in WAL yet, and that another writes to: what SQLite says at once of those who make it together.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_being_made_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("made.db").display());
    let mut maker = SqliteConnection::connect(&format!("{url}?mode=rwc")).await.unwrap();
    maker.execute("CREATE TABLE t (a); BEGIN IMMEDIATE").await.unwrap();
    let mut opening = tokio::spawn(async move { SqliteStore::open_at(&url, &patient()).await.map(drop) });
    let early = tokio::time::timeout(Duration::from_millis(200), &mut opening).await;
    assert!(early.is_err(), "it did not wait: {early:?}");
    maker.execute("COMMIT").await.unwrap();
    opening.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_run_changes_nothing() {
    runs_twice::<SqliteStore>().await;
    runs_twice::<PgStore>().await;
    runs_twice::<MySqlStore>().await;
}

async fn runs_twice<S: Tested>() {
    let bench = Bench::<S>::new().await;
    let key = fresh_key();
    drop(bench.guard.begin(&delivery(&key)).await.unwrap());
    let before = (tables(&bench).await, bench.rows("SELECT * FROM {migrations}").await, bench.record(&key).await);
    bench.store.bring_up_to_date().await.unwrap();
    bench.store.check().await.unwrap();
    let after = (tables(&bench).await, bench.rows("SELECT * FROM {migrations}").await, bench.record(&key).await);
    assert_eq!(after, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_newer_schema_and_a_foreign_table_are_refused_in_words() {
    refuses::<SqliteStore>().await;
    refuses::<PgStore>().await;
    refuses::<MySqlStore>().await;
}

async fn refuses<S: Tested>() {
    let database = Database::create(S::BACKEND).await;
    let store = S::open_at(database.url(), &patient()).await.unwrap();
    let error = store.check().await.unwrap_err();
    assert!(error.to_string().contains("onced migrate"), "{error}");

    let bench = Bench::<S>::new().await;
    let newer = match S::BACKEND {
        Backend::Sqlite | Backend::MariaDb => "x'00', 0",
        Backend::Postgres => r"'\x00', 0",
    };
    bench
        .execute(&format!(
            "INSERT INTO {{migrations}} (version, description, success, checksum, execution_time) \
             VALUES (99, 'of tomorrow', true, {newer})"
        ))
        .await;
    for error in [bench.store.bring_up_to_date().await.unwrap_err(), bench.store.check().await.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Refused);
        assert!(error.to_string().contains("version 99, newer than this onced knows"), "{error}");
    }

    let foreign = Database::create(S::BACKEND).await;
    let table = "CREATE TABLE {keys} (id integer)";
    if S::BACKEND == Backend::Postgres {
        foreign.sql().execute("CREATE SCHEMA onced").await;
    }
    foreign.sql().execute(&of_backend(S::BACKEND, table)).await;
    let store = S::open_at(foreign.url(), &patient()).await.unwrap();
    for error in [store.bring_up_to_date().await.unwrap_err(), store.check().await.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Refused);
        assert!(error.to_string().contains("that onced did not make"), "{error}");
    }
    assert_eq!(foreign.sql().count(&of_backend(S::BACKEND, "SELECT count(*) FROM {keys}")).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_schema_works_beside_the_usual_one() {
    let bench = Bench::<PgStore>::new().await;
    let ledger = PgStore::open(bench.database.url(), &in_schema("ledger_2")).await.unwrap();
    ledger.migrate().await.unwrap();
    ledger.check_schema().await.unwrap();
    let guard = Guard::new(ledger, LogDeliveries::All);
    let key = fresh_key();
    let Begun::Execute(permit) = guard.begin(&delivery(&key)).await.unwrap() else { panic!("a new key executes") };
    permit.complete(StoredResponse::bare(201)).await.unwrap();
    assert!(matches!(guard.begin(&delivery(&key)).await.unwrap(), Begun::Replay { .. }));
    guard.close().await;
    let rows = "SELECT (SELECT count(*) FROM ledger_2.idempotency_keys), (SELECT count(*) FROM ledger_2.deliveries), \
                (SELECT count(*) FROM onced.idempotency_keys), (SELECT count(*) FROM onced.deliveries)";
    assert_eq!(bench.rows(rows).await, [["1", "2", "0", "0"]]);
    let mut shapes = Vec::new();
    for schema in ["onced", "ledger_2"] {
        shapes.push(shape(&bench, schema).await.replace("ledger_2", "onced"));
    }
    assert_eq!(shapes[0], shapes[1]);

    for odd in ["", "Ledger", "a b", "1st", "a;drop", &"x".repeat(49)] {
        let error = PgStore::open(bench.database.url(), &in_schema(odd)).await.expect_err("it would need quotes");
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{odd}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_migrations_run_by_hand_make_the_same_schema() {
    let migrated = Bench::<SqliteStore>::new().await;
    let by_hand = Database::create(Backend::Sqlite).await;
    by_hand.sql().execute(&SqliteStore::migrations()).await;
    let schema = "SELECT type, name, tbl_name, sql FROM sqlite_schema \
                  WHERE name LIKE 'onced%' AND tbl_name <> 'onced_migrations' ORDER BY type, name";
    let printed = by_hand.sql().text(schema).await;
    assert!(printed.len() >= 10, "{printed:?}");
    assert_eq!(migrated.rows(schema).await, printed);
    let store = SqliteStore::open(by_hand.url(), &patient()).await.unwrap();
    store.check_schema().await.unwrap();
    store.migrate().await.unwrap();
    assert_eq!(by_hand.sql().text(schema).await, printed, "migrating afterwards changes nothing");

    let migrated = Bench::<MySqlStore>::new().await;
    let by_hand = Database::create(Backend::MariaDb).await;
    by_hand.sql().execute(&MySqlStore::migrations()).await;
    let printed = mariadb_shape(by_hand.sql()).await;
    assert_eq!(mariadb_shape(migrated.sql()).await, printed);
    let store = MySqlStore::open(by_hand.url(), &patient()).await.unwrap();
    store.check_schema().await.unwrap();
    store.migrate().await.unwrap();
    assert_eq!(mariadb_shape(by_hand.sql()).await, printed, "migrating afterwards changes nothing");

    let migrated = Bench::<PgStore>::new().await;
    let by_hand = Database::create(Backend::Postgres).await;
    by_hand.sql().execute(&PgStore::migrations("ledger_2")).await;
    let store = PgStore::open(by_hand.url(), &in_schema("ledger_2")).await.unwrap();
    let guard = Guard::new(store.clone(), LogDeliveries::All);
    let by_hand = Bench { surrounding: Surrounding::NONE, database: std::sync::Arc::new(by_hand), store, guard };
    assert_eq!(shape(&by_hand, "ledger_2").await.replace("ledger_2", "onced"), shape(&migrated, "onced").await);
    by_hand.store.check_schema().await.unwrap();
    by_hand.store.migrate().await.unwrap();
    // There is no schema of the usual name here for a statement to fall back on.
    every_statement(&by_hand).await;
}

/// Has each statement of the backend run once, in the schema `ledger_2`.
async fn every_statement(bench: &Bench<PgStore>) {
    let (guard, mut store) = (&bench.guard, bench.store.clone());
    let keys: [Key; 4] = std::array::from_fn(|_| fresh_key());
    let [completed, failing, released, pending] = &keys;
    let shift = async |key: &Key, column: &str| {
        let set = format!("SET {column} = ledger_2.clock() - interval '1 second' WHERE key = '{}'", key.as_str());
        assert_eq!(bench.execute(&format!("UPDATE ledger_2.idempotency_keys {set}")).await, 1);
    };

    let mut permit = executes(guard.begin(&delivery(completed)).await.unwrap());
    let renew = OwnerMove::Renew { lease: Duration::from_secs(30) };
    assert!(store.owner_move(&scope(), completed, permit.lease_token(), None, &renew).await.unwrap().is_some());
    permit.external().await.unwrap();
    permit.complete(StoredResponse::bare(201)).await.unwrap();
    assert!(matches!(guard.begin(&delivery(completed)).await.unwrap(), Begun::Replay { .. }));
    shift(completed, "expires_at").await;
    assert_eq!(executes(guard.begin(&delivery(completed)).await.unwrap()).attempt(), 1, "replaced");

    executes(guard.begin(&delivery(failing)).await.unwrap()).fail("no", None).await.unwrap();
    assert_eq!(executes(guard.begin(&delivery(failing)).await.unwrap()).attempt(), 2, "taken");
    shift(failing, "lease_until").await;
    let mut last = delivery(failing);
    last.policy.max_attempts = Some(2);
    assert!(matches!(guard.begin(&last).await.unwrap(), Begun::Exhausted { .. }), "given up");

    executes(guard.begin(&delivery(released)).await.unwrap()).release().await.unwrap();
    let mut tx = bench.store.transaction().await.unwrap();
    drop(executes(guard.begin_tx(&mut tx, &delivery(released)).await.unwrap()));
    tx.commit().await.unwrap();

    let because = Because { who: "mara".to_owned(), reason: "asked".to_owned() };
    for resolution in
        [Resolution::DidNotHappen { settle: Duration::ZERO }, Resolution::Happened(StoredResponse::bare(201))]
    {
        let mut permit = executes(guard.begin(&delivery(pending)).await.unwrap());
        permit.external().await.unwrap();
        shift(pending, "lease_until").await;
        let token = Some(permit.lease_token());
        assert!(store.resolve(&scope(), pending, token, &resolution, &because).await.unwrap());
    }
    guard.close().await;
    assert_eq!(store.audit_of(&scope(), pending).await.unwrap().len(), 2);
    store.repeats(None).await.unwrap();
    store.settings().await.unwrap();
    store.database_time().await.unwrap();
    store.unfinished().await.unwrap();
    store.overdue().await.unwrap();
    store.growth().await.unwrap();
    store.due(Duration::ZERO).await.unwrap();
    store.sweep_keys(10).await.unwrap();
    store.sweep_deliveries(Duration::ZERO, 1).await.unwrap();
    assert_eq!(store.list(&Filter { limit: 10, ..Filter::default() }).await.unwrap().len(), 4);
    assert!(!store.deliveries_of(&scope(), completed, 10).await.unwrap().is_empty());
}

fn in_schema(schema: &str) -> StoreOptions {
    StoreOptions { schema: schema.to_owned(), ..patient() }
}

/// Columns, constraints, indexes and functions of a PostgreSQL schema, as text.
async fn shape(bench: &Bench<PgStore>, schema: &str) -> String {
    let queries = [
        format!(
            "SELECT table_name, column_name, data_type, collation_name, is_nullable, column_default, ordinal_position \
             FROM information_schema.columns WHERE table_schema = '{schema}' AND table_name <> 'migrations' ORDER BY 1, 7"
        ),
        format!(
            "SELECT t.relname, c.conname, pg_get_constraintdef(c.oid) \
             FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid \
             WHERE c.connamespace = '{schema}'::regnamespace AND t.relname <> 'migrations' ORDER BY 1, 2"
        ),
        format!(
            "SELECT indexname, indexdef FROM pg_indexes \
             WHERE schemaname = '{schema}' AND tablename <> 'migrations' ORDER BY 1"
        ),
        format!(
            "SELECT proname, pg_get_functiondef(oid) FROM pg_proc \
             WHERE pronamespace = '{schema}'::regnamespace ORDER BY 1"
        ),
        format!(
            "SELECT relname, reloptions, obj_description(oid) FROM pg_class \
             WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'r' AND relname <> 'migrations' ORDER BY 1"
        ),
    ];
    let mut text = String::new();
    for query in queries {
        let rows = bench.rows(&query).await;
        assert!(!rows.is_empty(), "{query}");
        text.push_str(&format!("{rows:#?}\n"));
    }
    text
}

/// How MariaDB would make each of the ledger's tables and views again, and the rows that are locked.
async fn mariadb_shape(sql: &Sql) -> Vec<Vec<String>> {
    let mut shape = sql.text("SELECT name FROM onced_locks ORDER BY name").await;
    for table in ["clock", "idempotency_keys", "deliveries", "audit", "locks"] {
        shape.extend(sql.text(&format!("SHOW CREATE TABLE onced_{table}")).await);
    }
    shape
}

/// MariaDB commits each statement that makes a table: what was cut off is made whole by the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_cut_off_is_made_whole() {
    let whole = Bench::<MySqlStore>::new().await;
    let database = Database::create(Backend::MariaDb).await;
    let (migrations, sql) = (MySqlStore::migrations(), database.sql());
    sql.execute(&migrations).await;
    sql.execute("UPDATE onced_migrations SET success = false; DROP TABLE onced_audit; DROP VIEW onced_clock").await;
    let store = MySqlStore::open(database.url(), &patient()).await.unwrap();
    let error = store.check_schema().await.unwrap_err();
    assert!(error.to_string().contains("onced migrate"), "{error}");
    store.migrate().await.unwrap();
    store.check_ready().await.unwrap();
    assert_eq!(mariadb_shape(sql).await, mariadb_shape(whole.sql()).await);
}

async fn tables<S: Tested>(bench: &Bench<S>) -> Vec<Vec<String>> {
    let sql = match S::BACKEND {
        Backend::Sqlite => "SELECT type, name, sql FROM sqlite_schema ORDER BY 1, 2",
        Backend::Postgres => "SELECT relname, relkind, relfilenode FROM pg_class WHERE relname !~ '^pg_' ORDER BY 1, 2",
        Backend::MariaDb => {
            "SELECT table_name, table_type, create_time FROM information_schema.tables \
              WHERE table_schema = DATABASE() ORDER BY 1"
        }
    };
    bench.rows(sql).await
}
