//! The keys that this process executes in transactions of its own. Where a backend has one writer for all, nobody sees that
//! transaction before it has ended: a duplicate would wait for the write lock, and hold a connection meanwhile.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use onced_core::key::{Key, Scope};

/// The keys under way. Cloning shares them.
#[derive(Clone, Default)]
pub(super) struct Running(Arc<Mutex<HashSet<(Scope, Key)>>>);

/// A key's mark, until it is dropped.
pub(super) struct Mark {
    running: Running,
    name: (Scope, Key),
}

impl Running {
    /// Marks a key; `None` where it is marked already.
    pub(super) fn mark(&self, scope: &Scope, key: &Key) -> Option<Mark> {
        let name = (scope.clone(), key.clone());
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.insert(name.clone()).then(|| Mark { running: self.clone(), name })
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.running.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_marked_once_at_a_time_in_its_scope() {
        let (running, scope, key) = (Running::default(), Scope::new("a").unwrap(), Key::new("evt_1").unwrap());
        let mark = running.mark(&scope, &key);
        assert!(mark.is_some() && running.clone().mark(&scope, &key).is_none());
        assert!(running.mark(&Scope::new("b").unwrap(), &key).is_some());
        drop(mark);
        assert!(running.mark(&scope, &key).is_some());
    }
}
