//! PostgreSQL in another surrounding: the same store, opened in another way, for the whole list of cases.

use std::fmt::Debug;
use std::future::Future;
use std::marker::PhantomData;
use std::time::Duration;

use onced::store::deliveries::{Deliveries, DeliveryLine, DeliveryRead, Repeats};
use onced::store::health::{Backends, Growth, Health, Overdue, SchemaVersion, Settings, Unfinished};
use onced::store::keys::{Basis, Claim, Claimed, Keys, Moved, OwnerMove, Seen, Transactional};
use onced::store::postgres::{PgKeys, PgStore};
use onced::store::sweep::{Batch, Due, Sweep};
use onced::store::upkeep::{Audited, Because, Filter, Listed, Resolution, Upkeep};
use onced::store::{StoreError, StoreOptions};
use onced_core::key::{Key, Scope};
use onced_core::record::{LeaseToken, Status};
use onced_core::time::Timestamp;
use testkit::{Backend, Database};
use uuid::Uuid;

use crate::bench::Tested;

/// A surrounding.
pub(crate) trait Surrounding: Clone + Debug + Send + Sync + 'static {
    /// A database in it.
    fn database() -> impl Future<Output = Database> + Send {
        Database::create(Backend::Postgres)
    }

    /// The store of a database, whose own URL this is.
    fn open(url: &str, options: &StoreOptions) -> impl Future<Output = Result<PgStore, StoreError>> + Send;
}

/// A store that was opened there.
#[derive(Clone, Debug)]
pub(crate) struct Variant<W>(pub(crate) PgStore, PhantomData<W>);

impl<W: Surrounding> Tested for Variant<W> {
    type Db = sqlx::Postgres;
    const BACKEND: Backend = Backend::Postgres;

    async fn database() -> Database {
        W::database().await
    }

    async fn open_at(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        Ok(Self(W::open(url, options).await?, PhantomData))
    }

    async fn bring_up_to_date(&self) -> Result<(), StoreError> {
        self.0.migrate().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.0.check_schema().await
    }

    async fn plain_transaction(&self) -> Self::Tx {
        self.0.plain_transaction().await
    }

    async fn run(tx: &mut Self::Tx, sql: &str) -> Result<u64, sqlx::Error> {
        PgStore::run(tx, sql).await
    }
}

impl<W: Surrounding> Transactional for Variant<W> {
    type Tx = <PgStore as Transactional>::Tx;
    type InTx<'t> = PgKeys<'t>;

    async fn transaction(&self) -> Result<Self::Tx, StoreError> {
        self.0.transaction().await
    }

    fn within<'t>(&'t self, tx: &'t mut Self::Tx) -> PgKeys<'t> {
        self.0.within(tx)
    }

    async fn commit(&self, tx: Self::Tx) -> Result<(), StoreError> {
        self.0.commit(tx).await
    }

    async fn rollback(&self, tx: Self::Tx) -> Result<(), StoreError> {
        self.0.rollback(tx).await
    }

    async fn set_savepoint(&self, tx: &mut Self::Tx) -> Result<(), StoreError> {
        self.0.set_savepoint(tx).await
    }

    async fn undo_to_savepoint(&self, tx: &mut Self::Tx) -> Result<(), StoreError> {
        self.0.undo_to_savepoint(tx).await
    }
}

impl<W: Surrounding> Keys for Variant<W> {
    fn a_read_decides(&self) -> bool {
        self.0.a_read_decides()
    }

    fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.0.claim(claim).await
    }

    async fn find(&mut self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        self.0.find(scope, key).await
    }

    async fn take(&mut self, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
        self.0.take(claim, basis).await
    }

    async fn give_up(&mut self, scope: &Scope, key: &Key, basis: &Basis, error: &str) -> Result<bool, StoreError> {
        self.0.give_up(scope, key, basis, error).await
    }

    async fn owner_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        from: Option<Status>,
        owner_move: &OwnerMove,
    ) -> Result<Option<Moved>, StoreError> {
        self.0.owner_move(scope, key, token, from, owner_move).await
    }
}

impl<W: Surrounding> Deliveries for Variant<W> {
    async fn log(&mut self, lines: &[DeliveryLine], answered: &[(Uuid, u16)]) -> Result<(), StoreError> {
        self.0.log(lines, answered).await
    }

    async fn deliveries_of(&mut self, scope: &Scope, key: &Key, limit: u32) -> Result<Vec<DeliveryRead>, StoreError> {
        self.0.deliveries_of(scope, key, limit).await
    }

    async fn repeats(&mut self, since: Option<Duration>) -> Result<Vec<Repeats>, StoreError> {
        self.0.repeats(since).await
    }
}

impl<W: Surrounding> Upkeep for Variant<W> {
    async fn list(&mut self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        self.0.list(filter).await
    }

    async fn audit_of(&mut self, scope: &Scope, key: &Key) -> Result<Vec<Audited>, StoreError> {
        self.0.audit_of(scope, key).await
    }

    async fn resolve(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: Option<&LeaseToken>,
        resolution: &Resolution,
        because: &Because,
    ) -> Result<bool, StoreError> {
        self.0.resolve(scope, key, token, resolution, because).await
    }
}

impl<W: Surrounding> Sweep for Variant<W> {
    async fn sweep_keys(&mut self, limit: u32) -> Result<Batch, StoreError> {
        self.0.sweep_keys(limit).await
    }

    async fn sweep_deliveries(&mut self, keep: Duration, limit: u32) -> Result<Batch, StoreError> {
        self.0.sweep_deliveries(keep, limit).await
    }

    async fn due(&mut self, keep: Duration) -> Result<Vec<Due>, StoreError> {
        self.0.due(keep).await
    }
}

impl<W: Surrounding> Health for Variant<W> {
    async fn settings(&mut self) -> Result<Settings, StoreError> {
        self.0.settings().await
    }

    async fn schema_version(&mut self) -> Result<SchemaVersion, StoreError> {
        self.0.schema_version().await
    }

    async fn database_time(&mut self) -> Result<Timestamp, StoreError> {
        self.0.database_time().await
    }

    async fn backends(&mut self) -> Result<Option<Backends>, StoreError> {
        self.0.backends().await
    }

    async fn unfinished(&mut self) -> Result<Vec<Unfinished>, StoreError> {
        self.0.unfinished().await
    }

    async fn overdue(&mut self) -> Result<Overdue, StoreError> {
        self.0.overdue().await
    }

    async fn growth(&mut self) -> Result<Growth, StoreError> {
        self.0.growth().await
    }
}
