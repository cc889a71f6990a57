//! What is under way on a client's connection: its requests, from their heads to the ends of their answers, and
//! whether it takes what is sent to it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::proxy::{AnyBody, BodyError};

/// Over HTTP/2 an answer goes out in pieces of this size, so that it is under way until nearly all of it is taken.
const PIECE: usize = 16 * 1024;

/// What is under way on one connection.
pub(super) struct UnderWay(watch::Sender<State>);

struct State {
    requests: usize,
    /// The client's side takes no bytes at the moment.
    is_blocked: bool,
    /// Answers over HTTP/2 of which a piece waits to be taken: their reader opens a window for each.
    waiting: usize,
    /// When something was taken last.
    moved_at: Instant,
}

impl UnderWay {
    pub(super) fn new() -> Arc<Self> {
        let state = State { requests: 0, is_blocked: false, waiting: 0, moved_at: Instant::now() };
        Arc::new(Self(watch::Sender::new(state)))
    }

    /// A request is under way until what comes back is dropped.
    pub(super) fn enter(self: &Arc<Self>) -> Counted {
        self.0.send_modify(|state| state.requests += 1);
        Counted(self.clone())
    }

    /// Returns once for so long no request has been under way, nor an answer on its way out: no request came, or its
    /// head did not come to an end.
    pub(super) async fn idle_for(&self, limit: Duration) {
        let mut state = self.0.subscribe();
        let is_idle = |state: &State| state.requests == 0 && !state.is_blocked;
        loop {
            // Its sender lives as long as the connection.
            let _ = state.wait_for(is_idle).await;
            if tokio::time::timeout(limit, state.wait_for(|state| !is_idle(state))).await.is_err() {
                return;
            }
        }
    }

    /// Returns once for so long a client of HTTP/2 has taken nothing of any answer, although its side takes bytes.
    pub(super) async fn unread_for(&self, limit: Duration) {
        loop {
            let now = Instant::now();
            let since = {
                let state = self.0.borrow();
                if state.waiting > 0 && !state.is_blocked { state.moved_at } else { now }
            };
            if now.duration_since(since) >= limit {
                return;
            }
            tokio::time::sleep_until(since + limit).await;
        }
    }

    fn set_blocked(&self, is_blocked: bool) {
        self.0.send_if_modified(|state| {
            let was_blocked = std::mem::replace(&mut state.is_blocked, is_blocked);
            if was_blocked != is_blocked {
                state.moved_at = Instant::now();
            }
            was_blocked != is_blocked
        });
    }

    /// Nobody waits for this: whoever looks, looks at times.
    fn note(&self, change: impl FnOnce(&mut State)) {
        self.0.send_if_modified(|state| {
            change(state);
            state.moved_at = Instant::now();
            false
        });
    }
}

/// A request that is under way.
pub(super) struct Counted(Arc<UnderWay>);

impl Counted {
    /// The request's answer, which ends with its body.
    pub(super) fn until_the_end_of(self, body: AnyBody, version: Version) -> AnswerBody {
        let is_paced = version == Version::HTTP_2;
        AnswerBody { body, rest: Bytes::new(), is_paced, is_waiting: false, counted: self }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| state.requests -= 1);
    }
}

/// The body of an answer.
pub(super) struct AnswerBody {
    body: AnyBody,
    /// What is left of a piece that was too large.
    rest: Bytes,
    /// Over HTTP/1 the connection as a whole says whether the client reads.
    is_paced: bool,
    is_waiting: bool,
    counted: Counted,
}

impl AnswerBody {
    fn hand_over(&mut self, mut data: Bytes) -> Frame<Bytes> {
        self.rest = data.split_off(data.len().min(PIECE));
        self.is_waiting = true;
        self.counted.0.note(|state| state.waiting += 1);
        Frame::data(data)
    }

    /// The piece before has been taken: nobody asks for the next one earlier.
    fn taken(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.counted.0.note(|state| state.waiting -= 1);
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.is_paced {
            return Pin::new(&mut self.body).poll_frame(cx);
        }
        self.taken();
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            return Poll::Ready(Some(Ok(self.hand_over(rest))));
        }
        Pin::new(&mut self.body).poll_frame(cx).map_ok(|frame| match frame.into_data() {
            Ok(data) => self.hand_over(data),
            Err(frame) => frame,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (of_body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower() + rest);
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.taken();
    }
}

/// A client's connection, which notes whether its other side takes bytes.
pub(super) struct Watched {
    stream: TcpStream,
    under_way: Arc<UnderWay>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, under_way: Arc<UnderWay>) -> Self {
        Self { stream, under_way }
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.under_way.set_blocked(written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.under_way.set_blocked(written.is_pending());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
