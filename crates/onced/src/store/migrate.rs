//! Migrations: what all backends have in common. sqlx's migrator keeps the list and its checksums; the backends hold
//! the lock, and refuse tables that are not ours and schemas that are newer than this binary.

use std::borrow::Cow;

use sqlx::SqlSafeStr;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};

use super::StoreError;
use super::health::SchemaVersion;

/// A numbered step of the schema. Once released, its text never changes.
pub(crate) struct Step {
    pub(crate) version: i64,
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
}

/// The steps as a migrator that keeps its list in `table`, with the lock left to the caller.
pub(crate) fn migrator(steps: &[Step], table: String, adapt: impl Fn(&'static str) -> Cow<'static, str>) -> Migrator {
    let migrations = steps
        .iter()
        .map(|step| {
            let sql = match adapt(step.sql) {
                Cow::Borrowed(sql) => sql.into_sql_str(),
                Cow::Owned(sql) => sqlx::AssertSqlSafe(sql).into_sql_str(),
            };
            Migration::new(step.version, Cow::Borrowed(step.name), MigrationType::Simple, sql, false)
        })
        .collect();
    let mut migrator = Migrator::with_migrations(migrations);
    migrator.dangerous_set_table_name(table);
    migrator.set_locking(false);
    migrator
}

/// The text of all steps, and of the list that the migrator keeps in `table` with the columns `list`: a schema that a
/// person made by hand must look like one that `migrate` made.
pub(crate) fn printed(migrator: &Migrator, table: &str, list: &str, bytes: impl Fn(&str) -> String) -> String {
    let mut text = String::new();
    for step in migrator.iter() {
        text += step.sql.as_str();
        text += "\n";
    }
    text += &format!("-- Which steps have run.\nCREATE TABLE {table} ({list});\n");
    for step in migrator.iter() {
        let checksum: String = step.checksum.iter().map(|byte| format!("{byte:02x}")).collect();
        text += &format!(
            "INSERT INTO {table} (version, description, success, checksum, execution_time)\n    \
             VALUES ({}, '{}', true, {}, -1);\n",
            step.version,
            step.description,
            bytes(&checksum)
        );
    }
    text
}

/// The newest version that this binary knows.
pub(crate) fn newest(steps: &[Step]) -> i64 {
    steps.iter().map(|step| step.version).max().unwrap_or(0)
}

/// Whether a schema is the one that this binary knows; `false` where it is older or not there.
pub(crate) fn is_current(version: SchemaVersion, keys_table: &str) -> Result<bool, StoreError> {
    match version {
        SchemaVersion { foreign: true, .. } => Err(foreign_table(keys_table)),
        SchemaVersion { found: Some(found), known, .. } if found > known => Err(newer_schema(found, known)),
        SchemaVersion { found, known, .. } => Ok(found == Some(known)),
    }
}

fn newer_schema(found: i64, known: i64) -> StoreError {
    StoreError::refused(format!(
        "the database's schema is at version {found}, newer than this onced knows ({known}): \
         run the newer onced, or another database"
    ))
}

fn foreign_table(table: &str) -> StoreError {
    StoreError::refused(format!(
        "there is a table {table} already that onced did not make: move it away, or give onced another schema or database"
    ))
}

// The migrator's errors are its own to extend.
#[allow(clippy::wildcard_enum_match_arm)]
pub(crate) fn failed(error: MigrateError, translate: impl FnOnce(sqlx::Error) -> StoreError) -> StoreError {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => translate(error),
        other => StoreError::refused(format!("migrate: {other}")),
    }
}
