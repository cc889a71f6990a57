//! Rows to records.

use onced_core::time::Timestamp;
use sqlx::sqlite::SqliteRow;

use super::error;
use crate::store::StoreError;
use crate::store::keys::Claimed;
use crate::store::row::readers;

readers!(SqliteRow, sqlx::Sqlite, number: i64, flag: i64);

pub(super) fn claimed(row: Option<&SqliteRow>) -> Result<Claimed, StoreError> {
    let Some(row) = row else { return Ok(Claimed::No) };
    Ok(Claimed::Yes { attempt: number(row, "attempt")?, expires_at: time(row, "expires_at")? })
}
