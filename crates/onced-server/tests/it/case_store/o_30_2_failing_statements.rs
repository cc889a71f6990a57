//! O-30, item 2, PostgreSQL: a statement fails for a reason that passes (40001 serialization failure, 40P01 deadlock,
//! 55P03 lock not available), planted by a trigger on the ledger's table, at the claim or when the outcome is stored.
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

const CODES: [&str; 3] = ["40001", "40P01", "55P03"];
const ANSWER: &str = r#"{"order":42}"#;
const ALWAYS: u32 = 1_000_000;

/// The statement that fails.
#[derive(Clone, Copy, Debug)]
enum At {
    Claim,
    Complete,
}

/// Makes the first `times` statements fail. The sequence counts on although the transactions are rolled back.
async fn plant(sql: &Sql, at: At, code: &str, times: u32) {
    let event = match at {
        At::Claim => "BEFORE INSERT ON onced.idempotency_keys FOR EACH ROW",
        At::Complete => "BEFORE UPDATE ON onced.idempotency_keys FOR EACH ROW WHEN (NEW.status = 'completed')",
    };
    let text = format!(
        "CREATE SEQUENCE planted;
         CREATE FUNCTION public.fail_for_a_while() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF nextval('public.planted') <= {times} THEN
                 RAISE EXCEPTION 'planted' USING ERRCODE = '{code}';
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER planted {event} EXECUTE FUNCTION public.fail_for_a_while()"
    );
    sql.execute(&text).await;
}

async fn pull_out(sql: &Sql) {
    sql.execute("DROP TRIGGER planted ON onced.idempotency_keys").await;
}

/// How often the statement was tried.
async fn tries(sql: &Sql) -> i64 {
    sql.count("SELECT last_value FROM planted").await
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

async fn claim_fails(code: &str, times: u32) {
    let database = Database::create(Backend::Postgres).await;
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER)).await;
    let gateway =
        Gateway::start(&database, &route("api.order", "/api/order", &app.url(), "same-database", LONG_LEASE)).await;
    plant(database.sql(), At::Claim, code, times).await;

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

async fn completing_fails_once(code: &str, effect: &str) {
    let database = Database::create(Backend::Postgres).await;
    let provider = provider(effect).await;
    let gateway =
        Gateway::start(&database, &route("api.order", "/api/order", &provider.url(), effect, LONG_LEASE)).await;
    plant(database.sql(), At::Complete, code, 1).await;

    assert_first(&send(gateway.address, &order("o30-2")).await);
    assert_eq!(tries(database.sql()).await, 2, "{code} was raised");
    assert_replay_of(&send(gateway.address, &order("o30-2")).await, 200, ANSWER);
    assert_eq!((provider.count(), provider.effects(), attempts(&database).await), (1, 1, 1), "{code}, {effect}");
}

async fn completing_always_fails(code: &str, effect: &str) {
    let database = Database::create(Backend::Postgres).await;
    let provider = provider(effect).await;
    let routes = route("api.order", "/api/order", &provider.url(), effect, &short_lease());
    let gateway = Gateway::start(&database, &routes).await;
    plant(database.sql(), At::Complete, code, ALWAYS).await;

    let answer = send(gateway.address, &order("o30-2")).await;
    assert_come_again(&answer, 503, "store-unavailable");
    assert!(!answer.text().contains("42"), "the upstream's answer is withheld: {answer:?}");
    assert!(tries(database.sql()).await > 1, "{code} was tried again");
    assert_eq!((provider.count(), provider.effects()), (1, 1), "{code}, {effect}");
    assert_eq!(sql::keys_at(database.sql(), Backend::Postgres, "pending_external").await, 1, "{code}, {effect}");

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
            plant(database.sql(), At::Complete, "40001", ALWAYS).await;
            SqlText::from("DROP TRIGGER planted ON onced.idempotency_keys")
        }
        Backend::MariaDb => {
            let mariadb = "CREATE TRIGGER planted BEFORE UPDATE ON onced_idempotency_keys FOR EACH ROW
                           BEGIN IF NEW.status = 'completed' THEN
                               SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'planted';
                           END IF; END";
            database.sql().execute(mariadb).await;
            SqlText::from("DROP TRIGGER planted")
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
    for code in CODES {
        claim_fails(code, 1).await;
    }
}

#[tokio::test]
async fn o_30_2_the_claim_always_fails_postgres() {
    for code in CODES {
        claim_fails(code, ALWAYS).await;
    }
}

#[tokio::test]
async fn o_30_2_completing_fails_once_postgres() {
    for code in CODES {
        completing_fails_once(code, "external").await;
        completing_fails_once(code, "idempotent").await;
    }
}

#[tokio::test]
async fn o_30_2_completing_always_fails_outside_effect_postgres() {
    join_all(CODES.map(|code| completing_always_fails(code, "external"))).await;
}

#[tokio::test]
async fn o_30_2_completing_always_fails_idempotent_upstream_postgres() {
    join_all(CODES.map(|code| completing_always_fails(code, "idempotent"))).await;
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
