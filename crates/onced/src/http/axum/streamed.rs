//! An answer without a length in leased mode: passed on as it comes, recorded on the way, and not ended before its outcome
//! is stored.

use std::io;
use std::panic::AssertUnwindSafe;

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt as _, stream};
use http::response::Parts;
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::extract::Slot;
use super::held::Held;
use super::run::{BROKE_OFF, Run, strip};
use crate::guard::Store;
use crate::store::keys::Transactional;

/// How many pieces a client may be behind before its handler waits for it.
const BEHIND: usize = 4;

/// A handler's answer whose end is still to come.
pub(super) struct Streamed<S: Transactional> {
    pub(super) slot: Slot<Held<S>>,
    pub(super) head: Parts,
    pub(super) body: Body,
    /// By then it must have ended.
    pub(super) until: Instant,
}

/// Whether nobody knows how long it will be.
pub(super) fn is_stream(body: &Body) -> bool {
    body.size_hint().exact().is_none()
}

/// The answer with its head, whose body follows from a task of its own: a client that hangs up does not stop it.
pub(super) fn pass_on<S>(run: Run<S>, streamed: Streamed<S>) -> Response
where
    S: Store + Transactional,
    S::Tx: 'static,
{
    let (sender, receiver) = mpsc::channel(BEHIND);
    let mut head = streamed.head.clone();
    strip(&mut head.headers);
    tokio::spawn(record(run, streamed, sender));
    let frames = stream::unfold(receiver, async |mut receiver| receiver.recv().await.map(|frame| (frame, receiver)));
    Response::from_parts(head, Body::new(StreamBody::new(frames)))
}

async fn record<S>(run: Run<S>, streamed: Streamed<S>, sender: mpsc::Sender<io::Result<Frame<Bytes>>>)
where
    S: Store + Transactional,
    S::Tx: 'static,
{
    let Streamed { slot, head, body, until } = streamed;
    let limit = run.settings.max_response_bytes;
    let reading = AssertUnwindSafe(read(body, limit, &sender)).catch_unwind();
    let read = match timeout_at(until, reading).await {
        Ok(Ok(read)) => read,
        Ok(Err(_)) => Err("the handler panicked in its answer"),
        Err(_) => Err("the handler took longer than it may"),
    };
    if !run.end_streamed(&slot, head, read).await {
        // Its client must not take it for whole. Where the client has gone there is nobody to tell.
        drop(sender.send(Err(io::Error::other("the outcome is not stored"))).await);
    }
}

/// Reads it to its end, and gives what goes into the record: `None` where that is too large.
async fn read(
    mut body: Body,
    limit: usize,
    sender: &mpsc::Sender<io::Result<Frame<Bytes>>>,
) -> Result<Option<Bytes>, &'static str> {
    let mut kept = Some(BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| BROKE_OFF)?;
        if let (Some(read), Some(data)) = (&mut kept, frame.data_ref()) {
            read.extend_from_slice(data);
            if read.len() > limit {
                kept = None;
            }
        }
        // Nobody may be there any more: it is recorded for those who ask again.
        drop(sender.send(Ok(frame)).await);
    }
    Ok(kept.map(BytesMut::freeze))
}
