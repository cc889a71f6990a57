//! Cleaning up on SQLite: each batch goes through the one writer, so that whoever has queued up meanwhile comes next.

use std::time::Duration;

use onced_core::time::micros;

use super::{SqliteStore, error, row};
use crate::store::StoreError;
use crate::store::sweep::{Batch, Due, Sweep};

const SWEEP_KEYS: &str = include_str!("sql/sweep_keys.sql");
const SWEEP_DELIVERIES: &str = include_str!("sql/sweep_deliveries.sql");
const DUE: &str = include_str!("sql/due.sql");

impl Sweep for SqliteStore {
    async fn sweep_keys(&mut self, limit: u32) -> Result<Batch, StoreError> {
        self.batch(SWEEP_KEYS, limit, None, "sweep keys").await
    }

    async fn sweep_deliveries(&mut self, keep: Duration, limit: u32) -> Result<Batch, StoreError> {
        self.batch(SWEEP_DELIVERIES, limit, Some(keep), "sweep deliveries").await
    }

    async fn due(&mut self, keep: Duration) -> Result<Vec<Due>, StoreError> {
        let mut conn = self.reader().await?;
        let rows = sqlx::query(DUE)
            .bind(micros(keep))
            .fetch_all(&mut *conn)
            .await
            .map_err(|source| error::of(source, "count what would be swept"))?;
        rows.iter()
            .map(|row| {
                Ok(Due {
                    scope: row::get(row, "scope")?,
                    keys: row::count(row, "keys")?,
                    deliveries: row::count(row, "deliveries")?,
                })
            })
            .collect()
    }
}

impl SqliteStore {
    // Who else sweeps waits for the write lock, as every writer does: there is never another sweeper.
    async fn batch(
        &self,
        sql: &'static str,
        limit: u32,
        keep: Option<Duration>,
        doing: &'static str,
    ) -> Result<Batch, StoreError> {
        let unit = self.writer.write(doing, move |conn| {
            Box::pin(async move {
                let query = sqlx::query(sql).bind(i64::from(limit));
                let query = match keep {
                    Some(keep) => query.bind(micros(keep)),
                    None => query,
                };
                let done = query.execute(&mut *conn).await.map_err(|source| error::of(source, doing))?;
                Ok(Batch::Deleted(done.rows_affected()))
            })
        });
        unit.await
    }
}
