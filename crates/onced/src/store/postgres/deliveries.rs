//! Deliveries on PostgreSQL.

use std::time::Duration;

use onced_core::key::{Key, Scope};
use onced_core::time::micros;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::bounded::bounded;
use super::{PgStore, error, row};
use crate::store::StoreError;
use crate::store::deliveries::{Deliveries, DeliveryLine, DeliveryRead, Repeated, Repeats, RepeatsRow};

impl Deliveries for PgStore {
    async fn log(&mut self, lines: &[DeliveryLine], answered: &[(Uuid, u16)]) -> Result<(), StoreError> {
        let err = |source| error::of(source, "log deliveries");
        if !lines.is_empty() {
            let insert = sqlx::query(self.sql.log_deliveries.clone())
                .bind(lines.iter().map(|line| line.id).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| line.scope.as_str()).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| line.key.as_str()).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| micros(line.age)).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| line.decision.as_str()).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| line.answered_status.map(i32::from)).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| line.request_hash.as_bytes().to_vec()).collect::<Vec<_>>())
                .bind(lines.iter().map(|line| i32::try_from(line.attempt).unwrap_or(i32::MAX)).collect::<Vec<_>>());
            bounded!(self, session => async { insert.execute(&mut session).await.map_err(err) })?;
        }
        if !answered.is_empty() {
            let update = sqlx::query(self.sql.answer_deliveries.clone())
                .bind(answered.iter().map(|(id, _)| *id).collect::<Vec<_>>())
                .bind(answered.iter().map(|(_, status)| i32::from(*status)).collect::<Vec<_>>());
            bounded!(self, session => async { update.execute(&mut session).await.map_err(err) })?;
        }
        Ok(())
    }

    async fn deliveries_of(&mut self, scope: &Scope, key: &Key, limit: u32) -> Result<Vec<DeliveryRead>, StoreError> {
        let query =
            sqlx::query(self.sql.deliveries_of.clone()).bind(scope.as_str()).bind(key.as_str()).bind(i64::from(limit));
        let rows = bounded!(self, session => async {
            query.fetch_all(&mut session).await.map_err(|source| error::of(source, "read deliveries"))
        })?;
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
        let query = sqlx::query(self.sql.repeats.clone()).persistent(false).bind(since.map(micros));
        let rows = bounded!(self, session => async {
            query.fetch_all(&mut session).await.map_err(|source| error::of(source, "count deliveries"))
        })?;
        Repeats::gather(rows.iter().map(repeats_row))
    }
}

fn repeats_row(row: &PgRow) -> Result<RepeatsRow, StoreError> {
    let time = |column| row::time(row, column)?.ok_or_else(|| row::not_ours(column));
    let what = match row::get::<Option<String>>(row, "key")? {
        Some(key) => Repeated::Key(key),
        None => Repeated::Decision { decision: row::get(row, "decision")?, first: time("first")?, last: time("last")? },
    };
    Ok(RepeatsRow { scope: row::get(row, "scope")?, what, count: row::count(row, "count")? })
}
