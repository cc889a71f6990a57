//! The one writer of a database file in this process. SQLite has one write lock; writers that fight over it waste its
//! time, so they queue in front of one connection, and those that have queued up meanwhile share a commit.

use std::future::Future;
use std::pin::Pin;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Sqlite, SqliteConnection, Transaction};
use tokio::sync::{mpsc, oneshot};

use super::error;
use super::identity::Watched;
use crate::store::error::COMMIT;
use crate::store::{StoreError, StoreErrorKind};

#[cfg(test)]
mod tests;

/// How many units of work share a commit at most.
const SHARE: usize = 64;
/// How many may queue before a caller waits to queue.
const QUEUE: usize = 1024;

type Running<'c, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'c>>;
type Unit = Box<dyn for<'c> FnOnce(&'c mut SqliteConnection) -> Running<'c, Reply> + Send>;
/// Tells the caller how it went, once the commit has.
type Reply = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

struct Job {
    unit: Unit,
    frame: Frame,
    /// Whether the caller still waits. What nobody waits for is not begun: a renewal that comes after its owner has
    /// gone would keep others waiting for a lease that nobody holds.
    is_wanted: Box<dyn Fn() -> bool + Send>,
    /// Where an error of the unit itself, or of the transaction around it, goes.
    failed: Box<dyn FnOnce(StoreError) + Send>,
}

/// Who sees to it that a unit stands or falls alone.
#[derive(Clone, Copy)]
enum Frame {
    /// The writer, by a savepoint around it.
    Writer,
    /// The unit's own single command.
    Own,
}

/// A handle to the writer.
#[derive(Clone)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
}

impl Writer {
    /// Starts the writer on that connection to `file`, to be opened anew as `connect` says. It ends with the last
    /// handle.
    pub(super) fn start(conn: SqliteConnection, connect: SqliteConnectOptions, file: Watched) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE);
        tokio::spawn(run(conn, connect, file, queue));
        Self { jobs }
    }

    /// Runs `unit` in a transaction and returns its result once that is committed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the unit may or may not be committed, whole.
    pub(super) async fn write<T, F>(&self, doing: &'static str, unit: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> Running<'c, T> + Send + 'static,
    {
        self.queue(doing, Frame::Writer, unit).await
    }

    /// As [`write`](Self::write), for what is one command made by `keys::unit!`, of which no error is overlooked.
    ///
    /// # Cancel safety
    /// As [`write`](Self::write).
    pub(super) async fn write_unit<T, F>(&self, doing: &'static str, unit: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> Running<'c, T> + Send + 'static,
    {
        self.queue(doing, Frame::Own, unit).await
    }

    async fn queue<T, F>(&self, doing: &'static str, frame: Frame, unit: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> Running<'c, T> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel::<Result<T, StoreError>>();
        let answer = std::sync::Arc::new(std::sync::Mutex::new(Some(answer)));
        let (to_fail, to_ask) = (answer.clone(), answer.clone());
        let send = |answer: &std::sync::Mutex<Option<oneshot::Sender<_>>>, result| {
            let sender = answer.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            if let Some(sender) = sender {
                // The caller may have gone; the unit stands all the same.
                let _ = sender.send(result);
            }
        };
        let job = Job {
            frame,
            unit: Box::new(move |conn| {
                let running = unit(conn);
                Box::pin(async move {
                    let value = running.await?;
                    let reply: Reply = Box::new(move |commit| send(&answer, commit.map(|()| value)));
                    Ok(reply)
                })
            }),
            is_wanted: Box::new(move || {
                let sender = to_ask.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                sender.as_ref().is_some_and(|sender| !sender.is_closed())
            }),
            failed: Box::new(move |error| send(&to_fail, Err(error))),
        };
        let gone = || StoreError::new(StoreErrorKind::Lost, format!("{doing}: the writer is gone"));
        self.jobs.send(job).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

async fn run(conn: SqliteConnection, connect: SqliteConnectOptions, file: Watched, mut queue: mpsc::Receiver<Job>) {
    let mut conn = Some(conn);
    let mut batch = Vec::with_capacity(SHARE);
    while queue.recv_many(&mut batch, SHARE).await > 0 {
        let jobs = std::mem::take(&mut batch);
        let opened = match conn.take() {
            Some(conn) => Ok(conn),
            None => open_anew(&connect, &file).await,
        };
        match opened {
            Ok(mut opened) => {
                if let Usable::Yes = share_a_commit(&mut opened, &file, jobs).await {
                    conn = Some(opened);
                }
            }
            Err(error) => fail_all(jobs.into_iter().map(|job| job.failed), StoreErrorKind::Unavailable, &error),
        }
    }
    if let Some(conn) = conn {
        // Nobody is left to be told how closing went; the file is consistent in any case.
        let _ = conn.close().await;
    }
}

pub(super) async fn open_anew(connect: &SqliteConnectOptions, file: &Watched) -> Result<SqliteConnection, StoreError> {
    file.check()?;
    let mut conn = connect.connect().await.map_err(|source| error::of(source, "open the SQLite file"))?;
    file.check_opened(&mut conn).await?;
    Ok(conn)
}

/// Whether a connection can be used on. After a full disk or an I/O error SQLite has rolled back by itself, and the
/// driver still believes that it is inside the transaction; one that was opened while its file took no writes stays
/// read-only for good. Such a connection is given up.
enum Usable {
    Yes,
    No,
}

async fn share_a_commit(conn: &mut SqliteConnection, file: &Watched, jobs: Vec<Job>) -> Usable {
    let mut tx = match conn.begin_with("BEGIN IMMEDIATE").await {
        Ok(tx) => tx,
        Err(source) => {
            let error = error::of(source, "begin to write");
            let usable = if error.is_transient() { Usable::Yes } else { Usable::No };
            fail_all(jobs.into_iter().map(|job| job.failed), error.kind(), &error);
            return usable;
        }
    };
    let mut replies: Vec<Reply> = Vec::with_capacity(jobs.len());
    let mut jobs = jobs.into_iter();
    let mut broken = None;
    for job in jobs.by_ref().filter(|job| (job.is_wanted)()) {
        match run_one(&mut tx, job).await {
            Ok(Some(reply)) => replies.push(reply),
            Ok(None) => {}
            Err(source) => {
                broken = Some(source);
                break;
            }
        }
    }
    let (error, usable) = match broken {
        None => match commit(tx, file).await {
            Ok(()) => {
                replies.into_iter().for_each(|reply| reply(Ok(())));
                return Usable::Yes;
            }
            Err(failed) => failed,
        },
        // No commit was asked for: nothing of these was written, and what has gone wrong is another's. They may wait
        // for the store as if it could not be reached.
        Some(source) => (error::of(source, "share a commit").with_kind(StoreErrorKind::Unavailable), Usable::No),
    };
    fail_all(replies.into_iter().map(|reply| |error| reply(Err(error))), error.kind(), &error);
    fail_all(jobs.map(|job| job.failed), error.kind(), &error);
    usable
}

/// Commits, unless what is committed would be found by nobody. The file is looked at last, as near to the commit as can
/// be. A connection to a file that is out of place is kept: the file may come back, and what was committed in it is
/// there for as long as somebody has it open.
async fn commit(tx: Transaction<'_, Sqlite>, file: &Watched) -> Result<(), (StoreError, Usable)> {
    if let Err(error) = file.check() {
        let usable = if tx.rollback().await.is_ok() { Usable::Yes } else { Usable::No };
        return Err((error, usable));
    }
    tx.commit().await.map_err(|source| (error::of(source, COMMIT), Usable::No))
}

/// Runs one unit, which stands or falls alone: `None` where it fell, an error where the whole transaction has.
async fn run_one(tx: &mut Transaction<'_, Sqlite>, job: Job) -> Result<Option<Reply>, sqlx::Error> {
    if let Frame::Own = job.frame {
        return match (job.unit)(tx).await {
            Ok(reply) => Ok(Some(reply)),
            Err(error) => {
                let usable = still_usable(&error);
                (job.failed)(error);
                // An error where there is no savepoint any more: SQLite has rolled back by itself.
                let undone = sqlx::raw_sql("ROLLBACK TO onced_unit; RELEASE onced_unit").execute(&mut **tx).await;
                undone.and(usable).map(|()| None)
            }
        };
    }
    let mut unit = match tx.begin().await {
        Ok(unit) => unit,
        Err(source) => {
            (job.failed)(error::of(source, "write"));
            return Err(sqlx::Error::WorkerCrashed);
        }
    };
    let ran = (job.unit)(&mut unit).await;
    match ran {
        Ok(reply) => {
            if let Err(source) = unit.commit().await {
                reply(Err(error::of(source, "write")));
                return Err(sqlx::Error::WorkerCrashed);
            }
            Ok(Some(reply))
        }
        Err(error) => {
            let (undone, usable) = (unit.rollback().await, still_usable(&error));
            (job.failed)(error);
            undone.and(usable).map(|()| None)
        }
    }
}

/// What a unit failed with may be the connection's own fault: then no unit will ever pass on it.
fn still_usable(error: &StoreError) -> Result<(), sqlx::Error> {
    if error::is_read_only(error) { Err(sqlx::Error::WorkerCrashed) } else { Ok(()) }
}

/// One error, many waiters: each gets its kind and words.
fn fail_all<F: FnOnce(StoreError)>(waiters: impl Iterator<Item = F>, kind: StoreErrorKind, error: &StoreError) {
    waiters.for_each(|tell| tell(StoreError::new(kind, error.words())));
}
