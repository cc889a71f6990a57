//! Records out of rows, the same on every backend: what a column is called and what it means.

/// The readers of a backend's rows. `$number` is how the backend's columns hold small numbers, and `$flag` what they hold for
/// true and false. The caller has `error::of` in scope.
macro_rules! readers {
    ($row:ty, $db:ty, number: $number:ty, flag: $flag:ty) => {
        pub(super) fn get<'r, T: sqlx::Decode<'r, $db> + sqlx::Type<$db>>(
            row: &'r $row,
            column: &str,
        ) -> Result<T, $crate::store::StoreError> {
            sqlx::Row::try_get(row, column).map_err(|source| error::of(source, "read a row"))
        }

        pub(super) fn time(row: &$row, column: &str) -> Result<Option<Timestamp>, $crate::store::StoreError> {
            Ok(get::<Option<i64>>(row, column)?.map(Timestamp::from_micros))
        }

        pub(super) fn number(row: &$row, column: &str) -> Result<u32, $crate::store::StoreError> {
            u32::try_from(get::<$number>(row, column)?).map_err(|_| not_ours(column))
        }

        pub(super) fn count(row: &$row, column: &str) -> Result<u64, $crate::store::StoreError> {
            u64::try_from(get::<i64>(row, column)?).map_err(|_| not_ours(column))
        }

        pub(super) fn code(row: &$row, column: &str) -> Result<Option<u16>, $crate::store::StoreError> {
            let code = get::<Option<$number>>(row, column)?;
            code.map(|code| u16::try_from(code).map_err(|_| not_ours(column))).transpose()
        }

        pub(super) fn flag(row: &$row, column: &str) -> Result<bool, $crate::store::StoreError> {
            Ok(get::<$flag>(row, column)? != <$flag>::default())
        }

        pub(super) fn status(row: &$row) -> Result<onced_core::record::Status, $crate::store::StoreError> {
            onced_core::record::Status::parse(get::<&str>(row, "status")?).ok_or_else(|| not_ours("status"))
        }

        pub(super) fn not_ours(column: &str) -> $crate::store::StoreError {
            $crate::store::row::not_ours(column)
        }

        fn response(
            row: &$row,
            [code_column, headers, body, omitted]: [&str; 4],
        ) -> Result<Option<onced_core::record::StoredResponse>, $crate::store::StoreError> {
            let Some(code) = code(row, code_column)? else { return Ok(None) };
            let headers = match get::<Option<&str>>(row, headers)? {
                Some(text) => onced_core::record::headers_from_text(text).ok_or_else(|| not_ours(headers))?,
                None => Vec::new(),
            };
            let body = get::<Option<Vec<u8>>>(row, body)?.map(bytes::Bytes::from);
            Ok(Some(onced_core::record::StoredResponse { code, headers, body, body_omitted: flag(row, omitted)? }))
        }

        pub(super) fn seen(row: &$row) -> Result<$crate::store::keys::Seen, $crate::store::StoreError> {
            use onced_core::record::{LeaseToken, Record, StoredResponse};

            let hash: &[u8] = get(row, "request_hash")?;
            let hash = hash.try_into().map_err(|_| not_ours("request_hash"))?;
            let record = Record {
                request_hash: onced_core::fingerprint::RequestHash::from_bytes(hash),
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
                retry_window: std::time::Duration::from_micros(get::<i64>(row, "retry_window")?.unsigned_abs()),
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
            Ok($crate::store::keys::Seen { record, call_answer, now })
        }
    };
}
pub(crate) use readers;

use super::StoreError;

/// A column whose value no version has written that is known here.
pub(super) fn not_ours(column: &str) -> StoreError {
    StoreError::refused(format!("a record's {column} is not one that this version understands"))
}
