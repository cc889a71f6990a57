//! Keys on MariaDB: each call is a few statements, in a transaction of its own or within the caller's.

use std::sync::atomic::Ordering;
use std::time::Duration;

use onced_core::decision::Taking;
use onced_core::key::{Key, Scope};
use onced_core::record::{self, LeaseToken, Status, StoredResponse};
use onced_core::time::micros;
use sqlx::MySqlConnection;
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::query::Query;

use super::bounded::{self, LIMIT, bounded, unit};
use super::{MySqlStore, error, row};
use crate::store::keys::{Basis, Claim, Claimed, InTransaction, Keys, Moved, OwnerMove, ParentMove, Seen};
use crate::store::{StoreError, StoreErrorKind};

type MySqlQuery<'q> = Query<'q, sqlx::MySql, MySqlArguments>;

const PRESENT: &str = include_str!("sql/present.sql");
const CLAIM: &str = include_str!("sql/claim.sql");
const LOG_DELIVERY: &str = include_str!("sql/log_delivery.sql");
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
const EXPIRY: &str = include_str!("sql/expiry.sql");
const IDLE_BOUNDS: &str = include_str!("sql/idle_bounds.sql");
const BOUND_IDLING: &str = include_str!("sql/bound_idling.sql");

/// Up to here an outcome fits into every packet that a server in use allows.
const SMALL: usize = 64 << 10;
/// What a statement takes beside the outcome.
const BESIDE: usize = 4 << 10;

/// The records within a caller's transaction.
pub struct MySqlKeys<'t> {
    pub(super) conn: &'t mut MySqlConnection,
}

impl Keys for MySqlKeys<'_> {
    // Whether there is a record is read without a lock, so that what needs no taking is answered from what is committed; a
    // rival's lock shows to who wants to write.
    fn a_read_decides(&self) -> bool {
        true
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        within_the_lease(claim.lease, async {
            bound_idling(self.conn, claim.lease).await?;
            if is_present(self.conn, claim).await? {
                return Ok(Claimed::No);
            }
            insert(self.conn, claim).await
        })
        .await
    }

    async fn find(&mut self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        bounded::within(LIMIT, find(self.conn, scope, key)).await
    }

    async fn take(&mut self, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
        if basis.taking == Taking::Insert {
            return self.claim(claim).await;
        }
        within_the_lease(claim.lease, async {
            bound_idling(self.conn, claim.lease).await?;
            take(self.conn, claim, basis).await
        })
        .await
    }

    async fn give_up(&mut self, scope: &Scope, key: &Key, basis: &Basis, why: &str) -> Result<bool, StoreError> {
        bounded::within(LIMIT, give_up(self.conn, scope, key, basis, why)).await
    }

    async fn owner_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        from: Option<Status>,
        owner_move: &OwnerMove,
    ) -> Result<Option<Moved>, StoreError> {
        bounded::within(LIMIT, make_move(self.conn, scope, key, token, from, owner_move)).await
    }
}

impl InTransaction for MySqlKeys<'_> {
    async fn parent_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        parent_move: ParentMove,
    ) -> Result<Option<Moved>, StoreError> {
        let (of_scope, of_key) = (scope.as_str(), key.as_str());
        let (query, doing) = match parent_move {
            ParentMove::StepBegun { lease } => {
                let query = sqlx::query(STEP_BEGUN).bind(micros(lease));
                let query = query.bind(of_scope).bind(of_key).bind(token.as_str());
                (query.bind(of_key).bind(of_scope).bind(of_scope), "begin a step")
            }
            ParentMove::StepEnded => {
                let query = sqlx::query(STEP_ENDED).bind(of_key).bind(of_scope).bind(of_scope);
                (query.bind(of_scope).bind(of_key).bind(token.as_str()), "end a step")
            }
        };
        bounded::within(LIMIT, async {
            let done = query.execute(&mut *self.conn).await.map_err(|source| error::of(source, doing))?;
            if done.rows_affected() != 1 {
                return Ok(None);
            }
            let row = expiry(self.conn, scope, key, token, doing).await?;
            row.map(|row| Ok(Moved { expires_at: row::time(&row, "expires_at")? })).transpose()
        })
        .await
    }
}

/// Bounds a claim in a caller's transaction, whose session may wait for longer: by our own clock, and by the lease.
async fn within_the_lease(
    lease: Duration,
    claiming: impl Future<Output = Result<Claimed, StoreError>>,
) -> Result<Claimed, StoreError> {
    tokio::time::timeout(lease, bounded::within(LIMIT, claiming))
        .await
        .unwrap_or_else(|_| Err(StoreError::new(StoreErrorKind::Transient, "claim: MariaDB did not answer in time")))
}

/// There is no lease to save anyone from an owner that hangs inside its transaction: from here on the server ends one that
/// idles for longer than the lease, where nothing tighter of the caller's own does.
async fn bound_idling(conn: &mut MySqlConnection, lease: Duration) -> Result<(), StoreError> {
    let err = |source| error::of(source, "bound the transaction");
    let now = sqlx::query(IDLE_BOUNDS).fetch_one(&mut *conn).await.map_err(err)?;
    if row::flag(&now, "has_own_time")? {
        return Err(StoreError::refused(
            "claim: the connection's clock was set (SET timestamp), and leases cannot be told by it: SET timestamp = DEFAULT",
        ));
    }
    if row::flag(&now, "empty_is_null")? {
        return Err(StoreError::refused(
            "claim: EMPTY_STRING_IS_NULL in the connection's sql_mode makes an empty body none: take it out",
        ));
    }
    let seconds = |column| row::get::<Option<i64>>(&now, column);
    let (of_writers, of_all) = (seconds("of_writers")?.unwrap_or(0), seconds("of_all")?.unwrap_or(0));
    // What an earlier claim has set is none of the caller's bounds.
    let own = if seconds("by_claim")? == Some(of_writers) { seconds("before_claim")?.unwrap_or(0) } else { of_writers };
    let lease = i64::try_from(lease.as_secs() + u64::from(lease.subsec_nanos() > 0)).unwrap_or(i64::MAX);
    let in_force = if own > 0 { own } else { of_all };
    let wanted = if (1..=lease).contains(&in_force) { own } else { lease };
    if wanted == of_writers {
        return Ok(());
    }
    let set = sqlx::query(BOUND_IDLING).bind(own).bind(wanted).bind(wanted);
    set.execute(&mut *conn).await.map(drop).map_err(err)
}

async fn is_present(conn: &mut MySqlConnection, claim: &Claim) -> Result<bool, StoreError> {
    let query = sqlx::query(PRESENT).bind(claim.scope.as_str()).bind(claim.key.as_str());
    let found = query.fetch_one(&mut *conn).await.map_err(|source| error::of(source, "claim"))?;
    if row::flag(&found, "read_only")? {
        return Err(StoreError::new(
            StoreErrorKind::Unavailable,
            "claim: this MariaDB is read-only: a replica, or a primary that was one",
        ));
    }
    row::flag(&found, "present")
}

async fn insert(conn: &mut MySqlConnection, claim: &Claim) -> Result<Claimed, StoreError> {
    let status = claim.enter.status().as_str();
    let query = sqlx::query(CLAIM)
        .bind(claim.scope.as_str())
        .bind(claim.key.as_str())
        .bind(claim.request_hash.as_bytes().as_slice())
        .bind(&claim.hash_version)
        .bind(status)
        .bind(claim.token.as_str())
        .bind(micros(claim.lease))
        .bind(&claim.downstream_key)
        .bind(status)
        .bind(micros(claim.retry_window))
        .bind(micros(claim.keep));
    let rows = match query.fetch_all(&mut *conn).await {
        Ok(rows) => rows,
        Err(source) if error::is_lock_missed(&source) => return Ok(Claimed::LockMissed),
        Err(source) if error::is_duplicate(&source) => return Ok(Claimed::No),
        Err(source) => return Err(error::of(source, "claim")),
    };
    let claimed = claimed(rows.first())?;
    log_execution(conn, claim, claimed).await?;
    Ok(claimed)
}

async fn find(conn: &mut MySqlConnection, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
    let query = sqlx::query(FIND).bind(scope.as_str()).bind(key.as_str());
    let found = query.fetch_optional(&mut *conn).await.map_err(|source| error::of(source, "read a key"))?;
    found.as_ref().map(row::seen).transpose()
}

async fn take(conn: &mut MySqlConnection, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
    let (query, doing) = match basis.taking {
        Taking::Expired => (bind_replace(claim, basis), "replace an expired key"),
        Taking::Insert | Taking::Queued | Taking::LeaseOver | Taking::PendingLeaseOver | Taking::Failed => {
            (bind_take(claim, basis), "take a key")
        }
    };
    match query.execute(&mut *conn).await {
        Ok(done) if done.rows_affected() == 1 => {}
        Ok(_) => return Ok(Claimed::No),
        Err(source) if error::is_lock_missed(&source) => return Ok(Claimed::LockMissed),
        Err(source) => return Err(error::of(source, doing)),
    }
    let (scope, key) = (claim.scope.as_str(), claim.key.as_str());
    if basis.taking == Taking::Expired {
        let steps = sqlx::query(FORGET_STEPS).bind(key).bind(scope).bind(scope);
        steps.execute(&mut *conn).await.map_err(|source| error::of(source, doing))?;
    }
    let claimed = claimed(expiry(conn, &claim.scope, &claim.key, &claim.token, doing).await?.as_ref())?;
    log_execution(conn, claim, claimed).await?;
    Ok(claimed)
}

fn bind_take<'q>(claim: &'q Claim, basis: &'q Basis) -> MySqlQuery<'q> {
    let lease_over = matches!(basis.taking, Taking::LeaseOver | Taking::PendingLeaseOver);
    // A pending record stays pending: whatever the claimant meant to do, a call may have happened.
    let next = match basis.taking {
        Taking::PendingLeaseOver => basis.status.as_str(),
        Taking::Insert | Taking::Expired | Taking::Queued | Taking::LeaseOver | Taking::Failed => {
            claim.enter.status().as_str()
        }
    };
    sqlx::query(TAKE)
        .bind(next)
        .bind(claim.token.as_str())
        .bind(micros(claim.lease))
        .bind(&claim.downstream_key)
        .bind(next)
        .bind(claim.scope.as_str())
        .bind(claim.key.as_str())
        .bind(basis.status.as_str())
        .bind(i64::from(basis.attempt))
        .bind(basis.token.as_ref().map(LeaseToken::as_str))
        .bind(lease_over)
}

fn bind_replace<'q>(claim: &'q Claim, basis: &'q Basis) -> MySqlQuery<'q> {
    let status = claim.enter.status().as_str();
    sqlx::query(REPLACE)
        .bind(claim.request_hash.as_bytes().as_slice())
        .bind(&claim.hash_version)
        .bind(status)
        .bind(claim.token.as_str())
        .bind(micros(claim.lease))
        .bind(&claim.downstream_key)
        .bind(status)
        .bind(micros(claim.retry_window))
        .bind(micros(claim.keep))
        .bind(claim.scope.as_str())
        .bind(claim.key.as_str())
        .bind(basis.token.as_ref().map(LeaseToken::as_str))
}

async fn give_up(
    conn: &mut MySqlConnection,
    scope: &Scope,
    key: &Key,
    basis: &Basis,
    why: &str,
) -> Result<bool, StoreError> {
    let query = sqlx::query(GIVE_UP)
        .bind(why)
        .bind(scope.as_str())
        .bind(key.as_str())
        .bind(i64::from(basis.attempt))
        .bind(basis.token.as_ref().map(LeaseToken::as_str));
    match query.execute(&mut *conn).await {
        Ok(done) => Ok(done.rows_affected() == 1),
        Err(source) if error::is_lock_missed(&source) => Ok(false),
        Err(source) => Err(error::of(source, "give a key up")),
    }
}

async fn make_move(
    conn: &mut MySqlConnection,
    scope: &Scope,
    key: &Key,
    token: &LeaseToken,
    from: Option<Status>,
    owner_move: &OwnerMove,
) -> Result<Option<Moved>, StoreError> {
    if let OwnerMove::Complete(response) | OwnerMove::Fail { response: Some(response), .. } = owner_move {
        fits(conn, response).await?;
    }
    let (sql, doing) = match owner_move {
        OwnerMove::Complete(_) => (COMPLETE, "complete"),
        OwnerMove::Fail { .. } => (FAIL, "fail"),
        OwnerMove::External { .. } => (EXTERNAL, "announce an outside call"),
        OwnerMove::Renew { .. } => (RENEW, "renew"),
        OwnerMove::Release => return release(conn, scope, key, token).await,
    };
    let query = sqlx::query(sql);
    let query = match owner_move {
        OwnerMove::Complete(response) => bind_response(query, Some(response)),
        OwnerMove::Fail { error, response } => bind_response(query, response.as_ref()).bind(error),
        OwnerMove::External { lease } | OwnerMove::Renew { lease } => query.bind(micros(*lease)),
        OwnerMove::Release => query,
    };
    let query = query.bind(scope.as_str()).bind(key.as_str()).bind(token.as_str());
    let query = match owner_move {
        OwnerMove::Complete(_) | OwnerMove::Fail { .. } => {
            let from = from.map(Status::as_str);
            query.bind(from).bind(from)
        }
        OwnerMove::External { .. } | OwnerMove::Renew { .. } | OwnerMove::Release => query,
    };
    let done = query.execute(&mut *conn).await.map_err(|source| error::of(source, doing))?;
    if done.rows_affected() != 1 {
        return Ok(None);
    }
    let row = expiry(conn, scope, key, token, doing).await?;
    row.map(|row| Ok(Moved { expires_at: row::time(&row, "expires_at")? })).transpose()
}

/// Refuses what is too large to be sent: the server would cut the connection, and nobody would know why.
async fn fits(conn: &mut MySqlConnection, response: &StoredResponse) -> Result<(), StoreError> {
    let headers: usize = response.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    let size = response.body.as_ref().map_or(0, bytes::Bytes::len) + 2 * headers;
    if size < SMALL {
        return Ok(());
    }
    let limit: i64 = sqlx::query_scalar("SELECT CAST(@@SESSION.max_allowed_packet AS SIGNED)")
        .fetch_one(&mut *conn)
        .await
        .map_err(|source| error::of(source, "store an outcome"))?;
    if i64::try_from(size + BESIDE).unwrap_or(i64::MAX) <= limit {
        return Ok(());
    }
    Err(StoreError::refused(format!(
        "an outcome of {size} bytes cannot be stored: MariaDB's max_allowed_packet is {limit}. Raise it, or keep less of \
         large answers (max_response_bytes)"
    )))
}

async fn release(
    conn: &mut MySqlConnection,
    scope: &Scope,
    key: &Key,
    token: &LeaseToken,
) -> Result<Option<Moved>, StoreError> {
    let (scope, key) = (scope.as_str(), key.as_str());
    let query = sqlx::query(RELEASE).bind(scope).bind(key).bind(token.as_str()).bind(key).bind(scope).bind(scope);
    let rows = query.fetch_all(&mut *conn).await.map_err(|source| error::of(source, "release"))?;
    rows.first().map(|row| Ok(Moved { expires_at: row::time(row, "expires_at")? })).transpose()
}

async fn expiry(
    conn: &mut MySqlConnection,
    scope: &Scope,
    key: &Key,
    token: &LeaseToken,
    doing: &'static str,
) -> Result<Option<MySqlRow>, StoreError> {
    let query = sqlx::query(EXPIRY).bind(scope.as_str()).bind(key.as_str()).bind(token.as_str());
    query.fetch_optional(&mut *conn).await.map_err(|source| error::of(source, doing))
}

fn claimed(row: Option<&MySqlRow>) -> Result<Claimed, StoreError> {
    let Some(row) = row else { return Ok(Claimed::No) };
    Ok(Claimed::Yes { attempt: row::number(row, "attempt")?, expires_at: row::time(row, "expires_at")? })
}

async fn log_execution(conn: &mut MySqlConnection, claim: &Claim, claimed: Claimed) -> Result<(), StoreError> {
    let (Some(id), Claimed::Yes { attempt, .. }) = (claim.delivery, claimed) else { return Ok(()) };
    let query = sqlx::query(LOG_DELIVERY)
        .bind(id)
        .bind(claim.scope.as_str())
        .bind(claim.key.as_str())
        .bind(claim.request_hash.as_bytes().as_slice())
        .bind(i64::from(attempt));
    query.execute(&mut *conn).await.map(drop).map_err(|source| error::of(source, "log a delivery"))
}

pub(super) fn bind_response<'q>(query: MySqlQuery<'q>, response: Option<&'q StoredResponse>) -> MySqlQuery<'q> {
    query
        .bind(response.map(|stored| i64::from(stored.code)))
        .bind(response.map(|stored| record::headers_to_text(&stored.headers)))
        .bind(response.and_then(|stored| stored.body.as_deref()))
        .bind(response.is_some_and(|stored| stored.body_omitted))
}

/// Each call committed when it returns.
impl Keys for MySqlStore {
    fn a_read_decides(&self) -> bool {
        true
    }

    fn epoch(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        if bounded!(self, conn => is_present(&mut conn, claim))? {
            return Ok(Claimed::No);
        }
        unit!(self, tx => insert(&mut tx, claim))
    }

    async fn find(&mut self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        bounded!(self, conn => find(&mut conn, scope, key))
    }

    async fn take(&mut self, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
        if basis.taking == Taking::Insert {
            return self.claim(claim).await;
        }
        unit!(self, tx => take(&mut tx, claim, basis))
    }

    async fn give_up(&mut self, scope: &Scope, key: &Key, basis: &Basis, why: &str) -> Result<bool, StoreError> {
        unit!(self, tx => give_up(&mut tx, scope, key, basis, why))
    }

    async fn owner_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        from: Option<Status>,
        owner_move: &OwnerMove,
    ) -> Result<Option<Moved>, StoreError> {
        unit!(self, tx => make_move(&mut tx, scope, key, token, from, owner_move))
    }
}
