//! Keys on SQLite. What writes runs under the one write lock: in the writer's transaction, or in the caller's.

use onced_core::decision::Taking;
use onced_core::key::{Key, Scope};
use onced_core::record::{self, LeaseToken, Status, StoredResponse};
use onced_core::time::micros;
use sqlx::SqliteConnection;
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use uuid::Uuid;

use super::{SqliteStore, error, row};
use crate::store::StoreError;
use crate::store::keys::{Basis, Claim, Claimed, InTransaction, Keys, Moved, OwnerMove, ParentMove, Seen};

type SqliteQuery<'q> = Query<'q, sqlx::Sqlite, SqliteArguments>;

/// Statements in one command that stands or falls alone within the writer's transaction. Each command is a walk to the
/// connection's thread and back, which costs more than what it does there. Where a statement fails, those after it are
/// not begun, and the writer undoes the savepoint; where SQLite has rolled back by itself there is none to release, so
/// that this cannot go unnoticed.
macro_rules! unit {
    ($($file:literal),+) => {
        concat!("SAVEPOINT onced_unit;\n", $(include_str!($file),)+ "RELEASE onced_unit;")
    };
}
pub(super) use unit;

const CLAIM: &str = concat!(include_str!("sql/claim.sql"), include_str!("sql/log_claimed.sql"));
const CLAIM_UNIT: &str = unit!("sql/claim.sql", "sql/log_claimed.sql");
const COMPLETE_UNIT: &str = unit!("sql/complete.sql");
const FAIL_UNIT: &str = unit!("sql/fail.sql");
const EXTERNAL_UNIT: &str = unit!("sql/external.sql");
const RENEW_UNIT: &str = unit!("sql/renew.sql");
const RELEASE_UNIT: &str = unit!("sql/release.sql");
const FIND: &str = include_str!("sql/find.sql");
const TAKE: &str = include_str!("sql/take.sql");
const REPLACE: &str = include_str!("sql/replace.sql");
const FORGET_STEPS: &str = include_str!("sql/forget_steps.sql");
const GIVE_UP: &str = include_str!("sql/give_up.sql");
const COMPLETE: &str = include_str!("sql/complete.sql");
const FAIL: &str = include_str!("sql/fail.sql");
const EXTERNAL: &str = include_str!("sql/external.sql");
const RENEW: &str = include_str!("sql/renew.sql");
const RELEASE: &str = include_str!("sql/release.sql");
const STEP_BEGUN: &str = include_str!("sql/step_begun.sql");
const STEP_ENDED: &str = include_str!("sql/step_ended.sql");
const STANDS_ALONE: &str = include_str!("sql/stands_alone.sql");
const LOG_DELIVERY: &str = include_str!("sql/log_delivery.sql");

/// The records as one connection sees them.
pub struct SqliteKeys<'t> {
    pub(super) conn: &'t mut SqliteConnection,
    pub(super) place: Place,
}

/// Where the statements run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a transaction or savepoint that somebody else ends.
    Within,
    /// In the writer's transaction, each call as a [`unit`] of its own.
    Unit,
}

impl Keys for SqliteKeys<'_> {
    // Whoever reads sees all that has been committed, and a rival's open transaction cannot be asked about.
    fn a_read_decides(&self) -> bool {
        true
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        let sql = match self.place {
            Place::Within => CLAIM,
            Place::Unit => CLAIM_UNIT,
        };
        let query = bind_claim(sqlx::query(sql), claim).bind(claim.delivery.map(delivery_id));
        self.claimed(query, "claim").await
    }

    async fn find(&mut self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        let query = sqlx::query(FIND).bind(scope.as_str()).bind(key.as_str());
        let found = query.fetch_optional(&mut *self.conn).await.map_err(|source| error::of(source, "read a key"))?;
        found.as_ref().map(row::seen).transpose()
    }

    async fn take(&mut self, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
        let token = basis.token.as_ref().map(LeaseToken::as_str);
        let lease_over = match basis.taking {
            Taking::LeaseOver | Taking::PendingLeaseOver => true,
            Taking::Queued | Taking::Failed => false,
            Taking::Insert => return self.claim(claim).await,
            Taking::Expired => return self.replace(claim, token).await,
        };
        let query = sqlx::query(TAKE)
            .bind(claim.scope.as_str())
            .bind(claim.key.as_str())
            .bind(basis.status.as_str())
            .bind(i64::from(basis.attempt))
            .bind(token)
            .bind(lease_over)
            .bind(next_status(claim, basis))
            .bind(claim.token.as_str())
            .bind(micros(claim.lease))
            .bind(&claim.downstream_key);
        let claimed = self.claimed(query, "take a key").await?;
        self.log_execution(claim, claimed).await?;
        Ok(claimed)
    }

    async fn give_up(&mut self, scope: &Scope, key: &Key, basis: &Basis, why: &str) -> Result<bool, StoreError> {
        let query = sqlx::query(GIVE_UP)
            .bind(scope.as_str())
            .bind(key.as_str())
            .bind(i64::from(basis.attempt))
            .bind(basis.token.as_ref().map(LeaseToken::as_str))
            .bind(why);
        match query.execute(&mut *self.conn).await {
            Ok(done) => Ok(done.rows_affected() == 1),
            // In a caller's deferred transaction: as in `claimed`.
            Err(source) if error::is_write_lock_missed(&source) => Ok(false),
            Err(source) => Err(error::of(source, "give a key up")),
        }
    }

    async fn owner_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        from: Option<Status>,
        owner_move: &OwnerMove,
    ) -> Result<Option<Moved>, StoreError> {
        self.transaction_is_there().await?;
        let (within, unit, doing) = match owner_move {
            OwnerMove::Complete(_) => (COMPLETE, COMPLETE_UNIT, "complete"),
            OwnerMove::Fail { .. } => (FAIL, FAIL_UNIT, "fail"),
            OwnerMove::External { .. } => (EXTERNAL, EXTERNAL_UNIT, "announce an outside call"),
            OwnerMove::Renew { .. } => (RENEW, RENEW_UNIT, "renew"),
            OwnerMove::Release => (RELEASE, RELEASE_UNIT, "release"),
        };
        let sql = match self.place {
            Place::Within => within,
            Place::Unit => unit,
        };
        let query = sqlx::query(sql).bind(scope.as_str()).bind(key.as_str()).bind(token.as_str());
        let query = match owner_move {
            OwnerMove::Complete(response) => bind_response(query, Some(response)).bind(from.map(Status::as_str)),
            OwnerMove::Fail { error, response } => {
                bind_response(query, response.as_ref()).bind(error).bind(from.map(Status::as_str))
            }
            OwnerMove::External { lease } | OwnerMove::Renew { lease } => query.bind(micros(*lease)),
            OwnerMove::Release => query,
        };
        // All rows, of which there is one at most: whoever stops at the first stops the statements behind it.
        let moved = query.fetch_all(&mut *self.conn).await.map_err(|source| error::of(source, doing))?;
        moved.first().map(|row| Ok(Moved { expires_at: row::time(row, "expires_at")? })).transpose()
    }
}

impl InTransaction for SqliteKeys<'_> {
    async fn parent_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        parent_move: ParentMove,
    ) -> Result<Option<Moved>, StoreError> {
        self.transaction_is_there().await?;
        let (sql, doing, lease) = match parent_move {
            ParentMove::StepBegun { lease } => (STEP_BEGUN, "begin a step", Some(micros(lease))),
            ParentMove::StepEnded => (STEP_ENDED, "end a step", None),
        };
        let mut query = sqlx::query(sql).bind(scope.as_str()).bind(key.as_str()).bind(token.as_str());
        if let Some(lease) = lease {
            query = query.bind(lease);
        }
        let moved = query.fetch_optional(&mut *self.conn).await.map_err(|source| error::of(source, doing))?;
        moved.map(|row| Ok(Moved { expires_at: row::time(&row, "expires_at")? })).transpose()
    }
}

impl SqliteKeys<'_> {
    /// Refuses to move a record by itself, where the rows that belong to the move have gone with their transaction.
    async fn transaction_is_there(&mut self) -> Result<(), StoreError> {
        if self.place == Place::Unit {
            // A unit finds no savepoint then.
            return Ok(());
        }
        match sqlx::raw_sql(STANDS_ALONE).execute(&mut *self.conn).await {
            Ok(_) => Err(StoreError::refused(
                "SQLite has rolled the transaction back by itself, and what was written after that stands alone: write \
                 nothing more after an error that may have done so (a full disk, ON CONFLICT ROLLBACK, RAISE(ROLLBACK))",
            )),
            Err(source) if error::is_within_a_transaction(&source) => Ok(()),
            Err(source) => Err(error::of(source, "look for the transaction")),
        }
    }

    async fn replace(&mut self, claim: &Claim, token: Option<&str>) -> Result<Claimed, StoreError> {
        let query = bind_claim(sqlx::query(REPLACE), claim).bind(token);
        let claimed = self.claimed(query, "replace an expired key").await?;
        if let Claimed::Yes { .. } = claimed {
            let forget = sqlx::query(FORGET_STEPS).bind(claim.scope.as_str()).bind(claim.key.as_str());
            forget.execute(&mut *self.conn).await.map_err(|source| error::of(source, "forget a key's steps"))?;
        }
        self.log_execution(claim, claimed).await?;
        Ok(claimed)
    }

    // In a caller's deferred transaction the first write asks for the write lock: a rival may hold it. A unit of the
    // writer has the lock; it overlooks no error, after which its savepoint would stay.
    async fn claimed(&mut self, query: SqliteQuery<'_>, doing: &'static str) -> Result<Claimed, StoreError> {
        // All rows, of which there is one at most: whoever stops at the first stops the statements behind it.
        match query.fetch_all(&mut *self.conn).await {
            Ok(rows) => row::claimed(rows.first()),
            Err(source) if self.place == Place::Within && error::is_write_lock_missed(&source) => {
                Ok(Claimed::LockMissed)
            }
            Err(source) => Err(error::of(source, doing)),
        }
    }

    async fn log_execution(&mut self, claim: &Claim, claimed: Claimed) -> Result<(), StoreError> {
        let (Some(id), Claimed::Yes { attempt, .. }) = (claim.delivery, claimed) else { return Ok(()) };
        sqlx::query(LOG_DELIVERY)
            .bind(delivery_id(id))
            .bind(claim.scope.as_str())
            .bind(claim.key.as_str())
            .bind(0_i64)
            .bind("execute")
            .bind(None::<i64>)
            .bind(claim.request_hash.as_bytes().as_slice())
            .bind(i64::from(attempt))
            .execute(&mut *self.conn)
            .await
            .map_err(|source| error::of(source, "log a delivery"))?;
        Ok(())
    }
}

pub(super) fn delivery_id(id: Uuid) -> String {
    id.to_string()
}

fn bind_claim<'q>(query: SqliteQuery<'q>, claim: &'q Claim) -> SqliteQuery<'q> {
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
}

pub(super) fn bind_response<'q>(query: SqliteQuery<'q>, response: Option<&'q StoredResponse>) -> SqliteQuery<'q> {
    query
        .bind(response.map(|stored| i64::from(stored.code)))
        .bind(response.map(|stored| record::headers_to_text(&stored.headers)))
        .bind(response.and_then(|stored| stored.body.as_deref()))
        .bind(i64::from(response.is_some_and(|stored| stored.body_omitted)))
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

/// Reads on connections of their own; writes through the writer, committed when they return.
impl Keys for SqliteStore {
    fn a_read_decides(&self) -> bool {
        true
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        let claim = claim.clone();
        let unit = self.writer.write_unit("claim", move |conn| {
            Box::pin(async move { SqliteKeys { conn, place: Place::Unit }.claim(&claim).await })
        });
        lock_missed_where_busy(unit.await)
    }

    async fn find(&mut self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        let mut conn = self.reader().await?;
        SqliteKeys { conn: &mut conn, place: Place::Within }.find(scope, key).await
    }

    async fn take(&mut self, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
        let (claim, basis) = (claim.clone(), basis.clone());
        let unit = self.writer.write("take a key", move |conn| {
            Box::pin(async move { SqliteKeys { conn, place: Place::Within }.take(&claim, &basis).await })
        });
        lock_missed_where_busy(unit.await)
    }

    async fn give_up(&mut self, scope: &Scope, key: &Key, basis: &Basis, why: &str) -> Result<bool, StoreError> {
        let (scope, key, basis, why) = (scope.clone(), key.clone(), basis.clone(), why.to_owned());
        let unit = self.writer.write("give a key up", move |conn| {
            Box::pin(async move { SqliteKeys { conn, place: Place::Within }.give_up(&scope, &key, &basis, &why).await })
        });
        match unit.await {
            Err(error) if error.is_transient() => Ok(false),
            other => other,
        }
    }

    async fn owner_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        from: Option<Status>,
        owner_move: &OwnerMove,
    ) -> Result<Option<Moved>, StoreError> {
        let (scope, key, token, owner_move) = (scope.clone(), key.clone(), token.clone(), owner_move.clone());
        self.writer
            .write_unit("write an ending", move |conn| {
                Box::pin(async move {
                    SqliteKeys { conn, place: Place::Unit }.owner_move(&scope, &key, &token, from, &owner_move).await
                })
            })
            .await
    }
}

// The write lock was not got within the bound: a rival, in this process or another, has a transaction open, and what
// it is writing cannot be seen.
fn lock_missed_where_busy(result: Result<Claimed, StoreError>) -> Result<Claimed, StoreError> {
    match result {
        Err(error) if error.is_transient() => Ok(Claimed::LockMissed),
        other => other,
    }
}
