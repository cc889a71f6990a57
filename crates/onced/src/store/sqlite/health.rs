//! A ledger's health on SQLite.

use std::path::PathBuf;
use std::time::Duration;

use onced_core::time::Timestamp;
use sqlx::sqlite::SqliteRow;

use super::{SqliteStore, error, has_wal_reset_fix, read_schema_version, row};
use crate::store::StoreError;
use crate::store::health::{Backends, Growth, Health, Overdue, SchemaVersion, Settings, SqliteSettings, Unfinished};

const SETTINGS: &str = include_str!("sql/settings.sql");
const DATABASE_TIME: &str = include_str!("sql/database_time.sql");
const UNFINISHED: &str = include_str!("sql/unfinished.sql");
const OVERDUE: &str = include_str!("sql/overdue.sql");
const GROWTH: &str = include_str!("sql/growth.sql");

impl Health for SqliteStore {
    async fn settings(&mut self) -> Result<Settings, StoreError> {
        let row = self.one(SETTINGS, "read the settings").await?;
        let version: String = row::get(&row, "version")?;
        // A transaction of its own through the one writer.
        let written = self.writer.write("write to the file", |_| Box::pin(async { Ok(()) })).await;
        Ok(Settings::Sqlite(SqliteSettings {
            has_wal_reset_fix: has_wal_reset_fix(&version),
            version,
            journal_mode: row::get(&row, "journal_mode")?,
            synchronous: row::get(&row, "synchronous")?,
            file: PathBuf::from(row::get::<String>(&row, "file")?),
            not_writable: written.err().map(|error| error.to_string()),
        }))
    }

    async fn schema_version(&mut self) -> Result<SchemaVersion, StoreError> {
        read_schema_version(&mut *self.reader().await?).await
    }

    async fn database_time(&mut self) -> Result<Timestamp, StoreError> {
        let row = self.one(DATABASE_TIME, "read the clock").await?;
        row::time(&row, "now")?.ok_or_else(|| row::not_ours("now"))
    }

    async fn backends(&mut self) -> Result<Option<Backends>, StoreError> {
        Ok(None)
    }

    async fn unfinished(&mut self) -> Result<Vec<Unfinished>, StoreError> {
        let mut conn = self.reader().await?;
        let rows = sqlx::query(UNFINISHED)
            .fetch_all(&mut *conn)
            .await
            .map_err(|source| error::of(source, "count unfinished keys"))?;
        rows.iter()
            .map(|row| {
                Ok(Unfinished {
                    status: row::status(row)?,
                    lease_over: row::get::<i64>(row, "lease_over")? != 0,
                    count: row::count(row, "count")?,
                    held: row::count(row, "held")?,
                    oldest: Duration::from_micros(row::count(row, "oldest")?),
                })
            })
            .collect()
    }

    async fn overdue(&mut self) -> Result<Overdue, StoreError> {
        let row = self.one(OVERDUE, "count expired keys").await?;
        Ok(Overdue { count: row::count(&row, "count")?, longest: Duration::from_micros(row::count(&row, "longest")?) })
    }

    async fn growth(&mut self) -> Result<Growth, StoreError> {
        let row = self.one(GROWTH, "count keys and deliveries").await?;
        Ok(Growth {
            keys: row::count(&row, "keys")?,
            keys_of_a_day: row::count(&row, "keys_of_a_day")?,
            kept: Duration::from_micros(row::count(&row, "kept")?),
            keys_bytes: None,
            deliveries: row::count(&row, "deliveries")?,
            deliveries_of_a_day: row::count(&row, "deliveries_of_a_day")?,
            deliveries_bytes: None,
            total_bytes: row::count(&row, "total_bytes")?,
        })
    }
}

impl SqliteStore {
    async fn one(&self, sql: &'static str, doing: &'static str) -> Result<SqliteRow, StoreError> {
        let mut conn = self.reader().await?;
        sqlx::query(sql).fetch_one(&mut *conn).await.map_err(|source| error::of(source, doing))
    }
}
