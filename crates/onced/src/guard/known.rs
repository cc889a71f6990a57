//! Keys that have lately been met. A delivery of one of them is probably a repetition, which one read answers; the claim
//! that comes first otherwise would find the record, and take a second statement to read it.
//!
//! A guess, and a matter of speed only: where it is wrong, the delivery has cost one read more.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onced_core::key::{Key, Scope};

/// 128 KiB. A key's place is its hash's; who comes later has it.
const PLACES: usize = 16 * 1024;

/// The keys met last. Cloning shares them.
#[derive(Clone)]
pub(super) struct Known {
    places: Arc<[AtomicU64]>,
    hasher: RandomState,
}

impl Known {
    pub(super) fn new() -> Self {
        Self { places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::new() }
    }

    pub(super) fn note(&self, scope: &Scope, key: &Key) {
        let (hash, place) = self.place(scope, key);
        if let Some(place) = place {
            place.store(hash, Ordering::Relaxed);
        }
    }

    pub(super) fn has(&self, scope: &Scope, key: &Key) -> bool {
        let (hash, place) = self.place(scope, key);
        place.is_some_and(|place| place.load(Ordering::Relaxed) == hash)
    }

    fn place(&self, scope: &Scope, key: &Key) -> (u64, Option<&AtomicU64>) {
        // Zero is nobody's.
        let hash = self.hasher.hash_one((scope.as_str(), key.as_str())).max(1);
        (hash, self.places.get(hash as usize % PLACES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_known_in_its_scope_until_another_takes_its_place() {
        let (known, scope, key) = (Known::new(), Scope::new("a").unwrap(), Key::new("evt_1").unwrap());
        assert!(!known.has(&scope, &key));
        known.note(&scope, &key);
        assert!(known.clone().has(&scope, &key));
        assert!(!known.has(&Scope::new("b").unwrap(), &key));
        let others = (0..100 * PLACES).map(|n| Key::new(&format!("other_{n}")).unwrap());
        for other in others {
            known.note(&scope, &other);
        }
        assert!(!known.has(&scope, &key));
    }
}
