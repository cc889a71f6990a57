//! Rows to records and parameters.

use onced_core::time::Timestamp;
use sqlx::mysql::MySqlRow;

use super::error;
use crate::store::StoreError;
use crate::store::row::readers;

readers!(MySqlRow, sqlx::MySql, number: i64, flag: i64);

/// Scopes and keys are bytes, of which all are ASCII.
pub(super) fn ascii(row: &MySqlRow, column: &str) -> Result<String, StoreError> {
    String::from_utf8(get::<Vec<u8>>(row, column)?).map_err(|_| not_ours(column))
}
