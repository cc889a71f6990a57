//! The streams of an HTTP/2 connection: each runs in a task of its own, and one of whose answer nothing is taken for too
//! long is given up alone.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::Instant;

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

/// Since when a piece has waited.
#[derive(Clone, Copy)]
struct Since {
    /// By the connection's clock, which stands still while nothing goes out.
    open: Duration,
    /// By the wall: a client that lets a little through now and then keeps the other clock from ever coming that far.
    wall: Instant,
}

/// How many times the limit a piece may wait by the wall.
const BY_THE_WALL: u32 = 8;

/// Whether a piece of a stream's answer waits to be taken.
pub(super) struct Pace {
    under_way: Arc<UnderWay>,
    since: Mutex<Option<Since>>,
}

impl Pace {
    /// A piece waits now.
    pub(super) fn waits(&self) {
        self.set(Some(Since { open: self.under_way.time_open(), wall: Instant::now() }));
    }

    /// It has been taken.
    pub(super) fn is_taken(&self) {
        self.set(None);
    }

    /// Nobody is told: whoever looks, looks at times.
    fn set(&self, since: Option<Since>) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Returns once a piece has waited for so long while the connection took bytes, or many times as long in all.
    async fn stalled(&self, limit: Duration) {
        loop {
            let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
            let open = since.map_or(Duration::ZERO, |since| self.under_way.time_open().saturating_sub(since.open));
            let wall = since.map_or(Duration::ZERO, |since| since.wall.elapsed());
            let left = limit.saturating_sub(open);
            if left.is_zero() || wall >= limit * BY_THE_WALL {
                return;
            }
            // The connection's clock may stand still meanwhile.
            tokio::time::sleep(left.max(limit / 8)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(8);

    async fn stalls_after(is_blocked: bool) -> Duration {
        let under_way = UnderWay::new();
        under_way.set_blocked(is_blocked);
        let pace = Pace { under_way, since: Mutex::default() };
        pace.waits();
        let began = Instant::now();
        tokio::time::timeout(LIMIT * 20, pace.stalled(LIMIT)).await.expect("it ends");
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_piece_has_its_limit_and_longer_where_nothing_goes_out_but_not_for_ever() {
        assert!((LIMIT..LIMIT * 2).contains(&stalls_after(false).await));
        let blocked = stalls_after(true).await;
        assert!((LIMIT * BY_THE_WALL..LIMIT * (BY_THE_WALL + 2)).contains(&blocked), "{blocked:?}");
    }
}
