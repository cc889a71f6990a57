//! Work that its own failure undoes: what a permit does in the caller's transaction behind a savepoint.

use std::fmt;

use onced_core::record::StoredResponse;
use uuid::Uuid;

use super::{Completed, EndError, Store, TxPermit};
use crate::store::keys::Transactional;

/// The right to execute within the caller's transaction, behind a savepoint of its own. For as long as it lives, the
/// transaction is reached through [`tx`](Self::tx) alone: so nothing else gets behind the savepoint unseen.
///
/// Spend it with [`complete`](Self::complete) or [`fail`](Self::fail), then commit. Where it is dropped, roll back.
#[must_use = "dropped, it leaves its key claimed, should the transaction commit"]
pub struct Work<'t, S: Store + Transactional> {
    permit: TxPermit<S>,
    tx: &'t mut S::Tx,
    savepoint: String,
}

impl<S: Store + Transactional> fmt::Debug for Work<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("attempt", &self.permit.attempt()).finish_non_exhaustive()
    }
}

impl<S: Store + Transactional> TxPermit<S> {
    /// Sets a savepoint, before the caller's own writes: [`Work::fail`] then undoes what was written since. One round trip
    /// to the database.
    ///
    /// Several keys can be worked on in one transaction, one after the other: the transaction is lent until the work is
    /// ended, so one that began in between ends first, and is undone with it where the outer one fails.
    ///
    /// # Errors
    /// [`EndError`]: roll back.
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn savepoint(self, tx: &mut S::Tx) -> Result<Work<'_, S>, EndError> {
        // Of this permit alone: going back to one name would stop at another's savepoint.
        let savepoint = format!("onced_{}", Uuid::new_v4().simple());
        let set = self.store().set_savepoint(tx, &savepoint).await;
        set.map_err(|source| self.store_error(source))?;
        Ok(Work { permit: self, tx, savepoint })
    }
}

impl<S: Store + Transactional> Work<'_, S> {
    /// The transaction: what is written through it belongs to this key, commits with its outcome, or is undone by its failure.
    pub fn tx(&mut self) -> &mut S::Tx {
        self.tx
    }

    /// What is known of the attempt.
    pub fn permit(&self) -> &TxPermit<S> {
        &self.permit
    }

    /// As [`TxPermit::complete`].
    ///
    /// # Errors
    /// [`EndError`]: roll back.
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn complete(self, response: StoredResponse) -> Result<Completed, EndError> {
        self.permit.complete(self.tx, response).await
    }

    /// Undoes everything since the savepoint, also what was ended for other keys meanwhile, and records a failed attempt
    /// as [`TxPermit::fail`] does.
    ///
    /// # Errors
    /// As [`TxPermit::fail`].
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn fail(self, error: &str, response: Option<StoredResponse>) -> Result<(), EndError> {
        let Self { permit, tx, savepoint } = self;
        permit.may_fail()?;
        let undone = permit.store().undo_to_savepoint(tx, &savepoint).await;
        undone.map_err(|source| permit.store_error(source))?;
        permit.fail(tx, error, response).await
    }
}
