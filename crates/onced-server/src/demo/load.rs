//! The senders: how an operation is delivered, again where need be, and what was answered how often.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;

use super::client::{Answer, Post};

/// How long a sender waits where it was not told: after a broken connection.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a sender tries before it gives up.
const TRIES: u32 = 12;

/// What one delivery came to.
#[derive(Debug)]
pub(super) enum Outcome {
    /// A whole answer.
    Answered(Answer),
    /// The connection broke first.
    Unanswered,
    /// This client went away first.
    HungUp,
}

impl Outcome {
    /// The word for it in the table.
    fn word(&self) -> String {
        match self {
            Self::Answered(answer) if answer.is_replay() => "replay".to_owned(),
            Self::Answered(answer) => answer.status.to_string(),
            Self::Unanswered => "no answer".to_owned(),
            Self::HungUp => "hung up".to_owned(),
        }
    }

    /// How long to wait before sending the same again; `None` where this is the last word.
    pub(super) fn again_after(&self) -> Option<Duration> {
        match self {
            Self::Answered(answer) if [409, 502, 503, 504].contains(&answer.status) => {
                Some(answer.retry_after().unwrap_or(PAUSE))
            }
            Self::Answered(_) | Self::HungUp => None,
            Self::Unanswered => Some(PAUSE),
        }
    }

    /// The `code` of a problem that was answered.
    pub(super) fn problem(&self) -> Option<String> {
        match self {
            Self::Answered(answer) => answer.problem(),
            Self::Unanswered | Self::HungUp => None,
        }
    }
}

/// Sends it once.
pub(super) async fn deliver(post: Post, to: SocketAddr) -> Outcome {
    match post.send(to).await {
        Ok(answer) => Outcome::Answered(answer),
        Err(_) => Outcome::Unanswered,
    }
}

/// Sends it, and the very same again as `Retry-After` says, until the answer is the last word.
pub(super) async fn deliver_until_final(post: Post, to: SocketAddr) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    for _ in 0..TRIES {
        let outcome = deliver(post.clone(), to).await;
        let again_after = outcome.again_after();
        tally.add(outcome);
        match again_after {
            None => return Ok(tally),
            Some(wait) => tokio::time::sleep(wait).await,
        }
    }
    bail!("after {TRIES} tries there is still no last word: {tally}")
}

/// What was answered how often, in the order in which it first came.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    counts: Vec<(String, usize)>,
    /// The different bodies of answers that say that it happened.
    bodies: Vec<Bytes>,
}

impl Tally {
    pub(super) fn add(&mut self, outcome: Outcome) {
        self.count(outcome.word(), 1);
        if let Outcome::Answered(answer) = outcome
            && answer.status < 300
        {
            self.note_body(answer.body);
        }
    }

    pub(super) fn add_all(&mut self, other: Self) {
        other.counts.into_iter().for_each(|(word, count)| self.count(word, count));
        other.bodies.into_iter().for_each(|body| self.note_body(body));
    }

    fn count(&mut self, word: String, count: usize) {
        match self.counts.iter_mut().find(|(known, _)| *known == word) {
            Some((_, known)) => *known += count,
            None => self.counts.push((word, count)),
        }
    }

    fn note_body(&mut self, body: Bytes) {
        if !self.bodies.contains(&body) {
            self.bodies.push(body);
        }
    }

    /// How many deliveries there were.
    pub(super) fn sent(&self) -> usize {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// How many were answered with that word.
    pub(super) fn of(&self, word: &str) -> usize {
        self.counts.iter().filter(|(known, _)| known == word).map(|(_, count)| count).sum()
    }

    /// How many different answers say that it happened.
    pub(super) fn different_successes(&self) -> usize {
        self.bodies.len()
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts: Vec<String> = self.counts.iter().map(|(word, count)| format!("{count} × {word}")).collect();
        f.write_str(&counts.join(", "))
    }
}
