//! What is under way on a client's connection: its requests, from their heads to the ends of their answers, and
//! whether it takes what is sent to it, as a whole.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

use super::streams::Pace;
use crate::proxy::{AnyBody, BodyError};

/// Over HTTP/2 an answer goes out in pieces of this size, so that it is under way until nearly all of it is taken.
const PIECE: usize = 16 * 1024;

/// What is under way on one connection.
pub(super) struct UnderWay(watch::Sender<State>);

struct State {
    requests: usize,
    /// The client's side takes no bytes at the moment.
    is_blocked: bool,
    /// How long it took bytes before it was blocked last, and since when it does again.
    open_before: Duration,
    open_since: Instant,
}

impl UnderWay {
    pub(super) fn new() -> Arc<Self> {
        let state = State { requests: 0, is_blocked: false, open_before: Duration::ZERO, open_since: Instant::now() };
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

    /// For how long in all the client's side has taken bytes. An answer that waits meanwhile has a reader who does not ask
    /// for it; one that waits while nothing goes out may only have many others before it.
    pub(super) fn time_open(&self) -> Duration {
        let state = self.0.borrow();
        state.open_before + if state.is_blocked { Duration::ZERO } else { state.open_since.elapsed() }
    }

    pub(super) fn set_blocked(&self, is_blocked: bool) {
        self.0.send_if_modified(|state| {
            let was_blocked = std::mem::replace(&mut state.is_blocked, is_blocked);
            match (was_blocked, is_blocked) {
                (false, true) => state.open_before += state.open_since.elapsed(),
                (true, false) => state.open_since = Instant::now(),
                (false, false) | (true, true) => {}
            }
            was_blocked != is_blocked
        });
    }
}

/// A request that is under way.
pub(super) struct Counted(Arc<UnderWay>);

impl Counted {
    /// The request's answer, which ends with its body.
    pub(super) fn until_the_end_of(self, body: AnyBody, pace: Option<Arc<Pace>>) -> AnswerBody {
        AnswerBody { body, rest: Bytes::new(), pace, _counted: self }
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
    pace: Option<Arc<Pace>>,
    _counted: Counted,
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { body, rest, pace, .. } = &mut *self;
        let Some(pace) = pace else { return Pin::new(body).poll_frame(cx) };
        // The piece before has been taken: nobody asks for the next one earlier.
        pace.is_taken();
        let mut data = std::mem::take(rest);
        if data.is_empty() {
            data = match ready!(Pin::new(body).poll_frame(cx)).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => data,
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            };
        }
        *rest = data.split_off(data.len().min(PIECE));
        pace.waits();
        Poll::Ready(Some(Ok(Frame::data(data))))
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
