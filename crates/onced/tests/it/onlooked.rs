//! A store with somebody beside it who sees each statement that a guard gives it, and may act before it runs.

use std::time::Duration;

use onced::store::StoreError;
use onced::store::deliveries::{Deliveries, DeliveryLine, DeliveryRead, Repeats};
use onced::store::keys::{Basis, Claim, Claimed, Keys, Moved, OwnerMove, Seen};
use onced_core::key::{Key, Scope};
use onced_core::record::{LeaseToken, Status};
use uuid::Uuid;

use crate::bench::Tested;

/// A statement that somebody may act before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    Find,
    Take,
    GiveUp,
}

/// Who looks on.
pub(crate) trait Onlooker: Clone + Send + Sync + 'static {
    /// That statement comes next.
    fn before(&self, statement: Statement) -> impl Future<Output = ()> + Send;

    /// A record has been looked for.
    fn after_find(&self);
}

/// The store, and who looks on.
#[derive(Clone, Debug)]
pub(crate) struct Onlooked<S, O> {
    pub(crate) store: S,
    pub(crate) onlooker: O,
}

impl<S: Tested, O: Onlooker> Keys for Onlooked<S, O> {
    fn a_read_decides(&self) -> bool {
        self.store.a_read_decides()
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.store.claim(claim).await
    }

    async fn find(&mut self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        self.onlooker.before(Statement::Find).await;
        let seen = self.store.find(scope, key).await;
        self.onlooker.after_find();
        seen
    }

    async fn take(&mut self, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
        self.onlooker.before(Statement::Take).await;
        self.store.take(claim, basis).await
    }

    async fn give_up(&mut self, scope: &Scope, key: &Key, basis: &Basis, error: &str) -> Result<bool, StoreError> {
        self.onlooker.before(Statement::GiveUp).await;
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

impl<S: Tested, O: Onlooker> Deliveries for Onlooked<S, O> {
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
