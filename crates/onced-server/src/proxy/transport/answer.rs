//! The body of an upstream's answer. Read to its end, it leaves its connection to the next request. An end that was not
//! said is none.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use onced::http::headers;

use super::Sender;
use super::kept::Kept;
use crate::proxy::BodyError;

/// The body of an answer.
pub(in crate::proxy) struct Answer {
    body: Incoming,
    /// What is left to the next request once nothing more comes.
    sender: Option<Sender>,
    kept: Arc<Kept>,
    is_http2: bool,
}

impl Answer {
    pub(super) fn new(body: Incoming, sender: Option<Sender>, kept: Arc<Kept>) -> Self {
        let is_http2 = matches!(sender, Some(Sender::Two(_)));
        Self { body, sender, kept, is_http2 }
    }

    /// A stream that is reset with `NO_ERROR` ends for the client library as if that were the end of its answer. It is so
    /// only where the end came before (RFC 9113, 8.1).
    fn ends_unsaid(&self) -> bool {
        self.is_http2 && !self.body.is_end_stream()
    }

    fn leave_connection(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.kept.keep(sender);
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut frame = Pin::new(&mut self.body).poll_frame(cx).map_err(BodyError::from);
        if let Poll::Ready(Some(Ok(frame))) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            // Over HTTP/2 they would break the answer off.
            headers::strip_hop_by_hop(trailers);
        }
        match &frame {
            Poll::Ready(None) if self.ends_unsaid() => {
                drop(self.sender.take());
                return Poll::Ready(Some(Err("its stream was reset before its end".into())));
            }
            Poll::Ready(None) => self.leave_connection(),
            // Whoever has seen an error has seen the last of this connection.
            Poll::Ready(Some(Err(_))) => drop(self.sender.take()),
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    /// A reader need not ask for what it knows not to come.
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            self.leave_connection();
        }
    }
}
