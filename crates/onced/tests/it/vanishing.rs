//! O-28: a record is deleted between the statement that ran into it and the next one, which reads or takes it. The
//! delivery then claims anew; it never runs without a record, and never fails.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onced::guard::{Begun, Guard};
use onced::store::StoreError;
use onced::store::deliveries::{Deliveries, DeliveryLine, DeliveryRead, LogDeliveries, Repeats};
use onced::store::keys::{Basis, Claim, Claimed, Keys, Moved, OwnerMove, Seen};
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::key::{Key, Scope};
use onced_core::record::{LeaseToken, Status, StoredResponse};
use testkit::Sql;
use uuid::Uuid;

use crate::bench::{Bench, SCOPE, Tested, executes, fresh_key, line, of_backend, request_of};
use crate::plant;

/// Before which statement the record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Find,
    Take,
    GiveUp,
}

/// A store that deletes the record before the statements that it is told, each once.
#[derive(Clone, Debug)]
struct Vanishing<S> {
    store: S,
    sql: Sql,
    delete: String,
    before: Arc<Mutex<VecDeque<Before>>>,
}

impl<S> Vanishing<S> {
    async fn comes_to(&self, statement: Before) {
        let is_due = {
            let mut before = self.before.lock().unwrap();
            before.front() == Some(&statement) && before.pop_front().is_some()
        };
        if is_due {
            assert_eq!(self.sql.execute(&self.delete).await, 1, "the record was there");
        }
    }
}

impl<S: Tested> Keys for Vanishing<S> {
    /// The claim first, so that it runs into the record.
    fn reads_first(&self) -> bool {
        false
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.store.claim(claim).await
    }

    async fn find(&mut self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        self.comes_to(Before::Find).await;
        self.store.find(scope, key).await
    }

    async fn take(&mut self, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
        self.comes_to(Before::Take).await;
        self.store.take(claim, basis).await
    }

    async fn give_up(&mut self, scope: &Scope, key: &Key, basis: &Basis, error: &str) -> Result<bool, StoreError> {
        self.comes_to(Before::GiveUp).await;
        self.store.give_up(scope, key, basis, error).await
    }

    async fn owner_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        from: Option<Status>,
        owner_move: &OwnerMove,
    ) -> Result<Option<Moved>, StoreError> {
        self.store.owner_move(scope, key, token, from, owner_move).await
    }
}

impl<S: Tested> Deliveries for Vanishing<S> {
    async fn log(&mut self, lines: &[DeliveryLine], answered: &[(Uuid, u16)]) -> Result<(), StoreError> {
        self.store.log(lines, answered).await
    }

    async fn deliveries_of(&mut self, scope: &Scope, key: &Key, limit: u32) -> Result<Vec<DeliveryRead>, StoreError> {
        self.store.deliveries_of(scope, key, limit).await
    }

    async fn repeats(&mut self, since: Option<Duration>) -> Result<Vec<Repeats>, StoreError> {
        self.store.repeats(since).await
    }
}

async fn vanishes<S: Tested>() {
    let bench = Bench::<S>::new().await;
    for (name, before) in [
        ("completed", Before::Find),
        ("completed-expired", Before::Find),
        ("completed-expired", Before::Take),
        ("failed-expired", Before::Take),
        ("in-progress-over", Before::Take),
        ("in-progress-over-none-left", Before::GiveUp),
    ] {
        let (key, line) = (fresh_key(), line(name));
        plant::line(&bench, &line, &key).await;
        let delete = format!("DELETE FROM {{keys}} WHERE scope = '{SCOPE}' AND key = '{}'", key.as_str());
        let store = Vanishing {
            store: bench.store.clone(),
            sql: bench.sql().clone(),
            delete: of_backend(S::BACKEND, &delete),
            before: Arc::new(Mutex::new(VecDeque::from([before]))),
        };
        let guard = Guard::new(store.clone(), LogDeliveries::Executed);
        let mut begun = guard.begin(&request_of(&line, &key)).await.unwrap();
        if let (Before::Take | Before::GiveUp, Begun::InProgress { .. }) = (before, &begun) {
            // Whoever has changed the record may still be at it: a 409, and the next try decides.
            assert!(bench.record(&key).await.is_empty(), "{name}");
            begun = guard.begin(&request_of(&line, &key)).await.unwrap();
        }
        let permit = executes(begun);
        assert!(store.before.lock().unwrap().is_empty(), "{name}: it went");
        assert_eq!((permit.attempt(), permit.is_resumed()), (1, false), "{name}: a first life");
        let row = bench.columns(&key, "status, attempt, lease_token").await;
        assert_eq!(row, ["in_progress", "1", permit.lease_token().as_str()], "{name}");
        permit.complete(StoredResponse::bare(201)).await.unwrap();
        assert!(matches!(guard.begin(&request_of(&line, &key)).await.unwrap(), Begun::Replay { .. }), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_deleted_meanwhile_is_claimed_anew_sqlite() {
    vanishes::<SqliteStore>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_deleted_meanwhile_is_claimed_anew_postgres() {
    vanishes::<PgStore>().await;
}
