//! A client that speaks HTTP/2 from the first byte on, with many requests on one connection.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use testkit::http_client::Answer;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::fixture::LIMIT;

/// One connection.
pub(super) struct Client {
    sender: SendRequest<Full<Bytes>>,
    /// Resolves once the connection has ended.
    pub(super) ended: JoinHandle<()>,
}

impl Client {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        Self::connect_with(address, &Builder::new(TokioExecutor::new())).await
    }

    pub(super) async fn connect_with(address: SocketAddr, builder: &Builder<TokioExecutor>) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        Self { sender, ended: tokio::spawn(async move { drop(connection.await) }) }
    }

    /// Sends, and gives the answer before its body has come.
    pub(super) fn open(
        &self,
        request: Request<&str>,
    ) -> impl Future<Output = hyper::Result<Response<Incoming>>> + Send + use<> {
        let request = request.map(|body| Full::new(Bytes::from(body.to_owned())));
        let mut sender = self.sender.clone();
        async move { tokio::time::timeout(LIMIT, sender.send_request(request)).await.expect("an answer within the limit") }
    }

    /// Sends, and reads the whole answer.
    pub(super) fn send(&self, request: Request<&str>) -> impl Future<Output = Answer> + Send + use<> {
        let opened = self.open(request);
        async move {
            let (head, body) = opened.await.unwrap().into_parts();
            let body = tokio::time::timeout(LIMIT, body.collect()).await.expect("a body within the limit");
            let (status, body) = (head.status.as_u16(), body.unwrap().to_bytes());
            Answer { status, headers: head.headers, body, took: std::time::Duration::ZERO }
        }
    }
}

/// A request under a key, to a host of its own.
pub(super) fn post(path: &str, key: &str) -> Request<&'static str> {
    let request = Request::post(format!("http://shop.example{path}")).header("idempotency-key", key);
    request.body("{}").unwrap()
}
