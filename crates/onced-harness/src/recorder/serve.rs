//! The server: accepts connections, turns requests into calls and replies into bytes.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use super::control;
use super::handle::Shared;
use super::reply::{Delivery, Reply};
use super::socket::{Order, Orders, Socket};

type Pieces = BoxStream<'static, Result<Frame<Bytes>, Infallible>>;
type Body = Either<Full<Bytes>, StreamBody<Pieces>>;

/// The accept loop of one listener.
pub(super) struct Server {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    pub(super) fn spawn(listener: TcpListener, shared: Arc<Shared>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(accept(listener, shared, stopped));
        Self { stop, task }
    }

    /// Closes the listener and all connections; they are closed when this resolves.
    pub(super) async fn stop(self) {
        drop(self.stop);
        drop(self.task.await);
    }

    pub(super) fn abort(self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, mut stopped: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(converse(stream, Arc::clone(&shared)))),
                // Out of file handles, most likely: let some be closed before the next try.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
        }
    }
    drop(listener);
    connections.shutdown().await;
}

async fn converse(stream: TcpStream, shared: Arc<Shared>) {
    // Small answers shall not wait for more.
    drop(stream.set_nodelay(true));
    let orders = Orders::default();
    let socket = Socket::new(stream, orders.clone(), Arc::clone(&shared));
    let service = service_fn(move |request| respond(Arc::clone(&shared), orders.clone(), request));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(socket), service);
    // Broken connections are part of the job.
    drop(connection.await);
}

async fn respond(
    shared: Arc<Shared>,
    orders: Orders,
    request: Request<Incoming>,
) -> Result<Response<Body>, Unanswered> {
    let (parts, body) = request.into_parts();
    if let Some(response) = control::answer(&shared, &parts.method, &parts.uri) {
        return Ok(response.map(Either::Left));
    }
    let body = body.collect().await.map_err(|_| Unanswered)?.to_bytes();
    // Taken before the call can be seen in the log: who sees the call and then releases, releases it.
    let ticket = shared.gate.ticket();
    let call = shared.book.enter(&parts, body);
    let seq = call.seq;
    let reply = shared.run(call, ticket).await.map_err(|_| Unanswered)?;
    if reply.delivery == Delivery::Lost {
        orders.give(Order::Reset);
        return Err(Unanswered);
    }
    let response = written(reply, seq, &orders);
    if parts.method == Method::HEAD {
        orders.give(Order::NoteAnswered(seq));
    }
    Ok(response)
}

fn written(reply: Reply, seq: u64, orders: &Orders) -> Response<Body> {
    let mut length = None;
    let body = match reply.delivery {
        // Lost answers do not come here.
        Delivery::Sized | Delivery::Lost => {
            orders.give(Order::NoteAnswered(seq));
            Either::Left(Full::new(reply.body))
        }
        Delivery::Chunked => Either::Right(pieces(vec![reply.body], Duration::ZERO, seq, orders.clone())),
        Delivery::Stream { chunks, gap } => Either::Right(pieces(chunks, gap, seq, orders.clone())),
        Delivery::CutOff { declared, sent } => {
            length = Some(declared);
            Either::Right(cut_off(&reply.body, sent, orders.clone()))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = reply.status;
    for (name, value) in reply.headers {
        response.headers_mut().append(name, value);
    }
    if let Some(length) = length {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

fn pieces(chunks: Vec<Bytes>, gap: Duration, seq: u64, orders: Orders) -> StreamBody<Pieces> {
    let last = chunks.len().saturating_sub(1);
    if chunks.is_empty() {
        orders.give(Order::NoteAnswered(seq));
    }
    let pieces = stream::iter(chunks.into_iter().enumerate()).then(move |(index, chunk)| {
        let orders = orders.clone();
        async move {
            if index > 0 {
                tokio::time::sleep(gap).await;
            }
            if index == last {
                orders.give(Order::NoteAnswered(seq));
            }
            Ok(Frame::data(chunk))
        }
    });
    StreamBody::new(pieces.boxed())
}

fn cut_off(pattern: &Bytes, sent: usize, orders: Orders) -> StreamBody<Pieces> {
    let pattern = if pattern.is_empty() { Bytes::from_static(b"x") } else { pattern.clone() };
    let start: Bytes = pattern.iter().copied().cycle().take(sent).collect();
    let cut = stream::once(async move {
        orders.give(Order::Close);
        std::future::pending().await
    });
    StreamBody::new(stream::iter([Ok(Frame::data(start))]).chain(cut).boxed())
}

/// Ends the connection without an answer.
#[derive(Debug)]
struct Unanswered;

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("left without an answer")
    }
}

impl std::error::Error for Unanswered {}
