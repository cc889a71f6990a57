//! Looks for a pooler between us and PostgreSQL that lends a server's connection for one transaction or one statement.
//! Prepared statements get mixed up behind one: another client's answer comes, without an error.
//!
//! Two connections ask in turn, inside transactions and outside, which process of the server answers them, and whether
//! the other's process has had other work since. Straight to the server, and behind a pooler that lends for the whole
//! session, each is always answered by one process, which serves nobody else. A pooler that has little to do gives both
//! the connection that came back last, or each the next in turn. For one that has much to do to answer each by the
//! process that it was answered by before, others must have used the connections that lay nearer, and those were ours.

use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use tokio::time::timeout;
use uuid::Uuid;

use super::error;
use crate::store::{Pooler, StoreError, StoreErrorKind};

const ASK: &str = include_str!("sql/process.sql");
const DOING: &str = "look for a pooler";
const INSTEAD: &str =
    "name PostgreSQL itself in the store's URL, or let the pooler lend for a session (PgBouncer: pool_mode = session)";

/// Refuses, unless what stands before the server is what `expected` says it is.
pub(super) async fn check(
    expected: Pooler,
    first: &mut PgConnection,
    second: &mut PgConnection,
    limit: Duration,
) -> Result<(), StoreError> {
    let looking = async {
        match expected {
            Pooler::None => one_process_each(first, second).await,
            Pooler::Transaction => transactions_are_kept(first).await,
        }
    };
    timeout(limit, looking).await.unwrap_or_else(|_| {
        let words = "PostgreSQL, or a pooler before it, did not answer in time";
        Err(StoreError::new(StoreErrorKind::Unavailable, words))
    })
}

/// Translates an error of connecting: a pooler that keeps no session refuses settings of one.
pub(super) fn on_connecting(source: sqlx::Error) -> StoreError {
    let refused = source.as_database_error().is_some_and(|answer| answer.message().contains("unsupported startup"));
    let error = error::on_connecting(source);
    if !refused {
        return error;
    }
    StoreError::refused(format!(
        "{}: that is a pooler's answer. Where it lends by transaction (PgBouncer: pool_mode = transaction), set pooler = \
         \"transaction\" for the store; where it lends by session, let it ignore what it does not pass on (PgBouncer: \
         ignore_startup_parameters = extra_float_digits,options); or name PostgreSQL itself in the store's URL",
        error.words()
    ))
}

/// Whether what stands before the server drops the settings that a session is opened with.
pub(super) async fn drops_settings(conn: &mut PgConnection, limit: Duration) -> Result<bool, StoreError> {
    let asking_for = sqlx::raw_sql("SELECT current_setting('lock_timeout') AS bound").fetch_one(conn);
    let late = |_| StoreError::new(StoreErrorKind::Unavailable, "PostgreSQL did not answer in time");
    let row = timeout(limit, asking_for).await.map_err(late)?.map_err(asking)?;
    Ok(row.try_get::<&str, _>("bound").map_err(asking)? != "5s")
}

async fn one_process_each(first: &mut PgConnection, second: &mut PgConnection) -> Result<(), StoreError> {
    let (mut first, mut second) = (Asker::new(first), Asker::new(second));
    let a = first.ask("", None).await?;
    let b = second.ask("", Some((&first.name, &a))).await?;
    // Said before anything is held: with one connection to lend, the next question would wait for ever.
    if a.process == b.process || b.others_was_taken {
        return Err(shared());
    }
    for first_holds in [false, true] {
        let (holder, holders, other, others) =
            if first_holds { (&mut first, &a, &mut second, &b) } else { (&mut second, &b, &mut first, &a) };
        // Whoever is inside a transaction keeps what it was lent, and the other one cannot get it.
        let held = holder.ask("BEGIN;", Some((&other.name, others))).await?;
        let meanwhile = other.ask("", Some((&holder.name, holders))).await?;
        holder.undo().await?;
        let is_taken = held.others_was_taken || meanwhile.others_was_taken;
        if is_taken || held.process != holders.process || meanwhile.process != others.process {
            return Err(shared());
        }
    }
    Ok(())
}

/// Behind a pooler that is known of: it must not lend by the statement.
async fn transactions_are_kept(conn: &mut PgConnection) -> Result<(), StoreError> {
    let mut asker = Asker::new(conn);
    let first = asker.ask("BEGIN;", None).await?;
    let second = asker.ask("", None).await?;
    asker.undo().await?;
    if first.process == second.process { Ok(()) } else { Err(by_statement()) }
}

/// A connection, and the name that its statements carry.
struct Asker<'c> {
    conn: &'c mut PgConnection,
    name: String,
}

struct Answer {
    process: String,
    others_was_taken: bool,
}

impl<'c> Asker<'c> {
    fn new(conn: &'c mut PgConnection) -> Self {
        Self { conn, name: Uuid::new_v4().simple().to_string() }
    }

    /// By the plain protocol: a pooler that mixes up prepared statements must not mix up this.
    async fn ask(&mut self, before: &'static str, other: Option<(&str, &Answer)>) -> Result<Answer, StoreError> {
        let (others_name, others_process) = other.map_or(("", ""), |(name, answer)| (name, &answer.process));
        let sql = ASK.replace("{name}", &self.name).replace("{others_name}", others_name);
        let sql = sql.replace("{others_process}", others_process);
        // The name comes first: of long statements the server shows the beginning only.
        let sql = sql.replace("SELECT own.process,", &format!("{before}SELECT own.process,"));
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut *self.conn).await.map_err(|source| {
            // What a pooler says that lends by the statement, where a server has nothing to complain of.
            let refuses = |answer: &dyn DatabaseError| answer.message().contains("transaction blocks not allowed");
            if source.as_database_error().is_some_and(refuses) { by_statement() } else { asking(source) }
        })?;
        let taken: &str = row.try_get("was_taken").map_err(asking)?;
        Ok(Answer { process: row.try_get("process").map_err(asking)?, others_was_taken: taken == "true" })
    }

    async fn undo(&mut self) -> Result<(), StoreError> {
        let sql = format!("/* onced {} */ ROLLBACK", self.name);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *self.conn).await.map(drop).map_err(asking)
    }
}

/// Nothing but questions has been sent.
fn asking(source: sqlx::Error) -> StoreError {
    error::of(source, DOING).with_kind(StoreErrorKind::Unavailable)
}

fn shared() -> StoreError {
    StoreError::refused(format!(
        "something between onced and PostgreSQL shares connections by transaction, and statements would get each other's \
         answers: set pooler = \"transaction\" for the store, or {INSTEAD}"
    ))
}

fn by_statement() -> StoreError {
    StoreError::refused(format!(
        "the pooler before PostgreSQL lends connections for one statement, and what belongs together could not be kept \
         together: {INSTEAD}; pool_mode = transaction will do with pooler = \"transaction\" for the store"
    ))
}
