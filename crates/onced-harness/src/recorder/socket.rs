//! The socket under HTTP: acts at the moment at which everything written before has left this process.
//!
//! The HTTP library flushes the socket only when its own buffer is empty, so a flush is that moment.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::handle::Shared;

/// What to do at the next flush.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// Note in the log that this call's answer has gone out.
    NoteAnswered(u64),
    /// End the connection.
    Close,
    /// End it with a reset as soon as the connection is dropped.
    Reset,
}

/// The order given to one connection; requests on it come one after the other.
#[derive(Clone, Default)]
pub(super) struct Orders(Arc<Mutex<Option<Order>>>);

impl Orders {
    pub(super) fn give(&self, order: Order) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(order);
    }

    fn take(&self) -> Option<Order> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

pub(super) struct Socket {
    stream: TcpStream,
    orders: Orders,
    shared: Arc<Shared>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, orders: Orders, shared: Arc<Shared>) -> Self {
        Self { stream, orders, shared }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(Order::Reset) = self.orders.take() {
            // If it fails, the connection is closed instead: still no answer.
            drop(self.stream.set_zero_linger());
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.orders.take() {
            None => {}
            Some(Order::NoteAnswered(seq)) => {
                self.shared.book.note(seq, |entry, now| entry.answered = Some(now));
            }
            Some(Order::Close) => return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
            Some(Order::Reset) => {
                self.orders.give(Order::Reset);
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(order @ Order::Reset) = self.orders.take() {
            // A reset sends no orderly end first.
            self.orders.give(order);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
