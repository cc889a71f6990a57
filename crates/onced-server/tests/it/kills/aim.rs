//! In which phase each request is, by the gateway's own log: one line per phase, written at once, so that after a kill
//! the last line of a key tells the truth.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use testkit::Process;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// It was sent; nothing has been claimed for it yet.
    BeforeClaim,
    /// Its claim is committed, and nothing has been sent to the upstream.
    Claimed,
    /// It is being sent, or the upstream is at work.
    Sent,
    /// The upstream's answer is there whole.
    Answered,
    /// The outcome is being stored.
    Completing,
    /// The record has been dealt with; the client has not read its answer yet.
    Ended,
}

impl Phase {
    pub(super) const ALL: [Self; 6] =
        [Self::BeforeClaim, Self::Claimed, Self::Sent, Self::Answered, Self::Completing, Self::Ended];
    /// Those that kills aim at.
    pub(super) const AIMS: [Self; 5] = [Self::BeforeClaim, Self::Claimed, Self::Sent, Self::Answered, Self::Completing];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BeforeClaim => "before claim",
            Self::Claimed => "claimed",
            Self::Sent => "sent",
            Self::Answered => "answered",
            Self::Completing => "completing",
            Self::Ended => "ended",
        }
    }

    fn of(word: &str) -> Self {
        match word {
            "received" => Self::BeforeClaim,
            "claimed" => Self::Claimed,
            "sent" => Self::Sent,
            "answered" => Self::Answered,
            "completing" => Self::Completing,
            "ended" => Self::Ended,
            other => panic!("the gateway logged an unknown phase {other:?}"),
        }
    }
}

#[derive(Default)]
struct Seen {
    /// The last phase of each key.
    last: HashMap<String, Phase>,
    /// The phase of the last line.
    latest: Option<Phase>,
    lines: u64,
}

/// The phases of one gateway's life.
pub(super) struct Watched {
    seen: watch::Receiver<Seen>,
    reader: JoinHandle<()>,
}

impl Watched {
    /// Reads the lines of a gateway, from its first one to its end.
    pub(super) fn follow(process: &Process) -> Self {
        let lines = process.stderr().stream();
        let (sender, seen) = watch::channel(Seen::default());
        let reader = tokio::spawn(async move {
            let mut lines = pin!(lines);
            while let Some(line) = lines.next().await {
                if let Some((key, phase)) = read(&line) {
                    sender.send_modify(|seen| {
                        seen.last.insert(key, phase);
                        seen.latest = Some(phase);
                        seen.lines += 1;
                    });
                }
            }
        });
        Self { seen, reader }
    }

    /// Waits until a new line of that phase comes.
    pub(super) async fn wait_for_line(&self, phase: Phase, limit: Duration) {
        let mut seen = self.seen.clone();
        let found = async {
            while seen.changed().await.is_ok() {
                if seen.borrow().latest == Some(phase) {
                    return;
                }
            }
            panic!("the gateway ended by itself");
        };
        tokio::time::timeout(limit, found).await.unwrap_or_else(|_| panic!("no line about {}", phase.name()));
    }

    /// Waits until that many more lines have come.
    pub(super) async fn some_lines(&self, count: u64, limit: Duration) {
        let mut seen = self.seen.clone();
        let wanted = seen.borrow().lines + count;
        let found = tokio::time::timeout(limit, seen.wait_for(|seen| seen.lines >= wanted)).await;
        assert!(matches!(found, Ok(Ok(_))), "the gateway logs no phases any more");
    }

    /// Waits until no lines have come for twice that long: those of a frozen gateway have then all been read, though
    /// this process may have to wait for its turn as well.
    pub(super) async fn quiet(&self, pause: Duration) {
        let mut seen = self.seen.clone();
        let mut pauses = 0;
        while pauses < 2 {
            match tokio::time::timeout(pause, seen.changed()).await {
                Ok(Ok(())) => pauses = 0,
                Ok(Err(_)) => return,
                Err(_) => pauses += 1,
            }
        }
    }

    pub(super) fn has_any_in(&self, keys: &[String], phase: Phase) -> bool {
        let seen = self.seen.borrow();
        keys.iter().any(|key| phase_of(&seen, key) == phase)
    }

    /// How many of these requests were in which phase, once the gateway has ended and all its lines are read.
    pub(super) async fn phases_of(self, keys: &[String]) -> BTreeMap<Phase, usize> {
        self.reader.await.expect("the lines can be read");
        let seen = self.seen.borrow();
        let mut by_phase = BTreeMap::new();
        for key in keys {
            *by_phase.entry(phase_of(&seen, key)).or_default() += 1;
        }
        by_phase
    }
}

fn phase_of(seen: &Seen, key: &str) -> Phase {
    seen.last.get(key).copied().unwrap_or(Phase::BeforeClaim)
}

fn read(line: &str) -> Option<(String, Phase)> {
    if !line.contains("onced::phase") {
        return None;
    }
    // The last line may be cut off by the kill; it then counts as not written.
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let text = |name: &str| line[name].as_str().expect("a phase line has key and phase").to_owned();
    let key = text("key");
    assert!(!key.contains('…'), "the log shortens {key}: choose a shorter key, or nothing is known of it");
    Some((key, Phase::of(&text("phase"))))
}
