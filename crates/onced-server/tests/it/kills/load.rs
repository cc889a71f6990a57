//! The load of these tests: an application in the ledger's database, an upstream that deduplicates, and clients that
//! send the same request again until they have a final answer. What came of it is counted by SQL.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use onced_harness::{Call, Recorder, RecorderOptions, Reply};
use testkit::http_client::{Answer, Request, try_send};
use testkit::{Backend, Database, Sql, SqlText};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fixture::{LIMIT, route, sql};
use crate::same_database_app::{self, Work};
use testkit::random::Random;

/// How the keys of each route begin.
const ORDER: &str = "o";
const PAYMENT: &str = "p";

/// The upstreams. They live in the test's process, and survive the gateway.
pub(super) struct Apps {
    orders: Recorder,
    payments: Recorder,
}

impl Apps {
    pub(super) async fn start(database: &Database, seed: u64) -> Self {
        let random = Random::new(seed);
        let chance = random.clone();
        let orders = same_database_app::start(database, move |call| {
            let mut chance = chance.fork(call.seq);
            // The body says which attempt it is of, so that two effects could not be taken for one.
            Work::ok(&body_of(call)).before(work(&key_of(call), &mut chance)).after(pause(&mut chance))
        });
        let orders = orders.await;
        let effects = "CREATE TABLE effects (key TEXT NOT NULL, downstream TEXT NOT NULL, body TEXT NOT NULL)";
        database.sql().execute(effects).await;
        let sql = database.sql().clone();
        let options = RecorderOptions::default().deduplicate().effect_fn(move |call| {
            let (sql, mut chance) = (sql.clone(), random.fork(call.seq));
            async move {
                let (key, downstream, body) = (key_of(&call), call.key.clone().unwrap_or_default(), body_of(&call));
                tokio::time::sleep(work(&key, &mut chance)).await;
                sql.execute(&format!("INSERT INTO effects VALUES ('{key}', '{downstream}', '{body}')")).await;
                Some(Reply::ok().json(body).delay_answer(pause(&mut chance)))
            }
        });
        let payments = Recorder::start(options).await.expect("the upstream can listen");
        Self { orders, payments }
    }

    /// The routes to them.
    pub(super) fn routes(&self) -> String {
        let more = "lease = \"LEASE\"\nmax_attempts = 1000".replace("LEASE", lease());
        let orders = route("orders", "/orders", &self.orders.url(), "same-database", &more);
        let payments = route("payments", "/payments", &self.payments.url(), "idempotent", &more);
        format!("{orders}\n{payments}")
    }
}

/// As short as it may be, so that takeovers come soon.
fn lease() -> &'static str {
    if testkit::soaking() { "1s" } else { "300ms" }
}

/// Mostly short; now and then longer than the lease.
fn pause(random: &mut Random) -> Duration {
    let longest = if random.below(24) == 0 { 500 } else { 12 };
    Duration::from_millis(random.below(longest))
}

/// Some keys take longer than a lease with every attempt, so that a stale one ends while the next is at work.
fn work(key: &str, random: &mut Random) -> Duration {
    let slow = if testkit::soaking() { 700 } else { 200 };
    if key.ends_with('7') { Duration::from_millis(slow + random.below(slow + 100)) } else { pause(random) }
}

fn key_of(call: &Call) -> String {
    call.headers.get("onced-key").and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned()
}

fn body_of(call: &Call) -> String {
    format!("{{\"key\":\"{}\",\"call\":{},\"run\":{}}}", key_of(call), call.seq, call.run)
}

/// A key and the answer that it has got for good.
pub(super) struct Final {
    pub(super) key: String,
    pub(super) body: Bytes,
}

/// What all clients share.
struct Shared {
    gateways: Vec<SocketAddr>,
    flight: watch::Sender<BTreeSet<String>>,
    finals: watch::Sender<u64>,
    sent: AtomicU64,
    stop: AtomicBool,
}

/// Clients at work.
pub(super) struct Load {
    shared: Arc<Shared>,
    clients: JoinSet<Vec<Final>>,
}

impl Load {
    /// Starts the clients. With several gateways each delivery goes to any of them, and many go to all at once.
    pub(super) fn start(gateways: &[SocketAddr], clients: usize, random: &Random) -> Self {
        let shared = Arc::new(Shared {
            gateways: gateways.to_vec(),
            flight: watch::Sender::default(),
            finals: watch::Sender::default(),
            sent: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let each = (0..clients).map(|number| client(number, Arc::clone(&shared), random.fork(1 + number as u64)));
        Self { clients: each.collect(), shared }
    }

    /// The keys whose requests are in flight at this moment.
    pub(super) fn flight(&self) -> Vec<String> {
        self.shared.flight.borrow().iter().cloned().collect()
    }

    /// Waits until that many requests are in flight, and says which.
    pub(super) async fn wait_for_flight(&self, count: usize, limit: Duration) -> Vec<String> {
        let mut flight = self.shared.flight.subscribe();
        let reached = tokio::time::timeout(limit, flight.wait_for(|flight| flight.len() >= count)).await;
        let flight = reached.expect("too few requests in flight").expect("the load lives");
        flight.iter().cloned().collect()
    }

    /// Waits for that many more final answers.
    pub(super) async fn some_finals(&self, count: u64) {
        let mut finals = self.shared.finals.subscribe();
        let wanted = *finals.borrow() + count;
        let reached = tokio::time::timeout(LIMIT, finals.wait_for(|finals| *finals >= wanted)).await;
        assert!(reached.is_ok(), "the load does not get on: {} of {wanted}", *self.shared.finals.borrow());
    }

    /// Lets each client finish its key, then delivers a last time what was answered last.
    pub(super) async fn end(mut self) -> Vec<Final> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let mut finals = Vec::new();
        while let Some(client) = self.clients.join_next().await {
            let done = client.expect("a client failed");
            for last in done.iter().rev().take(8) {
                let again = deliver(&self.shared, &last.key, 0).await;
                assert_eq!(again.body, last.body, "{} was answered otherwise before", last.key);
                assert_eq!(again.header("idempotent-replayed"), Some("true"), "{}", last.key);
            }
            finals.extend(done);
        }
        println!("SOAK: {} requests for {} keys", self.shared.sent.load(Ordering::Relaxed), finals.len());
        finals
    }
}

/// Works through keys of its own, one after the other.
async fn client(number: usize, shared: Arc<Shared>, mut random: Random) -> Vec<Final> {
    let mut done = Vec::new();
    while !shared.stop.load(Ordering::SeqCst) {
        // Short, so that the log shows them whole.
        let route = if random.below(2) == 0 { ORDER } else { PAYMENT };
        let key = format!("{route}{number}-{}", done.len());
        let count = shared.gateways.len();
        let copies = if count > 1 && random.below(2) == 0 { count } else { 1 };
        let first = random.index(count);
        let answers = join_all((0..copies).map(|copy| deliver(&shared, &key, first + copy))).await;
        let body = answers[0].body.clone();
        assert!(answers.iter().all(|answer| answer.body == body), "{key}: {answers:?}");
        if random.below(4) == 0 {
            let again = deliver(&shared, &key, random.index(count)).await;
            assert_eq!(again.body, body, "{key} was answered otherwise before");
        }
        shared.finals.send_modify(|finals| *finals += 1);
        done.push(Final { key, body });
    }
    done
}

/// Sends until the answer is final; with several gateways to each in turn.
async fn deliver(shared: &Shared, key: &str, first: usize) -> Answer {
    let path = if key.starts_with(ORDER) { "/orders" } else { "/payments" };
    let request = Request::post(path, format!("{{\"for\":\"{key}\"}}"));
    let request = request.key(key).header("content-type", "application/json").limit(Duration::from_secs(20));
    let started = Instant::now();
    for attempt in first.. {
        shared.sent.fetch_add(1, Ordering::Relaxed);
        shared.flight.send_modify(|flight| {
            flight.insert(key.to_owned());
        });
        let answer = try_send(shared.gateways[attempt % shared.gateways.len()], &request).await;
        shared.flight.send_modify(|flight| {
            flight.remove(key);
        });
        match &answer {
            Ok(answer) if answer.status == 200 => return answer.clone(),
            Ok(answer) => assert!(may_go_on(answer), "{key}: {} {}", answer.status, answer.text()),
            Err(_) => {}
        }
        assert!(started.elapsed() < LIMIT, "no final answer for {key} yet: {answer:?}");
        // The sender's own pace.
        tokio::time::sleep(Duration::from_millis(8)).await;
    }
    unreachable!("the attempts are not counted out")
}

/// Whether the answer says: the same request again, later.
fn may_go_on(answer: &Answer) -> bool {
    let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    matches!(answer.status, 409 | 502 | 503 | 504) && problem["retry"] == "same-key"
}

/// What the databases and the upstreams say in the end.
pub(super) struct Counts {
    pub(super) keys: usize,
    /// Orders that were written by a later attempt than the first.
    pub(super) resumed: i64,
    /// Attempts whose transaction was refused, because another one had taken over.
    pub(super) fenced: usize,
    /// Calls that the upstream knew again by their downstream key.
    pub(super) deduplicated: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, resumed, fenced, deduplicated } = self;
        write!(
            f,
            "{keys} keys, {keys} effects, {resumed} by a takeover, {fenced} stale transactions refused, \
             {deduplicated} calls deduplicated downstream"
        )
    }
}

/// Each key has exactly one effect and one answer, by SQL and by the upstreams' own logs.
pub(super) async fn verify(database: &Database, apps: &Apps, finals: &[Final]) -> Counts {
    let (sql, backend) = (database.sql(), database.backend());
    for (table, route) in [("orders", ORDER), ("effects", PAYMENT)] {
        let of_route = finals.iter().filter(|done| done.key.starts_with(route));
        let answers: BTreeMap<String, String> =
            of_route.map(|done| (done.key.clone(), String::from_utf8_lossy(&done.body).into_owned())).collect();
        let twice = sql.text(&format!("SELECT key, count(*) FROM {table} GROUP BY key HAVING count(*) > 1")).await;
        assert!(twice.is_empty(), "more than one effect in {table}: {twice:?}");
        let rows = sql.text(&format!("SELECT key, body FROM {table}")).await;
        let written: BTreeMap<String, String> = rows.iter().map(|row| (row[0].clone(), row[1].clone())).collect();
        assert_eq!(rows.len(), answers.len(), "effects in {table}, and keys that were answered");
        assert_eq!(written, answers, "what was written in {table}, and what was answered");
    }
    verify_ledger(sql, backend, finals.len()).await;
    let entries = apps.payments.log();
    verify_downstream_keys(sql, &apps.payments.calls()).await;
    Counts {
        keys: finals.len(),
        resumed: sql.count("SELECT count(*) FROM orders WHERE attempt > 1").await,
        fenced: apps.orders.log().entries().iter().filter(|entry| entry.status == Some(409)).count(),
        deduplicated: entries.entries().iter().filter(|entry| entry.deduplicated).count(),
    }
}

async fn verify_ledger(sql: &Sql, backend: Backend, keys: usize) {
    let unfinished = SqlText::each(
        "SELECT key, status, attempt FROM onced_idempotency_keys WHERE status <> 'completed'",
        "SELECT key, status, attempt FROM onced.idempotency_keys WHERE status <> 'completed'",
        "SELECT key, status, attempt FROM onced_idempotency_keys WHERE status <> 'completed'",
    );
    assert_eq!(sql.text(unfinished).await, Vec::<Vec<String>>::new());
    assert_eq!(sql::keys_at(sql, backend, "completed").await, i64::try_from(keys).unwrap());
}

/// All calls of a key came under one downstream key, and under no other key's.
async fn verify_downstream_keys(sql: &Sql, calls: &[Call]) {
    let pairs: BTreeSet<(String, String)> =
        calls.iter().map(|call| (key_of(call), call.key.clone().unwrap_or_default())).collect();
    let keys: BTreeSet<&String> = pairs.iter().map(|(key, _)| key).collect();
    let downstream: BTreeSet<&String> = pairs.iter().map(|(_, downstream)| downstream).collect();
    assert_eq!((keys.len(), downstream.len()), (pairs.len(), pairs.len()), "one downstream key for each key");
    let recorded = sql.count("SELECT count(DISTINCT downstream) FROM effects").await;
    assert_eq!(usize::try_from(recorded).unwrap(), keys.len(), "effects by downstream key");
}
