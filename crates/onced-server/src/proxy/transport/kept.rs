//! Connections that are kept for a short while after an answer, so that the next request need not connect.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::Sender;

/// So many to one upstream.
const MOST: usize = 64;

/// The kept connections to one upstream.
pub(super) struct Kept {
    pool: Mutex<Pool>,
    limit: Duration,
}

#[derive(Default)]
struct Pool {
    of: Vec<(Sender, Instant)>,
    /// Whether somebody closes what gets old: one task at a time.
    is_tidied: bool,
}

impl Kept {
    pub(super) fn new(limit: Duration) -> Arc<Self> {
        Arc::new(Self { pool: Mutex::default(), limit })
    }

    /// A connection that can be used now. One of HTTP/1 is its taker's alone; one of HTTP/2 is shared.
    pub(super) fn take(&self) -> Option<Sender> {
        let Pool { of, .. } = &mut *self.pool();
        self.drop_old(of);
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
        let Pool { of, is_tidied } = &mut *self.pool();
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
        if !std::mem::replace(is_tidied, true) {
            tokio::spawn(tidy(Arc::downgrade(self)));
        }
        of.push((sender, now));
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
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
        let Pool { of, is_tidied } = &mut *kept.pool();
        kept.drop_old(of);
        if of.is_empty() {
            *is_tidied = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::client::conn::http2;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    use super::*;

    /// Each task that tidies holds the pool weakly.
    #[tokio::test]
    async fn one_task_tidies_however_often_the_pool_is_empty() {
        let kept = Kept::new(Duration::from_secs(3600));
        let mut others = Vec::new();
        for _ in 0..10 {
            let (ours, other) = tokio::io::duplex(1024);
            others.push(other);
            let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(ours)).await.unwrap();
            drop(tokio::spawn(connection));
            kept.keep(Sender::Two(sender));
            assert!(kept.take().is_some());
            kept.pool().of.clear();
        }
        assert_eq!(Arc::weak_count(&kept), 1);
    }
}
