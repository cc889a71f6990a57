//! Clients that do everything that honest clients do, each in its own order, and hold each answer against the contract.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testkit::http_client::{Answer, Request, race_same, send, send_and_hang_up};
use tokio::task::JoinSet;

use crate::fixture::LIMIT;
use testkit::random::Random;

/// How many of its keys a client remembers for replays and mismatches.
const REMEMBERED: usize = 32;

/// What a client does next, and how often among sixteen.
const DOINGS: [(Doing, u64); 6] = [
    (Doing::Deliver, 6),
    (Doing::Replay, 3),
    (Doing::Race, 2),
    (Doing::Mismatch, 2),
    (Doing::HangUp, 1),
    (Doing::Pass, 2),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Deliver,
    Replay,
    Race,
    Mismatch,
    HangUp,
    Pass,
}

impl Doing {
    fn word(self) -> &'static str {
        match self {
            Self::Deliver => "first deliveries",
            Self::Replay => "replays",
            Self::Race => "races of duplicates",
            Self::Mismatch => "mismatches",
            Self::HangUp => "hang-ups",
            Self::Pass => "passed",
        }
    }

    fn next(random: &mut Random) -> Self {
        let mut chance = random.below(DOINGS.iter().map(|(_, weight)| weight).sum());
        for (doing, weight) in DOINGS {
            if chance < weight {
                return doing;
            }
            chance -= weight;
        }
        Self::Deliver
    }
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    requests: AtomicU64,
    failures: AtomicU64,
    refusals: AtomicU64,
    done: [AtomicU64; DOINGS.len()],
}

impl Shared {
    fn words(&self) -> String {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut words = format!("{} requests", load(&self.requests));
        for ((doing, _), count) in DOINGS.iter().zip(&self.done) {
            // Writing to a String cannot fail.
            let _ = write!(words, ", {} {}", load(count), doing.word());
        }
        let _ = write!(words, ", {} answers of a failing upstream", load(&self.failures));
        let _ = write!(words, ", {} times 503", load(&self.refusals));
        words
    }
}

pub(super) struct Clients {
    shared: Arc<Shared>,
    running: JoinSet<Vec<String>>,
}

impl Clients {
    pub(super) fn start(gateway: SocketAddr, count: usize, random: &Random) -> Self {
        let shared = Arc::new(Shared::default());
        let each = (0..count).map(|number| {
            let random = random.fork(number as u64);
            Client { number, gateway, random, shared: shared.clone(), known: VecDeque::new(), sent: Vec::new() }.run()
        });
        Self { running: each.collect(), shared }
    }

    /// How far they have come.
    pub(super) fn words(&self) -> String {
        self.shared.words()
    }

    /// Lets each finish what it is doing. Gives the keys that were sent, and what was done.
    pub(super) async fn end(mut self) -> (Vec<String>, String) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let mut keys = Vec::new();
        while let Some(client) = self.running.join_next().await {
            keys.extend(client.expect("a client failed"));
        }
        (keys, self.shared.words())
    }
}

/// A request under a key, and the answer that it has got for good.
#[derive(Clone)]
struct Known {
    request: Request,
    key: String,
    path: &'static str,
    answer: Answer,
}

struct Client {
    number: usize,
    gateway: SocketAddr,
    random: Random,
    shared: Arc<Shared>,
    known: VecDeque<Known>,
    sent: Vec<String>,
}

impl Client {
    async fn run(mut self) -> Vec<String> {
        while !self.shared.stop.load(Ordering::SeqCst) {
            let doing = if self.known.is_empty() { Doing::Deliver } else { Doing::next(&mut self.random) };
            match doing {
                Doing::Deliver => self.deliver().await,
                Doing::Replay => self.replay().await,
                Doing::Race => self.race().await,
                Doing::Mismatch => self.mismatch().await,
                Doing::HangUp => self.hang_up().await,
                Doing::Pass => self.pass().await,
            }
            if let Some(at) = DOINGS.iter().position(|(each, _)| *each == doing) {
                self.shared.done[at].fetch_add(1, Ordering::Relaxed);
            }
        }
        self.sent
    }

    /// A request under a new key.
    fn new_request(&mut self) -> (Request, String, &'static str) {
        let path = ["/order", "/pay", "/call"][self.random.index(3)];
        let kinds: &[(&str, usize)] = match self.random.below(32) {
            0..4 => &[("failing", 0)],
            4 => &[("large", 200_000)],
            5 => &[("huge", 0)],
            6 if path == "/pay" => &[("lost", 0)],
            7..9 => &[("slow", 0)],
            _ => &[("plain", 100)],
        };
        let (kind, pad) = kinds[0];
        let key = format!("{}-{}-{}", &path[1..], self.number, self.sent.len());
        self.sent.push(key.clone());
        let body = format!("{{\"kind\":\"{kind}\",\"for\":\"{key}\",\"pad\":\"{}\"}}", "p".repeat(pad));
        (Request::post(path, body).key(&key).header("content-type", "application/json"), key, path)
    }

    async fn send(&self, request: &Request) -> Answer {
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        send(self.gateway, request).await
    }

    /// Sends until the answer is final, as a sender does, but sooner again.
    async fn until_final(&self, request: &Request) -> Answer {
        let started = Instant::now();
        loop {
            let answer = self.send(request).await;
            match answer.status {
                200 => return answer,
                // Still running; or the upstream failed, or its answer was lost.
                409 => {}
                500 | 504 => drop(self.shared.failures.fetch_add(1, Ordering::Relaxed)),
                // A machine so busy that too little of the lease was left to send anything.
                503 => drop(self.shared.refusals.fetch_add(1, Ordering::Relaxed)),
                status => panic!("{status}: {:.300}", answer.text()),
            }
            assert!(started.elapsed() < LIMIT, "no final answer: {answer:.300?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn remember(&mut self, request: Request, key: String, path: &'static str, answer: Answer) {
        assert!(
            answer.header("onced-body") == Some("omitted") || answer.text().contains(&key),
            "{key}: {answer:.300?}"
        );
        self.known.push_back(Known { request, key, path, answer });
        if self.known.len() > REMEMBERED {
            self.known.pop_front();
        }
    }

    fn some_known(&mut self) -> Known {
        let at = self.random.index(self.known.len());
        self.known[at].clone()
    }

    async fn deliver(&mut self) {
        let (request, key, path) = self.new_request();
        let answer = self.until_final(&request).await;
        self.remember(request, key, path, answer);
    }

    async fn replay(&mut self) {
        let Known { request, key, answer, .. } = self.some_known();
        let again = self.send(&request).await;
        assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")), "{key}: {again:.300?}");
        if again.header("onced-body") != Some("omitted") {
            assert!(again.body == answer.body, "{key}: {:.200} and {:.200}", again.text(), answer.text());
        }
    }

    /// Four at once: none is answered otherwise than the others.
    async fn race(&mut self) {
        let (request, key, path) = self.new_request();
        self.shared.requests.fetch_add(4, Ordering::Relaxed);
        let answers = race_same(4, &[self.gateway], &request).await;
        let first = |answer: &&Answer| answer.status == 200 && answer.header("idempotent-replayed").is_none();
        let firsts = answers.iter().filter(first).count();
        assert!(firsts <= 1, "{key} ran {firsts} times");
        for answer in &answers {
            assert!(matches!(answer.status, 200 | 409 | 500 | 503 | 504), "{key}: {answer:.300?}");
        }
        let answer = self.until_final(&request).await;
        self.remember(request, key, path, answer);
    }

    async fn mismatch(&mut self) {
        let Known { key, path, .. } = self.some_known();
        let other = Request::post(path, "{\"kind\":\"plain\",\"other\":true}").key(&key);
        let answer = self.send(&other.header("content-type", "application/json")).await;
        assert!(answer.status == 422 && answer.text().contains("key-reused"), "{key}: {answer:.300?}");
    }

    /// Hangs up at some moment, and comes again for the answer.
    async fn hang_up(&mut self) {
        let (request, key, path) = self.new_request();
        let moment = Duration::from_micros(self.random.below(20_000));
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        send_and_hang_up(self.gateway, &request, tokio::time::sleep(moment)).await;
        let answer = self.until_final(&request).await;
        self.remember(request, key, path, answer);
    }

    async fn pass(&self) {
        let answer = self.send(&Request::new("GET", "/order")).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "passed"), "{answer:?}");
    }
}
