//! O-30, item 2, PostgreSQL and MariaDB: a statement fails for a reason that passes (40001 serialization failure, 40P01
//! deadlock, 55P03 lock not available; 1213 deadlock, 1020 changed since the snapshot, 1205 lock not got, which at the
//! claim says something else: a rival is at work), planted by a trigger on the ledger's table, at the claim or when the
//! outcome is stored.
//! Once: nobody notices. Always: 503 with `Retry-After`, no owner stays behind, and when the trouble is over the next
//! delivery is decided by what the record says.

use futures_util::future::join_all;
use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Answer, send};
use testkit::{Backend, Database, Sql, SqlText};

use super::{
    LONG_LEASE, assert_come_again, assert_replay_of, attempts, live_leases, order, records, short_lease,
    until_decided_without_owner,
};
use crate::fixture::{Gateway, route, sql};
use crate::same_database_app::{self, Work};

/// The backend and its code.
type Failure = (Backend, &'static str);

const POSTGRES: [Failure; 3] =
    [(Backend::Postgres, "40001"), (Backend::Postgres, "40P01"), (Backend::Postgres, "55P03")];
const MARIADB: [Failure; 3] = [(Backend::MariaDb, "1213"), (Backend::MariaDb, "1020"), (Backend::MariaDb, "1205")];
const MARIADB_CLAIM: [Failure; 2] = [MARIADB[0], MARIADB[1]];
const ANSWER: &str = r#"{"order":42}"#;
const ALWAYS: u32 = 1_000_000;

/// The statement that fails.
#[derive(Clone, Copy, Debug)]
enum At {
    Claim,
    Complete,
}

/// Makes the first `times` statements fail. The sequence counts on although the transactions are rolled back.
async fn plant(sql: &Sql, at: At, (backend, code): Failure, times: u32) {
    let text = match backend {
        Backend::MariaDb => planted_in_mariadb(at, code, times),
        Backend::Postgres | Backend::Sqlite => planted_in_postgres(at, code, times),
    };
    sql.execute(&text).await;
}

fn planted_in_mariadb(at: At, code: &str, times: u32) -> String {
    let (event, met) = match at {
        At::Claim => ("BEFORE INSERT", "true"),
        At::Complete => ("BEFORE UPDATE", "NEW.status = 'completed'"),
    };
    format!(
        "CREATE SEQUENCE planted NOCACHE;
         CREATE TRIGGER fail_for_a_while {event} ON onced_idempotency_keys FOR EACH ROW BEGIN
             IF {met} THEN
                 IF NEXTVAL(planted) <= {times} THEN
                     SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT = 'planted', MYSQL_ERRNO = {code};
                 END IF;
             END IF;
         END"
    )
}

fn planted_in_postgres(at: At, code: &str, times: u32) -> String {
    let event = match at {
        At::Claim => "BEFORE INSERT ON onced.idempotency_keys FOR EACH ROW",
        At::Complete => "BEFORE UPDATE ON onced.idempotency_keys FOR EACH ROW WHEN (NEW.status = 'completed')",
    };
    format!(
        "CREATE SEQUENCE planted;
         CREATE FUNCTION public.fail_for_a_while() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF nextval('public.planted') <= {times} THEN
                 RAISE EXCEPTION 'planted' USING ERRCODE = '{code}';
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER fail_for_a_while {event} EXECUTE FUNCTION public.fail_for_a_while()"
    )
}

async fn pull_out(sql: &Sql) {
    let postgres = "DROP TRIGGER fail_for_a_while ON onced.idempotency_keys";
    let others = "DROP TRIGGER fail_for_a_while";
    sql.execute(SqlText::each(others, postgres, others)).await;
}

/// How often the statement was tried.
async fn tries(sql: &Sql) -> i64 {
    let postgres = "SELECT last_value FROM planted";
    let mariadb = "SELECT next_not_cached_value - 1 FROM planted";
    sql.count(SqlText::each(mariadb, postgres, mariadb)).await
}

/// What stands behind the gateway.
async fn provider(effect: &str) -> Recorder {
    let options = RecorderOptions::default().script([Rule::always(Reply::ok().body(ANSWER))]);
    let options = if effect == "idempotent" { options.deduplicate() } else { options };
    Recorder::start(options).await.expect("a free port")
}

fn assert_first(answer: &Answer) {
    let is_replay = answer.header("idempotent-replayed");
    assert_eq!((answer.status, is_replay, answer.text().as_str()), (200, None, ANSWER), "{answer:?}");
}

async fn claim_fails(failure: Failure, times: u32) {
    let (backend, code) = failure;
    let database = Database::create(backend).await;
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER)).await;
    let gateway =
        Gateway::start(&database, &route("api.order", "/api/order", &app.url(), "same-database", LONG_LEASE)).await;
    plant(database.sql(), At::Claim, failure, times).await;

    if times == ALWAYS {
        assert_come_again(&send(gateway.address, &order("o30-2")).await, 503, "store-unavailable");
        assert!(tries(database.sql()).await > 1, "{code} was tried again");
        assert_eq!((app.count(), records(&database).await), (0, 0), "{code}");
        pull_out(database.sql()).await;
    }
    assert_first(&send(gateway.address, &order("o30-2")).await);
    if times != ALWAYS {
        assert_eq!(tries(database.sql()).await, i64::from(times) + 1, "{code} was raised");
    }
    assert_replay_of(&send(gateway.address, &order("o30-2")).await, 200, ANSWER);
    assert_eq!((app.count(), same_database_app::orders(&database).await), (1, 1), "{code}");
}

async fn completing_fails_once(failure: Failure, effect: &str) {
    let (backend, code) = failure;
    let database = Database::create(backend).await;
    let provider = provider(effect).await;
    let gateway =
        Gateway::start(&database, &route("api.order", "/api/order", &provider.url(), effect, LONG_LEASE)).await;
    plant(database.sql(), At::Complete, failure, 1).await;

    assert_first(&send(gateway.address, &order("o30-2")).await);
    assert_eq!(tries(database.sql()).await, 2, "{code} was raised");
    assert_replay_of(&send(gateway.address, &order("o30-2")).await, 200, ANSWER);
    assert_eq!((provider.count(), provider.effects(), attempts(&database).await), (1, 1, 1), "{code}, {effect}");
}

async fn completing_always_fails(failure: Failure, effect: &str) {
    let (backend, code) = failure;
    let database = Database::create(backend).await;
    let provider = provider(effect).await;
    let routes = route("api.order", "/api/order", &provider.url(), effect, &short_lease());
    let gateway = Gateway::start(&database, &routes).await;
    plant(database.sql(), At::Complete, failure, ALWAYS).await;

    let answer = send(gateway.address, &order("o30-2")).await;
    assert_come_again(&answer, 503, "store-unavailable");
    assert!(!answer.text().contains("42"), "the upstream's answer is withheld: {answer:?}");
    assert!(tries(database.sql()).await > 1, "{code} was tried again");
    assert_eq!((provider.count(), provider.effects()), (1, 1), "{code}, {effect}");
    assert_eq!(sql::keys_at(database.sql(), backend, "pending_external").await, 1, "{code}, {effect}");

    pull_out(database.sql()).await;
    let later = until_decided_without_owner(gateway.address, &database, &order("o30-2")).await;
    assert_eq!(provider.effects(), 1, "{code}, {effect}");
    if effect == "idempotent" {
        // Sent again under the same key; the provider knows it.
        assert_first(&later);
        let keys: Vec<_> = provider.calls().into_iter().map(|call| call.key).collect();
        assert!(keys.len() == 2 && keys[0] == keys[1] && keys[0].is_some(), "{keys:?}");
        assert_replay_of(&send(gateway.address, &order("o30-2")).await, 200, ANSWER);
    } else {
        // It may have taken effect: held for a person.
        assert_come_again(&later, 409, "outcome-unknown");
        assert_eq!(provider.count(), 1, "{code}");
    }
}

/// The application's own transaction cannot complete the record: its order is rolled back with it.
async fn the_application_cannot_complete(backend: Backend) {
    let database = Database::create(backend).await;
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER)).await;
    let gateway =
        Gateway::start(&database, &route("api.order", "/api/order", &app.url(), "same-database", LONG_LEASE)).await;
    let planted = match backend {
        Backend::Sqlite => {
            let sqlite = "CREATE TRIGGER planted BEFORE UPDATE ON onced_idempotency_keys WHEN NEW.status = 'completed'
                          BEGIN SELECT RAISE(FAIL, 'planted'); END";
            database.sql().execute(sqlite).await;
            SqlText::from("DROP TRIGGER planted")
        }
        Backend::Postgres => {
            plant(database.sql(), At::Complete, POSTGRES[0], ALWAYS).await;
            SqlText::from("DROP TRIGGER fail_for_a_while ON onced.idempotency_keys")
        }
        Backend::MariaDb => {
            plant(database.sql(), At::Complete, MARIADB[0], ALWAYS).await;
            SqlText::from("DROP TRIGGER fail_for_a_while")
        }
    };

    let answer = send(gateway.address, &order("o30-2")).await;
    assert_eq!((answer.status, answer.header("idempotent-replayed")), (500, None), "{answer:?}");
    assert_eq!((app.count(), same_database_app::orders(&database).await), (1, 0));
    assert_eq!((sql::keys_at(database.sql(), backend, "failed").await, live_leases(&database).await), (1, 0));

    database.sql().execute(planted).await;
    assert_first(&send(gateway.address, &order("o30-2")).await);
    assert_replay_of(&send(gateway.address, &order("o30-2")).await, 200, ANSWER);
    assert_eq!((app.count(), same_database_app::orders(&database).await, attempts(&database).await), (2, 1, 2));
}

#[tokio::test]
async fn o_30_2_the_claim_fails_once_postgres() {
    for failure in POSTGRES {
        claim_fails(failure, 1).await;
    }
}

#[tokio::test]
async fn o_30_2_the_claim_always_fails_postgres() {
    for failure in POSTGRES {
        claim_fails(failure, ALWAYS).await;
    }
}

#[tokio::test]
async fn o_30_2_completing_fails_once_postgres() {
    for failure in POSTGRES {
        completing_fails_once(failure, "external").await;
        completing_fails_once(failure, "idempotent").await;
    }
}

#[tokio::test]
async fn o_30_2_completing_always_fails_outside_effect_postgres() {
    join_all(POSTGRES.map(|failure| completing_always_fails(failure, "external"))).await;
}

#[tokio::test]
async fn o_30_2_completing_always_fails_idempotent_upstream_postgres() {
    join_all(POSTGRES.map(|failure| completing_always_fails(failure, "idempotent"))).await;
}

#[tokio::test]
async fn o_30_2_the_claim_fails_once_mariadb() {
    for failure in MARIADB_CLAIM {
        claim_fails(failure, 1).await;
    }
}

#[tokio::test]
async fn o_30_2_the_claim_always_fails_mariadb() {
    for failure in MARIADB_CLAIM {
        claim_fails(failure, ALWAYS).await;
    }
}

#[tokio::test]
async fn o_30_2_completing_fails_once_mariadb() {
    for failure in MARIADB {
        completing_fails_once(failure, "external").await;
        completing_fails_once(failure, "idempotent").await;
    }
}

#[tokio::test]
async fn o_30_2_completing_always_fails_outside_effect_mariadb() {
    join_all(MARIADB.map(|failure| completing_always_fails(failure, "external"))).await;
}

#[tokio::test]
async fn o_30_2_completing_always_fails_idempotent_upstream_mariadb() {
    join_all(MARIADB.map(|failure| completing_always_fails(failure, "idempotent"))).await;
}

#[tokio::test]
async fn o_30_2_the_application_cannot_complete_sqlite() {
    the_application_cannot_complete(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_30_2_the_application_cannot_complete_postgres() {
    the_application_cannot_complete(Backend::Postgres).await;
}

#[tokio::test]
async fn o_30_2_the_application_cannot_complete_mariadb() {
    the_application_cannot_complete(Backend::MariaDb).await;
}
