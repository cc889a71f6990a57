//! A ledger's health on PostgreSQL.

use std::time::Duration;

use onced_core::time::Timestamp;
use sqlx::SqlStr;
use sqlx::postgres::PgRow;

use super::bounded::bounded;
use super::lent::Session;
use super::{PgStore, error, row};
use crate::store::health::{Backends, Growth, Health, Overdue, PostgresSettings, SchemaVersion, Settings, Unfinished};
use crate::store::{Pooler, StoreError};

impl Health for PgStore {
    async fn settings(&mut self) -> Result<Settings, StoreError> {
        let row = self.one(self.sql.settings.clone(), "read the settings").await?;
        Ok(Settings::Postgres(PostgresSettings {
            version: row::get(&row, "version")?,
            version_number: row::number(&row, "version_number")?,
            synchronous_commit: row::get(&row, "synchronous_commit")?,
            fsync: row::get(&row, "fsync")?,
            full_page_writes: row::get(&row, "full_page_writes")?,
            in_recovery: row::get(&row, "in_recovery")?,
            read_only: row::get(&row, "read_only")?,
            max_connections: row::number(&row, "max_connections")?,
            reserved_connections: row::number(&row, "reserved_connections")?,
            used_connections: row::number(&row, "used_connections")?,
        }))
    }

    async fn schema_version(&mut self) -> Result<SchemaVersion, StoreError> {
        bounded!(self, session => self.read_schema_version(&mut session))
    }

    async fn database_time(&mut self) -> Result<Timestamp, StoreError> {
        let row = self.one(self.sql.database_time.clone(), "read the clock").await?;
        row::time(&row, "now")?.ok_or_else(|| row::not_ours("now"))
    }

    /// By the plain protocol: a pooler that mixes up prepared statements must not mix up this.
    async fn backends(&mut self) -> Result<Option<Backends>, StoreError> {
        if self.connections.pooler() == Pooler::Transaction {
            return Ok(None);
        }
        bounded!(self, first => async {
            let alone = backend(&mut first).await?;
            let mut lent = self.connections.lend_transaction().await?;
            let second = backend(&mut lent.session()).await?;
            let first_meanwhile = backend(&mut first).await?;
            lent.rollback().await;
            let first_afterwards = backend(&mut first).await?;
            Ok(Some(Backends { first: alone, second, first_meanwhile, first_afterwards }))
        })
    }

    async fn unfinished(&mut self) -> Result<Vec<Unfinished>, StoreError> {
        let query = sqlx::query(self.sql.unfinished.clone());
        let rows = bounded!(self, session => async {
            query.fetch_all(&mut session).await.map_err(|source| error::of(source, "count unfinished keys"))
        })?;
        rows.iter()
            .map(|row| {
                Ok(Unfinished {
                    status: row::status(row)?,
                    lease_over: row::get(row, "lease_over")?,
                    count: row::count(row, "count")?,
                    held: row::count(row, "held")?,
                    oldest: Duration::from_micros(row::count(row, "oldest")?),
                })
            })
            .collect()
    }

    async fn overdue(&mut self) -> Result<Overdue, StoreError> {
        let row = self.one(self.sql.overdue.clone(), "count expired keys").await?;
        Ok(Overdue { count: row::count(&row, "count")?, longest: Duration::from_micros(row::count(&row, "longest")?) })
    }

    async fn growth(&mut self) -> Result<Growth, StoreError> {
        let row = self.one(self.sql.growth.clone(), "count keys and deliveries").await?;
        let (keys_bytes, deliveries_bytes) = (row::count(&row, "keys_bytes")?, row::count(&row, "deliveries_bytes")?);
        Ok(Growth {
            keys: row::count(&row, "keys")?,
            keys_of_a_day: row::count(&row, "keys_of_a_day")?,
            kept: Duration::from_micros(row::count(&row, "kept")?),
            keys_bytes: Some(keys_bytes),
            deliveries: row::count(&row, "deliveries")?,
            deliveries_of_a_day: row::count(&row, "deliveries_of_a_day")?,
            deliveries_bytes: Some(deliveries_bytes),
            total_bytes: keys_bytes.saturating_add(deliveries_bytes),
        })
    }
}

impl PgStore {
    async fn one(&self, sql: SqlStr, doing: &'static str) -> Result<PgRow, StoreError> {
        let query = sqlx::query(sql);
        bounded!(self, session => async { query.fetch_one(&mut session).await.map_err(|source| error::of(source, doing)) })
    }
}

const ASKING: &str = "ask who answers";

async fn backend(session: &mut Session<'_>) -> Result<i32, StoreError> {
    let row = sqlx::raw_sql("SELECT pg_backend_pid()::text AS pid")
        .fetch_one(session)
        .await
        .map_err(|source| error::of(source, ASKING))?;
    row::get::<&str>(&row, "pid")?.parse().map_err(|_| row::not_ours("pid"))
}
