//! An outside call between two short transactions: O-05, O-13, O-29, a kill in mid-call, a lost confirmation (O-30, item 3), and
//! bytes as they are (O-30, item 5). The provider counts what arrives under which key.

use std::time::Duration;

use onced_harness::{Call, Recorder, RecorderOptions, Reply, Rule, When};
use testkit::Signal;
use testkit::http_client::{Answer, race_same, send, try_send};
use tokio::task::JoinHandle;

use super::*;
use crate::case_crash::{is_in_progress, is_problem, is_replayed, record, replays};
use crate::case_store::wire::After;
use crate::fixture::sql::let_leases_run_out;

const LEASE: Duration = Duration::from_secs(60);

fn charge(key: &str) -> Request {
    post("/api/charge", key, r#"{"q":1}"#)
}

/// Soon, and not only after the call that runs: in a short run the machine may be busy with other tests.
fn came_soon(answer: &Answer) {
    assert!(answer.took < Duration::from_secs(3), "answered after {:?}", answer.took);
}

/// A provider that answers run 1 of a key by A, run 2 by B, and so on; where the request says so, run 1 by 503.
async fn provider() -> Recorder {
    let options = RecorderOptions::default().effect_fn(|call: Call| async move {
        let by = char::from(b'@' + u8::try_from(call.run).expect("a few runs"));
        let refused = call.run == 1 && call.body.windows(6).any(|part| part == b"refuse");
        Some(Reply::status(if refused { 503 } else { 200 }).json(format!(r#"{{"by":"{by}"}}"#)))
    });
    Recorder::start(options).await.expect("the provider can listen")
}

/// Two processes of one example, A and B, with one database and one provider.
struct Scene {
    database: Database,
    provider: Recorder,
    a: App,
    b: App,
}

/// One key in that scene.
struct Act<'a> {
    scene: &'a Scene,
    request: Request,
    key: &'static str,
    calls: usize,
    orders: i64,
}

impl Scene {
    /// The provider holds the first `held` runs of the key.
    async fn act(&self, key: &'static str, body: &str, held: u64) -> Act<'_> {
        self.provider.script((1..=held).map(|run| Rule::on_run(run, Reply::hang())));
        let (calls, orders) = (self.provider.count(), orders(&self.database).await);
        Act { scene: self, request: post("/api/charge", key, body), key, calls, orders }
    }
}

impl Act<'_> {
    async fn send(&self, app: &App) -> Answer {
        send(app.address, &self.request).await
    }

    async fn send_until_held(&self, app: &App, run: usize) -> JoinHandle<Answer> {
        let (address, request) = (app.address, self.request.clone());
        let sent = tokio::spawn(async move { send(address, &request).await });
        let held = |log: &onced_harness::Log| log.entries().get(self.calls + run - 1).is_some_and(|entry| entry.held);
        self.scene.provider.wait_until(held, LIMIT).await.expect("the provider is called");
        sent
    }

    async fn freeze(&self, app: &App) {
        app.process.signal(Signal::Stop);
        let_leases_run_out(self.scene.database.sql(), Backend::Postgres).await;
    }

    async fn thaw(&self, app: &App, run: usize) {
        app.process.signal(Signal::Continue);
        self.release(run);
        let says_so = |line: &str| line.contains("lost ownership") && line.contains(self.key);
        app.process.wait_for_line(says_so, LIMIT).await;
    }

    fn release(&self, run: usize) {
        self.scene.provider.release_call(u64::try_from(self.calls + run).expect("a few calls"));
    }

    async fn record(&self) -> Vec<String> {
        record(&self.scene.database, self.key).await
    }

    async fn new_orders(&self) -> i64 {
        orders(&self.scene.database).await - self.orders
    }

    fn ran_by(&self, answer: &Answer, by: &str) {
        assert_eq!((answer.status, is_replayed(answer)), (200, false), "{}: {answer:?}", self.key);
        assert_eq!(answer.text(), format!(r#"{{"by":"{by}"}}"#), "{}", self.key);
    }
}

/// A freezes, B takes over and completes, A wakes up: what it wants to end is no longer its own.
async fn a_is_late(scene: &Scene, key: &'static str, body: &str) {
    let act = scene.act(key, body, 1).await;
    let first = act.send_until_held(&scene.a, 1).await;
    act.freeze(&scene.a).await;
    let second = act.send(&scene.b).await;
    act.ran_by(&second, "B");
    act.thaw(&scene.a, 1).await;
    is_problem(&first.await.expect("no panic"), 409, "in-progress");
    assert_eq!(act.record().await, ["completed", "2", r#"{"by":"B"}"#]);
    for app in [&scene.a, &scene.b] {
        replays(&act.send(app).await, &second);
    }
    assert_eq!((scene.provider.count() - act.calls, act.new_orders().await), (2, 1));
}

/// B is still at work when A wakes up: a third delivery does not get in.
async fn b_is_at_work(scene: &Scene, key: &'static str) {
    let act = scene.act(key, r#"{"q":1}"#, 2).await;
    let before = runs(&scene.database).await;
    let first = act.send_until_held(&scene.a, 1).await;
    act.freeze(&scene.a).await;
    let second = act.send_until_held(&scene.b, 2).await;
    act.thaw(&scene.a, 1).await;
    is_in_progress(&first.await.expect("no panic"), LEASE);
    for app in [&scene.a, &scene.b] {
        is_in_progress(&act.send(app).await, LEASE);
    }
    let ran = runs(&scene.database).await - before;
    assert_eq!((ran, act.new_orders().await), (1, 0), "A's order was rolled back");
    act.release(2);
    act.ran_by(&second.await.expect("no panic"), "B");
    assert_eq!(act.new_orders().await, 1);
}

/// Claims 1 and 3 are of one process: the end of the first does not pass for that of the third.
async fn both_freeze(scene: &Scene, key: &'static str) {
    let act = scene.act(key, r#"{"q":1}"#, 3).await;
    let first = act.send_until_held(&scene.a, 1).await;
    act.freeze(&scene.a).await;
    let second = act.send_until_held(&scene.b, 2).await;
    act.freeze(&scene.b).await;
    scene.a.process.signal(Signal::Continue);
    let third = act.send_until_held(&scene.a, 3).await;
    act.thaw(&scene.a, 1).await;
    act.thaw(&scene.b, 2).await;
    for late in [first, second] {
        is_in_progress(&late.await.expect("no panic"), LEASE);
    }
    assert_eq!(act.record().await, ["pending_external", "3", "NULL"]);
    act.release(3);
    act.ran_by(&third.await.expect("no panic"), "C");
    assert_eq!(act.record().await, ["completed", "3", r#"{"by":"C"}"#]);
    assert_eq!(act.new_orders().await, 1);
}

async fn o_05(example: Example) {
    let (database, provider) = (database().await, provider().await);
    let a = App::start(example, database.url(), &provider.url()).await;
    let b = App::start(example, database.url(), &provider.url()).await;
    let scene = Scene { database, provider, a, b };
    a_is_late(&scene, "o05-1", r#"{"q":1}"#).await;
    // A's call fails instead, after which the key would be free again.
    a_is_late(&scene, "o05-2", r#"{"refuse":"the first"}"#).await;
    b_is_at_work(&scene, "o05-3").await;
    both_freeze(&scene, "o05-4").await;
    // All calls of a key were sent under one downstream key.
    let keys: std::collections::BTreeSet<_> = scene.provider.calls().iter().map(|call| call.key.clone()).collect();
    assert_eq!((keys.len(), scene.provider.count()), (4, 2 + 2 + 2 + 3));
}

/// Another request under the key is a mismatch, also while the first one runs.
async fn o_13(example: Example) {
    let (database, provider) = (database().await, provider().await);
    provider.script([Rule::on_run(1, Reply::hang())]);
    let app = App::start(example, database.url(), &provider.url()).await;
    let address = app.address;
    let first = tokio::spawn(async move { send(address, &charge("o13")).await });
    provider.wait_for_held(1, LIMIT).await.expect("the first one runs");
    let other = send(address, &post("/api/charge", "o13", r#"{"q":2}"#)).await;
    is_problem(&other, 422, "key-reused");
    let same = send(address, &charge("o13")).await;
    is_in_progress(&same, LEASE);
    came_soon(&other);
    came_soon(&same);
    provider.release();
    let first = first.await.expect("no panic");
    assert_eq!((first.status, is_replayed(&first)), (200, false));
    is_problem(&send(address, &post("/api/charge", "o13", r#"{"q":2}"#)).await, 422, "key-reused");
    replays(&send(address, &charge("o13")).await, &first);
    assert_eq!((provider.count(), orders(&database).await), (1, 1));
}

/// Fifty requests under one key, and five connections: none is held while the provider is waited for.
async fn o_29_on(example: Example, database: &Database) {
    let provider = Recorder::start(RecorderOptions::default()).await.expect("the provider can listen");
    provider.script([Rule::new(When::Always, Reply::hang())]);
    let app = App::start(example, database.url(), &provider.url()).await;
    let address = app.address;
    let fifty = tokio::spawn(async move { race_same(50, &[address], &charge("o29")).await });
    provider.wait_for_held(1, LIMIT).await.expect("one runs");
    let other = send(address, &order("other")).await;
    let health = send(address, &Request::new("GET", "/healthz")).await;
    assert_eq!((other.status, health.status), (201, 200), "{other:?}");
    came_soon(&other);
    came_soon(&health);

    let args = ["keys", "--store", database.url(), "show", "t1:api.charge", "o29"];
    let mut shown = Process::spawn(ONCED, args, [("ONCED_LOG", "warn")]);
    assert!(shown.wait(LIMIT).await.success(), "{:?}", shown.stderr().all());
    let lines = shown.stdout().all();
    assert!(lines.iter().any(|line| line.starts_with("status") && line.contains("pending_external")), "{lines:?}");
    let refused = "SELECT count(*) FROM onced.deliveries WHERE key = 'o29' AND decision = 'in-progress'";
    until(database, refused, 49).await;
    let held = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
                AND state IS DISTINCT FROM 'idle' AND backend_type = 'client backend'";
    until(database, held, 0).await;
    provider.release();

    let answers = fifty.await.expect("no panic");
    let (ran, others): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status != 409);
    assert_eq!((ran.len(), others.len()), (1, 49), "{ran:?}");
    assert_eq!((ran[0].status, is_replayed(&ran[0])), (200, false), "{ran:?}");
    for answer in &others {
        is_in_progress(answer, LEASE);
        came_soon(answer);
    }
    replays(&send(address, &charge("o29")).await, &ran[0]);
    assert_eq!((provider.count(), orders(database).await), (1, 2));
}

async fn until(database: &Database, count: &str, wanted: i64) {
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let found = database.sql().count(count).await;
        if found == wanted {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{count}: {found}, not {wanted}");
    }
}

async fn o_29(example: Example) {
    o_29_on(example, &database().await).await;
    let repeatable_read = database().await;
    let name = repeatable_read.sql().text("SELECT current_database()").await.concat().concat();
    let alter = format!("ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'");
    repeatable_read.sql().execute(&alter).await;
    o_29_on(example, &repeatable_read).await;
}

/// SIGKILL while the provider has the call: taken again under the same downstream key once the lease is over.
async fn killed_in_mid_call(example: Example) {
    let database = database().await;
    let script = [Rule::on_run(1, Reply::hang())];
    let provider = Recorder::start(RecorderOptions::default().deduplicate().script(script)).await.expect("a free port");
    let mut app = App::start(example, database.url(), &provider.url()).await;
    let address = app.address;
    let sent = tokio::spawn(async move { try_send(address, &charge("killed")).await });
    provider.wait_for_held(1, LIMIT).await.expect("the provider has the call");
    app.process.kill().await;
    sent.await.expect("no panic").expect_err("the application is gone");
    provider.release();

    let app = App::start(example, database.url(), &provider.url()).await;
    is_in_progress(&send(app.address, &charge("killed")).await, LEASE);
    assert_eq!(provider.count(), 1);
    let_leases_run_out(database.sql(), Backend::Postgres).await;
    let retry = send(app.address, &charge("killed")).await;
    assert_eq!((retry.status, is_replayed(&retry)), (200, false), "{retry:?}");
    replays(&send(app.address, &charge("killed")).await, &retry);
    assert_eq!((provider.count(), provider.effects(), orders(&database).await), (2, 1, 1));
}

/// The claim is committed, and its confirmation is lost: the same delivery finds its own claim and goes on.
async fn o_30_3(example: Example) {
    let (database, provider) = (database().await, provider().await);
    let (wire, url) = wired(&database).await;
    let app = App::start(example, &url, &provider.url()).await;
    wire.lose_the_next_confirmation(After::Mended);
    let answer = send(app.address, &charge("o30-3")).await;
    assert!(wire.has_lost_a_confirmation());
    assert_eq!((answer.status, is_replayed(&answer)), (200, false), "{answer:?}");
    assert_eq!(record(&database, "o30-3").await[..2], ["completed", "1"]);
    replays(&send(app.address, &charge("o30-3")).await, &answer);
    assert_eq!((provider.count(), orders(&database).await), (1, 1));

    // In one transaction it is the commit of all of it that is confirmed to nobody: run again, it is found.
    wire.lose_the_next_confirmation(After::Mended);
    let answer = send(app.address, &order("o30-3-atomic")).await;
    assert_eq!((answer.status, is_replayed(&answer)), (201, true), "{answer:?}");
    assert_eq!((runs(&database).await, orders(&database).await), (2, 2));
}

/// The provider refuses (the next delivery calls again), or its answer is lost (nobody knows, until the lease is over).
async fn refused_and_lost(example: Example) {
    let database = database().await;
    let provider = Recorder::start(RecorderOptions::default().deduplicate()).await.expect("the provider can listen");
    let app = App::start(example, database.url(), &provider.url()).await;
    provider.script([Rule::on_run(1, Reply::status(503).without_effect())]);
    assert_eq!(send(app.address, &charge("refused")).await.status, 503);
    assert_eq!(record(&database, "refused").await[..2], ["failed", "1"]);
    assert_eq!(send(app.address, &charge("refused")).await.status, 200);

    // Come later, and other answers that say nothing of the charge, are not its outcome.
    for (key, status) in [("later", 429), ("running", 409), ("rotated", 401)] {
        provider.script([Rule::on_run(1, Reply::status(status).without_effect())]);
        assert_eq!(send(app.address, &charge(key)).await.status, status);
        assert_eq!(record(&database, key).await[..2], ["failed", "1"], "{status}");
        assert_eq!(send(app.address, &charge(key)).await.status, 200);
    }

    provider.script([Rule::on_run(1, Reply::lose_answer())]);
    let lost = send(app.address, &charge("lost")).await;
    is_problem(&lost, 504, "outcome-unknown");
    assert_eq!(lost.header("retry-after"), Some("60"));
    is_in_progress(&send(app.address, &charge("lost")).await, LEASE);
    let_leases_run_out(database.sql(), Backend::Postgres).await;
    let retry = send(app.address, &charge("lost")).await;
    assert_eq!((retry.status, is_replayed(&retry)), (200, false), "{retry:?}");
    assert_eq!(provider.effects_by_key().values().collect::<Vec<_>>(), [&1; 5]);
    assert_eq!(orders(&database).await, 5);
}

/// NUL and half of a surrogate pair, escaped, and bytes that are no text: stored and replayed as they are.
async fn o_30_5(example: Example) {
    let database = database().await;
    let echo = RecorderOptions::default().effect_fn(async |call: Call| Some(Reply::status(200).body(call.body)));
    let provider = Recorder::start(echo).await.expect("the provider can listen");
    let app = App::start(example, database.url(), &provider.url()).await;
    for (number, body) in [br#"{"n":"\u0000","h":"\ud83d"}"#.as_slice(), b"\0\xff\xfe\r\n", b""].into_iter().enumerate()
    {
        let request = charge(&format!("o30-5-{number}")).body(body);
        let first = send(app.address, &request).await;
        assert_eq!((first.status, &first.body[..]), (200, body), "{first:?}");
        let again = send(app.address, &request).await;
        assert_eq!((again.status, is_replayed(&again), &again.body[..]), (200, true, body), "{again:?}");
    }
    assert_eq!((provider.count(), orders(&database).await), (3, 3));
}

on_each! {
    o_05: o_05_a_slow_owner_fastapi, o_05_a_slow_owner_express;
    o_13: o_13_mismatch_beats_in_progress_fastapi, o_13_mismatch_beats_in_progress_express;
    o_29: o_29_a_hot_key_fastapi, o_29_a_hot_key_express;
    killed_in_mid_call: killed_in_mid_call_fastapi, killed_in_mid_call_express;
    o_30_3: o_30_3_lost_confirmation_fastapi, o_30_3_lost_confirmation_express;
    refused_and_lost: refused_and_lost_fastapi, refused_and_lost_express;
    o_30_5: o_30_5_bytes_as_they_are_fastapi, o_30_5_bytes_as_they_are_express;
}
