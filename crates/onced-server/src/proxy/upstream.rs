//! The upstream's side: one request out, once, and what came back; never a silent second try.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use onced::http::headers;
use tokio::net::TcpStream;

use super::body::AnyBody;
use crate::config::{Route, Upstream};

type Passing = Client<HttpConnector, AnyBody>;

/// The client for what passes unguarded; it keeps connections.
pub(super) struct Upstreams {
    passing: Passing,
}

impl Upstreams {
    pub(super) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let mut builder = Client::builder(TokioExecutor::new());
        builder.retry_canceled_requests(false);
        Self { passing: builder.build(connector) }
    }

    /// Passes an unguarded request on.
    pub(super) async fn pass(
        &self,
        request: Request<AnyBody>,
    ) -> Result<Response<Incoming>, hyper_util::client::legacy::Error> {
        self.passing.request(request).await
    }
}

/// A connection for one guarded request: on a kept one, a close that crosses the request would look like a lost answer.
pub(super) struct Connection(http1::SendRequest<Full<Bytes>>);

impl Connection {
    /// Connects, and sends nothing. Whatever goes wrong here, the upstream was not reached.
    pub(super) async fn open(route: &Route) -> Result<Self, String> {
        let connecting = async {
            let address = (route.upstream.host().trim_matches(['[', ']']), route.upstream.port());
            let stream = TcpStream::connect(address).await.map_err(|error| cause(&error))?;
            // A hint only: without it the request goes out a little later.
            let _ = stream.set_nodelay(true);
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| cause(&error))
        };
        let (sender, connection) = match tokio::time::timeout(route.connect_timeout, connecting).await {
            Ok(connected) => connected?,
            Err(_) => return Err("no connection within connect_timeout".to_owned()),
        };
        // Its errors come out of the request and the answer's body as well.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Self(sender))
    }

    /// Sends the request, once. After an error it may have taken effect.
    pub(super) async fn send(mut self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
        if let Some(path) = request.uri().path_and_query().cloned() {
            *request.uri_mut() = Uri::from(path);
        }
        self.0.send_request(request).await.map_err(|error| cause(&error))
    }
}

/// The head of a request as the upstream gets it: end-to-end headers only, and nothing said in our name.
pub(super) fn head(upstream: &Upstream, method: &Method, uri: &Uri, from: &HeaderMap) -> Option<Request<()>> {
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let target =
        Uri::builder().scheme("http").authority(upstream.authority().clone()).path_and_query(path).build().ok()?;
    let mut request = Request::new(());
    *request.method_mut() = method.clone();
    *request.uri_mut() = target;
    let mut end_to_end = from.clone();
    headers::strip_hop_by_hop(&mut end_to_end);
    headers::strip_own(&mut end_to_end);
    end_to_end.remove(header::EXPECT);
    if !end_to_end.contains_key(header::HOST)
        && let Ok(host) = HeaderValue::from_str(upstream.authority().as_str())
    {
        end_to_end.insert(header::HOST, host);
    }
    *request.headers_mut() = end_to_end;
    Some(request)
}

fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        words = format!("{words}: {inner}");
        source = inner.source();
    }
    words
}
