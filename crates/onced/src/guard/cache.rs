//! The outcomes that have lately been replayed, in the memory of this process: who asks for one of them again is answered
//! without the database. It only ever says "completed, here is the response"; it grants nothing, and where it has nothing
//! to say the record is read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onced_core::key::{Key, Scope};
use onced_core::record::Status;
use quick_cache::sync::Cache;
use quick_cache::{Equivalent, Weighter};

use super::Request;
use super::begin::{self, Answer};
use crate::store::keys::Seen;

/// How long an outcome is answered with before its record is read again.
const LONGEST: Duration = Duration::from_secs(60);
/// What an entry is taken to need beside its texts: the record, the table's share.
const OVERHEAD: u64 = 1024;
/// What an entry is taken to weigh, when room for the table is made.
const USUAL: u64 = 4 * 1024;

/// Finished outcomes. Cloning shares them.
#[derive(Clone)]
pub(super) struct Outcomes(Option<Arc<Cache<Name, Arc<Entry>, Weight>>>);

/// A record that was read outside any transaction: whatever it says has been committed.
struct Entry {
    seen: Seen,
    /// Taken before the read was sent.
    asked_at: Instant,
    /// Of which time of the store's connections it is.
    epoch: u64,
}

#[derive(PartialEq, Eq, Hash)]
struct Name(Scope, Key);

#[derive(Hash)]
struct NameOf<'r>(&'r Scope, &'r Key);

impl Equivalent<Name> for NameOf<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        *self.0 == name.0 && *self.1 == name.1
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<Name, Arc<Entry>> for Weight {
    fn weight(&self, name: &Name, entry: &Arc<Entry>) -> u64 {
        let response = entry.seen.record.response.as_ref();
        let headers = response.map_or(0, |r| r.headers.iter().map(|(name, value)| name.len() + value.len() + 64).sum());
        let body = response.and_then(|response| response.body.as_ref()).map_or(0, bytes::Bytes::len);
        OVERHEAD + (name.0.as_str().len() + name.1.as_str().len() + headers + body) as u64
    }
}

impl Outcomes {
    /// Room for so many bytes; none where it is zero.
    pub(super) fn new(bytes: u64) -> Self {
        let items = usize::try_from(bytes / USUAL).unwrap_or(usize::MAX);
        Self((bytes > 0).then(|| Arc::new(Cache::with_weighter(items, bytes, Weight))))
    }

    /// Keeps what was read, if it is an outcome that nobody changes any more.
    pub(super) fn keep(&self, request: &Request, seen: Seen, asked_at: Instant, epoch: u64) {
        let Some(cache) = &self.0 else { return };
        if seen.record.status == Status::Completed {
            let name = Name(request.scope.clone(), request.key.clone());
            cache.insert(name, Arc::new(Entry { seen, asked_at, epoch }));
        }
    }

    /// The outcome to replay to this request, if it is here. Another payload is not told anything here.
    pub(super) fn replay(&self, request: &Request, epoch: u64) -> Option<Answer> {
        let cache = self.0.as_ref()?;
        let name = NameOf(&request.scope, &request.key);
        let entry = cache.get(&name)?;
        let age = entry.asked_at.elapsed();
        if age >= LONGEST || entry.epoch != epoch {
            cache.remove(&name);
            return None;
        }
        let seen = Seen { now: entry.seen.now.plus(age), ..entry.seen.clone() };
        begin::of_what_was_seen(request, &seen).ok().filter(Answer::is_replay)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use onced_core::decision::{Enter, MismatchPolicy, OnUnknown, Policy};
    use onced_core::fingerprint::{BodyRecipe, Fingerprint, RequestParts};
    use onced_core::lease::Lease;
    use onced_core::record::{Record, StoredResponse};
    use onced_core::retention::Retention;
    use onced_core::time::Timestamp;

    use super::*;
    use crate::guard::Pace;

    const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn request(path: &str) -> Request {
        let parts = RequestParts { path: path.to_owned(), ..RequestParts::default() };
        Request {
            scope: Scope::new("a").unwrap(),
            key: Key::new("evt_1").unwrap(),
            fingerprint: Fingerprint::new(parts, BodyRecipe::All),
            policy: Policy {
                lease: Lease::new(Duration::from_secs(30)),
                retention: Retention::default(),
                max_attempts: Some(1),
                mismatch: MismatchPolicy::Reject,
                on_unknown: OnUnknown::Retry,
                downstream_window: Duration::from_secs(60),
                enter: Enter::InProgress,
            },
            pace: Pace::default(),
        }
    }

    fn seen(request: &Request, status: Status) -> Seen {
        let body = Some(Bytes::from_static(b"{}"));
        let record = Record {
            request_hash: *request.fingerprint.hash(),
            hash_version: request.fingerprint.version().to_string(),
            status,
            attempt: 1,
            lease_token: None,
            lease_until: None,
            response: Some(StoredResponse { body, ..StoredResponse::bare(201) }),
            downstream_key: None,
            called_at: None,
            called_until: None,
            probe_count: 0,
            next_probe_at: None,
            held_at: None,
            error: None,
            retry_window: Duration::ZERO,
            created_at: NOW,
            updated_at: NOW,
            completed_at: Some(NOW),
            expires_at: Some(NOW.plus(Duration::from_secs(30))),
        };
        Seen { record, call_answer: None, now: NOW }
    }

    fn ago(seconds: u64) -> Instant {
        Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn only_the_same_request_in_the_same_epoch_is_answered() {
        let (outcomes, asks) = (Outcomes::new(1 << 20), request("/a"));
        outcomes.keep(&asks, seen(&asks, Status::Completed), ago(0), 7);
        assert!(outcomes.replay(&asks, 7).is_some());
        assert!(outcomes.replay(&request("/b"), 7).is_none());
        assert!(outcomes.replay(&Request { scope: Scope::new("b").unwrap(), ..asks.clone() }, 7).is_none());
        assert!(outcomes.replay(&asks, 8).is_none());
        assert!(outcomes.replay(&asks, 7).is_none(), "what was of another epoch is forgotten");
    }

    #[test]
    fn nothing_is_answered_beyond_its_expiry_or_its_minute() {
        let (outcomes, asks) = (Outcomes::new(1 << 20), request("/a"));
        outcomes.keep(&asks, seen(&asks, Status::Completed), ago(29), 0);
        assert!(outcomes.replay(&asks, 0).is_some());
        outcomes.keep(&asks, seen(&asks, Status::Completed), ago(30), 0);
        assert!(outcomes.replay(&asks, 0).is_none());
        let mut lasting = seen(&asks, Status::Completed);
        lasting.record.expires_at = None;
        outcomes.keep(&asks, lasting.clone(), ago(59), 0);
        assert!(outcomes.replay(&asks, 0).is_some());
        outcomes.keep(&asks, lasting, ago(60), 0);
        assert!(outcomes.replay(&asks, 0).is_none());
    }

    #[test]
    fn what_may_still_change_is_not_kept() {
        for status in Status::ALL.into_iter().filter(|status| *status != Status::Completed) {
            let (outcomes, asks) = (Outcomes::new(1 << 20), request("/a"));
            outcomes.keep(&asks, seen(&asks, status), ago(0), 0);
            assert!(outcomes.replay(&asks, 0).is_none(), "{status:?}");
        }
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let (outcomes, asks) = (Outcomes::new(1 << 20), request("/a"));
        for n in 0..5000 {
            let other = Request { key: Key::new(&format!("evt_{n}")).unwrap(), ..asks.clone() };
            outcomes.keep(&other, seen(&asks, Status::Completed), ago(0), 0);
        }
        let cache = outcomes.0.unwrap();
        assert!(cache.weight() <= 1 << 20 && cache.len() > 100, "{} in {}", cache.len(), cache.weight());
        assert!(Outcomes::new(0).0.is_none());
    }
}
