//! Cleaning up on PostgreSQL: each batch is one statement, which holds the sweeper's lock until it is committed.

use std::time::Duration;

use onced_core::time::micros;
use sqlx::SqlStr;

use super::bounded::bounded;
use super::{PgStore, error, row};
use crate::store::StoreError;
use crate::store::sweep::{Batch, Due, Sweep};

impl Sweep for PgStore {
    async fn sweep_keys(&mut self, limit: u32) -> Result<Batch, StoreError> {
        self.batch(self.sql.sweep_keys.clone(), limit, None, "sweep keys").await
    }

    async fn sweep_deliveries(&mut self, keep: Duration, limit: u32) -> Result<Batch, StoreError> {
        self.batch(self.sql.sweep_deliveries.clone(), limit, Some(keep), "sweep deliveries").await
    }

    async fn due(&mut self, keep: Duration) -> Result<Vec<Due>, StoreError> {
        let query = sqlx::query(self.sql.due.clone()).bind(micros(keep));
        let rows = bounded!(self, session => async {
            query.fetch_all(&mut session).await.map_err(|source| error::of(source, "count what would be swept"))
        })?;
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

impl PgStore {
    async fn batch(
        &self,
        sql: SqlStr,
        limit: u32,
        keep: Option<Duration>,
        doing: &'static str,
    ) -> Result<Batch, StoreError> {
        // Planned anew each time, for this very limit: a plan for any limit would read the whole table.
        let query = sqlx::query(sql).persistent(false).bind(i64::from(limit));
        let query = match keep {
            Some(keep) => query.bind(micros(keep)),
            None => query,
        };
        let row = bounded!(self, session => async {
            query.fetch_one(&mut session).await.map_err(|source| error::of(source, doing))
        })?;
        if row::get::<bool>(&row, "got")? {
            Ok(Batch::Deleted(row::count(&row, "deleted")?))
        } else {
            Ok(Batch::OtherSweeper)
        }
    }
}
