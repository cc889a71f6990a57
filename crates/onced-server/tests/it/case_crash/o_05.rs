//! O-05: an owner freezes for longer than its lease, another takes over, and then the first one wakes up and wants to
//! end what is no longer its own. Nothing of what it does may count, and it says that it has lost its ownership.
//!
//! Two gateways, A and B, share a database; A is frozen by SIGSTOP. The upstream holds A's run meanwhile, and lets it go
//! once A is awake.

use std::time::{Duration, Instant};

use onced_harness::{Recorder, Reply, Rule};
use testkit::http_client::{Answer, Request, send};
use testkit::{Backend, Database, Signal};
use tokio::task::JoinHandle;

use super::*;
use crate::fixture::{Gateway, LIMIT, route};
use crate::same_database_app::{self, Work, orders};

const BY_A: &str = r#"{"by":"A"}"#;
const BY_B: &str = r#"{"by":"B"}"#;

fn length() -> Duration {
    mortal(Duration::from_secs(2))
}

/// Both gateways and their upstream; the first `held` runs wait there until they are released.
struct Scene {
    database: Database,
    app: Recorder,
    a: Gateway,
    b: Gateway,
    start: Instant,
}

impl Scene {
    async fn new(
        backend: Backend,
        effect: &str,
        held: u64,
        work: impl Fn(u64) -> Work + Send + Sync + 'static,
    ) -> Self {
        let database = Database::create(backend).await;
        let app = same_database_app::start(&database, move |call| work(call.run)).await;
        app.script((1..=held).map(|run| Rule::on_run(run, Reply::hang())));
        let more = format!("{}heartbeat = \"{}\"", lease(length()), crate::fixture::written(length() / 4));
        let routes = route("api.order", "/api/order", &app.url(), effect, &more);
        let (a, b) = (Gateway::start(&database, &routes).await, Gateway::start(&database, &routes).await);
        Self { database, app, a, b, start: Instant::now() }
    }

    /// Sends to a gateway, and returns once the upstream holds that run.
    async fn send_until_held(&self, gateway: &Gateway, run: usize) -> JoinHandle<Answer> {
        let address = gateway.address;
        let sent = tokio::spawn(async move { send(address, &request()).await });
        let held = |log: &onced_harness::Log| log.entries().get(run - 1).is_some_and(|entry| entry.held);
        self.app.wait_until(held, LIMIT).await.unwrap();
        sent
    }

    /// A claims, and freezes until its lease is over: the 3rd second.
    async fn a_claims_and_freezes(&self) -> JoinHandle<Answer> {
        let first = self.send_until_held(&self.a, 1).await;
        self.a.process.signal(Signal::Stop);
        leases_are_over(&self.database, 3.0, self.start).await;
        first
    }

    /// A wakes up in the 4th second, and its run goes on. Returns once A has said that it lost its ownership.
    async fn a_wakes_up(&self) {
        at_second(4.0, self.start).await;
        self.a.process.signal(Signal::Continue);
        self.app.release_call(1);
        lost_ownership(&self.a, 1).await;
    }

    async fn record(&self) -> Vec<String> {
        record(&self.database, "o05").await
    }
}

fn request() -> Request {
    post("/api/order", "o05", r#"{"sku":"A"}"#)
}

async fn lost_ownership(gateway: &Gateway, attempt: u32) {
    let attempt = format!("\"attempt\":{attempt}");
    let says_so = |line: &str| line.contains("lost ownership") && line.contains("o05") && line.contains(&attempt);
    gateway.process.wait_for_line(says_so, LIMIT).await;
}

/// B takes over and completes while A is frozen; A then ends its attempt in the way of `late`.
async fn a_wakes_up_late(backend: Backend, effect: &str, late: Work, by_b: Work) {
    let expected_orders = i64::from(by_b.commits);
    let scene = Scene::new(backend, effect, 1, move |run| if run == 1 { late.clone() } else { by_b.clone() }).await;
    let first = scene.a_claims_and_freezes().await;
    let second = send(scene.b.address, &request()).await;
    assert_eq!((second.status, second.text().as_str(), is_replayed(&second)), (200, BY_B, false));
    scene.a_wakes_up().await;

    // A's own client is told what is true, not what A's upstream said.
    replays(&first.await.unwrap(), &second);
    assert_eq!(scene.record().await, ["completed", "2", BY_B]);
    for gateway in [&scene.a, &scene.b] {
        replays(&send(gateway.address, &request()).await, &second);
    }
    assert_eq!((runs(&scene.app, "o05"), orders(&scene.database).await), (2, expected_orders));
}

fn answers_only(body: &str) -> Work {
    Work { commits: false, ..Work::ok(body) }
}

/// The application completes in its own transaction: A's is rolled back, by the token.
#[tokio::test]
async fn o_05_a_late_transaction_sqlite() {
    a_wakes_up_late(Backend::Sqlite, "same-database", Work::ok(BY_A), Work::ok(BY_B)).await;
}

#[tokio::test]
async fn o_05_a_late_transaction_postgres() {
    a_wakes_up_late(Backend::Postgres, "same-database", Work::ok(BY_A), Work::ok(BY_B)).await;
}

#[tokio::test]
async fn o_05_a_late_transaction_mariadb() {
    a_wakes_up_late(Backend::MariaDb, "same-database", Work::ok(BY_A), Work::ok(BY_B)).await;
}

/// The application leaves the completing to the gateway.
#[tokio::test]
async fn o_05_a_late_answer_sqlite() {
    a_wakes_up_late(Backend::Sqlite, "same-database", answers_only(BY_A), Work::ok(BY_B)).await;
}

#[tokio::test]
async fn o_05_a_late_answer_postgres() {
    a_wakes_up_late(Backend::Postgres, "same-database", answers_only(BY_A), Work::ok(BY_B)).await;
}

#[tokio::test]
async fn o_05_a_late_answer_mariadb() {
    a_wakes_up_late(Backend::MariaDb, "same-database", answers_only(BY_A), Work::ok(BY_B)).await;
}

/// Only the gateway completes, by the compare-and-swap alone: it does not look at the record before.
#[tokio::test]
async fn o_05_a_late_answer_of_an_idempotent_upstream_sqlite() {
    a_wakes_up_late(Backend::Sqlite, "idempotent", answers_only(BY_A), answers_only(BY_B)).await;
}

#[tokio::test]
async fn o_05_a_late_answer_of_an_idempotent_upstream_postgres() {
    a_wakes_up_late(Backend::Postgres, "idempotent", answers_only(BY_A), answers_only(BY_B)).await;
}

#[tokio::test]
async fn o_05_a_late_answer_of_an_idempotent_upstream_mariadb() {
    a_wakes_up_late(Backend::MariaDb, "idempotent", answers_only(BY_A), answers_only(BY_B)).await;
}

/// A's attempt ends in an error, after which the key would be free again.
#[tokio::test]
async fn o_05_a_late_error_sqlite() {
    for effect in ["same-database", "idempotent"] {
        a_wakes_up_late(Backend::Sqlite, effect, Work::fails(500), Work::ok(BY_B)).await;
    }
}

#[tokio::test]
async fn o_05_a_late_error_postgres() {
    for effect in ["same-database", "idempotent"] {
        a_wakes_up_late(Backend::Postgres, effect, Work::fails(500), Work::ok(BY_B)).await;
    }
}

#[tokio::test]
async fn o_05_a_late_error_mariadb() {
    for effect in ["same-database", "idempotent"] {
        a_wakes_up_late(Backend::MariaDb, effect, Work::fails(500), Work::ok(BY_B)).await;
    }
}

/// B is still at work when A wakes up and fails or completes: a third delivery must not get in.
async fn a_wakes_up_while_b_is_at_work(backend: Backend, late: Work) {
    let scene =
        Scene::new(backend, "same-database", 2, move |run| if run == 1 { late.clone() } else { Work::ok(BY_B) }).await;
    let first = scene.a_claims_and_freezes().await;
    let second = scene.send_until_held(&scene.b, 2).await;
    scene.a_wakes_up().await;

    is_in_progress(&first.await.unwrap(), length());
    for gateway in [&scene.a, &scene.b] {
        is_in_progress(&send(gateway.address, &request()).await, length());
    }
    assert_eq!(orders(&scene.database).await, 0);
    scene.app.release_call(2);
    let second = second.await.unwrap();
    assert_eq!((second.status, second.text().as_str(), is_replayed(&second)), (200, BY_B, false));
    assert_eq!(scene.record().await, ["completed", "2", BY_B]);
    replays(&send(scene.a.address, &request()).await, &second);
    assert_eq!((runs(&scene.app, "o05"), orders(&scene.database).await), (2, 1));
}

#[tokio::test]
async fn o_05_while_the_successor_is_at_work_sqlite() {
    for late in [Work::ok(BY_A), answers_only(BY_A), Work::fails(500)] {
        a_wakes_up_while_b_is_at_work(Backend::Sqlite, late).await;
    }
}

#[tokio::test]
async fn o_05_while_the_successor_is_at_work_postgres() {
    for late in [Work::ok(BY_A), answers_only(BY_A), Work::fails(500)] {
        a_wakes_up_while_b_is_at_work(Backend::Postgres, late).await;
    }
}

#[tokio::test]
async fn o_05_while_the_successor_is_at_work_mariadb() {
    for late in [Work::ok(BY_A), answers_only(BY_A), Work::fails(500)] {
        a_wakes_up_while_b_is_at_work(Backend::MariaDb, late).await;
    }
}

/// A freezes with claim 1, B with claim 2, and A wakes up to take claim 3. That claims 1 and 3 are of one process must not
/// let the end of the first pass for the end of the third.
async fn frozen_twice(backend: Backend, late: Work) {
    let work = move |run| if run == 3 { Work::ok(r#"{"claim":3}"#) } else { late.clone() };
    let scene = Scene::new(backend, "same-database", 3, work).await;
    let first = scene.a_claims_and_freezes().await;
    let second = scene.send_until_held(&scene.b, 2).await;
    scene.b.process.signal(Signal::Stop);
    leases_are_over(&scene.database, 6.0, scene.start).await;
    scene.a.process.signal(Signal::Continue);
    let third = scene.send_until_held(&scene.a, 3).await;

    scene.app.release_call(1);
    lost_ownership(&scene.a, 1).await;
    is_in_progress(&first.await.unwrap(), length());
    assert_eq!(scene.record().await, ["in_progress", "3", "NULL"]);
    scene.b.process.signal(Signal::Continue);
    scene.app.release_call(2);
    lost_ownership(&scene.b, 2).await;
    is_in_progress(&second.await.unwrap(), length());
    assert_eq!(scene.record().await, ["in_progress", "3", "NULL"]);
    assert_eq!(orders(&scene.database).await, 0);

    scene.app.release_call(3);
    let third = third.await.unwrap();
    assert_eq!((third.status, third.text().as_str(), is_replayed(&third)), (200, r#"{"claim":3}"#, false));
    assert_eq!(scene.record().await, ["completed", "3", r#"{"claim":3}"#]);
    assert_eq!((runs(&scene.app, "o05"), orders(&scene.database).await), (3, 1));
    let of_each = |name| scene.app.calls().iter().map(|call| call.headers[name].clone()).collect::<Vec<_>>();
    assert_eq!(of_each("onced-attempt"), ["1", "2", "3"]);
    let tokens = of_each("onced-lease-token");
    assert!(
        tokens[0] != tokens[1] && tokens[1] != tokens[2] && tokens[0] != tokens[2],
        "each claim has a token of its own"
    );
}

#[tokio::test]
async fn o_05_frozen_twice_sqlite() {
    for late in [Work::ok(BY_A), answers_only(BY_A), Work::fails(500)] {
        frozen_twice(Backend::Sqlite, late).await;
    }
}

#[tokio::test]
async fn o_05_frozen_twice_postgres() {
    for late in [Work::ok(BY_A), answers_only(BY_A), Work::fails(500)] {
        frozen_twice(Backend::Postgres, late).await;
    }
}

#[tokio::test]
async fn o_05_frozen_twice_mariadb() {
    for late in [Work::ok(BY_A), answers_only(BY_A), Work::fails(500)] {
        frozen_twice(Backend::MariaDb, late).await;
    }
}
