//! Rows to records and parameters.

use std::time::Duration;

use bytes::Bytes;
use onced_core::fingerprint::RequestHash;
use onced_core::record::{self, LeaseToken, Record, Status, StoredResponse};
use onced_core::time::Timestamp;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::error;
use crate::store::StoreError;
use crate::store::keys::Seen;

const READING: &str = "read a row";

pub(super) fn get<'r, T: sqlx::Decode<'r, sqlx::MySql> + sqlx::Type<sqlx::MySql>>(
    row: &'r MySqlRow,
    column: &str,
) -> Result<T, StoreError> {
    row.try_get(column).map_err(|source| error::of(source, READING))
}

pub(super) fn time(row: &MySqlRow, column: &str) -> Result<Option<Timestamp>, StoreError> {
    Ok(get::<Option<i64>>(row, column)?.map(Timestamp::from_micros))
}

pub(super) fn number(row: &MySqlRow, column: &str) -> Result<u32, StoreError> {
    u32::try_from(get::<i64>(row, column)?).map_err(|_| not_ours(column))
}

pub(super) fn count(row: &MySqlRow, column: &str) -> Result<u64, StoreError> {
    u64::try_from(get::<i64>(row, column)?).map_err(|_| not_ours(column))
}

pub(super) fn code(row: &MySqlRow, column: &str) -> Result<Option<u16>, StoreError> {
    get::<Option<i64>>(row, column)?.map(|code| u16::try_from(code).map_err(|_| not_ours(column))).transpose()
}

pub(super) fn flag(row: &MySqlRow, column: &str) -> Result<bool, StoreError> {
    Ok(get::<i64>(row, column)? != 0)
}

/// Scopes and keys are bytes, of which all are ASCII.
pub(super) fn ascii(row: &MySqlRow, column: &str) -> Result<String, StoreError> {
    String::from_utf8(get::<Vec<u8>>(row, column)?).map_err(|_| not_ours(column))
}

pub(super) fn status(row: &MySqlRow) -> Result<Status, StoreError> {
    Status::parse(get::<&str>(row, "status")?).ok_or_else(|| not_ours("status"))
}

pub(super) fn not_ours(column: &str) -> StoreError {
    StoreError::refused(format!("a record's {column} is not one that this version understands"))
}

fn response(
    row: &MySqlRow,
    [code_column, headers, body, omitted]: [&str; 4],
) -> Result<Option<StoredResponse>, StoreError> {
    let Some(code) = code(row, code_column)? else { return Ok(None) };
    let headers = match get::<Option<&str>>(row, headers)? {
        Some(text) => record::headers_from_text(text).ok_or_else(|| not_ours(headers))?,
        None => Vec::new(),
    };
    let body = get::<Option<Vec<u8>>>(row, body)?.map(Bytes::from);
    Ok(Some(StoredResponse { code, headers, body, body_omitted: flag(row, omitted)? }))
}

pub(super) fn seen(row: &MySqlRow) -> Result<Seen, StoreError> {
    let hash: &[u8] = get(row, "request_hash")?;
    let record = Record {
        request_hash: RequestHash::from_bytes(hash.try_into().map_err(|_| not_ours("request_hash"))?),
        hash_version: get(row, "hash_version")?,
        status: status(row)?,
        attempt: number(row, "attempt")?,
        lease_token: get::<Option<String>>(row, "lease_token")?.map(LeaseToken::from_row),
        lease_until: time(row, "lease_until")?,
        response: response(row, ["response_code", "response_headers", "response_body", "body_omitted"])?,
        downstream_key: get(row, "downstream_key")?,
        called_at: time(row, "called_at")?,
        called_until: time(row, "called_until")?,
        probe_count: number(row, "probe_count")?,
        next_probe_at: time(row, "next_probe_at")?,
        held_at: time(row, "held_at")?,
        error: get(row, "error")?,
        retry_window: Duration::from_micros(get::<i64>(row, "retry_window")?.unsigned_abs()),
        created_at: time(row, "created_at")?.ok_or_else(|| not_ours("created_at"))?,
        updated_at: time(row, "updated_at")?.ok_or_else(|| not_ours("updated_at"))?,
        completed_at: time(row, "completed_at")?,
        expires_at: time(row, "expires_at")?,
    };
    let call_answer = if flag(row, "call_known")? {
        let stored = response(row, ["call_code", "call_headers", "call_body", "call_omitted"])?;
        Some(stored.unwrap_or_else(|| StoredResponse::bare(204)))
    } else {
        None
    };
    let now = time(row, "now")?.ok_or_else(|| not_ours("now"))?;
    Ok(Seen { record, call_answer, now })
}
