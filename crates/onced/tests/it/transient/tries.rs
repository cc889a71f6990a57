//! Counts the tries of a piece of work by what the guard says about them, as events to wait for.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;
use tracing::instrument::WithSubscriber as _;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Hears the event by which [`onced::guard::Tries`] says that a transaction is run again.
struct Failures {
    seen: watch::Sender<u64>,
    spans: AtomicU64,
}

impl Subscriber for Failures {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if event.fields().any(|field| field.name() == "failures") {
            self.seen.send_modify(|seen| *seen += 1);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs the work and, after its first failure, what is to happen then. Tells how many failures were followed by
/// another try.
pub(super) async fn counting<T>(work: impl Future<Output = T>, after_a_failure: impl AsyncFnOnce()) -> (T, u64) {
    hear_everything();
    let (seen, mut failures) = watch::channel(0);
    let count = failures.clone();
    let work = work.with_subscriber(Failures { seen, spans: AtomicU64::new(0) });
    let then = async {
        // Where the work ends without a failure, nothing is to happen.
        if failures.wait_for(|seen| *seen > 0).await.is_ok() {
            after_a_failure().await;
        }
    };
    let (result, ()) = tokio::join!(work, then);
    let failures = *count.borrow();
    (result, failures)
}

/// Somebody always listens. Otherwise an event that is first met while nobody does may stay unheard for a while, by
/// those too that begin to listen at that moment.
fn hear_everything() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let (seen, _) = watch::channel(0);
        tracing::subscriber::set_global_default(Failures { seen, spans: AtomicU64::new(0) }).unwrap();
    });
}
