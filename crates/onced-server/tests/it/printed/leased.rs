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

/// A provider that answers run 1 of a key by A, run 2 by B, and so on; it holds the first `held` runs.
async fn provider(held: u64, status_of_a: u16) -> Recorder {
    let options = RecorderOptions::default().effect_fn(move |call: Call| async move {
        let by = char::from(b'@' + u8::try_from(call.run).expect("a few runs"));
        Some(Reply::status(if call.run == 1 { status_of_a } else { 200 }).json(format!(r#"{{"by":"{by}"}}"#)))
    });
    let provider = Recorder::start(options).await.expect("the provider can listen");
    provider.script((1..=held).map(|run| Rule::on_run(run, Reply::hang())));
    provider
}

/// Two processes of one example, A and B, with one database and one provider.
struct Scene {
    database: Database,
    provider: Recorder,
    a: App,
    b: App,
}

impl Scene {
    async fn new(example: Example, held: u64, status_of_a: u16) -> Self {
        let (database, provider) = (database().await, provider(held, status_of_a).await);
        let a = App::start(example, database.url(), &provider.url()).await;
        let b = App::start(example, database.url(), &provider.url()).await;
        Self { database, provider, a, b }
    }

    async fn send_until_held(&self, app: &App, run: usize) -> JoinHandle<Answer> {
        let address = app.address;
        let sent = tokio::spawn(async move { send(address, &charge("o05")).await });
        let held = |log: &onced_harness::Log| log.entries().get(run - 1).is_some_and(|entry| entry.held);
        self.provider.wait_until(held, LIMIT).await.expect("the provider is called");
        sent
    }

    async fn freeze(&self, app: &App) {
        app.process.signal(Signal::Stop);
        let_leases_run_out(self.database.sql(), Backend::Postgres).await;
    }

    async fn thaw(&self, app: &App, run: u64) {
        app.process.signal(Signal::Continue);
        self.provider.release_call(run);
        app.process.wait_for_line(|line| line.contains("lost ownership"), LIMIT).await;
    }
}

/// A freezes, B takes over and completes, A wakes up: what it wants to end is no longer its own.
async fn o_05_late(example: Example, status_of_a: u16) {
    let scene = Scene::new(example, 1, status_of_a).await;
    let first = scene.send_until_held(&scene.a, 1).await;
    scene.freeze(&scene.a).await;
    let second = send(scene.b.address, &charge("o05")).await;
    assert_eq!((second.status, second.text().as_str(), is_replayed(&second)), (200, r#"{"by":"B"}"#, false));
    scene.thaw(&scene.a, 1).await;
    is_problem(&first.await.expect("no panic"), 409, "in-progress");
    assert_eq!(record(&scene.database, "o05").await, ["completed", "2", r#"{"by":"B"}"#]);
    for app in [&scene.a, &scene.b] {
        replays(&send(app.address, &charge("o05")).await, &second);
    }
    // Both calls were sent under one downstream key.
    assert_eq!((scene.provider.count(), scene.provider.effects_by_key().len()), (2, 1));
    assert_eq!(orders(&scene.database).await, 1);
}

/// B is still at work when A wakes up: a third delivery does not get in.
async fn o_05_while_b_is_at_work(example: Example) {
    let scene = Scene::new(example, 2, 200).await;
    let first = scene.send_until_held(&scene.a, 1).await;
    scene.freeze(&scene.a).await;
    let second = scene.send_until_held(&scene.b, 2).await;
    scene.thaw(&scene.a, 1).await;
    is_in_progress(&first.await.expect("no panic"), LEASE);
    for app in [&scene.a, &scene.b] {
        is_in_progress(&send(app.address, &charge("o05")).await, LEASE);
    }
    assert_eq!((runs(&scene.database).await, orders(&scene.database).await), (1, 0), "A's order was rolled back");
    scene.provider.release_call(2);
    let second = second.await.expect("no panic");
    assert_eq!((second.status, second.text().as_str(), is_replayed(&second)), (200, r#"{"by":"B"}"#, false));
    assert_eq!(orders(&scene.database).await, 1);
}

/// Claims 1 and 3 are of one process: the end of the first does not pass for that of the third.
async fn o_05_frozen_twice(example: Example) {
    let scene = Scene::new(example, 3, 200).await;
    let first = scene.send_until_held(&scene.a, 1).await;
    scene.freeze(&scene.a).await;
    let second = scene.send_until_held(&scene.b, 2).await;
    scene.freeze(&scene.b).await;
    scene.a.process.signal(Signal::Continue);
    let third = scene.send_until_held(&scene.a, 3).await;
    scene.thaw(&scene.a, 1).await;
    scene.thaw(&scene.b, 2).await;
    for late in [first, second] {
        is_in_progress(&late.await.expect("no panic"), LEASE);
    }
    assert_eq!(record(&scene.database, "o05").await, ["pending_external", "3", "NULL"]);
    scene.provider.release_call(3);
    let third = third.await.expect("no panic");
    assert_eq!((third.status, third.text().as_str()), (200, r#"{"by":"C"}"#));
    assert_eq!(record(&scene.database, "o05").await, ["completed", "3", r#"{"by":"C"}"#]);
    assert_eq!(orders(&scene.database).await, 1);
}

async fn o_05(example: Example) {
    o_05_late(example, 200).await;
    // A's call fails instead, after which the key would be free again.
    o_05_late(example, 503).await;
    o_05_while_b_is_at_work(example).await;
    o_05_frozen_twice(example).await;
}

/// Another request under the key is a mismatch, also while the first one runs.
async fn o_13(example: Example) {
    let (database, provider) = (database().await, provider(1, 200).await);
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
    let (database, provider) = (database().await, provider(0, 200).await);
    let (wire, url) = wired(&database).await;
    let app = App::start(example, &url, &provider.url()).await;
    wire.lose_the_next_confirmation(After::Mended);
    let answer = send(app.address, &charge("o30-3")).await;
    assert!(wire.has_lost_a_confirmation());
    assert_eq!((answer.status, is_replayed(&answer)), (200, false), "{answer:?}");
    assert_eq!(record(&database, "o30-3").await[..2], ["completed", "1"]);
    replays(&send(app.address, &charge("o30-3")).await, &answer);
    assert_eq!((provider.count(), orders(&database).await), (1, 1));
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
    o_30_5: o_30_5_bytes_as_they_are_fastapi, o_30_5_bytes_as_they_are_express;
}
