//! O-30, item 2, SQLite: its one transient failure is the write lock, which another connection holds here. Within the
//! bound of the wait nobody notices. Beyond it, a claim is answered as where a rival is at work, 409 `in-progress`, and
//! nothing runs; an outcome that cannot be stored is withheld with 503. Afterwards no owner stays behind, and the next
//! delivery is decided by what the record says.

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Executor};
use testkit::http_client::{Answer, send};
use testkit::{Backend, Database};
use tokio::task::JoinHandle;

use super::wire::Wire;
use super::{
    LONG_LEASE, assert_come_again, assert_replay_of, attempts, live_leases, order, records, short_lease, until_decided,
    until_decided_without_owner,
};
use crate::fixture::{Gateway, LIMIT, route, secs, sql};
use crate::same_database_app::{self, Work};

const ANSWER: &str = r#"{"order":42}"#;
/// The bound of the wait, where a test goes beyond it.
const SHORT_WAIT: &str = "busy_timeout = \"1s\"\n";

/// Another writer of the file, in the middle of its transaction.
struct Lock(SqliteConnection);

impl Lock {
    async fn take(database: &Database) -> Self {
        let file: SqliteConnectOptions = database.url().parse().expect("the URL of a file");
        let mut conn = file.busy_timeout(LIMIT).connect().await.expect("the file can be opened");
        conn.execute("BEGIN IMMEDIATE").await.expect("the write lock becomes free");
        Self(conn)
    }

    async fn release(mut self) {
        self.0.execute("ROLLBACK").await.expect("rolled back");
    }
}

fn assert_first(answer: &Answer) {
    let is_replay = answer.header("idempotent-replayed");
    assert_eq!((answer.status, is_replay, answer.text().as_str()), (200, None, ANSWER), "{answer:?}");
}

fn deliver(gateway: &Gateway) -> JoinHandle<Answer> {
    let address = gateway.address;
    tokio::spawn(async move { send(address, &order("o30-2")).await })
}

#[tokio::test]
async fn o_30_2_a_claim_waits_for_the_lock_sqlite() {
    let database = Database::create(Backend::Sqlite).await;
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER)).await;
    let routes = route("api.order", "/api/order", &app.url(), "same-database", LONG_LEASE);
    let gateway = Gateway::start_with(&database, "", "busy_timeout = \"60s\"\n", &routes).await;

    let lock = Lock::take(&database).await;
    let sent = deliver(&gateway);
    gateway.process.wait_for_line(|line| line.contains("\"phase\":\"received\""), LIMIT).await;
    // That long the other writer takes, well within the bound; nothing says when the gateway begins to wait.
    tokio::time::sleep(secs(5.0)).await;
    assert_eq!(app.count(), 0);
    lock.release().await;
    assert_first(&sent.await.expect("an answer"));
    assert_replay_of(&send(gateway.address, &order("o30-2")).await, 200, ANSWER);
    assert_eq!((app.count(), same_database_app::orders(&database).await), (1, 1));
}

#[tokio::test]
async fn o_30_2_a_claim_does_not_get_the_lock_sqlite() {
    let database = Database::create(Backend::Sqlite).await;
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER)).await;
    let routes = route("api.order", "/api/order", &app.url(), "same-database", LONG_LEASE);
    let gateway = Gateway::start_with(&database, "", SHORT_WAIT, &routes).await;

    let lock = Lock::take(&database).await;
    for _ in 0..3 {
        assert_come_again(&send(gateway.address, &order("o30-2")).await, 409, "in-progress");
    }
    assert_eq!((app.count(), records(&database).await), (0, 0));
    lock.release().await;

    assert_first(&until_decided(gateway.address, &order("o30-2")).await);
    assert_replay_of(&send(gateway.address, &order("o30-2")).await, 200, ANSWER);
    assert_eq!((app.count(), same_database_app::orders(&database).await), (1, 1));
    assert_eq!((records(&database).await, live_leases(&database).await), (1, 0));
}

/// A request that has taken effect, its answer still on the way to a gateway that will find the write lock held.
struct Completing {
    database: Database,
    provider: Recorder,
    gateway: Gateway,
    lock: Lock,
    sent: JoinHandle<Answer>,
}

impl Completing {
    async fn start(effect: &str, lease: &str) -> Self {
        let database = Database::create(Backend::Sqlite).await;
        let options = RecorderOptions::default().script([Rule::always(Reply::ok().body(ANSWER))]);
        let options = if effect == "idempotent" { options.deduplicate() } else { options };
        let provider = Recorder::start(options).await.expect("a free port");
        let wire = Wire::start(provider.addr()).await;
        let routes = route("api.order", "/api/order", &format!("http://{}", wire.address), effect, lease);
        let gateway = Gateway::start_with(&database, "", SHORT_WAIT, &routes).await;

        wire.hold_answers();
        let sent = deliver(&gateway);
        provider.wait_until(|log| log.effects() == 1, LIMIT).await.expect("it takes effect");
        let lock = Lock::take(&database).await;
        wire.mend();
        Self { database, provider, gateway, lock, sent }
    }
}

async fn completing_misses_the_lock_once(effect: &str) {
    let Completing { database, provider, gateway, lock, sent } = Completing::start(effect, LONG_LEASE).await;
    // Only an ending is tried again here: the claim was made before the lock was taken.
    gateway.process.wait_for_line(|line| line.contains("the transaction is run again"), LIMIT).await;
    lock.release().await;

    assert_first(&sent.await.expect("an answer"));
    assert_replay_of(&send(gateway.address, &order("o30-2")).await, 200, ANSWER);
    assert_eq!((provider.count(), provider.effects(), attempts(&database).await), (1, 1, 1), "{effect}");
    assert_eq!(live_leases(&database).await, 0);
}

async fn completing_never_gets_the_lock(effect: &str) {
    let Completing { database, provider, gateway, lock, sent } = Completing::start(effect, &short_lease()).await;
    let answer = sent.await.expect("an answer");
    assert_come_again(&answer, 503, "store-unavailable");
    assert!(!answer.text().contains("42"), "the upstream's answer is withheld: {answer:?}");
    assert_eq!(sql::keys_at(database.sql(), Backend::Sqlite, "pending_external").await, 1);
    lock.release().await;

    let later = until_decided_without_owner(gateway.address, &database, &order("o30-2")).await;
    assert_eq!(provider.effects(), 1, "{effect}");
    if effect == "idempotent" {
        // Sent again under the same key; the provider knows it.
        assert_first(&later);
        assert_eq!((provider.count(), attempts(&database).await), (2, 2));
        assert_replay_of(&send(gateway.address, &order("o30-2")).await, 200, ANSWER);
    } else {
        // It may have taken effect: held for a person.
        assert_come_again(&later, 409, "outcome-unknown");
        assert_eq!((provider.count(), attempts(&database).await), (1, 1));
    }
}

#[tokio::test]
async fn o_30_2_completing_misses_the_lock_once_sqlite() {
    completing_misses_the_lock_once("external").await;
    completing_misses_the_lock_once("idempotent").await;
}

#[tokio::test]
async fn o_30_2_completing_never_gets_the_lock_outside_effect_sqlite() {
    completing_never_gets_the_lock("external").await;
}

#[tokio::test]
async fn o_30_2_completing_never_gets_the_lock_idempotent_upstream_sqlite() {
    completing_never_gets_the_lock("idempotent").await;
}
