//! HTTP clients: each one keep-alive connection, one request after the other, every answer looked at.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::work::{Work, Workers};

const BODY: &[u8] = br#"{"amount":4200,"currency":"eur","customer":"cus_9s6XKzkNRiz8i3"}"#;

/// Which keys requests carry.
#[derive(Clone)]
pub(crate) enum Keys {
    /// Another one each time: first deliveries.
    Fresh,
    /// Always this one: replays.
    Same(String),
}

impl Keys {
    /// One key that nobody else has.
    pub(crate) fn same() -> Self {
        Self::Same(Uuid::new_v4().to_string())
    }
}

/// Where requests go.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) path: &'static str,
    pub(crate) keys: Keys,
}

impl Target {
    /// That many clients.
    pub(crate) fn clients(&self, count: usize) -> Workers {
        (0..count).map(|_| Box::new(Client { target: self.clone(), connection: None }) as Box<dyn Work>).collect()
    }

    /// One request, on a connection of its own.
    pub(crate) async fn call(&self) -> anyhow::Result<()> {
        Client { target: self.clone(), connection: None }.once().await
    }
}

struct Client {
    target: Target,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Work for Client {
    fn once(&mut self) -> BoxFuture<'_, anyhow::Result<()>> {
        async {
            let mut connection = match self.connection.take() {
                Some(connection) if !connection.is_closed() => connection,
                _ => connect(self.target.address).await?,
            };
            connection.ready().await.context("the connection was closed")?;
            let response = connection.send_request(self.request()?).await.context("no answer")?;
            let status = response.status();
            let body = response.into_body().collect().await.context("the answer broke off")?.to_bytes();
            ensure!(status == 201, "answered {status}: {}", String::from_utf8_lossy(&body));
            self.connection = Some(connection);
            Ok(())
        }
        .boxed()
    }
}

impl Client {
    fn request(&self) -> anyhow::Result<Request<Full<Bytes>>> {
        let key = match &self.target.keys {
            Keys::Fresh => Uuid::new_v4().to_string(),
            Keys::Same(key) => key.clone(),
        };
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.target.path)
            .header(HOST, self.target.address.to_string())
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", key);
        Ok(request.body(Full::new(Bytes::from_static(BODY)))?)
    }
}

async fn connect(address: SocketAddr) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Its errors come out of the request as well.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}
