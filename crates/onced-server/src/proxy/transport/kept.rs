//! Connections that are kept for a short while after an answer, so that the next request need not connect.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::Sender;

/// So many to one upstream.
const MOST: usize = 64;

/// The kept connections to one upstream.
pub(super) struct Kept {
    of: Mutex<Vec<(Sender, Instant)>>,
    limit: Duration,
}

impl Kept {
    pub(super) fn new(limit: Duration) -> Arc<Self> {
        Arc::new(Self { of: Mutex::default(), limit })
    }

    /// A connection that can be used now. One of HTTP/1 is its taker's alone; one of HTTP/2 is shared.
    pub(super) fn take(&self) -> Option<Sender> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        self.drop_old(&mut of);
        let at = of.iter().rposition(|(sender, _)| sender.is_ready())?;
        if let Some((Sender::Two(shared), _)) = of.get(at) {
            return Some(Sender::Two(shared.clone()));
        }
        Some(of.remove(at).0)
    }

    /// Keeps a connection on which nothing is under way.
    pub(super) fn keep(self: &Arc<Self>, sender: Sender) {
        if self.limit.is_zero() || sender.is_closed() {
            return;
        }
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Sender::Two(_) = sender {
            // Whoever shares it has it kept for as long again.
            if let Some((_, since)) =
                of.iter_mut().find(|(kept, _)| matches!(kept, Sender::Two(_)) && !kept.is_closed())
            {
                *since = now;
                return;
            }
        }
        if of.len() >= MOST {
            return;
        }
        if of.is_empty() {
            tokio::spawn(tidy(Arc::downgrade(self)));
        }
        of.push((sender, now));
    }

    fn drop_old(&self, of: &mut Vec<(Sender, Instant)>) {
        of.retain(|(sender, since)| !sender.is_closed() && since.elapsed() < self.limit);
    }
}

/// Closes what has been kept for too long, until nothing is kept any more.
async fn tidy(kept: Weak<Kept>) {
    loop {
        let Some(limit) = kept.upgrade().map(|kept| kept.limit) else { return };
        tokio::time::sleep(limit).await;
        let Some(kept) = kept.upgrade() else { return };
        let mut of = kept.of.lock().unwrap_or_else(PoisonError::into_inner);
        kept.drop_old(&mut of);
        if of.is_empty() {
            return;
        }
    }
}
