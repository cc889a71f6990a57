//! The two courses of an illness: at the claim, and between the claim and the outcome.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use onced_harness::{Call, Moment, Recorder, RecorderOptions, Reply};
use testkit::http_client::{Answer, Request, send};
use testkit::{Backend, Database};

use super::Illness;
use crate::case_crash::{key_of, outside_app, post, runs};
use crate::case_store::{LONG_LEASE, assert_come_again, assert_replay_of, problem, records};
use crate::fixture::{Gateway, LIMIT, route, sql};
use crate::same_database_app::{create_orders, orders, orders_of};

/// How long statements wait for a lock or a connection: short, so that the tests are.
const STORE: &str = "busy_timeout = \"1s\"\n";

fn order(key: &str) -> Request {
    post("/order", key, r#"{"sku":"A","qty":1}"#)
}

/// A sick ledger, its gateway, and an upstream that keeps its own books elsewhere.
struct Patient<I> {
    illness: I,
    ledger: Database,
    books: Database,
    upstream: Recorder,
    gateway: Gateway,
}

impl<I: Illness> Patient<I> {
    async fn admit(effect: &str, upstream: impl AsyncFnOnce(&Database) -> Recorder) -> Self {
        let books = Database::create(Backend::Sqlite).await;
        let upstream = upstream(&books).await;
        let (mut illness, ledger) = I::admit().await;
        let routes = route("api.order", "/order", &upstream.url(), effect, I::LEASE);
        let gateway = Gateway::start_on(&illness.url(&ledger), "", STORE, &routes, &[]).await;
        illness.prepare(&ledger).await;
        Self { illness, ledger, books, upstream, gateway }
    }

    async fn deliver(&self, key: &str) -> Answer {
        send(self.gateway.address, &order(key)).await
    }

    async fn readiness(&self) -> u16 {
        send(self.gateway.address, &Request::new("GET", "/_onced/readyz")).await.status
    }

    async fn strike(&mut self) {
        self.illness.strike(&self.ledger).await;
        assert_eq!(self.readiness().await, 503, "a sick ledger is not ready");
    }

    async fn heal(&mut self) {
        self.illness.heal(&self.ledger).await;
        let started = Instant::now();
        while self.readiness().await != 200 {
            let log = || self.gateway.process.stderr().all().join("\n");
            assert!(started.elapsed() < LIMIT, "it does not become ready again:\n{}", log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn keys_at(&self, status: &str) -> i64 {
        sql::keys_at(self.ledger.sql(), self.ledger.backend(), status).await
    }

    async fn let_leases_run_out(&self) {
        sql::let_leases_run_out(self.ledger.sql(), self.ledger.backend()).await;
    }

    /// Effects by the upstream's books, runs by its log.
    async fn effects_and_runs(&self, key: &str) -> (i64, usize) {
        (orders_of(&self.books, key).await, runs(&self.upstream, key))
    }
}

/// Sick before the claim: nothing is forwarded, and afterwards the same key works, once.
pub(super) async fn at_the_claim<I: Illness>() {
    // Under `idempotent` a claim of which nobody was told can be taken over; nothing is ever sent for it here.
    let mut patient = Patient::<I>::admit("idempotent", async |books| outside_app(books).await).await;
    let first = patient.deliver("before").await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (200, None), "{first:?}");

    patient.strike().await;
    let keys = ["new", "second", "third", "fourth"];
    let (answers, known) = tokio::join!(join_all(keys.map(|key| patient.deliver(key))), patient.deliver("before"));
    for answer in answers {
        let (status, code) = I::AT_THE_CLAIM;
        assert_come_again(&answer, status, code);
    }
    // What is known may be told; it may not be done again.
    if known.status == 200 {
        assert_replay_of(&known, 200, &first.text());
    } else {
        assert_come_again(&known, 503, "store-unavailable");
    }
    assert_eq!((orders(&patient.books).await, patient.upstream.count()), (1, 1), "forwarded without a claim");
    patient.heal().await;

    if I::LOSES_ANSWERS {
        patient.let_leases_run_out().await;
    } else {
        assert_eq!(records(&patient.ledger).await, 1, "a record without a claim");
    }
    let done = patient.deliver("new").await;
    assert_eq!((done.status, done.header("idempotent-replayed")), (200, None), "{done:?}");
    assert_replay_of(&patient.deliver("new").await, 200, &done.text());
    assert_replay_of(&patient.deliver("before").await, 200, &first.text());
    assert_eq!(patient.effects_and_runs("new").await, (1, 1));
    assert_eq!(patient.effects_and_runs("before").await, (1, 1));
    assert_eq!((orders(&patient.books).await, patient.upstream.count()), (2, 2));
    assert_eq!(patient.keys_at("completed").await, 2);
}

/// An upstream that has taken effect, and whose answer waits until it is let go. The answer is large and cannot be
/// packed, so that storing it takes room.
async fn provider(books: &Database, deduplicates: bool) -> Recorder {
    create_orders(books).await;
    let sql = books.sql().clone();
    let options = RecorderOptions::default().effect_fn(move |call: Call| {
        let sql = sql.clone();
        async move {
            let insert =
                format!("INSERT INTO orders (key, attempt, body) VALUES ('{}', {}, '')", key_of(&call), call.run);
            sql.execute(&insert).await;
            Some(Reply::ok().json(answer()).hold(Moment::BeforeAnswer))
        }
    });
    let options = if deduplicates { options.deduplicate() } else { options };
    Recorder::start(options).await.expect("the upstream can listen")
}

fn answer() -> String {
    use std::hash::{BuildHasher, RandomState};
    let chance = RandomState::new();
    let noise: String = (0..4000_u32).map(|number| format!("{:016x}", chance.hash_one(number))).collect();
    format!(r#"{{"order":42,"noise":"{noise}"}}"#)
}

/// As [`before_the_outcome_is_stored`], under both effects that a provider can have. Much of it waits, so they are waited
/// for side by side.
pub(super) async fn before_each_outcome_is_stored<I: Illness>() {
    tokio::join!(before_the_outcome_is_stored::<I>("external"), before_the_outcome_is_stored::<I>("idempotent"));
}

/// Sick after the claim and before the outcome is stored: the answer is withheld, and nobody guesses.
async fn before_the_outcome_is_stored<I: Illness>(effect: &str) {
    let deduplicates = effect == "idempotent";
    let mut patient = Patient::<I>::admit(effect, async |books| provider(books, deduplicates).await).await;
    let (address, request) = (patient.gateway.address, order("k"));
    let sent = tokio::spawn(async move { send(address, &request).await });
    patient.upstream.wait_for_held(1, LIMIT).await.expect("it takes effect");
    assert_eq!(patient.effects_and_runs("k").await, (1, 1));

    patient.strike().await;
    patient.upstream.release();
    let (withheld, meanwhile) = tokio::join!(sent, patient.deliver("k"));
    let withheld = withheld.expect("an answer");
    assert_come_again(&withheld, 503, "store-unavailable");
    assert!(!withheld.text().contains("noise"), "the upstream's answer is withheld: {withheld:?}");
    assert!(matches!(meanwhile.status, 503 | 409), "{meanwhile:?}");
    assert_eq!(patient.effects_and_runs("k").await, (1, 1));
    patient.heal().await;

    if I::LOSES_ANSWERS && patient.keys_at("completed").await == 1 {
        // The outcome had got through, and only the word of it was lost.
        let replay = patient.deliver("k").await;
        assert_eq!((replay.status, replay.header("idempotent-replayed")), (200, Some("true")), "{replay:?}");
        assert_eq!(patient.effects_and_runs("k").await, (1, 1));
        return;
    }
    assert_eq!((patient.keys_at("pending_external").await, records(&patient.ledger).await), (1, 1));
    if I::LEASE == LONG_LEASE {
        assert_come_again(&patient.deliver("k").await, 409, "in-progress");
    }
    patient.let_leases_run_out().await;
    let later = patient.deliver("k").await;
    if deduplicates {
        // Sent again under the same key; the upstream knows it, and its first answer is told.
        assert_eq!((later.status, problem(&later)), (200, None), "{later:?}");
        assert!(later.text().contains("noise"), "{later:?}");
        assert_replay_of(&patient.deliver("k").await, 200, &later.text());
        assert_eq!(patient.effects_and_runs("k").await, (1, 2));
    } else {
        assert_come_again(&later, 409, "outcome-unknown");
        assert_eq!(patient.effects_and_runs("k").await, (1, 1));
        assert_eq!(patient.keys_at("pending_external").await, 1);
    }
}
