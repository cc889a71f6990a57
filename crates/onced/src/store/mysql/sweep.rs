//! Cleaning up on MariaDB: each batch is one transaction, which holds the sweeper's lock until it is committed. What is
//! picked is locked, and then deleted by name: MariaDB's DELETE cannot skip what others have locked.

use std::time::Duration;

use onced_core::time::micros;
use serde_json::{Value, json};
use sqlx::MySqlConnection;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use super::bounded::{bounded, unit};
use super::{MySqlStore, error, row};
use crate::store::StoreError;
use crate::store::sweep::{Batch, Due, Sweep};

const LOCK_SWEEP: &str = include_str!("sql/lock_sweep.sql");
const PICK_KEYS: &str = include_str!("sql/sweep_pick.sql");
const SWEEP_KEYS: &str = include_str!("sql/sweep_keys.sql");
const STEPS_OF: &str = include_str!("sql/steps_of.sql");
const SWEEP_STEPS: &str = include_str!("sql/sweep_steps.sql");
const PICK_DELIVERIES: &str = include_str!("sql/sweep_deliveries_pick.sql");
const SWEEP_DELIVERIES: &str = include_str!("sql/sweep_deliveries.sql");
const DUE: &str = include_str!("sql/due.sql");

/// How many pairs of scope and key go in one statement: less than a megabyte, which every server takes.
const AT_ONCE: usize = 1000;

impl Sweep for MySqlStore {
    async fn sweep_keys(&mut self, limit: u32) -> Result<Batch, StoreError> {
        unit!(self, tx => sweep_keys(&mut tx, limit))
    }

    async fn sweep_deliveries(&mut self, keep: Duration, limit: u32) -> Result<Batch, StoreError> {
        unit!(self, tx => sweep_deliveries(&mut tx, keep, limit))
    }

    async fn due(&mut self, keep: Duration) -> Result<Vec<Due>, StoreError> {
        let query = sqlx::query(DUE).bind(micros(keep)).bind(micros(keep));
        let rows = bounded!(self, conn => async {
            query.fetch_all(&mut *conn).await.map_err(|source| error::of(source, "count what would be swept"))
        })?;
        rows.iter()
            .map(|row| {
                Ok(Due {
                    scope: row::ascii(row, "scope")?,
                    keys: row::count(row, "due_keys")?,
                    deliveries: row::count(row, "due_deliveries")?,
                })
            })
            .collect()
    }
}

async fn sweep_keys(conn: &mut MySqlConnection, limit: u32) -> Result<Batch, StoreError> {
    let err = |source| error::of(source, "sweep keys");
    if !is_the_sweeper(conn).await? {
        return Ok(Batch::OtherSweeper);
    }
    let picked = pairs(&sqlx::query(PICK_KEYS).bind(limit).fetch_all(&mut *conn).await.map_err(err)?)?;
    let mut steps = Vec::new();
    for some in picked.chunks(AT_ONCE) {
        let rows = sqlx::query(STEPS_OF).bind(json!(some).to_string()).fetch_all(&mut *conn).await.map_err(err)?;
        steps.extend(pairs(&rows)?);
    }
    let mut deleted = 0;
    for (sql, rows) in [(SWEEP_KEYS, picked), (SWEEP_STEPS, steps)] {
        for some in rows.chunks(AT_ONCE) {
            let query = sqlx::query(sql).bind(json!(some).to_string());
            deleted += query.execute(&mut *conn).await.map_err(err)?.rows_affected();
        }
    }
    Ok(Batch::Deleted(deleted))
}

fn pairs(rows: &[MySqlRow]) -> Result<Vec<[String; 2]>, StoreError> {
    rows.iter().map(|row| Ok([row::ascii(row, "scope")?, row::ascii(row, "key")?])).collect()
}

async fn sweep_deliveries(conn: &mut MySqlConnection, keep: Duration, limit: u32) -> Result<Batch, StoreError> {
    let err = |source| error::of(source, "sweep deliveries");
    if !is_the_sweeper(conn).await? {
        return Ok(Batch::OtherSweeper);
    }
    let keep = micros(keep);
    let pick = sqlx::query(PICK_DELIVERIES).bind(keep).bind(keep).bind(limit);
    let rows = pick.fetch_all(&mut *conn).await.map_err(err)?;
    if rows.is_empty() {
        return Ok(Batch::Deleted(0));
    }
    let ids = rows.iter().map(|row| Ok(Value::from(row::get::<Uuid>(row, "id")?.simple().to_string())));
    let ids = Value::from(ids.collect::<Result<Vec<_>, StoreError>>()?).to_string();
    let done = sqlx::query(SWEEP_DELIVERIES).bind(ids).bind(keep).execute(&mut *conn).await.map_err(err)?;
    Ok(Batch::Deleted(done.rows_affected()))
}

/// Gets the sweeper's lock, or not at once.
async fn is_the_sweeper(conn: &mut MySqlConnection) -> Result<bool, StoreError> {
    match sqlx::query(LOCK_SWEEP).fetch_all(&mut *conn).await {
        Ok(rows) if rows.is_empty() => Err(StoreError::refused(
            "the table onced_locks has lost its rows: run `onced migrate --print`, and insert them",
        )),
        Ok(_) => Ok(true),
        Err(source) if error::is_lock_missed(&source) => Ok(false),
        Err(source) => Err(error::of(source, "sweep")),
    }
}
