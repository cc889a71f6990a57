//! The log: what arrived, what took effect, what was answered, and how to wait for it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method};
use tokio::sync::watch;

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its number among all calls, from 1.
    pub seq: u64,
    /// Its number among the calls of its key, from 1. Calls without a key are counted together.
    pub run: u64,
    /// The method.
    pub method: Method,
    /// The path as sent, still percent-encoded.
    pub path: String,
    /// What follows the `?`, as sent.
    pub query: Option<String>,
    /// All header lines.
    pub headers: HeaderMap,
    /// The body's bytes.
    pub body: Bytes,
    /// The value of `Idempotency-Key` as sent, with its quotes if it has some.
    pub key: Option<String>,
    /// When it had arrived whole, counted from the start of the recorder.
    pub received_at: Duration,
}

/// One call and what became of it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The request.
    pub call: Call,
    /// It waits now for a release.
    pub held: bool,
    /// When it took effect.
    pub effect_at: Option<Duration>,
    /// It got the answer of an earlier effect.
    pub deduplicated: bool,
    /// Its effect hook panicked.
    pub panicked: bool,
    /// The status that it gets or got; `None` while undecided and where the answer was lost on purpose.
    pub status: Option<u16>,
    /// The answer's body as far as it is one piece, for look-ups.
    pub(super) body: Bytes,
    /// When the last byte of a whole answer was handed to the socket.
    pub answered: Option<Duration>,
}

/// A snapshot of all calls.
#[derive(Clone, Debug, Default)]
pub struct Log {
    entries: Vec<Entry>,
    runs: HashMap<Option<String>, u64>,
}

impl Log {
    /// All entries in the order of arrival.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// All calls in the order of arrival.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.entries.iter().map(|entry| entry.call.clone()).collect()
    }

    /// The calls of one key.
    #[must_use]
    pub fn calls_for(&self, key: &str) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.key.as_deref() == Some(key)).collect()
    }

    /// How many calls arrived.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// How many calls took effect.
    #[must_use]
    pub fn effects(&self) -> usize {
        self.entries.iter().filter(|entry| entry.effect_at.is_some()).count()
    }

    /// How many calls of each key took effect; a key without an effect is listed with 0.
    #[must_use]
    pub fn effects_by_key(&self) -> BTreeMap<String, usize> {
        let mut by_key = BTreeMap::new();
        for entry in &self.entries {
            if let Some(key) = &entry.call.key {
                *by_key.entry(key.clone()).or_default() += usize::from(entry.effect_at.is_some());
            }
        }
        by_key
    }

    /// How many calls wait for a release.
    #[must_use]
    pub fn held(&self) -> usize {
        self.entries.iter().filter(|entry| entry.held).count()
    }

    /// How many calls got a whole answer.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.entries.iter().filter(|entry| entry.answered.is_some()).count()
    }
}

/// The log did not become as wanted in time.
#[derive(Debug)]
pub struct TimedOut {
    /// How long it was waited.
    pub limit: Duration,
    /// The log at the end.
    pub log: Log,
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, log } = self;
        let (calls, effects, held, answered) = (log.count(), log.effects(), log.held(), log.answered());
        write!(f, "not reached within {limit:?}: {calls} calls, {effects} effects, {held} held, {answered} answered")
    }
}

impl std::error::Error for TimedOut {}

/// The log while it is written. A watch channel holds it: its lock survives panics, and each change wakes who waits.
pub(super) struct Book {
    log: watch::Sender<Log>,
    started: Instant,
}

impl Book {
    pub(super) fn new() -> Self {
        Self { log: watch::Sender::new(Log::default()), started: Instant::now() }
    }

    pub(super) fn snapshot(&self) -> Log {
        self.log.borrow().clone()
    }

    /// Numbers the request and enters it.
    pub(super) fn enter(&self, parts: &http::request::Parts, body: Bytes) -> Call {
        let key = parts.headers.get("idempotency-key").map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
        let mut call = Call {
            seq: 0,
            run: 0,
            method: parts.method.clone(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().map(str::to_owned),
            headers: parts.headers.clone(),
            body,
            key,
            received_at: self.started.elapsed(),
        };
        self.log.send_modify(|log| {
            let runs = log.runs.entry(call.key.clone()).or_default();
            *runs += 1;
            call.run = *runs;
            call.seq = 1 + log.entries.len() as u64;
            log.entries.push(Entry {
                call: call.clone(),
                held: false,
                effect_at: None,
                deduplicated: false,
                panicked: false,
                status: None,
                body: Bytes::new(),
                answered: None,
            });
        });
        call
    }

    pub(super) fn note(&self, seq: u64, change: impl FnOnce(&mut Entry, Duration)) {
        let now = self.started.elapsed();
        self.log.send_modify(|log| {
            // From behind: most changes concern one of the latest calls.
            if let Some(entry) = log.entries.iter_mut().rfind(|entry| entry.call.seq == seq) {
                change(entry, now);
            }
        });
    }

    /// No call waits any more: they have all ended.
    pub(super) fn let_go_all(&self) {
        self.log.send_modify(|log| log.entries.iter_mut().for_each(|entry| entry.held = false));
    }

    pub(super) async fn wait_until(
        &self,
        mut wanted: impl FnMut(&Log) -> bool,
        limit: Duration,
    ) -> Result<Log, TimedOut> {
        let mut changes = self.log.subscribe();
        let reached = tokio::time::timeout(limit, changes.wait_for(|log| wanted(log))).await;
        match reached {
            Ok(Ok(log)) => Ok(log.clone()),
            // The channel cannot close while `self` lives.
            Ok(Err(_)) | Err(_) => Err(TimedOut { limit, log: self.snapshot() }),
        }
    }
}
