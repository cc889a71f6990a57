//! What people ask and do by hand, on SQLite.

use onced_core::key::{Key, Scope};
use onced_core::record::{LeaseToken, Status};
use onced_core::time::micros;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::keys::bind_response;
use super::{SqliteStore, error, row};
use crate::store::StoreError;
use crate::store::upkeep::{Audited, Because, Filter, Listed, Resolution, Upkeep};

const LIST: &str = include_str!("sql/list.sql");
const AUDIT: &str = include_str!("sql/audit.sql");
const AUDIT_OF: &str = include_str!("sql/audit_of.sql");
const RESOLVE_HAPPENED: &str = include_str!("sql/resolve_happened.sql");
const RESOLVE_DID_NOT_HAPPEN: &str = include_str!("sql/resolve_did_not_happen.sql");
const RESOLVE_STEPS: &str = include_str!("sql/resolve_steps.sql");

impl Upkeep for SqliteStore {
    async fn list(&mut self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let mut conn = self.reader().await?;
        let rows = sqlx::query(LIST)
            .bind(filter.scope.as_ref().map(Scope::as_str))
            .bind(filter.status.map(Status::as_str))
            .bind(i64::from(filter.limit))
            .fetch_all(&mut *conn)
            .await
            .map_err(|source| error::of(source, "list keys"))?;
        rows.iter()
            .map(|row| {
                let time = |column| row::time(row, column)?.ok_or_else(|| row::not_ours(column));
                Ok(Listed {
                    scope: row::get(row, "scope")?,
                    key: row::get(row, "key")?,
                    status: row::status(row)?,
                    attempt: row::number(row, "attempt")?,
                    response_code: row::code(row, "response_code")?,
                    error: row::get(row, "error")?,
                    lease_until: row::time(row, "lease_until")?,
                    created_at: time("created_at")?,
                    updated_at: time("updated_at")?,
                    expires_at: row::time(row, "expires_at")?,
                    now: time("now")?,
                })
            })
            .collect()
    }

    async fn audit_of(&mut self, scope: &Scope, key: &Key) -> Result<Vec<Audited>, StoreError> {
        let mut conn = self.reader().await?;
        let rows = sqlx::query(AUDIT_OF)
            .bind(scope.as_str())
            .bind(key.as_str())
            .fetch_all(&mut *conn)
            .await
            .map_err(|source| error::of(source, "read the audit"))?;
        rows.iter()
            .map(|row| {
                Ok(Audited {
                    at: row::time(row, "at")?.ok_or_else(|| row::not_ours("at"))?,
                    who: row::get(row, "who")?,
                    action: row::get(row, "action")?,
                    reason: row::get(row, "reason")?,
                })
            })
            .collect()
    }

    async fn resolve(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: Option<&LeaseToken>,
        resolution: &Resolution,
        because: &Because,
    ) -> Result<bool, StoreError> {
        let (scope, key, token) = (scope.clone(), key.clone(), token.cloned());
        let (resolution, because) = (resolution.clone(), because.clone());
        self.writer
            .write("resolve", move |conn| {
                Box::pin(async move { resolve(conn, &scope, &key, token.as_ref(), &resolution, &because).await })
            })
            .await
    }
}

async fn resolve(
    conn: &mut SqliteConnection,
    scope: &Scope,
    key: &Key,
    token: Option<&LeaseToken>,
    resolution: &Resolution,
    because: &Because,
) -> Result<bool, StoreError> {
    let err = |source| error::of(source, "resolve");
    let (sql, action) = match resolution {
        Resolution::Happened(_) => (RESOLVE_HAPPENED, "resolve --happened"),
        Resolution::DidNotHappen { .. } => (RESOLVE_DID_NOT_HAPPEN, "resolve --did-not-happen"),
    };
    let query = sqlx::query(sql).bind(scope.as_str()).bind(key.as_str()).bind(token.map(LeaseToken::as_str));
    let query = match resolution {
        Resolution::Happened(response) => bind_response(query, Some(response)),
        Resolution::DidNotHappen { settle } => {
            query.bind(micros(*settle)).bind(format!("resolved as not having happened: {}", because.reason))
        }
    };
    if query.execute(&mut *conn).await.map_err(err)?.rows_affected() != 1 {
        return Ok(false);
    }
    let steps = sqlx::query(RESOLVE_STEPS).bind(scope.as_str()).bind(key.as_str()).bind(resolution.status().as_str());
    steps.execute(&mut *conn).await.map_err(err)?;
    sqlx::query(AUDIT)
        .bind(Uuid::now_v7().to_string())
        .bind(&because.who)
        .bind(action)
        .bind(scope.as_str())
        .bind(key.as_str())
        .bind(&because.reason)
        .execute(&mut *conn)
        .await
        .map_err(err)?;
    Ok(true)
}
