//! Deliveries on SQLite.

use onced_core::key::{Key, Scope};
use onced_core::time::micros;
use uuid::Uuid;

use super::keys::delivery_id;
use super::{SqliteStore, error, row};
use crate::store::StoreError;
use crate::store::deliveries::{Deliveries, DeliveryLine, DeliveryRead};

const LOG_DELIVERY: &str = include_str!("sql/log_delivery.sql");
const ANSWER_DELIVERY: &str = include_str!("sql/answer_delivery.sql");
const DELIVERIES_OF: &str = include_str!("sql/deliveries_of.sql");

impl Deliveries for SqliteStore {
    async fn log(&mut self, lines: &[DeliveryLine], answered: &[(Uuid, u16)]) -> Result<(), StoreError> {
        let (lines, answered) = (lines.to_vec(), answered.to_vec());
        self.writer
            .write("log deliveries", move |conn| {
                Box::pin(async move {
                    let err = |source| error::of(source, "log deliveries");
                    for line in &lines {
                        sqlx::query(LOG_DELIVERY)
                            .bind(delivery_id(line.id))
                            .bind(line.scope.as_str())
                            .bind(line.key.as_str())
                            .bind(micros(line.age))
                            .bind(&line.decision)
                            .bind(line.answered_status.map(i64::from))
                            .bind(line.request_hash.as_bytes().as_slice())
                            .bind(i64::from(line.attempt))
                            .execute(&mut *conn)
                            .await
                            .map_err(err)?;
                    }
                    for (id, status) in answered {
                        sqlx::query(ANSWER_DELIVERY)
                            .bind(delivery_id(id))
                            .bind(i64::from(status))
                            .execute(&mut *conn)
                            .await
                            .map_err(err)?;
                    }
                    Ok(())
                })
            })
            .await
    }

    async fn deliveries_of(&mut self, scope: &Scope, key: &Key, limit: u32) -> Result<Vec<DeliveryRead>, StoreError> {
        let mut conn = self.reader().await?;
        let rows = sqlx::query(DELIVERIES_OF)
            .bind(scope.as_str())
            .bind(key.as_str())
            .bind(i64::from(limit))
            .fetch_all(&mut *conn)
            .await
            .map_err(|source| error::of(source, "read deliveries"))?;
        rows.iter()
            .map(|row| {
                Ok(DeliveryRead {
                    received_at: row::time(row, "received_at")?.ok_or_else(|| row::not_ours("received_at"))?,
                    decision: row::get(row, "decision")?,
                    answered_status: row::code(row, "answered_status")?,
                    attempt: row::number(row, "attempt")?,
                })
            })
            .collect()
    }
}
