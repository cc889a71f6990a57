//! O-30, item 6: the ledger cannot be reached for a while. On PostgreSQL every connection of the gateway is cut; on
//! SQLite, and on PostgreSQL once more, its table is not there.
//!
//! At the claim: 503, nothing is forwarded. When the outcome is to be stored: the upstream's answer is withheld, and
//! afterwards the record tells the truth: what the application committed in the same database is replayed, what may
//! have happened outside is held.

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::send;
use testkit::{Backend, Database};

use super::wire::Wire;
use super::{
    LONG_LEASE, WiredGateway, assert_come_again, assert_replay_of, attempts, order, records, short_lease,
    until_decided_without_owner,
};
use crate::fixture::{Gateway, LIMIT, route, sql};
use crate::same_database_app::{self, Work};

/// How the ledger is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// Its table has another name.
    Table(Backend),
    /// All connections to the database server are cut.
    Wire(Backend),
}

/// A gateway whose ledger can be taken away and given back.
enum Tested {
    Table(Gateway),
    Wire(WiredGateway),
}

impl Outage {
    fn backend(self) -> Backend {
        match self {
            Self::Table(backend) | Self::Wire(backend) => backend,
        }
    }

    async fn start(self, database: &Database, routes: &str) -> Tested {
        match self {
            Self::Table(_) => Tested::Table(Gateway::start(database, routes).await),
            Self::Wire(_) => Tested::Wire(WiredGateway::start(database, routes).await),
        }
    }
}

impl Tested {
    fn address(&self) -> std::net::SocketAddr {
        match self {
            Self::Table(gateway) => gateway.address,
            Self::Wire(gateway) => gateway.address,
        }
    }

    async fn take_away(&self, database: &Database) {
        match self {
            Self::Table(_) => {
                let rename = format!("ALTER TABLE {} RENAME TO away", sql::table(database.backend()));
                database.sql().execute(&rename).await;
            }
            Self::Wire(gateway) => gateway.wire.cut(),
        }
    }

    async fn give_back(&self, database: &Database) {
        match self {
            Self::Table(_) => {
                let sqlite = "ALTER TABLE away RENAME TO onced_idempotency_keys";
                let postgres = "ALTER TABLE onced.away RENAME TO idempotency_keys";
                database.sql().execute(testkit::SqlText::each(sqlite, postgres, sqlite)).await;
            }
            Self::Wire(gateway) => gateway.wire.mend(),
        }
    }
}

const ANSWER: &str = r#"{"order":42}"#;

async fn gone_at_the_claim(outage: Outage) {
    let database = Database::create(outage.backend()).await;
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER)).await;
    let gateway =
        outage.start(&database, &route("api.order", "/api/order", &app.url(), "same-database", LONG_LEASE)).await;

    gateway.take_away(&database).await;
    for _ in 0..2 {
        assert_come_again(&send(gateway.address(), &order("o30-6")).await, 503, "store-unavailable");
    }
    gateway.give_back(&database).await;
    assert_eq!((app.count(), records(&database).await), (0, 0));

    let answer = send(gateway.address(), &order("o30-6")).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, ANSWER));
    assert_replay_of(&send(gateway.address(), &order("o30-6")).await, 200, ANSWER);
    assert_eq!((app.count(), same_database_app::orders(&database).await), (1, 1));
}

/// Delivers one request; the ledger is gone between the effect and the moment at which the gateway gets the upstream's
/// answer. Gives the answer that the client got, with the ledger back again.
async fn deliver_while_it_goes(outage: Outage, database: &Database, upstream: &Recorder, effect: &str) -> Tested {
    let wire = Wire::start(upstream.addr()).await;
    let url = format!("http://{}", wire.address);
    let gateway = outage.start(database, &route("api.order", "/api/order", &url, effect, &short_lease())).await;

    wire.hold_answers();
    let (address, request) = (gateway.address(), order("o30-6"));
    let sent = tokio::spawn(async move { send(address, &request).await });
    upstream.wait_until(|log| log.effects() == 1, LIMIT).await.expect("it takes effect");
    gateway.take_away(database).await;
    wire.mend();
    let answer = sent.await.expect("an answer");
    assert_come_again(&answer, 503, "store-unavailable");
    assert!(!answer.text().contains("42"), "the upstream's answer is withheld: {answer:?}");
    gateway.give_back(database).await;
    gateway
}

async fn gone_after_the_application_committed(outage: Outage) {
    let database = Database::create(outage.backend()).await;
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER)).await;
    let gateway = deliver_while_it_goes(outage, &database, &app, "same-database").await;

    // Nothing is half committed: the order and the outcome are both there.
    assert_eq!(sql::keys_at(database.sql(), database.backend(), "completed").await, 1);
    assert_eq!((app.count(), same_database_app::orders(&database).await), (1, 1));
    assert_replay_of(&send(gateway.address(), &order("o30-6")).await, 200, ANSWER);
    assert_eq!((app.count(), same_database_app::orders(&database).await), (1, 1));
}

async fn gone_after_an_outside_effect(outage: Outage) {
    let database = Database::create(outage.backend()).await;
    let script = [Rule::always(Reply::ok().body(ANSWER))];
    let provider = Recorder::start(RecorderOptions::default().script(script)).await.expect("a free port");
    let gateway = deliver_while_it_goes(outage, &database, &provider, "external").await;

    assert_eq!(sql::keys_at(database.sql(), database.backend(), "pending_external").await, 1);
    // Nobody guesses: once the lease is over the outcome is unknown, and nothing is sent again.
    let later = until_decided_without_owner(gateway.address(), &database, &order("o30-6")).await;
    assert_come_again(&later, 409, "outcome-unknown");
    assert_eq!((provider.count(), provider.effects(), attempts(&database).await), (1, 1, 1));
    assert_eq!(sql::keys_at(database.sql(), database.backend(), "pending_external").await, 1);
}

#[tokio::test]
async fn o_30_6_ledger_gone_at_the_claim_sqlite() {
    gone_at_the_claim(Outage::Table(Backend::Sqlite)).await;
}

#[tokio::test]
async fn o_30_6_ledger_gone_at_the_claim_postgres() {
    gone_at_the_claim(Outage::Wire(Backend::Postgres)).await;
}

#[tokio::test]
async fn o_30_6_ledger_gone_at_the_claim_mariadb() {
    gone_at_the_claim(Outage::Wire(Backend::MariaDb)).await;
}

#[tokio::test]
async fn o_30_6_table_gone_at_the_claim_postgres() {
    gone_at_the_claim(Outage::Table(Backend::Postgres)).await;
}

#[tokio::test]
async fn o_30_6_table_gone_at_the_claim_mariadb() {
    gone_at_the_claim(Outage::Table(Backend::MariaDb)).await;
}

#[tokio::test]
async fn o_30_6_ledger_gone_after_the_application_committed_sqlite() {
    gone_after_the_application_committed(Outage::Table(Backend::Sqlite)).await;
}

#[tokio::test]
async fn o_30_6_ledger_gone_after_the_application_committed_postgres() {
    gone_after_the_application_committed(Outage::Wire(Backend::Postgres)).await;
}

#[tokio::test]
async fn o_30_6_ledger_gone_after_the_application_committed_mariadb() {
    gone_after_the_application_committed(Outage::Wire(Backend::MariaDb)).await;
}

#[tokio::test]
async fn o_30_6_table_gone_after_the_application_committed_postgres() {
    gone_after_the_application_committed(Outage::Table(Backend::Postgres)).await;
}

#[tokio::test]
async fn o_30_6_table_gone_after_the_application_committed_mariadb() {
    gone_after_the_application_committed(Outage::Table(Backend::MariaDb)).await;
}

#[tokio::test]
async fn o_30_6_ledger_gone_after_an_outside_effect_sqlite() {
    gone_after_an_outside_effect(Outage::Table(Backend::Sqlite)).await;
}

#[tokio::test]
async fn o_30_6_ledger_gone_after_an_outside_effect_postgres() {
    gone_after_an_outside_effect(Outage::Wire(Backend::Postgres)).await;
}

#[tokio::test]
async fn o_30_6_ledger_gone_after_an_outside_effect_mariadb() {
    gone_after_an_outside_effect(Outage::Wire(Backend::MariaDb)).await;
}

#[tokio::test]
async fn o_30_6_table_gone_after_an_outside_effect_postgres() {
    gone_after_an_outside_effect(Outage::Table(Backend::Postgres)).await;
}

#[tokio::test]
async fn o_30_6_table_gone_after_an_outside_effect_mariadb() {
    gone_after_an_outside_effect(Outage::Table(Backend::MariaDb)).await;
}
