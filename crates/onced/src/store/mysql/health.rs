//! A ledger's health on MariaDB.

use std::time::Duration;

use onced_core::time::Timestamp;
use sqlx::mysql::MySqlRow;

use super::bounded::bounded;
use super::{MySqlStore, error, read_schema_version, row};
use crate::store::StoreError;
use crate::store::health::{Backends, Growth, Health, MariaDbSettings, Overdue, SchemaVersion, Settings, Unfinished};

const SETTINGS: &str = include_str!("sql/settings.sql");
const DATABASE_TIME: &str = include_str!("sql/database_time.sql");
const UNFINISHED: &str = include_str!("sql/unfinished.sql");
const OVERDUE: &str = include_str!("sql/overdue.sql");
const GROWTH: &str = include_str!("sql/growth.sql");

impl Health for MySqlStore {
    async fn settings(&mut self) -> Result<Settings, StoreError> {
        self.read_settings("read the settings").await.map(Settings::MariaDb)
    }

    async fn schema_version(&mut self) -> Result<SchemaVersion, StoreError> {
        bounded!(self, conn => read_schema_version(&mut conn))
    }

    async fn database_time(&mut self) -> Result<Timestamp, StoreError> {
        let row = self.one(DATABASE_TIME, "read the clock").await?;
        row::time(&row, "now")?.ok_or_else(|| row::not_ours("now"))
    }

    // A pooler in front of MariaDB that lends its connections by transaction prepares its clients' statements itself.
    async fn backends(&mut self) -> Result<Option<Backends>, StoreError> {
        Ok(None)
    }

    async fn unfinished(&mut self) -> Result<Vec<Unfinished>, StoreError> {
        let rows = bounded!(self, conn => async {
            let query = sqlx::query(UNFINISHED);
            query.fetch_all(&mut *conn).await.map_err(|source| error::of(source, "count unfinished keys"))
        })?;
        rows.iter()
            .map(|row| {
                Ok(Unfinished {
                    status: row::status(row)?,
                    lease_over: row::flag(row, "lease_over")?,
                    count: row::count(row, "n")?,
                    held: row::count(row, "held")?,
                    oldest: Duration::from_micros(row::count(row, "oldest")?),
                })
            })
            .collect()
    }

    async fn overdue(&mut self) -> Result<Overdue, StoreError> {
        let row = self.one(OVERDUE, "count expired keys").await?;
        Ok(Overdue { count: row::count(&row, "n")?, longest: Duration::from_micros(row::count(&row, "longest")?) })
    }

    async fn growth(&mut self) -> Result<Growth, StoreError> {
        let row = self.one(GROWTH, "count keys and deliveries").await?;
        let (keys_bytes, deliveries_bytes) = (row::count(&row, "keys_bytes")?, row::count(&row, "deliveries_bytes")?);
        Ok(Growth {
            keys: row::count(&row, "n_keys")?,
            keys_of_a_day: row::count(&row, "keys_of_a_day")?,
            kept: Duration::from_micros(row::count(&row, "kept")?),
            keys_bytes: Some(keys_bytes),
            deliveries: row::count(&row, "n_deliveries")?,
            deliveries_of_a_day: row::count(&row, "deliveries_of_a_day")?,
            deliveries_bytes: Some(deliveries_bytes),
            total_bytes: keys_bytes.saturating_add(deliveries_bytes),
        })
    }
}

impl MySqlStore {
    pub(super) async fn read_settings(&self, doing: &'static str) -> Result<MariaDbSettings, StoreError> {
        let row = self.one(SETTINGS, doing).await?;
        let doublewrite: String = row::get(&row, "doublewrite")?;
        Ok(MariaDbSettings {
            version: row::get(&row, "version")?,
            flush_log_at_commit: row::number(&row, "flush_log")?,
            doublewrite: !matches!(doublewrite.as_str(), "0" | "OFF"),
            log_bin: row::flag(&row, "log_bin")?,
            sync_binlog: row::number(&row, "sync_binlog")?,
            galera: row::flag(&row, "galera")?,
            read_only: row::flag(&row, "read_only")?,
            rollback_on_timeout: row::flag(&row, "rollback_on_timeout")?,
            other_engine: row::get(&row, "other_engine")?,
            max_allowed_packet: row::count(&row, "max_allowed_packet")?,
            max_connections: row::number(&row, "max_connections")?,
            used_connections: row::number(&row, "used_connections")?,
        })
    }

    async fn one(&self, sql: &'static str, doing: &'static str) -> Result<MySqlRow, StoreError> {
        bounded!(self, conn => async {
            sqlx::query(sql).fetch_one(&mut *conn).await.map_err(|source| error::of(source, doing))
        })
    }
}
