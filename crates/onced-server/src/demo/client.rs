//! One HTTP request on a connection of its own, and what came of it. Dropping the future hangs up.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{HeaderName, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// How long a whole answer may take.
const LIMIT: Duration = Duration::from_secs(20);

/// A POST of JSON, which can be sent many times.
#[derive(Clone, Debug)]
pub(super) struct Post {
    path: &'static str,
    headers: HeaderMap,
    body: String,
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Post {
    pub(super) fn new(path: &'static str, body: &serde_json::Value) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Self { path, headers, body: body.to_string() }
    }

    pub(super) fn header(mut self, name: &'static str, value: HeaderValue) -> Self {
        self.headers.insert(HeaderName::from_static(name), value);
        self
    }

    /// Sends it once. An error is a connection that could not be made, or that broke before the answer was whole.
    pub(super) async fn send(&self, to: SocketAddr) -> anyhow::Result<Answer> {
        let mut request = Request::post(self.path).body(Full::from(self.body.clone()))?;
        *request.headers_mut() = self.headers.clone();
        send(request, to).await
    }
}

/// Gets what is there.
pub(super) async fn get(path: &str, from: SocketAddr) -> anyhow::Result<Answer> {
    send(Request::get(path).body(Full::default())?, from).await
}

async fn send(request: Request<Full<Bytes>>, to: SocketAddr) -> anyhow::Result<Answer> {
    let answered = tokio::time::timeout(LIMIT, exchange(request, to)).await;
    answered.with_context(|| format!("no answer within {LIMIT:?}"))?
}

async fn exchange(mut request: Request<Full<Bytes>>, to: SocketAddr) -> anyhow::Result<Answer> {
    let stream = TcpStream::connect(to).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    request.headers_mut().insert(HOST, HeaderValue::try_from(to.to_string())?);
    let exchange = async {
        let (head, body) = sender.send_request(request).await.map(Response::into_parts)?;
        let body = body.collect().await?.to_bytes();
        anyhow::Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
    };
    // Driven here and not in a task, so that nothing of it outlives this future.
    let driven = async {
        drop(connection.await);
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        answer = exchange => answer,
        never = driven => match never {},
    }
}

impl Answer {
    /// It came from the record.
    pub(super) fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    /// How long to wait before the next try.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let seconds = self.headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// The `code` of a problem.
    pub(super) fn problem(&self) -> Option<String> {
        let body: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        Some(body.get("code")?.as_str()?.to_owned())
    }
}
