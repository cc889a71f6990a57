//! Rows to records and parameters.

use onced_core::time::Timestamp;
use sqlx::postgres::PgRow;

use super::error;
use crate::store::StoreError;
use crate::store::keys::Claimed;
use crate::store::row::readers;

readers!(PgRow, sqlx::Postgres, number: i32, flag: bool);

pub(super) fn claimed(row: &PgRow) -> Result<Claimed, StoreError> {
    if !get::<bool>(row, "got")? {
        return Ok(Claimed::LockMissed);
    }
    match get::<Option<i32>>(row, "attempt")? {
        Some(_) => Ok(Claimed::Yes { attempt: number(row, "attempt")?, expires_at: time(row, "expires_at")? }),
        None => Ok(Claimed::No),
    }
}
