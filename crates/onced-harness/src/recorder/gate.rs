//! The gate: makes calls wait until the test lets them go. It works by events alone.

use std::collections::BTreeSet;

use tokio::sync::watch;

#[derive(Default)]
struct State {
    closed: bool,
    releases: u64,
    released: BTreeSet<u64>,
}

/// How many releases there had been when a call came; any later one frees it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

pub(super) struct Gate(watch::Sender<State>);

impl Gate {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(State::default()))
    }

    pub(super) fn close(&self) {
        self.0.send_modify(|state| state.closed = true);
    }

    pub(super) fn release_all(&self) {
        self.0.send_modify(|state| {
            state.closed = false;
            state.releases += 1;
        });
    }

    pub(super) fn release(&self, seq: u64) {
        self.0.send_modify(|state| {
            state.released.insert(seq);
        });
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.borrow().closed
    }

    pub(super) fn ticket(&self) -> Ticket {
        Ticket(self.0.borrow().releases)
    }

    pub(super) async fn wait(&self, seq: u64, ticket: Ticket) {
        let mut changes = self.0.subscribe();
        // The sender lives as long as `self`, so there is always another change to wait for.
        drop(changes.wait_for(|state| state.releases > ticket.0 || state.released.contains(&seq)).await);
    }
}
