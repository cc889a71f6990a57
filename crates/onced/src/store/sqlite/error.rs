//! SQLite's result codes, translated in this one place.

use sqlx::error::DatabaseError;

use crate::store::error::translate;
use crate::store::{StoreError, StoreErrorKind};

const ERROR: i32 = 1;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READ_ONLY: i32 = 8;
const INTERRUPT: i32 = 9;
const IO_ERROR: i32 = 10;
const CANNOT_OPEN: i32 = 14;

pub(super) fn of(error: sqlx::Error, doing: &'static str) -> StoreError {
    translate(error, doing, kind_of)
}

/// What may be done after this answer of the database.
pub(in crate::store) fn kind_of(answer: &dyn DatabaseError) -> StoreErrorKind {
    match primary_code(answer.code().as_deref()) {
        // Somebody else is writing. Nothing of ours was written.
        Some(BUSY | LOCKED | INTERRUPT) => StoreErrorKind::Transient,
        Some(CANNOT_OPEN) => StoreErrorKind::Unavailable,
        // In the middle of a commit it is not known whether it got through.
        Some(IO_ERROR) => StoreErrorKind::Lost,
        _ => StoreErrorKind::Refused,
    }
}

/// Whether the write lock was not got in time. `BUSY_SNAPSHOT` is another matter: the caller's transaction has read
/// and cannot be upgraded.
pub(super) fn is_write_lock_missed(error: &sqlx::Error) -> bool {
    const BUSY_SNAPSHOT: i32 = BUSY | (2 << 8);
    let code = error.as_database_error().and_then(|answer| answer.code()).and_then(|code| code.parse::<i32>().ok());
    code.is_some_and(|code| code != BUSY_SNAPSHOT && code & 0xff == BUSY)
}

/// Whether a transaction was refused to begin because there is one.
pub(super) fn is_within_a_transaction(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|answer| answer.code());
    primary_code(code.as_deref()) == Some(ERROR)
}

/// Whether the file could only be opened for reading. SQLite does so of its own accord where it may not write, and a
/// connection stays as it was opened, whatever becomes of the file.
pub(super) fn is_read_only(error: &StoreError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<sqlx::Error>());
    let code = source.and_then(sqlx::Error::as_database_error).and_then(|answer| answer.code());
    primary_code(code.as_deref()) == Some(READ_ONLY)
}

fn primary_code(code: Option<&str>) -> Option<i32> {
    code?.parse::<i32>().ok().map(|extended| extended & 0xff)
}
