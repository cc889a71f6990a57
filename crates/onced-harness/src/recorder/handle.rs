//! The life of one call between its arrival and its answer: delays, holds, the effect, de-duplication.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::gate::{Gate, Ticket};
use super::log::{Book, Call};
use super::reply::{Delivery, Moment, Reply};
use super::script::{Rule, Script};
use super::{Effect, Lookup};

/// The first answer of a key, locked while its effect runs.
type Remembered = Arc<tokio::sync::Mutex<Option<Reply>>>;

/// What all connections share.
pub(super) struct Shared {
    pub(super) book: Book,
    pub(super) gate: Gate,
    pub(super) script: Script,
    effect: Option<Effect>,
    remembered: Option<Mutex<HashMap<String, Remembered>>>,
    lookup_hidden: AtomicBool,
    calls: Mutex<JoinSet<()>>,
}

impl Shared {
    pub(super) fn new(rules: Vec<Rule>, effect: Option<Effect>, deduplicates: bool) -> Self {
        Self {
            book: Book::new(),
            gate: Gate::new(),
            script: Script::new(rules),
            effect,
            remembered: deduplicates.then(Mutex::default),
            lookup_hidden: AtomicBool::new(false),
            calls: Mutex::default(),
        }
    }

    pub(super) fn set_lookup(&self, lookup: Lookup) {
        self.lookup_hidden.store(lookup == Lookup::Hidden, Ordering::SeqCst);
    }

    pub(super) fn lookup(&self) -> Lookup {
        if self.lookup_hidden.load(Ordering::SeqCst) { Lookup::Hidden } else { Lookup::Truthful }
    }

    /// Runs the call in a task of its own, so that it goes on when its client hangs up.
    pub(super) fn run(self: &Arc<Self>, call: Call, ticket: Ticket) -> oneshot::Receiver<Reply> {
        let (answer, answered) = oneshot::channel();
        let shared = Arc::clone(self);
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        while calls.try_join_next().is_some() {}
        calls.spawn(async move {
            let reply = shared.handle(call, ticket).await;
            // Nobody listens where the client has hung up.
            drop(answer.send(reply));
        });
        answered
    }

    /// Ends all calls where they are.
    pub(super) fn abort_calls(&self) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }

    /// Ends all calls where they are, and waits until they have ended.
    pub(super) async fn end_calls(&self) {
        let mut calls = std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner));
        calls.shutdown().await;
        self.book.let_go_all();
    }

    async fn handle(&self, call: Call, ticket: Ticket) -> Reply {
        let seq = call.seq;
        let scripted = self.script.reply_to(&call);
        pause(scripted.delay_effect).await;
        let ticket = if self.gate.is_closed() || scripted.holds.contains(&Moment::BeforeEffect) {
            self.held(seq, ticket).await
        } else {
            ticket
        };
        let reply = if scripted.takes_effect() { self.take_effect(call, scripted).await } else { scripted };
        pause(reply.delay_answer).await;
        if reply.holds.contains(&Moment::BeforeAnswer) {
            self.held(seq, ticket).await;
        }
        let status = (reply.delivery != Delivery::Lost).then_some(reply.status.as_u16());
        self.book.note(seq, |entry, _| entry.status = status);
        reply
    }

    /// Waits for a release; the new ticket asks for a later one.
    async fn held(&self, seq: u64, ticket: Ticket) -> Ticket {
        self.book.note(seq, |entry, _| entry.held = true);
        self.gate.wait(seq, ticket).await;
        let next = self.gate.ticket();
        self.book.note(seq, |entry, _| entry.held = false);
        next
    }

    async fn take_effect(&self, call: Call, scripted: Reply) -> Reply {
        let (Some(remembered), Some(key)) = (&self.remembered, &call.key) else {
            return self.run_effect(call, scripted).await;
        };
        let cell = {
            let mut cells = remembered.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(cells.entry(key.clone()).or_default())
        };
        // Held across the effect: a second call of the key waits for the first one's answer.
        let mut first = cell.lock().await;
        if let Some(first) = &*first {
            self.book.note(call.seq, |entry, _| entry.deduplicated = true);
            return first.clone();
        }
        let reply = self.run_effect(call, scripted).await;
        if reply.takes_effect() {
            *first = Some(reply.again());
        }
        reply
    }

    async fn run_effect(&self, call: Call, scripted: Reply) -> Reply {
        let seq = call.seq;
        let reply = match &self.effect {
            None => scripted,
            // The call of the hook and its future can both panic.
            Some(effect) => match AssertUnwindSafe(async { effect(call).await }).catch_unwind().await {
                Ok(given) => given.unwrap_or(scripted),
                Err(_) => {
                    self.book.note(seq, |entry, _| entry.panicked = true);
                    Reply::status(500).body("the effect hook of the recorder panicked")
                }
            },
        };
        if reply.takes_effect() {
            self.book.note(seq, |entry, now| {
                entry.effect_at = Some(now);
                entry.body = reply.body.clone();
            });
        }
        reply
    }
}

/// A timer of zero length would still cost a millisecond.
async fn pause(length: Duration) {
    if !length.is_zero() {
        tokio::time::sleep(length).await;
    }
}
