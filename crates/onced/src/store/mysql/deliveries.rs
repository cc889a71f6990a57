//! Deliveries on MariaDB.

use std::time::Duration;

use onced_core::key::{Key, Scope};
use onced_core::time::micros;
use serde_json::{Value, json};
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use super::bounded::{bounded, unit};
use super::{MySqlStore, error, row};
use crate::store::StoreError;
use crate::store::deliveries::{Deliveries, DeliveryLine, DeliveryRead, Repeated, Repeats, RepeatsRow};

const LOG_DELIVERIES: &str = include_str!("sql/log_deliveries.sql");
const ANSWER_DELIVERIES: &str = include_str!("sql/answer_deliveries.sql");
const DELIVERIES_OF: &str = include_str!("sql/deliveries_of.sql");
const REPEATS: &str = include_str!("sql/repeats.sql");

impl Deliveries for MySqlStore {
    async fn log(&mut self, lines: &[DeliveryLine], answered: &[(Uuid, u16)]) -> Result<(), StoreError> {
        let err = |source| error::of(source, "log deliveries");
        let lines = lines.iter().map(|line| {
            json!([
                line.id.simple().to_string(),
                line.scope.as_str(),
                line.key.as_str(),
                micros(line.age),
                line.decision,
                line.answered_status,
                line.request_hash.to_string(),
                line.attempt,
            ])
        });
        let answered = answered.iter().map(|(id, status)| json!([id.simple().to_string(), status]));
        let (lines, answered): (Vec<Value>, Vec<Value>) = (lines.collect(), answered.collect());
        for (sql, rows) in [(LOG_DELIVERIES, lines), (ANSWER_DELIVERIES, answered)] {
            if !rows.is_empty() {
                let query = sqlx::query(sql).bind(Value::from(rows).to_string());
                unit!(self, tx => async { query.execute(&mut *tx).await.map_err(err) })?;
            }
        }
        Ok(())
    }

    async fn deliveries_of(&mut self, scope: &Scope, key: &Key, limit: u32) -> Result<Vec<DeliveryRead>, StoreError> {
        let query = sqlx::query(DELIVERIES_OF).bind(scope.as_str()).bind(key.as_str()).bind(limit);
        let rows = bounded!(self, conn => async {
            query.fetch_all(&mut *conn).await.map_err(|source| error::of(source, "read deliveries"))
        })?;
        rows.iter()
            .map(|row| {
                Ok(DeliveryRead {
                    received_at: row::time(row, "received_micros")?.ok_or_else(|| row::not_ours("received_at"))?,
                    decision: row::get(row, "decision")?,
                    answered_status: row::code(row, "answered_status")?,
                    attempt: row::number(row, "attempt")?,
                })
            })
            .collect()
    }

    async fn repeats(&mut self, since: Option<Duration>) -> Result<Vec<Repeats>, StoreError> {
        let since = since.map(micros);
        let query = sqlx::query(REPEATS).bind(since).bind(since).bind(since);
        let rows = bounded!(self, conn => async {
            query.fetch_all(&mut *conn).await.map_err(|source| error::of(source, "count deliveries"))
        })?;
        Repeats::gather(rows.iter().map(repeats_row))
    }
}

fn repeats_row(row: &MySqlRow) -> Result<RepeatsRow, StoreError> {
    let time = |column| row::time(row, column)?.ok_or_else(|| row::not_ours(column));
    let what = if row::get::<Option<Vec<u8>>>(row, "key")?.is_some() {
        Repeated::Key(row::ascii(row, "key")?)
    } else {
        Repeated::Decision { decision: row::get(row, "decision")?, first: time("first_at")?, last: time("last_at")? }
    };
    Ok(RepeatsRow { scope: row::ascii(row, "scope")?, what, count: row::count(row, "n")? })
}
