//! What people ask and do by hand, on MariaDB.

use onced_core::key::{Key, Scope};
use onced_core::record::{LeaseToken, Status};
use onced_core::time::micros;
use sqlx::MySqlConnection;
use uuid::Uuid;

use super::bounded::{bounded, unit};
use super::keys::bind_response;
use super::{MySqlStore, error, row};
use crate::store::StoreError;
use crate::store::upkeep::{Audited, Because, Filter, Listed, Resolution, Upkeep};

const LIST: &str = include_str!("sql/list.sql");
const AUDIT: &str = include_str!("sql/audit.sql");
const AUDIT_OF: &str = include_str!("sql/audit_of.sql");
const RESOLVE_HAPPENED: &str = include_str!("sql/resolve_happened.sql");
const RESOLVE_DID_NOT_HAPPEN: &str = include_str!("sql/resolve_did_not_happen.sql");
const RESOLVE_STEPS: &str = include_str!("sql/resolve_steps.sql");

impl Upkeep for MySqlStore {
    async fn list(&mut self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let (scope, status) = (filter.scope.as_ref().map(Scope::as_str), filter.status.map(Status::as_str));
        let query = sqlx::query(LIST).bind(scope).bind(scope).bind(status).bind(status).bind(filter.limit);
        let rows = bounded!(self, conn => async {
            query.fetch_all(&mut *conn).await.map_err(|source| error::of(source, "list keys"))
        })?;
        rows.iter()
            .map(|row| {
                let time = |column| row::time(row, column)?.ok_or_else(|| row::not_ours(column));
                Ok(Listed {
                    scope: row::ascii(row, "scope")?,
                    key: row::ascii(row, "key")?,
                    status: row::status(row)?,
                    attempt: row::number(row, "attempt")?,
                    response_code: row::code(row, "response_code")?,
                    error: row::get(row, "error")?,
                    lease_until: row::time(row, "lease_until")?,
                    created_at: time("created_at")?,
                    updated_at: time("updated_micros")?,
                    expires_at: row::time(row, "expires_at")?,
                    now: time("now")?,
                })
            })
            .collect()
    }

    async fn audit_of(&mut self, scope: &Scope, key: &Key) -> Result<Vec<Audited>, StoreError> {
        let query = sqlx::query(AUDIT_OF).bind(scope.as_str()).bind(key.as_str());
        let rows = bounded!(self, conn => async {
            query.fetch_all(&mut *conn).await.map_err(|source| error::of(source, "read the audit"))
        })?;
        rows.iter()
            .map(|row| {
                Ok(Audited {
                    at: row::time(row, "at_micros")?.ok_or_else(|| row::not_ours("at"))?,
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
        unit!(self, tx => resolve(&mut tx, scope, key, token, resolution, because))
    }
}

async fn resolve(
    conn: &mut MySqlConnection,
    scope: &Scope,
    key: &Key,
    token: Option<&LeaseToken>,
    resolution: &Resolution,
    because: &Because,
) -> Result<bool, StoreError> {
    let err = |source| error::of(source, "resolve");
    let (scope, key, token) = (scope.as_str(), key.as_str(), token.map(LeaseToken::as_str));
    let (query, action) = match resolution {
        Resolution::Happened(response) => {
            let query = bind_response(sqlx::query(RESOLVE_HAPPENED), Some(response));
            (query.bind(scope).bind(key).bind(token), "resolve --happened")
        }
        Resolution::DidNotHappen { settle } => {
            let why = format!("resolved as not having happened: {}", because.reason);
            let query = sqlx::query(RESOLVE_DID_NOT_HAPPEN).bind(why).bind(scope).bind(key).bind(token);
            (query.bind(micros(*settle)), "resolve --did-not-happen")
        }
    };
    if query.execute(&mut *conn).await.map_err(err)?.rows_affected() != 1 {
        return Ok(false);
    }
    let status = resolution.status().as_str();
    let steps = sqlx::query(RESOLVE_STEPS).bind(status).bind(status).bind(key).bind(scope).bind(scope);
    steps.execute(&mut *conn).await.map_err(err)?;
    let audit = sqlx::query(AUDIT).bind(Uuid::now_v7()).bind(&because.who).bind(action);
    let audit = audit.bind(scope).bind(key).bind(&because.reason);
    audit.execute(&mut *conn).await.map_err(err)?;
    Ok(true)
}
