//! A store of whichever backend its URL names.

use std::time::Duration;

use onced_core::key::{Key, Scope};
use onced_core::record::{LeaseToken, Status};
use onced_core::time::Timestamp;
use uuid::Uuid;

use super::deliveries::{Deliveries, DeliveryLine, DeliveryRead, Repeats};
use super::health::{Backends, Growth, Health, Overdue, SchemaVersion, Settings, Unfinished};
use super::keys::{Basis, Claim, Claimed, Keys, Moved, OwnerMove, Seen};
#[cfg(feature = "mysql")]
use super::mysql::MySqlStore;
#[cfg(feature = "postgres")]
use super::postgres::PgStore;
#[cfg(feature = "sqlite")]
use super::sqlite::SqliteStore;
use super::sweep::{Batch, Due, Sweep};
use super::upkeep::{Audited, Because, Filter, Listed, Resolution, Upkeep};
use super::{StoreError, StoreOptions};

/// A store of whichever backend its URL names.
#[derive(Clone)]
#[allow(missing_docs)]
pub enum AnyStore {
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteStore),
    #[cfg(feature = "postgres")]
    Postgres(PgStore),
    #[cfg(feature = "mysql")]
    MySql(MySqlStore),
}

macro_rules! each {
    ($store:expr, $it:ident => $do:expr) => {
        match $store {
            #[cfg(feature = "sqlite")]
            AnyStore::Sqlite($it) => $do,
            #[cfg(feature = "postgres")]
            AnyStore::Postgres($it) => $do,
            #[cfg(feature = "mysql")]
            AnyStore::MySql($it) => $do,
        }
    };
}

impl AnyStore {
    /// Opens the store of that URL: `sqlite:PATH`, `postgres://…`, or `mysql://…` for MariaDB. Does not migrate.
    ///
    /// # Errors
    /// Where the URL names no backend of this build, the database cannot be opened, or its commits may not survive.
    ///
    /// # Cancel safety
    /// If the future is dropped, the connections are closed; a file that was missing may have been made.
    pub async fn open(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        match url.split(':').next().unwrap_or("") {
            #[cfg(feature = "sqlite")]
            "sqlite" => Ok(Self::Sqlite(SqliteStore::open(url, options).await?)),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => Ok(Self::Postgres(PgStore::open(url, options).await?)),
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => Ok(Self::MySql(MySqlStore::open(url, options).await?)),
            _ => Err(StoreError::refused("a store's URL begins with sqlite:, postgres:// or mysql://")),
        }
    }

    /// Brings the schema up to date; safe for several instances at once.
    ///
    /// # Errors
    /// Where the schema is newer than this version, or a table of that name is not ours.
    ///
    /// # Cancel safety
    /// If the future is dropped, the schema is as it was or up to date; on MariaDB, where what makes a table commits by itself, it
    /// may stop in between, and the next call goes on.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        each!(self, store => store.migrate().await)
    }

    /// Refuses unless the schema is of the version that this binary knows.
    ///
    /// # Errors
    /// In words that say to migrate, or that the schema is newer.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        each!(self, store => store.check_schema().await)
    }

    /// Refuses unless keys can be read and written.
    ///
    /// # Errors
    /// In words that say what is wrong.
    ///
    /// # Cancel safety
    /// If the future is dropped, what it has written is taken back all the same.
    pub async fn check_ready(&self) -> Result<(), StoreError> {
        each!(self, store => store.check_ready().await)
    }
}

impl Keys for AnyStore {
    fn a_read_decides(&self) -> bool {
        each!(self, store => store.a_read_decides())
    }

    fn epoch(&self) -> u64 {
        each!(self, store => store.epoch())
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        each!(self, store => store.claim(claim).await)
    }

    async fn find(&mut self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        each!(self, store => store.find(scope, key).await)
    }

    async fn take(&mut self, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
        each!(self, store => store.take(claim, basis).await)
    }

    async fn give_up(&mut self, scope: &Scope, key: &Key, basis: &Basis, why: &str) -> Result<bool, StoreError> {
        each!(self, store => store.give_up(scope, key, basis, why).await)
    }

    async fn owner_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        from: Option<Status>,
        owner_move: &OwnerMove,
    ) -> Result<Option<Moved>, StoreError> {
        each!(self, store => store.owner_move(scope, key, token, from, owner_move).await)
    }
}

impl Deliveries for AnyStore {
    async fn log(&mut self, lines: &[DeliveryLine], answered: &[(Uuid, u16)]) -> Result<(), StoreError> {
        each!(self, store => store.log(lines, answered).await)
    }

    async fn deliveries_of(&mut self, scope: &Scope, key: &Key, limit: u32) -> Result<Vec<DeliveryRead>, StoreError> {
        each!(self, store => store.deliveries_of(scope, key, limit).await)
    }

    async fn repeats(&mut self, since: Option<Duration>) -> Result<Vec<Repeats>, StoreError> {
        each!(self, store => store.repeats(since).await)
    }
}

impl Upkeep for AnyStore {
    async fn list(&mut self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        each!(self, store => store.list(filter).await)
    }

    async fn audit_of(&mut self, scope: &Scope, key: &Key) -> Result<Vec<Audited>, StoreError> {
        each!(self, store => store.audit_of(scope, key).await)
    }

    async fn resolve(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: Option<&LeaseToken>,
        resolution: &Resolution,
        because: &Because,
    ) -> Result<bool, StoreError> {
        each!(self, store => store.resolve(scope, key, token, resolution, because).await)
    }
}

impl Sweep for AnyStore {
    async fn sweep_keys(&mut self, limit: u32) -> Result<Batch, StoreError> {
        each!(self, store => store.sweep_keys(limit).await)
    }

    async fn sweep_deliveries(&mut self, keep: Duration, limit: u32) -> Result<Batch, StoreError> {
        each!(self, store => store.sweep_deliveries(keep, limit).await)
    }

    async fn due(&mut self, keep: Duration) -> Result<Vec<Due>, StoreError> {
        each!(self, store => store.due(keep).await)
    }
}

impl Health for AnyStore {
    async fn settings(&mut self) -> Result<Settings, StoreError> {
        each!(self, store => store.settings().await)
    }

    async fn schema_version(&mut self) -> Result<SchemaVersion, StoreError> {
        each!(self, store => store.schema_version().await)
    }

    async fn database_time(&mut self) -> Result<Timestamp, StoreError> {
        each!(self, store => store.database_time().await)
    }

    async fn backends(&mut self) -> Result<Option<Backends>, StoreError> {
        each!(self, store => store.backends().await)
    }

    async fn unfinished(&mut self) -> Result<Vec<Unfinished>, StoreError> {
        each!(self, store => store.unfinished().await)
    }

    async fn overdue(&mut self) -> Result<Overdue, StoreError> {
        each!(self, store => store.overdue().await)
    }

    async fn growth(&mut self) -> Result<Growth, StoreError> {
        each!(self, store => store.growth().await)
    }
}
