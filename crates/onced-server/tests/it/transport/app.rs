//! An upstream on any kind of stream: TCP, TLS or a Unix socket, with HTTP/1.1 or HTTP/2 as it is spoken to. It says
//! which request came in which version on which connection, and holds its answers back when told to.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::fixture::LIMIT;

/// A request as it came.
#[derive(Clone)]
pub(super) struct Seen {
    /// Which connection it came on, counted from 0.
    pub(super) connection: usize,
    pub(super) parts: Parts,
    pub(super) body: Bytes,
}

impl Seen {
    /// All values of a header.
    pub(super) fn header(&self, name: &str) -> Vec<String> {
        let values = self.parts.headers.get_all(name).iter();
        values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    }
}

/// The upstream; it ends when dropped.
pub(super) struct App {
    pub(super) address: Option<SocketAddr>,
    book: Arc<Book>,
    accepting: JoinHandle<()>,
}

struct Book {
    seen: watch::Sender<Vec<Seen>>,
    is_held: watch::Sender<bool>,
    answer: Bytes,
}

impl Drop for App {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl App {
    /// On a free port.
    pub(super) async fn on_tcp() -> Self {
        Self::answering(Bytes::from_static(b"{\"ok\":true}")).await
    }

    /// On a free port, with that answer.
    pub(super) async fn answering(answer: Bytes) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, book) = (listener.local_addr().unwrap(), Book::new(answer));
        let accepting = tokio::spawn(accept(book.clone(), async move || Some(listener.accept().await.unwrap().0)));
        Self { address: Some(address), book, accepting }
    }

    /// On a socket at that path.
    pub(super) fn on_unix(path: &Path) -> Self {
        let (listener, book) = (UnixListener::bind(path).unwrap(), Book::new(Bytes::from_static(b"{\"ok\":true}")));
        let accepting = tokio::spawn(accept(book.clone(), async move || Some(listener.accept().await.unwrap().0)));
        Self { address: None, book, accepting }
    }

    /// Behind TLS, with the certificate that is shown at that moment.
    pub(super) async fn on_tls(shown: watch::Receiver<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, book) = (listener.local_addr().unwrap(), Book::new(Bytes::from_static(b"{\"ok\":true}")));
        let accepting = tokio::spawn(accept(book.clone(), async move || {
            let stream = listener.accept().await.unwrap().0;
            let tls = TlsAcceptor::from(shown.borrow().clone());
            // Who does not trust us hangs up.
            tls.accept(stream).await.ok()
        }));
        Self { address: Some(address), book, accepting }
    }

    pub(super) fn port(&self) -> u16 {
        self.address.expect("it listens on a port").port()
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// The requests so far.
    pub(super) fn seen(&self) -> Vec<Seen> {
        self.book.seen.borrow().clone()
    }

    pub(super) fn count(&self) -> usize {
        self.book.seen.borrow().len()
    }

    /// Waits for that many requests.
    pub(super) async fn wait_for(&self, count: usize) {
        let mut seen = self.book.seen.subscribe();
        let waited = tokio::time::timeout(LIMIT, seen.wait_for(|seen| seen.len() >= count)).await;
        drop(waited.unwrap_or_else(|_| panic!("{} of {count} requests came", self.count())).unwrap());
    }

    /// Holds every answer back from now on.
    pub(super) fn hold(&self) {
        self.book.is_held.send_replace(true);
    }

    /// Lets all answers go.
    pub(super) fn release(&self) {
        self.book.is_held.send_replace(false);
    }
}

impl Book {
    fn new(answer: Bytes) -> Arc<Self> {
        let (seen, is_held) = (watch::Sender::new(Vec::new()), watch::Sender::new(false));
        Arc::new(Self { seen, is_held, answer })
    }

    async fn respond(&self, connection: usize, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        self.seen.send_modify(|seen| seen.push(Seen { connection, parts, body }));
        drop(self.is_held.subscribe().wait_for(|is_held| !is_held).await);
        let mut response = Response::new(Full::new(self.answer.clone()));
        response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
        response
    }
}

async fn accept<S>(book: Arc<Book>, mut next: impl AsyncFnMut() -> Option<S>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut connections = tokio::task::JoinSet::new();
    for connection in 0.. {
        let Some(stream) = next().await else { continue };
        let book = book.clone();
        connections.spawn(async move {
            let service = service_fn(|request| {
                let book = book.clone();
                async move { Ok::<_, Infallible>(book.respond(connection, request).await) }
            });
            let builder = auto::Builder::new(TokioExecutor::new());
            drop(builder.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}
