//! The outside world: a payment provider that deduplicates by `Idempotency-Key`, as good ones do, and a bank that
//! deduplicates nothing. Both are recorders: they count what really happened.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use onced_harness::{Call, Delivery, Entry, Log, Recorder, RecorderOptions, Reply, Rule};
use serde_json::{Value, json};

/// How long is waited for what must come.
const LIMIT: Duration = Duration::from_secs(20);

pub(super) struct Provider {
    charges: Recorder,
    payouts: Recorder,
    loses_next_answer: Arc<AtomicBool>,
}

impl Provider {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let loses_next_answer = Arc::new(AtomicBool::new(false));
        let loses = loses_next_answer.clone();
        let provider = RecorderOptions::default()
            .deduplicate()
            .effect_fn(async |call| Some(Reply::status(201).json(receipt(&call))));
        let bank = RecorderOptions::default().effect_fn(move |call| {
            let reply = Reply::status(201).json(receipt(&call));
            let lost = loses.swap(false, Ordering::SeqCst);
            async move { Some(if lost { reply.delivery(Delivery::Lost) } else { reply }) }
        });
        let charges = Recorder::start(provider).await.context("the provider cannot listen")?;
        let payouts = Recorder::start(bank).await.context("the bank cannot listen")?;
        Ok(Self { charges, payouts, loses_next_answer })
    }

    /// Where charges are made.
    pub(super) fn address(&self) -> SocketAddr {
        self.charges.addr()
    }

    /// Where payouts are made.
    pub(super) fn bank(&self) -> SocketAddr {
        self.payouts.addr()
    }

    /// Every call waits before its effect, until [`Provider::release`].
    pub(super) fn hold(&self) {
        self.charges.hold();
    }

    pub(super) fn release(&self) {
        self.charges.release();
    }

    /// How many calls wait.
    pub(super) fn held(&self) -> usize {
        self.charges.log().held()
    }

    /// Returns once that many calls wait.
    pub(super) async fn wait_for_held(&self, count: usize) -> anyhow::Result<()> {
        let held = self.charges.wait_for_held(count, LIMIT).await;
        held.with_context(|| format!("{count} calls did not reach the provider"))
    }

    /// Returns once another call has arrived than those of which `before` counts.
    pub(super) async fn wait_for_call_after(&self, before: usize) -> anyhow::Result<()> {
        self.charges.wait_for_calls(before + 1, LIMIT).await.context("no call reached the provider")?;
        Ok(())
    }

    /// How many calls have come.
    pub(super) fn calls(&self) -> usize {
        self.charges.count()
    }

    /// Returns once no call of that operation is without its answer.
    pub(super) async fn wait_for_answers(&self, reference: &str) -> anyhow::Result<()> {
        let all_answered = |log: &Log| {
            let mut own = log.entries().iter().filter(|entry| names(&entry.call, reference));
            own.all(|entry| entry.answered.is_some())
        };
        self.charges.wait_until(all_answered, LIMIT).await.context("the provider has not answered")
    }

    /// Every call takes that long from now on.
    pub(super) fn take(&self, time: Duration) {
        self.charges.script([Rule::always(Reply::ok().delay_effect(time))]);
    }

    /// The next payout happens, and its answer is lost: the connection is reset.
    pub(super) fn lose_next_answer(&self) {
        self.loses_next_answer.store(true, Ordering::SeqCst);
    }

    /// How often the operation has really happened, as a charge or as a payout.
    pub(super) fn effects_of(&self, reference: &str) -> usize {
        [&self.charges, &self.payouts].map(|recorder| effects(&recorder.log(), reference).count()).iter().sum()
    }

    /// What the bank says about a payout, as a person would find it there.
    pub(super) fn receipt_of(&self, reference: &str) -> Option<String> {
        effects(&self.payouts.log(), reference).next().map(|entry| receipt(&entry.call))
    }
}

fn effects<'l>(log: &'l Log, reference: &str) -> impl Iterator<Item = &'l Entry> {
    log.entries().iter().filter(move |entry| entry.effect_at.is_some() && names(&entry.call, reference))
}

fn receipt(call: &Call) -> String {
    let wanted: Value = serde_json::from_slice(&call.body).unwrap_or_default();
    let kind = if call.path == "/payouts" { "po" } else { "ch" };
    let id = format!("{kind}_{}", call.seq);
    json!({ "id": id, "reference": wanted.get("reference"), "amount": wanted.get("amount") }).to_string()
}

fn names(call: &Call, reference: &str) -> bool {
    let body: Option<Value> = serde_json::from_slice(&call.body).ok();
    body.is_some_and(|body| body.get("reference").and_then(Value::as_str) == Some(reference))
}
