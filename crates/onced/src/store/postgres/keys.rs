//! Keys on PostgreSQL: each call is one statement, committed on its own or within the caller's transaction.

use onced_core::decision::Taking;
use onced_core::key::{Key, Scope};
use onced_core::record::{self, LeaseToken, Status, StoredResponse};
use onced_core::time::micros;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use super::bounded::{LIMIT, bounded};
use super::lent::Session;
use super::sql::Statements;
use super::{PgStore, error, row};
use crate::store::keys::{Basis, Claim, Claimed, InTransaction, Keys, Moved, OwnerMove, ParentMove, Seen};
use crate::store::{StoreError, StoreErrorKind, in_time};

type PgQuery<'q> = Query<'q, sqlx::Postgres, PgArguments>;

/// The records as one session sees them.
pub struct PgKeys<'t> {
    pub(super) session: Session<'t>,
    pub(super) sql: &'t Statements,
    pub(super) place: Place,
}

/// Where the statements run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Each in a transaction of its own, which whoever lends the connection bounds.
    Alone,
    /// In a transaction that a caller ends.
    Within,
}

impl Place {
    /// The answer to a statement. In a caller's transaction it is bounded here, by our own clock.
    async fn answer<T>(
        self,
        doing: &'static str,
        asked: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, StoreError> {
        match self {
            Self::Alone => asked.await.map_err(|source| error::of(source, doing)),
            Self::Within => in_time(LIMIT, doing, error::of, asked).await,
        }
    }
}

impl Keys for PgKeys<'_> {
    // The claim lock says whether a rival's transaction is open.
    fn a_read_decides(&self) -> bool {
        false
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        let query = bind_claim(sqlx::query(self.sql.claim.clone()), claim);
        match self.place {
            Place::Alone => self.claimed(query.bind(None::<i64>), "claim").await,
            // The bounds of the transaction hold from the next statement on. This one can wait only for a change of
            // the ledger's schema, and is bounded by the lease as well.
            Place::Within => {
                let claimed = self.claimed(query.bind(micros(claim.lease)), "claim");
                tokio::time::timeout(claim.lease, claimed).await.unwrap_or_else(|_| {
                    Err(StoreError::new(StoreErrorKind::Transient, "claim: PostgreSQL did not answer in time"))
                })
            }
        }
    }

    async fn find(&mut self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        let query = sqlx::query(self.sql.find.clone()).bind(scope.as_str()).bind(key.as_str());
        let found = self.place.answer("read a key", query.fetch_optional(&mut self.session)).await?;
        found.as_ref().map(row::seen).transpose()
    }

    async fn take(&mut self, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
        let token = basis.token.as_ref().map(LeaseToken::as_str);
        let lease_over = match basis.taking {
            Taking::LeaseOver | Taking::PendingLeaseOver => true,
            Taking::Queued | Taking::Failed => false,
            Taking::Insert => return self.claim(claim).await,
            Taking::Expired => {
                let query = bind_claim(sqlx::query(self.sql.replace.clone()), claim)
                    .bind(claim.request_hash.as_bytes().as_slice())
                    .bind(token);
                return self.claimed(query, "replace an expired key").await;
            }
        };
        let query = sqlx::query(self.sql.take.clone())
            .bind(claim.scope.as_str())
            .bind(claim.key.as_str())
            .bind(basis.status.as_str())
            .bind(attempt(basis.attempt))
            .bind(token)
            .bind(lease_over)
            .bind(next_status(claim, basis))
            .bind(claim.token.as_str())
            .bind(micros(claim.lease))
            .bind(&claim.downstream_key)
            .bind(claim.delivery)
            .bind(claim.request_hash.as_bytes().as_slice());
        self.claimed(query, "take a key").await
    }

    async fn give_up(&mut self, scope: &Scope, key: &Key, basis: &Basis, why: &str) -> Result<bool, StoreError> {
        let query = sqlx::query(self.sql.give_up.clone())
            .bind(scope.as_str())
            .bind(key.as_str())
            .bind(attempt(basis.attempt))
            .bind(basis.token.as_ref().map(LeaseToken::as_str))
            .bind(why);
        let done = self.place.answer("give a key up", query.execute(&mut self.session)).await?;
        Ok(done.rows_affected() == 1)
    }

    async fn owner_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        from: Option<Status>,
        owner_move: &OwnerMove,
    ) -> Result<Option<Moved>, StoreError> {
        let (sql, doing) = match owner_move {
            OwnerMove::Complete(_) => (&self.sql.complete, "complete"),
            OwnerMove::Fail { .. } => (&self.sql.fail, "fail"),
            OwnerMove::External { .. } => (&self.sql.external, "announce an outside call"),
            OwnerMove::Renew { .. } => (&self.sql.renew, "renew"),
            OwnerMove::Release => (&self.sql.release, "release"),
        };
        let query = sqlx::query(sql.clone()).bind(scope.as_str()).bind(key.as_str()).bind(token.as_str());
        let query = match owner_move {
            OwnerMove::Complete(response) => bind_response(query, Some(response)).bind(from.map(Status::as_str)),
            OwnerMove::Fail { error, response } => {
                bind_response(query, response.as_ref()).bind(error).bind(from.map(Status::as_str))
            }
            OwnerMove::External { lease } | OwnerMove::Renew { lease } => query.bind(micros(*lease)),
            OwnerMove::Release => query,
        };
        let moved = self.place.answer(doing, query.fetch_optional(&mut self.session)).await?;
        moved.map(|row| Ok(Moved { expires_at: row::time(&row, "expires_at")? })).transpose()
    }
}

impl InTransaction for PgKeys<'_> {
    async fn parent_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        parent_move: ParentMove,
    ) -> Result<Option<Moved>, StoreError> {
        let (sql, doing, lease) = match parent_move {
            ParentMove::StepBegun { lease } => (&self.sql.step_begun, "begin a step", Some(micros(lease))),
            ParentMove::StepEnded => (&self.sql.step_ended, "end a step", None),
        };
        let mut query = sqlx::query(sql.clone()).bind(scope.as_str()).bind(key.as_str()).bind(token.as_str());
        if let Some(lease) = lease {
            query = query.bind(lease);
        }
        let moved = self.place.answer(doing, query.fetch_optional(&mut self.session)).await?;
        moved.map(|row| Ok(Moved { expires_at: row::time(&row, "expires_at")? })).transpose()
    }
}

impl PgKeys<'_> {
    async fn claimed(&mut self, query: PgQuery<'_>, doing: &'static str) -> Result<Claimed, StoreError> {
        let row = self.place.answer(doing, query.fetch_one(&mut self.session)).await?;
        row::claimed(&row)
    }
}

fn bind_claim<'q>(query: PgQuery<'q>, claim: &'q Claim) -> PgQuery<'q> {
    query
        .bind(claim.scope.as_str())
        .bind(claim.key.as_str())
        .bind(claim.request_hash.as_bytes().as_slice())
        .bind(&claim.hash_version)
        .bind(claim.enter.status().as_str())
        .bind(claim.token.as_str())
        .bind(micros(claim.lease))
        .bind(&claim.downstream_key)
        .bind(micros(claim.retry_window))
        .bind(micros(claim.keep))
        .bind(claim.delivery)
}

pub(super) fn bind_response<'q>(query: PgQuery<'q>, response: Option<&'q StoredResponse>) -> PgQuery<'q> {
    query
        .bind(response.map(|stored| i32::from(stored.code)))
        .bind(response.map(|stored| record::headers_to_text(&stored.headers)))
        .bind(response.and_then(|stored| stored.body.as_deref()))
        .bind(response.is_some_and(|stored| stored.body_omitted))
}

// A pending record stays pending: whatever the claimant meant to do, a call may have happened.
fn next_status(claim: &Claim, basis: &Basis) -> &'static str {
    match basis.taking {
        Taking::PendingLeaseOver => basis.status.as_str(),
        Taking::Insert | Taking::Expired | Taking::Queued | Taking::LeaseOver | Taking::Failed => {
            claim.enter.status().as_str()
        }
    }
}

fn attempt(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Each call on a connection of its own, committed when it returns.
impl Keys for PgStore {
    fn a_read_decides(&self) -> bool {
        false
    }

    fn epoch(&self) -> u64 {
        self.connections.epoch()
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        bounded!(self, session => self.keys_on(session.reborrow()).claim(claim))
    }

    async fn find(&mut self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        bounded!(self, session => self.keys_on(session.reborrow()).find(scope, key))
    }

    async fn take(&mut self, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
        bounded!(self, session => self.keys_on(session.reborrow()).take(claim, basis))
    }

    async fn give_up(&mut self, scope: &Scope, key: &Key, basis: &Basis, why: &str) -> Result<bool, StoreError> {
        bounded!(self, session => self.keys_on(session.reborrow()).give_up(scope, key, basis, why))
    }

    async fn owner_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        from: Option<Status>,
        owner_move: &OwnerMove,
    ) -> Result<Option<Moved>, StoreError> {
        bounded!(self, session => self.keys_on(session.reborrow()).owner_move(scope, key, token, from, owner_move))
    }
}
