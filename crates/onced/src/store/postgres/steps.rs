//! The steps of the schema, run by sqlx's migrator over a session of the store: its own way to PostgreSQL would leave
//! statements with names behind, which a pooler would show to others. All of it is in the caller's transaction.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use sqlx::migrate::{AppliedMigration, Migrate, MigrateError, Migration};
use sqlx::{AssertSqlSafe, Executor as _};

use super::lent::Session;

/// The columns of the list of steps that have run, as sqlx makes them.
pub(super) const LIST: &str = "version BIGINT PRIMARY KEY, description TEXT NOT NULL, \
    installed_on TIMESTAMPTZ NOT NULL DEFAULT now(), success BOOLEAN NOT NULL, checksum BYTEA NOT NULL, \
    execution_time BIGINT NOT NULL";

type Done<'e, T> = BoxFuture<'e, Result<T, MigrateError>>;

impl Migrate for Session<'_> {
    fn create_schema_if_not_exists<'e>(&'e mut self, schema: &'e str) -> Done<'e, ()> {
        Box::pin(async move { run(self, format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await })
    }

    fn ensure_migrations_table<'e>(&'e mut self, table: &'e str) -> Done<'e, ()> {
        Box::pin(async move { run(self, format!("CREATE TABLE IF NOT EXISTS {table} ({LIST})")).await })
    }

    fn dirty_version<'e>(&'e mut self, table: &'e str) -> Done<'e, Option<i64>> {
        let sql = format!("SELECT version FROM {table} WHERE NOT success ORDER BY version LIMIT 1");
        Box::pin(async move { Ok(sqlx::query_scalar(AssertSqlSafe(sql)).fetch_optional(self).await?) })
    }

    fn list_applied_migrations<'e>(&'e mut self, table: &'e str) -> Done<'e, Vec<AppliedMigration>> {
        let sql = format!("SELECT version, checksum FROM {table} ORDER BY version");
        Box::pin(async move {
            let rows: Vec<(i64, Vec<u8>)> = sqlx::query_as(AssertSqlSafe(sql)).fetch_all(self).await?;
            let applied = rows.into_iter();
            Ok(applied.map(|(version, checksum)| AppliedMigration { version, checksum: checksum.into() }).collect())
        })
    }

    /// The store holds a lock of its own.
    fn lock(&mut self) -> Done<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn unlock(&mut self) -> Done<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'e>(&'e mut self, table: &'e str, step: &'e Migration) -> Done<'e, Duration> {
        Box::pin(async move {
            let started = Instant::now();
            let done = self.execute(step.sql.clone()).await;
            done.map_err(|error| MigrateError::ExecuteMigration(error, step.version))?;
            let took = started.elapsed();
            let sql = format!(
                "INSERT INTO {table} (version, description, success, checksum, execution_time) \
                 VALUES ($1, $2, true, $3, $4)"
            );
            let note = sqlx::query(AssertSqlSafe(sql)).bind(step.version).bind(&*step.description);
            let nanos = i64::try_from(took.as_nanos()).unwrap_or(i64::MAX);
            note.bind(&*step.checksum).bind(nanos).execute(&mut *self).await?;
            Ok(took)
        })
    }

    /// No step has a way back.
    fn revert<'e>(&'e mut self, _: &'e str, step: &'e Migration) -> Done<'e, Duration> {
        Box::pin(std::future::ready(Err(MigrateError::VersionNotPresent(step.version))))
    }
}

async fn run(session: &mut Session<'_>, sql: String) -> Result<(), MigrateError> {
    session.execute(AssertSqlSafe(sql)).await?;
    Ok(())
}
