//! Cleaning up on MariaDB: each batch is one transaction, which holds the sweeper's lock until it is committed. What is
//! picked is locked, and then deleted by name: MariaDB's DELETE cannot skip what others have locked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onced_core::time::micros;
use serde_json::{Value, json};
use sqlx::MySqlConnection;
use uuid::Uuid;

use super::bounded::{bounded, unit};
use super::{MySqlStore, error, row};
use crate::store::StoreError;
use crate::store::sweep::{Batch, Due, Sweep};

const LOCK_SWEEP: &str = include_str!("sql/lock_sweep.sql");
const PICK_KEYS: &str = include_str!("sql/sweep_pick.sql");
const SWEEP_KEYS: &str = include_str!("sql/sweep_keys.sql");
const STEP_SCOPES: &str = include_str!("sql/step_scopes.sql");
const SWEEP_STEPS: &str = include_str!("sql/sweep_steps.sql");
const PICK_DELIVERIES: &str = include_str!("sql/sweep_deliveries_pick.sql");
const SWEEP_DELIVERIES: &str = include_str!("sql/sweep_deliveries.sql");
const DUE: &str = include_str!("sql/due.sql");

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
    let rows = sqlx::query(PICK_KEYS).bind(limit).fetch_all(&mut *conn).await.map_err(err)?;
    let mut picked: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in &rows {
        picked.entry(row::ascii(row, "scope")?).or_default().insert(row::ascii(row, "key")?);
    }
    let mut steps = Vec::new();
    for (scope, keys) in &picked {
        let scopes = sqlx::query(STEP_SCOPES).bind(scope).bind(scope).fetch_all(&mut *conn).await.map_err(err)?;
        for step in &scopes {
            steps.extend(pairs(&row::ascii(step, "scope")?, keys));
        }
    }
    let picked: Vec<Value> = picked.iter().flat_map(|(scope, keys)| pairs(scope, keys)).collect();
    let mut deleted = 0;
    for (sql, rows) in [(SWEEP_KEYS, picked), (SWEEP_STEPS, steps)] {
        if !rows.is_empty() {
            let query = sqlx::query(sql).bind(Value::from(rows).to_string());
            deleted += query.execute(&mut *conn).await.map_err(err)?.rows_affected();
        }
    }
    Ok(Batch::Deleted(deleted))
}

fn pairs(scope: &str, keys: &BTreeSet<String>) -> Vec<Value> {
    keys.iter().map(|key| json!([scope, key])).collect()
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
