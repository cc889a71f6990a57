//! PostgreSQL's error codes, translated in this one place.

use sqlx::error::DatabaseError;

use crate::store::error::translate;
use crate::store::{StoreError, StoreErrorKind};

pub(super) fn of(error: sqlx::Error, doing: &'static str) -> StoreError {
    translate(error, doing, kind_of)
}

/// What may be done after this answer of the database.
pub(in crate::store) fn kind_of(answer: &dyn DatabaseError) -> StoreErrorKind {
    match answer.code().as_deref() {
        // Serialization failure, deadlock, lock not available: rolled back, and it passes. A statement cancelled by
        // its timeout has waited for something.
        Some("40001" | "40P01" | "55P03" | "57014") => StoreErrorKind::Transient,
        // Starting up or shutting down, too many connections: nothing was begun. A read-only transaction: a standby, or a
        // primary that was one, and what it holds may be behind.
        Some("57P03" | "53300" | "25006") => StoreErrorKind::Unavailable,
        // The server ended the connection; whether the statement was committed is not said.
        Some(code) if code.starts_with("57P") || code.starts_with("08") || code == "25P03" => StoreErrorKind::Lost,
        _ => StoreErrorKind::Refused,
    }
}

/// Errors on the way to a connection: whatever they are, no statement was sent.
pub(super) fn on_connecting(error: sqlx::Error) -> StoreError {
    of(error, "connect to PostgreSQL").with_kind(StoreErrorKind::Unavailable)
}
