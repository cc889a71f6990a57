//! What people ask and do by hand: listing keys, reading why one stands as it does, and resolving an unknown outcome.

use std::future::Future;
use std::time::Duration;

use onced_core::key::{Key, Scope};
use onced_core::record::{LeaseToken, Status, StoredResponse};
use onced_core::time::Timestamp;

use super::StoreError;

/// A record in a list.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Listed {
    pub scope: String,
    pub key: String,
    pub status: Status,
    pub attempt: u32,
    pub response_code: Option<u16>,
    pub error: Option<String>,
    pub lease_until: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub now: Timestamp,
}

/// Which records to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only this scope.
    pub scope: Option<Scope>,
    /// Only this status.
    pub status: Option<Status>,
    /// At most that many.
    pub limit: u32,
}

/// What a person decided, as it is read back.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Audited {
    pub at: Timestamp,
    pub who: String,
    pub action: String,
    pub reason: String,
}

/// What a person says about an unknown outcome.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// It took effect; this is the response from now on.
    Happened(StoredResponse),
    /// It had no effect. Believed only once `settle` has passed since the last caller's lease ended: an upstream may
    /// still be working, and a look-up may lag.
    DidNotHappen {
        /// How long that is.
        settle: Duration,
    },
}

#[cfg(any(feature = "sqlite", feature = "mysql"))]
impl Resolution {
    /// The status that it gives to the record, and to each step of it that has no outcome.
    pub(super) fn status(&self) -> Status {
        match self {
            Self::Happened(_) => Status::Completed,
            Self::DidNotHappen { .. } => Status::Failed,
        }
    }
}

/// Who says so, and why; kept for good.
#[derive(Clone, Debug)]
pub struct Because {
    /// Who.
    pub who: String,
    /// Why.
    pub reason: String,
}

/// What people ask of a backend.
pub trait Upkeep: Send {
    /// Lists records, newest change first.
    fn list(&mut self, filter: &Filter) -> impl Future<Output = Result<Vec<Listed>, StoreError>> + Send;

    /// What people decided about a key, oldest first.
    fn audit_of(&mut self, scope: &Scope, key: &Key) -> impl Future<Output = Result<Vec<Audited>, StoreError>> + Send;

    /// Resolves an unknown outcome by compare-and-swap on the token that was read, on `pending_external`, and on the
    /// lease being over. `false` where that no longer holds. The reason commits with it.
    fn resolve(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: Option<&LeaseToken>,
        resolution: &Resolution,
        because: &Because,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}
