//! The body of an upstream's answer. Read to its end, it leaves its connection to the next request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::Sender;
use super::kept::Kept;

/// The body of an answer.
pub(in crate::proxy) struct Answer {
    body: Incoming,
    /// What is left to the next request once nothing more comes.
    sender: Option<Sender>,
    kept: Arc<Kept>,
}

impl Answer {
    pub(super) fn new(body: Incoming, sender: Option<Sender>, kept: Arc<Kept>) -> Self {
        Self { body, sender, kept }
    }

    fn leave_connection(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.kept.keep(sender);
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
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
