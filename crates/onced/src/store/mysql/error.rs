//! MariaDB's error numbers, translated in this one place.

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;

use crate::store::error::{COMMIT, translate};
use crate::store::{StoreError, StoreErrorKind};

const DUPLICATE: u16 = 1062;
const LOCK_NOT_GOT: u16 = 1205;
/// By a person who ended the statement.
const INTERRUPTED: u16 = 1317;
/// By the statement's own time-out.
const TIMED_OUT: u16 = 1969;

pub(super) fn of(error: sqlx::Error, doing: &'static str) -> StoreError {
    let number = number(&error);
    // These words quote what a row was to hold.
    if let Some(number @ (DUPLICATE | 1292 | 1366)) = number {
        return StoreError::refused(format!("{doing}: MariaDB refused a value (error {number})"));
    }
    // A commit is waited for (for its replicas, for the log) after it is in the log: it was ended while it was, or before.
    let was_waited_for = doing == COMMIT && matches!(number, Some(INTERRUPTED | TIMED_OUT));
    let error = translate(error, doing, kind_of);
    if was_waited_for { error.with_kind(StoreErrorKind::Lost) } else { error }
}

/// What may be done after this answer of the database.
pub(in crate::store) fn kind_of(answer: &dyn DatabaseError) -> StoreErrorKind {
    match answer.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number) {
        // Lock not got, deadlock, a row that has changed since the snapshot: it passes, and the whole transaction may be
        // run again. A statement that was ended by its time-out, or by a person, has waited for something.
        Some(LOCK_NOT_GOT | 1213 | 1020 | INTERRUPTED | TIMED_OUT) => StoreErrorKind::Transient,
        // Too many connections: nothing was begun. Read-only: a replica, or a primary that was one, and what it holds may
        // be behind.
        Some(1040 | 1203 | 1226 | 1290 | 1792 | 1836) => StoreErrorKind::Unavailable,
        // The server is shutting down, or has ended the connection; whether the statement was committed is not said.
        Some(1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1927 | 4031) => StoreErrorKind::Lost,
        _ => StoreErrorKind::Refused,
    }
}

/// Whether a statement was ended by a person or by its time-out, whatever it was.
pub(in crate::store) fn is_interruption(answer: &dyn DatabaseError) -> bool {
    let number = answer.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number);
    matches!(number, Some(INTERRUPTED | TIMED_OUT))
}

/// Errors on the way to a connection: whatever they are, no statement was sent.
pub(super) fn on_connecting(error: sqlx::Error) -> StoreError {
    of(error, "connect to MariaDB").with_kind(StoreErrorKind::Unavailable)
}

/// Whether somebody else holds what was asked for.
pub(super) fn is_lock_missed(error: &sqlx::Error) -> bool {
    number(error) == Some(LOCK_NOT_GOT)
}

/// Whether there is such a row already.
pub(super) fn is_duplicate(error: &sqlx::Error) -> bool {
    number(error) == Some(DUPLICATE)
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let answer = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(answer.number())
}
