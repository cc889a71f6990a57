//! What a handler takes: the transaction of its key, lent for as long as the handler runs.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};

use crate::store;
use crate::store::keys::Transactional;

/// Where the transaction lies while no handler has it. Clones share it.
pub(super) struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + 'static> Slot<T> {
    /// Hands out what the request's slot holds.
    pub(super) fn lend(parts: &Parts) -> Result<OwnedMappedMutexGuard<Option<T>, T>, NoTransaction> {
        let slot = parts.extensions.get::<Self>().ok_or(NoTransaction)?;
        let held = slot.0.clone().try_lock_owned().map_err(|_| NoTransaction)?;
        OwnedMutexGuard::try_map(held, Option::as_mut).map_err(|_| NoTransaction)
    }
}

impl<T> Slot<T> {
    pub(super) fn holding(held: T) -> Self {
        Self(Arc::new(Mutex::new(Some(held))))
    }

    /// What it holds; `None` where somebody else still has it.
    pub(super) fn take(&self) -> Option<T> {
        self.0.try_lock().ok()?.take()
    }
}

/// The transaction in which the key is claimed, as an argument of a handler behind
/// [`Onced::atomic`](super::Onced::atomic): what is written through it commits together with the key and the handler's
/// answer, or not at all. `&mut **tx` is the connection that sqlx takes. Do not end it by SQL of your own.
///
/// It goes back when it is dropped, at the latest when the handler returns. A handler that keeps it (in a task, in a
/// streaming body) has 500 for its answer, and nothing is committed.
pub struct Tx<S: Transactional>(OwnedMappedMutexGuard<Option<S::Tx>, S::Tx>)
where
    S::Tx: 'static;

impl<S: Transactional> Deref for Tx<S>
where
    S::Tx: 'static,
{
    type Target = S::Tx;

    fn deref(&self) -> &S::Tx {
        &self.0
    }
}

impl<S: Transactional> DerefMut for Tx<S>
where
    S::Tx: 'static,
{
    fn deref_mut(&mut self) -> &mut S::Tx {
        &mut self.0
    }
}

impl<S, A> FromRequestParts<A> for Tx<S>
where
    S: Transactional,
    S::Tx: 'static,
    A: Sync,
{
    type Rejection = NoTransaction;

    async fn from_request_parts(parts: &mut Parts, _: &A) -> Result<Self, NoTransaction> {
        Slot::<S::Tx>::lend(parts).map(Self)
    }
}

/// A handler asks for a transaction that its request does not have: it stands behind no layer of
/// [`Onced::atomic`](super::Onced::atomic), the request has no key or needs none, the store is of another kind, or the
/// handler asks twice. The answer is a bare 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTransaction;

impl IntoResponse for NoTransaction {
    fn into_response(self) -> Response {
        tracing::error!(
            "a handler takes a Tx, and its request has none: is the route behind Onced::atomic, and its key required?"
        );
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

/// An error of the database in a handler: 500, with nothing of it in the answer. Where the database rolled the transaction
/// back for a reason that passes (a serialization failure, a deadlock), the layer runs the whole handler again, in a new
/// transaction, up to five times; the handler's effects must all be in that transaction.
pub struct TxError(sqlx::Error);

/// Only the code: the database's words may quote a row.
impl std::fmt::Debug for TxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TxError").field("code", &self.code()).finish_non_exhaustive()
    }
}

impl TxError {
    fn code(&self) -> Option<String> {
        self.0.as_database_error().and_then(|answer| answer.code().map(|code| code.into_owned()))
    }
}

impl From<sqlx::Error> for TxError {
    fn from(error: sqlx::Error) -> Self {
        Self(error)
    }
}

/// Marks an answer that is none: the handler is to be run again.
#[derive(Clone, Copy)]
pub(super) struct Passes;

impl IntoResponse for TxError {
    fn into_response(self) -> Response {
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        if store::passes(&self.0) {
            response.extensions_mut().insert(Passes);
        } else {
            tracing::error!(code = self.code(), "a handler's statement failed");
        }
        response
    }
}
