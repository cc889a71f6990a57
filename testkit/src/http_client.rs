//! A small HTTP/1.1 client: one connection a request, races with the sockets opened first, and hanging up.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinHandle;

/// One request, which can be sent many times.
#[derive(Clone, Debug)]
pub struct Request {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
    limit: Duration,
}

impl Request {
    /// A request without headers and body. `Host` and `Content-Length` are added on the way.
    ///
    /// # Panics
    /// Where the method cannot be sent.
    #[must_use]
    pub fn new(method: &str, path: &str) -> Self {
        let method = method.parse().expect("the method cannot be sent");
        let limit = Duration::from_secs(60);
        Self { method, path: path.to_owned(), headers: HeaderMap::new(), body: Bytes::new(), limit }
    }

    /// A POST of these bytes.
    #[must_use]
    pub fn post(path: &str, body: impl Into<Bytes>) -> Self {
        Self::new("POST", path).body(body)
    }

    /// Adds a header line; one name may come several times.
    ///
    /// # Panics
    /// Where HTTP forbids the name or the value.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let name = HeaderName::try_from(name).expect("the header name cannot be sent");
        let value = HeaderValue::from_bytes(value.as_ref()).expect("the header value cannot be sent");
        self.headers.append(name, value);
        self
    }

    /// Adds the `Idempotency-Key` header.
    #[must_use]
    pub fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets how long the whole answer may take; 60 seconds at first.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    fn to_http(&self, addr: SocketAddr) -> http::Request<Full<Bytes>> {
        let mut request = http::Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.path.parse().expect("the path cannot be sent; use `raw`");
        *request.headers_mut() = self.headers.clone();
        if !self.headers.contains_key("host") {
            let host = HeaderValue::try_from(addr.to_string()).expect("an address is a header value");
            request.headers_mut().insert("host", host);
        }
        request
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// All header lines.
    pub headers: HeaderMap,
    /// The body's bytes.
    pub body: Bytes,
    /// From sending to the last byte.
    pub took: Duration,
}

impl Answer {
    /// The first value of a header as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// All values of a header, in order.
    #[must_use]
    pub fn header_all(&self, name: &str) -> Vec<&[u8]> {
        self.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// There was no whole answer.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The status, where a head came.
    pub status: Option<u16>,
    /// The header lines, where a head came.
    pub headers: HeaderMap,
    /// What came of the body.
    pub body: Bytes,
    /// Why it ended.
    pub cause: String,
}

impl Broken {
    fn early(cause: impl fmt::Display) -> Self {
        Self { status: None, headers: HeaderMap::new(), body: Bytes::new(), cause: cause.to_string() }
    }
}

/// Shorthand for [`send`].
///
/// # Panics
/// Without a whole answer.
pub async fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Answer {
    let start = Request::new(method, path).body(body);
    let request = headers.iter().fold(start, |request, (name, value)| request.header(name, value));
    send(addr, &request).await
}

/// Sends on a connection of its own and reads the whole answer.
///
/// # Panics
/// Without a whole answer.
pub async fn send(addr: SocketAddr, request: &Request) -> Answer {
    match try_send(addr, request).await {
        Ok(answer) => answer,
        Err(broken) => panic!("{} {}: {broken:?}", request.method, request.path),
    }
}

/// [`send`] where the answer may break.
///
/// # Errors
/// With what came before the break.
pub async fn try_send(addr: SocketAddr, request: &Request) -> Result<Answer, Broken> {
    connect(addr).await?.send(request).await
}

/// Sends and gives the answer piece by piece.
///
/// # Errors
/// Where no head came.
pub async fn open(addr: SocketAddr, request: &Request) -> Result<Streaming, Broken> {
    connect(addr).await?.open(request).await
}

/// Opens one socket for each request, then sends all at once. Answers are in the order of the requests.
///
/// # Panics
/// Where one has no whole answer.
pub async fn race(requests: &[(SocketAddr, Request)]) -> Vec<Answer> {
    let results = try_race(requests).await;
    results.into_iter().map(|result| result.unwrap_or_else(|broken| panic!("in a race: {broken:?}"))).collect()
}

/// [`race`] of `count` equal requests, dealt out over the addresses in turn.
///
/// # Panics
/// Where one has no whole answer.
pub async fn race_same(count: usize, addrs: &[SocketAddr], request: &Request) -> Vec<Answer> {
    let requests: Vec<_> = addrs.iter().cycle().take(count).map(|addr| (*addr, request.clone())).collect();
    race(&requests).await
}

/// [`race`] where answers may break.
pub async fn try_race(requests: &[(SocketAddr, Request)]) -> Vec<Result<Answer, Broken>> {
    let start = Arc::new(Barrier::new(requests.len().max(1)));
    let runners = requests.iter().cloned().map(|(addr, request)| {
        let start = Arc::clone(&start);
        tokio::spawn(async move {
            let connection = connect(addr).await;
            start.wait().await;
            connection?.send(&request).await
        })
    });
    let runners: Vec<_> = runners.collect();
    join_all(runners).await.into_iter().map(|joined| joined.expect("a runner panicked")).collect()
}

/// Sends the whole request, waits for `moment`, and closes the connection without reading.
///
/// # Panics
/// Where it cannot connect.
pub async fn send_and_hang_up(addr: SocketAddr, request: &Request, moment: impl Future) {
    let connection = connect(addr).await.unwrap_or_else(|broken| panic!("{broken:?}"));
    let Connection { mut sender, task, addr } = connection;
    let answer = tokio::spawn(sender.send_request(request.to_http(addr)));
    moment.await;
    task.abort();
    drop(task.await);
    answer.abort();
}

struct Connection {
    addr: SocketAddr,
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

async fn connect(addr: SocketAddr) -> Result<Connection, Broken> {
    let stream = TcpStream::connect(addr).await.map_err(Broken::early)?;
    stream.set_nodelay(true).map_err(Broken::early)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(Broken::early)?;
    // Its errors come out of `send_request` and the body as well.
    let task = tokio::spawn(async move { drop(connection.await) });
    Ok(Connection { addr, sender, task })
}

impl Connection {
    async fn open(mut self, request: &Request) -> Result<Streaming, Broken> {
        let started = Instant::now();
        let sent = self.sender.send_request(request.to_http(self.addr));
        let response = tokio::time::timeout(request.limit, sent).await;
        let response = response.map_err(|_| Broken::early(format!("no head within {:?}", request.limit)))?;
        let (head, body) = response.map_err(|error| Broken::early(with_sources(&error)))?.into_parts();
        Ok(Streaming { status: head.status.as_u16(), headers: head.headers, body, started, _sender: self.sender })
    }

    async fn send(self, request: &Request) -> Result<Answer, Broken> {
        let mut answer = self.open(request).await?;
        let mut body = BytesMut::new();
        let left = request.limit.saturating_sub(answer.started.elapsed());
        let rest = async {
            loop {
                match answer.next().await {
                    Some(Ok(piece)) => body.extend_from_slice(&piece),
                    Some(Err(error)) => break Err(error),
                    None => break Ok(()),
                }
            }
        };
        let ended = tokio::time::timeout(left, rest).await;
        let ended = ended.unwrap_or_else(|_| Err(format!("the body has not ended within {:?}", request.limit)));
        let Streaming { status, headers, started, .. } = answer;
        let body = body.freeze();
        match ended {
            Ok(()) => Ok(Answer { status, headers, body, took: started.elapsed() }),
            Err(cause) => Err(Broken { status: Some(status), headers, body, cause }),
        }
    }
}

/// An answer whose body is still coming. Dropping it closes the connection.
#[derive(Debug)]
pub struct Streaming {
    /// The status code.
    pub status: u16,
    /// All header lines.
    pub headers: HeaderMap,
    body: Incoming,
    started: Instant,
    _sender: SendRequest<Full<Bytes>>,
}

impl Streaming {
    /// The next piece as it comes; `None` at the orderly end.
    ///
    /// # Errors
    /// In words, where the answer breaks off.
    pub async fn next(&mut self) -> Option<Result<Bytes, String>> {
        loop {
            match self.body.frame().await? {
                Err(error) => return Some(Err(with_sources(&error))),
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
            }
        }
    }
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        words = format!("{words}: {inner}");
        source = inner.source();
    }
    words
}
