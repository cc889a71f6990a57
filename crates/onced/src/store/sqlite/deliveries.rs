//! Deliveries on SQLite.

use std::time::Duration;

use onced_core::key::{Key, Scope};
use onced_core::time::micros;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::keys::{delivery_id, unit};
use super::{SqliteStore, error, row};
use crate::store::StoreError;
use crate::store::deliveries::{Deliveries, DeliveryLine, DeliveryRead, Repeated, Repeats, RepeatsRow};

const LOG: &str = unit!("sql/log_deliveries.sql", "sql/answer_deliveries.sql");
const DELIVERIES_OF: &str = include_str!("sql/deliveries_of.sql");
const REPEATS: &str = include_str!("sql/repeats.sql");

impl Deliveries for SqliteStore {
    async fn log(&mut self, lines: &[DeliveryLine], answered: &[(Uuid, u16)]) -> Result<(), StoreError> {
        let lines = lines.iter().map(|line| {
            json!([
                delivery_id(line.id),
                line.scope.as_str(),
                line.key.as_str(),
                micros(line.age),
                line.decision,
                line.answered_status,
                line.request_hash.to_string(),
                line.attempt,
            ])
        });
        let answered = answered.iter().map(|(id, status)| json!([delivery_id(*id), status]));
        let (lines, answered) = (lines.collect::<Value>().to_string(), answered.collect::<Value>().to_string());
        self.writer
            .write_unit("log deliveries", move |conn| {
                Box::pin(async move {
                    let query = sqlx::query(LOG).bind(lines).bind(answered);
                    query.execute(conn).await.map(drop).map_err(|source| error::of(source, "log deliveries"))
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

    async fn repeats(&mut self, since: Option<Duration>) -> Result<Vec<Repeats>, StoreError> {
        let mut conn = self.reader().await?;
        let rows = sqlx::query(REPEATS)
            .bind(since.map(micros))
            .fetch_all(&mut *conn)
            .await
            .map_err(|source| error::of(source, "count deliveries"))?;
        Repeats::gather(rows.iter().map(repeats_row))
    }
}

fn repeats_row(row: &SqliteRow) -> Result<RepeatsRow, StoreError> {
    let time = |column| row::time(row, column)?.ok_or_else(|| row::not_ours(column));
    let what = match row::get::<Option<String>>(row, "key")? {
        Some(key) => Repeated::Key(key),
        None => Repeated::Decision { decision: row::get(row, "decision")?, first: time("first")?, last: time("last")? },
    };
    Ok(RepeatsRow { scope: row::get(row, "scope")?, what, count: row::count(row, "count")? })
}
