//! The streams of an HTTP/2 connection: each runs in a task of its own, and one of whose answer nothing is taken for too
//! long is given up alone.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::rt::Executor;

use super::under_way::UnderWay;

tokio::task_local! {
    static PACE: Arc<Pace>;
}

/// Runs the streams of one connection.
#[derive(Clone)]
pub(super) struct Streams {
    under_way: Arc<UnderWay>,
    limit: Duration,
}

impl Streams {
    /// A stream is given up once for `limit` nothing of its answer has been taken.
    pub(super) fn new(under_way: Arc<UnderWay>, limit: Duration) -> Self {
        Self { under_way, limit }
    }
}

impl<F> Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let (limit, pace) = (self.limit, Arc::new(Pace { under_way: self.under_way.clone(), since: Mutex::default() }));
        tokio::spawn(PACE.scope(pace.clone(), async move {
            // Whoever reads nothing does not ask for the next piece either, so that the answer itself cannot break off.
            // A stream that is dropped before its end is reset.
            tokio::select! {
                _ = pin!(stream) => {}
                () = pace.stalled(limit) => {}
            }
        }));
    }
}

/// The pace of the stream that this is called in; none where no HTTP/2 is spoken.
pub(super) fn pace() -> Option<Arc<Pace>> {
    PACE.try_with(Arc::clone).ok()
}

/// Whether a piece of a stream's answer waits to be taken.
pub(super) struct Pace {
    under_way: Arc<UnderWay>,
    /// Since when, by the connection's clock.
    since: Mutex<Option<Duration>>,
}

impl Pace {
    /// A piece waits now.
    pub(super) fn waits(&self) {
        self.set(Some(self.under_way.time_open()));
    }

    /// It has been taken.
    pub(super) fn is_taken(&self) {
        self.set(None);
    }

    /// Nobody is told: whoever looks, looks at times.
    fn set(&self, since: Option<Duration>) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Returns once a piece has waited for so long while the connection took bytes.
    async fn stalled(&self, limit: Duration) {
        loop {
            let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = since.map_or(Duration::ZERO, |since| self.under_way.time_open().saturating_sub(since));
            let left = limit.saturating_sub(waited);
            if left.is_zero() {
                return;
            }
            // The connection's clock may stand still meanwhile.
            tokio::time::sleep(left.max(limit / 8)).await;
        }
    }
}
