//! The one writer of a database file in this process. SQLite has one write lock; writers that fight over it waste its
//! time, so they queue in front of one connection, and those that have queued up meanwhile share a commit.

use std::future::Future;
use std::pin::Pin;

use sqlx::{Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::error;
use crate::store::StoreError;

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
    /// Where an error of the unit itself, or of the transaction around it, goes.
    failed: Box<dyn FnOnce(StoreError) + Send>,
}

/// A handle to the writer.
#[derive(Clone)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
}

impl Writer {
    /// Starts the writer on that connection. It ends with the last handle.
    pub(super) fn start(conn: SqliteConnection) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE);
        tokio::spawn(run(conn, queue));
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
        let (answer, answered) = oneshot::channel::<Result<T, StoreError>>();
        let answer = std::sync::Arc::new(std::sync::Mutex::new(Some(answer)));
        let to_fail = answer.clone();
        let send = |answer: &std::sync::Mutex<Option<oneshot::Sender<_>>>, result| {
            let sender = answer.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            if let Some(sender) = sender {
                // The caller may have gone; the unit stands all the same.
                let _ = sender.send(result);
            }
        };
        let job = Job {
            unit: Box::new(move |conn| {
                let running = unit(conn);
                Box::pin(async move {
                    let value = running.await?;
                    let reply: Reply = Box::new(move |commit| send(&answer, commit.map(|()| value)));
                    Ok(reply)
                })
            }),
            failed: Box::new(move |error| send(&to_fail, Err(error))),
        };
        let gone = || StoreError::new(crate::store::StoreErrorKind::Lost, format!("{doing}: the writer is gone"));
        self.jobs.send(job).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

async fn run(mut conn: SqliteConnection, mut queue: mpsc::Receiver<Job>) {
    let mut batch = Vec::with_capacity(SHARE);
    while queue.recv_many(&mut batch, SHARE).await > 0 {
        share_a_commit(&mut conn, std::mem::take(&mut batch)).await;
    }
    // Nobody is left to be told how closing went; the file is consistent in any case.
    let _ = conn.close().await;
}

async fn share_a_commit(conn: &mut SqliteConnection, jobs: Vec<Job>) {
    let mut replies: Vec<Reply> = Vec::with_capacity(jobs.len());
    let mut jobs = jobs.into_iter();
    let outcome = async {
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        for job in jobs.by_ref() {
            // Each unit stands or falls alone.
            let mut unit = match tx.begin().await {
                Ok(unit) => unit,
                Err(source) => {
                    (job.failed)(error::of(source, "write"));
                    continue;
                }
            };
            let ran = (job.unit)(&mut unit).await;
            match ran {
                Ok(reply) => {
                    unit.commit().await?;
                    replies.push(reply);
                }
                Err(error) => {
                    unit.rollback().await?;
                    (job.failed)(error);
                }
            }
        }
        tx.commit().await
    }
    .await;
    match outcome {
        Ok(()) => replies.into_iter().for_each(|reply| reply(Ok(()))),
        Err(source) => {
            // One error, many waiters: each gets its kind and words.
            let error = error::of(source, "commit");
            let copy = || StoreError::new(error.kind(), error.to_string());
            replies.into_iter().for_each(|reply| reply(Err(copy())));
            jobs.for_each(|job| (job.failed)(copy()));
        }
    }
}
