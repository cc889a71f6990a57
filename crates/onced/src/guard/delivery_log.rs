//! The log of deliveries, written in batches behind the answers. An executing delivery's line commits with its claim
//! and is not written here; only the status of its answer is.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::Tries;
use crate::store::deliveries::{Deliveries, DeliveryLine, LogDeliveries};

const QUEUE: usize = 8192;
const BATCH: usize = 512;
/// How long a delivery waits for room in the queue before its line is given up, and said so.
const PATIENCE: Duration = Duration::from_secs(1);

enum Entry {
    Line(DeliveryLine, Instant),
    Answered(Uuid, u16),
    Flush(oneshot::Sender<()>),
}

/// A handle to the log.
#[derive(Clone, Debug)]
pub(super) struct DeliveryLog {
    entries: mpsc::Sender<Entry>,
    wanted: LogDeliveries,
}

impl DeliveryLog {
    /// Starts the writer of the log. It ends with the last handle.
    pub(super) fn start<D: Deliveries + 'static>(store: D, wanted: LogDeliveries) -> Self {
        let (entries, queue) = mpsc::channel(QUEUE);
        tokio::spawn(run(store, queue));
        Self { entries, wanted }
    }

    /// The id of an executing delivery's line, where one is kept.
    pub(super) fn id_for_execution(&self) -> Option<Uuid> {
        match self.wanted {
            LogDeliveries::All | LogDeliveries::Executed => Some(Uuid::now_v7()),
            LogDeliveries::Off => None,
        }
    }

    /// Notes a delivery that did not execute, and returns its id where it is kept. It was received
    /// at that time, however long it has waited since.
    pub(super) async fn note(&self, line: DeliveryLine, received: Instant) -> Option<Uuid> {
        match self.wanted {
            LogDeliveries::Executed | LogDeliveries::Off => None,
            LogDeliveries::All => {
                let id = line.id;
                self.push(Entry::Line(line, received)).await;
                Some(id)
            }
        }
    }

    pub(super) async fn answered(&self, delivery: Option<Uuid>, status: u16) {
        if let Some(id) = delivery {
            self.push(Entry::Answered(id, status)).await;
        }
    }

    /// Returns once everything that was noted before has been written, or could not be.
    pub(super) async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.entries.send(Entry::Flush(done)).await.is_ok() {
            // An error means that the writer is gone, and with it the entries.
            let _ = written.await;
        }
    }

    async fn push(&self, entry: Entry) {
        if self.entries.send_timeout(entry, PATIENCE).await.is_err() {
            tracing::warn!("the log of deliveries cannot keep up: a line was given up");
        }
    }
}

async fn run<D: Deliveries>(mut store: D, mut queue: mpsc::Receiver<Entry>) {
    let mut batch = Vec::with_capacity(BATCH);
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        let mut lines: Vec<DeliveryLine> = Vec::new();
        let mut at: HashMap<Uuid, usize> = HashMap::new();
        let mut answered = Vec::new();
        let mut flushed = Vec::new();
        for entry in batch.drain(..) {
            match entry {
                Entry::Line(mut line, received) => {
                    line.age = received.elapsed();
                    at.insert(line.id, lines.len());
                    lines.push(line);
                }
                // Most answers follow their line at once, and go out with it.
                Entry::Answered(id, status) => match at.get(&id).and_then(|&n| lines.get_mut(n)) {
                    Some(line) => line.answered_status = Some(status),
                    None => answered.push((id, status)),
                },
                Entry::Flush(done) => flushed.push(done),
            }
        }
        if !lines.is_empty() || !answered.is_empty() {
            write(&mut store, &lines, &answered).await;
        }
        for done in flushed {
            // Whoever asked may have stopped waiting.
            let _ = done.send(());
        }
    }
}

async fn write<D: Deliveries>(store: &mut D, lines: &[DeliveryLine], answered: &[(Uuid, u16)]) {
    let mut tries = Tries::default();
    while let Err(error) = store.log(lines, answered).await {
        if !tries.again(error.is_transient()).await {
            tracing::warn!(lines = lines.len(), %error, "lines of the log of deliveries could not be written");
            return;
        }
    }
}
