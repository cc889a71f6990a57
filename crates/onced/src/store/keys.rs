//! The facts about keys: what a backend can be asked, and told, about records. Backends report; they decide nothing.

use std::future::Future;
use std::time::Duration;

use onced_core::decision::{Enter, Taking};
use onced_core::fingerprint::RequestHash;
use onced_core::key::{Key, Scope};
use onced_core::record::{LeaseToken, Record, Status, StoredResponse};
use onced_core::time::Timestamp;
use uuid::Uuid;

use super::StoreError;

/// What a claimant writes, whichever way it gets the record.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The scope.
    pub scope: Scope,
    /// The key.
    pub key: Key,
    /// The hash of the request that the key is bound to.
    pub request_hash: RequestHash,
    /// The rules of that hash.
    pub hash_version: String,
    /// The claimant's token, made before it asks.
    pub token: LeaseToken,
    /// What the claim writes.
    pub enter: Enter,
    /// The length of the lease.
    pub lease: Duration,
    /// From the claim to the expiry.
    pub keep: Duration,
    /// From an ending to the expiry at least.
    pub retry_window: Duration,
    /// The key that goes along with outside calls.
    pub downstream_key: String,
    /// The id of the delivery line that commits with the claim; `None` where none is kept.
    pub delivery: Option<Uuid>,
}

/// A record that is to be taken, as it was read. All of it is repeated in the `WHERE`.
#[derive(Clone, Debug)]
pub struct Basis {
    /// How it is taken.
    pub taking: Taking,
    /// The status that was read.
    pub status: Status,
    /// The attempt that was read.
    pub attempt: u32,
    /// The token that was read.
    pub token: Option<LeaseToken>,
}

/// What came of a claim or a taking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The record is the claimant's.
    Yes {
        /// The number of the attempt.
        attempt: u32,
        /// When the record expires.
        expires_at: Option<Timestamp>,
    },
    /// The claim lock was got, and yet nothing changed: the record is there already, or is no longer as it was read.
    No,
    /// A rival's transaction is open.
    LockMissed,
}

/// A record that was read, with the database's time in the same statement.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The record.
    pub record: Record,
    /// The answer of the outside call, where a step records it.
    pub call_answer: Option<StoredResponse>,
    /// The database's clock.
    pub now: Timestamp,
}

/// A move of the owner, by its token.
#[derive(Clone, Debug)]
pub enum OwnerMove {
    /// Store the outcome.
    Complete(StoredResponse),
    /// Record a failed attempt, with the answer to replay once attempts are used up.
    Fail {
        /// Short text for people.
        error: String,
        /// The answer, if there was one.
        response: Option<StoredResponse>,
    },
    /// Announce an outside call; the lease begins anew.
    External {
        /// Its length.
        lease: Duration,
    },
    /// Extend the lease.
    Renew {
        /// Its length.
        lease: Duration,
    },
    /// Give the key back.
    Release,
}

/// What a step of the work does to the record of the whole, by its owner's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParentMove {
    /// A step begins, which calls outside: the whole is pending while the outcome is unknown, and its lease begins anew.
    /// Not where the record has announced an outside call that is no step.
    StepBegun {
        /// The length of the lease.
        lease: Duration,
    },
    /// A step has ended: where no other is unfinished, the whole is in progress again.
    StepEnded,
}

/// A move that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// When the record expires now.
    pub expires_at: Option<Timestamp>,
}

/// The records of a backend, either each call in a transaction of its own, or all in the caller's.
pub trait Keys: Send {
    /// Whether what needs no taking may be answered from a read, without having asked for the claim lock. Where there is
    /// one writer for all, nobody can be told that the lock was missed.
    fn a_read_decides(&self) -> bool;

    /// Another number each time a connection to the database has been opened: what was read before may have come from
    /// another server. Always the same where there is no other database to meet, and another one at each call where nobody
    /// says when a connection leads to another server: nothing is kept then.
    fn epoch(&self) -> u64 {
        0
    }

    /// Inserts the record of a key that has none, in one atomic step that never waits for a rival without bound.
    fn claim(&mut self, claim: &Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// Reads a record in a statement of its own.
    fn find(&mut self, scope: &Scope, key: &Key) -> impl Future<Output = Result<Option<Seen>, StoreError>> + Send;

    /// Takes an existing record by compare-and-swap on all of `basis`.
    fn take(&mut self, claim: &Claim, basis: &Basis) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// Marks a record that is out of attempts as failed, by compare-and-swap. `false` where it has changed.
    fn give_up(
        &mut self,
        scope: &Scope,
        key: &Key,
        basis: &Basis,
        error: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Makes a move of the owner, by compare-and-swap on its token and the statuses that the move may start from; where
    /// `from` says more, completing and failing start from that status only. `None` where the claim was lost.
    fn owner_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        from: Option<Status>,
        owner_move: &OwnerMove,
    ) -> impl Future<Output = Result<Option<Moved>, StoreError>> + Send;
}

/// The records within a transaction, in which a step and the whole that it belongs to can be moved together.
pub trait InTransaction: Keys {
    /// Moves the record of the whole along with one of its steps, by compare-and-swap on the owner's token. `None` where
    /// the claim was lost.
    fn parent_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        parent_move: ParentMove,
    ) -> impl Future<Output = Result<Option<Moved>, StoreError>> + Send;
}

/// A store in which a caller can share its own transaction.
pub trait Transactional: Keys {
    /// The caller's transaction.
    type Tx: Send;
    /// The records within it.
    type InTx<'t>: InTransaction
    where
        Self: 't;

    /// Opens a transaction that is safe to drop at any point.
    fn transaction(&self) -> impl Future<Output = Result<Self::Tx, StoreError>> + Send;

    /// The records within `tx`. Where nothing bounds it yet, a claim does: nobody may hang in it for longer than the
    /// lease. (On SQLite nothing has to: whoever hangs there blocks others for their own busy timeout only.)
    fn within<'t>(&'t self, tx: &'t mut Self::Tx) -> Self::InTx<'t>;

    /// Commits a transaction. After [`StoreErrorKind::Lost`](super::StoreErrorKind::Lost) nobody knows whether it was
    /// committed: read the record.
    fn commit(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Rolls a transaction back, so that what it held is free when this returns.
    fn rollback(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Sets the savepoint of that name, which needs no quotes.
    fn set_savepoint(&self, tx: &mut Self::Tx, name: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Undoes what was done since the savepoint of that name.
    fn undo_to_savepoint(&self, tx: &mut Self::Tx, name: &str) -> impl Future<Output = Result<(), StoreError>> + Send;
}
