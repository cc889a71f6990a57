//! What a handler in leased mode takes: the right to execute, and a transaction that opens late.

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use onced_core::record::StoredResponse;
use tokio::sync::OwnedMappedMutexGuard;

use super::extract::{NoTransaction, Passes, Slot, TxError};
use crate::guard::{EndError, Permit, Step, Store, Tries};
use crate::store::StoreError;
use crate::store::keys::Transactional;

/// What is lent to the handler.
pub(super) struct Held<S: Transactional> {
    store: S,
    pub(super) permit: Permit<S>,
    pub(super) tx: Option<S::Tx>,
    /// The handler's word that nothing happened outside.
    pub(super) no_effect: bool,
}

impl<S: Transactional> Held<S> {
    pub(super) fn new(store: S, permit: Permit<S>) -> Self {
        Self { store, permit, tx: None, no_effect: false }
    }

    /// No transaction is held while an outside system is waited for; and on SQLite it has the write lock that an
    /// announcement needs.
    fn has_no_transaction(&self) -> Result<(), EndError>
    where
        S: Store,
    {
        match &self.tx {
            Some(_) => Err(self.permit.misused("outside calls come before the transaction is opened")),
            None => Ok(()),
        }
    }
}

/// The right to execute, as an argument of a handler behind [`Onced::leased`](super::Onced::leased): to announce outside
/// calls, and to write the rows that commit with the key and the handler's answer.
///
/// It goes back when it is dropped, at the latest when the handler's answer has ended. Where the handler keeps it for longer,
/// in a task, nothing is ended, and what the record says then is answered instead.
///
/// An answer without a length (a stream of events) goes out as it comes, and is recorded on the way; it may have this argument
/// with it. It ends once its outcome is stored. Where it is not stored, it is broken off instead of ended, so that no client takes
/// it for whole.
pub struct Leased<S: Transactional>(OwnedMappedMutexGuard<Option<Held<S>>, Held<S>>)
where
    S: 'static,
    S::Tx: 'static;

impl<S> Leased<S>
where
    S: Store + Transactional,
    S::Tx: 'static,
{
    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.permit.attempt()
    }

    /// Whether an earlier attempt was cut off, so that its work may be half done.
    pub fn is_resumed(&self) -> bool {
        self.0.permit.is_resumed()
    }

    /// Whether an earlier attempt's outside call may have happened.
    pub fn earlier_call_is_unknown(&self) -> bool {
        self.0.permit.earlier_call_is_unknown()
    }

    /// The answer of the call that an earlier attempt announced by [`external`](Self::external), where it has become
    /// known: do not call again.
    pub fn call_answer(&self) -> Option<&StoredResponse> {
        self.0.permit.call_answer()
    }

    /// The key to send along with the call that [`external`](Self::external) announces: the same for every attempt.
    pub fn downstream_key(&self) -> &str {
        self.0.permit.downstream_key()
    }

    /// Whether an outside call may still be started. Ask right before the first byte; where it says no, send nothing and
    /// answer 503.
    pub fn may_start_call(&self) -> bool {
        self.0.permit.may_start_call()
    }

    /// Announces the one outside call of this work, before its first byte is sent: by each attempt that calls. Work with
    /// several, or whose call shall not be repeated after a serialization failure of its rows, takes [`step`](Self::step)s.
    ///
    /// # Errors
    /// As [`Permit::external`]. Answer with the error.
    ///
    /// # Cancel safety
    /// As [`Permit::external`].
    pub async fn external(&mut self) -> Result<(), LeasedError> {
        self.0.has_no_transaction()?;
        Ok(self.0.permit.external().await?)
    }

    /// Begins one of several outside calls, or says what it has come to: see [`Permit::step`].
    ///
    /// # Errors
    /// As [`Permit::step`]. Answer with the error.
    ///
    /// # Cancel safety
    /// As [`Permit::step`].
    pub async fn step(&mut self, name: &str) -> Result<Step<'_, S>, LeasedError> {
        self.0.has_no_transaction()?;
        Ok(self.0.permit.step(name).await?)
    }

    /// The transaction in which the handler's rows, its answer and the end of the key commit together; opened when this is
    /// first called. Call it after the outside calls, as it holds a connection (on SQLite the write lock). `&mut **tx` is
    /// the connection that sqlx takes. Where the handler answers 4xx or 5xx, what was written is rolled back.
    ///
    /// # Errors
    /// Where the database cannot be reached. Answer with the error.
    ///
    /// # Cancel safety
    /// If the future is dropped, no transaction is open.
    pub async fn tx(&mut self) -> Result<&mut S::Tx, LeasedError> {
        let Held { store, tx, .. } = &mut *self.0;
        let mut tries = Tries::default();
        if tx.is_none() {
            *tx = Some(loop {
                match store.transaction().await {
                    Ok(opened) => break opened,
                    Err(error) if tries.again(error.is_transient()).await => {}
                    Err(error) => return Err(error.into()),
                }
            });
        }
        tx.as_mut().ok_or_else(|| StoreError::new(crate::store::StoreErrorKind::Refused, "no transaction").into())
    }

    /// The handler's word that nothing happened outside, in this attempt or an earlier one: the downstream said so, or was
    /// never reached. An answer that is not final is then a failed attempt, which the next delivery repeats, where
    /// otherwise its outcome would be unknown.
    pub fn no_effect(&mut self) {
        self.0.no_effect = true;
    }
}

impl<S, A> FromRequestParts<A> for Leased<S>
where
    S: Store + Transactional,
    S::Tx: 'static,
    A: Sync,
{
    type Rejection = NoTransaction;

    async fn from_request_parts(parts: &mut Parts, _: &A) -> Result<Self, NoTransaction> {
        Slot::<Held<S>>::lend(parts).map(Self)
    }
}

/// Why a handler in leased mode cannot go on. As an answer it says nothing of the cause: 503 where the ledger failed or the
/// claim was lost, and 500 for a mistake of the handler's. Where the claim was lost, the layer answers with what others have
/// made of the key.
#[derive(Debug, thiserror::Error)]
pub enum LeasedError {
    /// An announcement or the record of a step was not written.
    #[error(transparent)]
    End(#[from] EndError),
    /// The transaction could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A statement of the handler failed.
    #[error("a statement failed")]
    Statement(TxError),
}

impl From<sqlx::Error> for LeasedError {
    fn from(error: sqlx::Error) -> Self {
        Self::Statement(error.into())
    }
}

impl IntoResponse for LeasedError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Statement(error) => return error.into_response(),
            Self::End(EndError::Misused { what, .. }) => {
                tracing::error!("{what}");
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::End(EndError::ClaimLost { .. } | EndError::Store { .. }) | Self::Store(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        let mut response = status.into_response();
        if matches!(self, Self::Store(error) if error.is_transient()) {
            response.extensions_mut().insert(Passes);
        }
        response
    }
}
