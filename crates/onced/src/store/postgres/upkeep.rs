//! What people ask and do by hand, on PostgreSQL.

use onced_core::key::{Key, Scope};
use onced_core::record::{LeaseToken, Status};
use onced_core::time::micros;
use uuid::Uuid;

use super::bounded::bounded;
use super::keys::bind_response;
use super::{PgStore, error, row};
use crate::store::StoreError;
use crate::store::upkeep::{Audited, Because, Filter, Listed, Resolution, Upkeep};

impl Upkeep for PgStore {
    async fn list(&mut self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let query = sqlx::query(self.sql.list.clone())
            .bind(filter.scope.as_ref().map(Scope::as_str))
            .bind(filter.status.map(Status::as_str))
            .bind(i64::from(filter.limit));
        let rows = bounded!(self, session => async {
            query.fetch_all(&mut session).await.map_err(|source| error::of(source, "list keys"))
        })?;
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
        let query = sqlx::query(self.sql.audit_of.clone()).bind(scope.as_str()).bind(key.as_str());
        let rows = bounded!(self, session => async {
            query.fetch_all(&mut session).await.map_err(|source| error::of(source, "read the audit"))
        })?;
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
        let sql = match resolution {
            Resolution::Happened(_) => &self.sql.resolve_happened,
            Resolution::DidNotHappen { .. } => &self.sql.resolve_did_not_happen,
        };
        let query =
            sqlx::query(sql.clone()).bind(scope.as_str()).bind(key.as_str()).bind(token.map(LeaseToken::as_str));
        let query = match resolution {
            Resolution::Happened(response) => bind_response(query, Some(response)),
            Resolution::DidNotHappen { settle } => {
                query.bind(micros(*settle)).bind(format!("resolved as not having happened: {}", because.reason))
            }
        };
        let query = query.bind(Uuid::now_v7()).bind(&because.who).bind(&because.reason);
        let done = bounded!(self, session => async {
            query.execute(&mut session).await.map_err(|source| error::of(source, "resolve"))
        })?;
        Ok(done.rows_affected() == 1)
    }
}
