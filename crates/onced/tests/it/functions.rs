//! The SQL functions as one more backend of the suite: deliveries go through `onced.begin`, moves of the owner through
//! `onced.complete` and the others, a person's word through `onced.resolve`; takings and giving up through the steps
//! that `onced.begin` is made of. What there is no function for (reading, sweeping, health, the log) is the library's.

use std::time::Duration;

use bytes::Bytes;
use onced::guard::{Guard, Request};
use onced::store::deliveries::{Deliveries, DeliveryLine, DeliveryRead, Repeats};
use onced::store::health::{Backends, Growth, Health, Overdue, SchemaVersion, Settings, Unfinished};
use onced::store::keys::{
    Basis, Claim, Claimed, InTransaction, Keys, Moved, OwnerMove, ParentMove, Seen, Transactional,
};
use onced::store::postgres::PgStore;
use onced::store::sweep::{Batch, Due, Sweep};
use onced::store::upkeep::{Audited, Because, Filter, Listed, Resolution, Upkeep};
use onced::store::{StoreError, StoreErrorKind, StoreOptions};
use onced_core::decision::{Enter, MismatchPolicy, OnUnknown, Taking};
use onced_core::decision_table::Expected;
use onced_core::key::{Key, Scope};
use onced_core::record::{self, LeaseToken, Status, StoredResponse};
use onced_core::time::{Timestamp, micros};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row, Transaction};
use testkit::Backend;
use uuid::Uuid;

use crate::bench::Tested;
use crate::decisions::{Came, Given};

/// The ledger as its functions show it.
#[derive(Clone, Debug)]
pub(crate) struct SqlFunctions(PgStore);

type PgQuery<'q> = Query<'q, Postgres, PgArguments>;

const MOST_TRIES: u32 = 20;

/// What the URL of a rival in another process begins with, where it is to go through the functions as well.
pub(crate) const MARK: &str = "functions+";

const BEGIN: &str = "SELECT *, onced.micros(expires_at) AS expires FROM onced.begin($1, $2, $3, $4, \
     lease => $5 * interval '1 microsecond', retention => $6 * interval '1 microsecond', \
     retry_window => $7 * interval '1 microsecond', max_attempts => $8, on_unknown => $9, \
     downstream_window => $10 * interval '1 microsecond', mismatch => $11, enter => $12, log_deliveries => 'executed')";

impl Tested for SqlFunctions {
    type Db = Postgres;
    const BACKEND: Backend = Backend::Postgres;
    const NAME: &'static str = "postgres by SQL functions";

    async fn open_at(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        PgStore::open(url, options).await.map(Self)
    }

    async fn bring_up_to_date(&self) -> Result<(), StoreError> {
        self.0.migrate().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.0.check_schema().await
    }

    async fn plain_transaction(&self) -> Self::Tx {
        self.0.pool().begin().await.unwrap()
    }

    async fn run(tx: &mut Self::Tx, sql: &str) -> Result<u64, sqlx::Error> {
        PgStore::run(tx, sql).await
    }

    /// What is not understood is an error of the function, and an error aborts the transaction.
    fn goes_on_after(came_to: &Expected) -> bool {
        *came_to != Expected::NotUnderstood
    }

    fn url_of_rival(url: &str) -> String {
        format!("{MARK}{url}")
    }

    async fn deliver(guard: &Guard<Self>, request: &Request) -> Came {
        let mut conn = guard.store().0.pool().acquire().await.unwrap();
        // What a caller is told to do: above READ COMMITTED a race may end in a serialization failure.
        for _ in 0..MOST_TRIES {
            match begin(&mut conn, request).await {
                Err(error) if code(&error).as_deref() == Some("40001") => {}
                begun => return begun.unwrap(),
            }
        }
        panic!("{MOST_TRIES} serialization failures one after the other");
    }

    async fn deliver_tx(_: &Guard<Self>, tx: &mut Self::Tx, request: &Request) -> Came {
        begin(tx, request).await.unwrap()
    }
}

/// `onced.begin`, by the request's own hash and its policy in full.
async fn begin(conn: &mut PgConnection, request: &Request) -> Result<Came, sqlx::Error> {
    let policy = &request.policy;
    let query = sqlx::query(BEGIN)
        .bind(request.scope.as_str())
        .bind(request.key.as_str())
        .bind(request.fingerprint.hash().as_bytes().as_slice())
        .bind(request.fingerprint.version().to_string())
        .bind(micros(policy.lease.length))
        .bind(micros(policy.retention.keep))
        .bind(micros(policy.retention.retry_window))
        .bind(policy.max_attempts.map(|max| i32::try_from(max).unwrap()))
        .bind(match policy.on_unknown {
            OnUnknown::Retry => "retry",
            OnUnknown::Reconcile => "reconcile",
            OnUnknown::Hold => "hold",
        })
        .bind(micros(policy.downstream_window))
        .bind(match policy.mismatch {
            MismatchPolicy::Reject => "reject",
            MismatchPolicy::Note => "note",
        })
        .bind(match policy.enter {
            Enter::InProgress => "in_progress",
            Enter::PendingExternal => "pending_external",
        });
    let plain = |to| Came { to, permit: None, response: None, retry_after: None };
    let row = match query.fetch_one(&mut *conn).await {
        Ok(row) => row,
        Err(error) if code(&error).as_deref() == Some("OC002") => return Ok(plain(Expected::NotUnderstood)),
        Err(error) => return Err(error),
    };
    let retry_after =
        row.get::<Option<i32>, _>("retry_after").map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap()));
    let answered = |to| Came { retry_after, ..plain(to) };
    Ok(match row.get("decision") {
        "execute" => {
            let attempt = u32::try_from(row.get::<i32, _>("attempt")).unwrap();
            let permit = Given {
                token: LeaseToken::from_row(row.get("lease_token")),
                downstream_key: row.get("downstream_key"),
                call_answer: Some(
                    row.get::<bool, _>("call_known")
                        .then(|| response(&row, ["call_code", "call_headers", "call_body", "call_omitted"])),
                ),
            };
            Came { permit: Some(permit), ..plain(Expected::Execute { attempt, resumed: row.get("resumed") }) }
        }
        "replay" => {
            let stored = response(&row, ["response_code", "response_headers", "response_body", "body_omitted"]);
            Came { response: Some(stored), ..plain(Expected::Replay) }
        }
        "in_progress" => answered(Expected::InProgress),
        "mismatch" => answered(Expected::Mismatch),
        "unknown" => answered(Expected::Unknown),
        "exhausted" => answered(Expected::Exhausted),
        other => panic!("no decision: {other}"),
    })
}

fn response(row: &PgRow, [code, headers, body, omitted]: [&str; 4]) -> StoredResponse {
    let headers = row.get::<Option<&str>, _>(headers);
    StoredResponse {
        code: u16::try_from(row.get::<i32, _>(code)).unwrap(),
        headers: headers.map_or_else(Vec::new, |text| record::headers_from_text(text).unwrap()),
        body: row.get::<Option<Vec<u8>>, _>(body).map(Bytes::from),
        body_omitted: row.get(omitted),
    }
}

fn bind_response<'q>(query: PgQuery<'q>, response: Option<&'q StoredResponse>) -> PgQuery<'q> {
    query
        .bind(response.map(|stored| i32::from(stored.code)))
        .bind(response.map(|stored| record::headers_to_text(&stored.headers)))
        .bind(response.and_then(|stored| stored.body.as_deref()))
        .bind(response.is_some_and(|stored| stored.body_omitted))
}

fn code(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(|answer| answer.code()).map(Into::into)
}

/// As the library translates the codes: of those that the suite brings about, all that pass are transient.
fn failed(error: sqlx::Error) -> StoreError {
    let passes = matches!(code(&error).as_deref(), Some("40001" | "40P01" | "55P03" | "57014"));
    let kind = if passes { StoreErrorKind::Transient } else { StoreErrorKind::Refused };
    StoreError::new(kind, error.to_string())
}

/// The steps on one connection.
pub(crate) struct OnConnection<'t> {
    tx: &'t mut Transaction<'static, Postgres>,
    store: &'t PgStore,
}

const CLAIM: &str = "ROW($1, $2, $3, $4, $5, $6, $7 * interval '1 microsecond', $8, $9 * interval '1 microsecond', \
     $10 * interval '1 microsecond', $11)::onced.claim";
/// As much of a record as a taking repeats.
const READ: &str = "jsonb_populate_record(NULL::onced.idempotency_keys, \
     jsonb_build_object('status', {n}::text, 'attempt', {n+1}::integer, 'lease_token', {n+2}::text))";

fn read_from(parameter: u32) -> String {
    READ.replace("{n+2}", &format!("${}", parameter + 2))
        .replace("{n+1}", &format!("${}", parameter + 1))
        .replace("{n}", &format!("${parameter}"))
}

async fn take(conn: &mut PgConnection, claim: &Claim, basis: Option<&Basis>) -> Result<Claimed, StoreError> {
    let call = match basis.map(|basis| basis.taking) {
        None | Some(Taking::Insert) => format!("onced._claim({CLAIM})"),
        Some(Taking::Expired) => format!("onced._replace({CLAIM}, {})", read_from(12)),
        Some(taking) => {
            let taking = match taking {
                Taking::Queued => "queued",
                Taking::LeaseOver => "lease_over",
                Taking::PendingLeaseOver => "pending_lease_over",
                Taking::Failed => "failed",
                Taking::Insert | Taking::Expired => unreachable!("have steps of their own"),
            };
            format!("onced._take({CLAIM}, {}, '{taking}')", read_from(12))
        }
    };
    let sql = format!("SELECT result, attempt, onced.micros(expires_at) AS expires FROM {call}");
    let mut query = sqlx::query(AssertSqlSafe(sql))
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
        .bind(claim.delivery);
    if let Some(basis) = basis.filter(|basis| basis.taking != Taking::Insert) {
        query = bind_basis(query, basis);
    }
    let row = query.fetch_one(&mut *conn).await.map_err(failed)?;
    Ok(match row.get("result") {
        "yes" => Claimed::Yes {
            attempt: u32::try_from(row.get::<i32, _>("attempt")).unwrap(),
            expires_at: row.get::<Option<i64>, _>("expires").map(Timestamp::from_micros),
        },
        "no" => Claimed::No,
        "lock_missed" => Claimed::LockMissed,
        other => panic!("no result: {other}"),
    })
}

fn bind_basis<'q>(query: PgQuery<'q>, basis: &'q Basis) -> PgQuery<'q> {
    query
        .bind(basis.status.as_str())
        .bind(i32::try_from(basis.attempt).unwrap())
        .bind(basis.token.as_ref().map(LeaseToken::as_str))
}

async fn give_up(
    conn: &mut PgConnection,
    scope: &Scope,
    key: &Key,
    basis: &Basis,
    why: &str,
) -> Result<bool, StoreError> {
    let sql = format!("SELECT onced._give_up($1, $2, {}, $6)", read_from(3));
    let query = sqlx::query(AssertSqlSafe(sql)).bind(scope.as_str()).bind(key.as_str());
    let row = bind_basis(query, basis).bind(why).fetch_one(&mut *conn).await.map_err(failed)?;
    Ok(row.get(0))
}

async fn owner_move(
    conn: &mut PgConnection,
    scope: &Scope,
    key: &Key,
    token: &LeaseToken,
    from: Option<Status>,
    owner_move: &OwnerMove,
) -> Result<Option<Moved>, StoreError> {
    let call = match owner_move {
        OwnerMove::Complete(_) => "complete($1, $2, $3, $4, $5, $6, $7, only_from => $8)",
        OwnerMove::Fail { .. } => "fail($1, $2, $3, $8, $4, $5, $6, $7, only_from => $9)",
        OwnerMove::External { .. } => "external($1, $2, $3, $4 * interval '1 microsecond')",
        OwnerMove::Renew { .. } => "renew($1, $2, $3, $4 * interval '1 microsecond')",
        OwnerMove::Release => "release($1, $2, $3)",
    };
    let query = sqlx::query(AssertSqlSafe(format!("SELECT onced.micros(onced.{call})")));
    let query = query.bind(scope.as_str()).bind(key.as_str()).bind(token.as_str());
    let query = match owner_move {
        OwnerMove::Complete(response) => bind_response(query, Some(response)).bind(from.map(Status::as_str)),
        OwnerMove::Fail { error, response } => {
            bind_response(query, response.as_ref()).bind(error).bind(from.map(Status::as_str))
        }
        OwnerMove::External { lease } | OwnerMove::Renew { lease } => query.bind(micros(*lease)),
        OwnerMove::Release => query,
    };
    match query.fetch_one(&mut *conn).await {
        Ok(row) => Ok(Some(Moved { expires_at: row.get::<Option<i64>, _>(0).map(Timestamp::from_micros) })),
        Err(error) if code(&error).as_deref() == Some("OC001") => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

impl SqlFunctions {
    async fn connection(&self) -> Result<sqlx::pool::PoolConnection<Postgres>, StoreError> {
        self.0.pool().acquire().await.map_err(failed)
    }
}

/// Gives the connection back once the server is ready again: it tells of an error before it lets go of the locks.
macro_rules! on_a_connection {
    ($store:ident, $conn:ident => $call:expr) => {{
        let mut $conn = $store.connection().await?;
        let result = $call.await;
        if result.is_err() {
            sqlx::Connection::ping(&mut *$conn).await.map_err(failed)?;
        }
        result
    }};
}

impl Keys for SqlFunctions {
    fn a_read_decides(&self) -> bool {
        self.0.a_read_decides()
    }

    fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        on_a_connection!(self, conn => take(&mut conn, claim, None))
    }

    async fn find(&mut self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        self.0.find(scope, key).await
    }

    async fn take(&mut self, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
        on_a_connection!(self, conn => take(&mut conn, claim, Some(basis)))
    }

    async fn give_up(&mut self, scope: &Scope, key: &Key, basis: &Basis, why: &str) -> Result<bool, StoreError> {
        on_a_connection!(self, conn => give_up(&mut conn, scope, key, basis, why))
    }

    async fn owner_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        from: Option<Status>,
        step: &OwnerMove,
    ) -> Result<Option<Moved>, StoreError> {
        on_a_connection!(self, conn => owner_move(&mut conn, scope, key, token, from, step))
    }
}

impl Keys for OnConnection<'_> {
    fn a_read_decides(&self) -> bool {
        self.store.a_read_decides()
    }

    async fn claim(&mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        take(self.tx, claim, None).await
    }

    async fn find(&mut self, scope: &Scope, key: &Key) -> Result<Option<Seen>, StoreError> {
        self.store.within(self.tx).find(scope, key).await
    }

    async fn take(&mut self, claim: &Claim, basis: &Basis) -> Result<Claimed, StoreError> {
        take(self.tx, claim, Some(basis)).await
    }

    async fn give_up(&mut self, scope: &Scope, key: &Key, basis: &Basis, why: &str) -> Result<bool, StoreError> {
        give_up(self.tx, scope, key, basis, why).await
    }

    async fn owner_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        from: Option<Status>,
        step: &OwnerMove,
    ) -> Result<Option<Moved>, StoreError> {
        owner_move(self.tx, scope, key, token, from, step).await
    }
}

impl InTransaction for OnConnection<'_> {
    async fn parent_move(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: &LeaseToken,
        parent_move: ParentMove,
    ) -> Result<Option<Moved>, StoreError> {
        self.store.within(self.tx).parent_move(scope, key, token, parent_move).await
    }
}

impl Transactional for SqlFunctions {
    type Tx = Transaction<'static, Postgres>;
    type InTx<'t> = OnConnection<'t>;

    async fn transaction(&self) -> Result<Self::Tx, StoreError> {
        self.0.transaction().await
    }

    fn within<'t>(&'t self, tx: &'t mut Self::Tx) -> OnConnection<'t> {
        OnConnection { tx, store: &self.0 }
    }

    async fn commit(&self, tx: Self::Tx) -> Result<(), StoreError> {
        self.0.commit(tx).await
    }

    async fn rollback(&self, tx: Self::Tx) -> Result<(), StoreError> {
        self.0.rollback(tx).await
    }

    async fn set_savepoint(&self, tx: &mut Self::Tx, name: &str) -> Result<(), StoreError> {
        self.0.set_savepoint(tx, name).await
    }

    async fn undo_to_savepoint(&self, tx: &mut Self::Tx, name: &str) -> Result<(), StoreError> {
        self.0.undo_to_savepoint(tx, name).await
    }
}

impl Upkeep for SqlFunctions {
    async fn list(&mut self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        self.0.list(filter).await
    }

    async fn audit_of(&mut self, scope: &Scope, key: &Key) -> Result<Vec<Audited>, StoreError> {
        self.0.audit_of(scope, key).await
    }

    async fn resolve(
        &mut self,
        scope: &Scope,
        key: &Key,
        token: Option<&LeaseToken>,
        resolution: &Resolution,
        because: &Because,
    ) -> Result<bool, StoreError> {
        let (outcome, response, settle) = match resolution {
            Resolution::Happened(response) => ("happened", Some(response), Duration::ZERO),
            Resolution::DidNotHappen { settle } => ("did_not_happen", None, *settle),
        };
        let query = sqlx::query(
            "SELECT onced.resolve($1, $2, $3, $8, $9, $10, $4, $5, $6, $7, settle => $11 * interval '1 microsecond')",
        )
        .bind(scope.as_str())
        .bind(key.as_str())
        .bind(token.map(LeaseToken::as_str));
        let query = bind_response(query, response).bind(outcome).bind(&because.who).bind(&because.reason);
        let mut conn = self.connection().await?;
        let row = query.bind(micros(settle)).fetch_one(&mut *conn).await.map_err(failed)?;
        Ok(row.get(0))
    }
}

impl Deliveries for SqlFunctions {
    async fn log(&mut self, lines: &[DeliveryLine], answered: &[(Uuid, u16)]) -> Result<(), StoreError> {
        self.0.log(lines, answered).await
    }

    async fn deliveries_of(&mut self, scope: &Scope, key: &Key, limit: u32) -> Result<Vec<DeliveryRead>, StoreError> {
        self.0.deliveries_of(scope, key, limit).await
    }

    async fn repeats(&mut self, since: Option<Duration>) -> Result<Vec<Repeats>, StoreError> {
        self.0.repeats(since).await
    }
}

impl Sweep for SqlFunctions {
    async fn sweep_keys(&mut self, limit: u32) -> Result<Batch, StoreError> {
        self.0.sweep_keys(limit).await
    }

    async fn sweep_deliveries(&mut self, keep: Duration, limit: u32) -> Result<Batch, StoreError> {
        self.0.sweep_deliveries(keep, limit).await
    }

    async fn due(&mut self, keep: Duration) -> Result<Vec<Due>, StoreError> {
        self.0.due(keep).await
    }
}

impl Health for SqlFunctions {
    async fn settings(&mut self) -> Result<Settings, StoreError> {
        self.0.settings().await
    }

    async fn schema_version(&mut self) -> Result<SchemaVersion, StoreError> {
        self.0.schema_version().await
    }

    async fn database_time(&mut self) -> Result<Timestamp, StoreError> {
        self.0.database_time().await
    }

    async fn backends(&mut self) -> Result<Option<Backends>, StoreError> {
        self.0.backends().await
    }

    async fn unfinished(&mut self) -> Result<Vec<Unfinished>, StoreError> {
        self.0.unfinished().await
    }

    async fn overdue(&mut self) -> Result<Overdue, StoreError> {
        self.0.overdue().await
    }

    async fn growth(&mut self) -> Result<Growth, StoreError> {
        self.0.growth().await
    }
}
