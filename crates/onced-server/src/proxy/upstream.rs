//! The upstream's side: one request out, once, and what came back; never a silent second try.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use onced::http::headers;

use super::body::AnyBody;
use crate::config::{Config, Route, Upstream};

type Once = Client<HttpConnector, Full<Bytes>>;
type Passing = Client<HttpConnector, AnyBody>;

/// The clients to the upstreams.
pub(super) struct Upstreams {
    /// By the time that connecting may take.
    clients: HashMap<Duration, (Once, Passing)>,
}

/// What became of a request that was to be sent.
pub(super) enum Sent {
    /// The head of an answer is there.
    Answer(Response<Incoming>),
    /// No connection: nothing was sent.
    NotReached(String),
    /// It was sent, at least in part, and no answer came: it may have taken effect.
    Lost(String),
}

impl Upstreams {
    pub(super) fn new(config: &Config) -> Self {
        let routes = config.routes.iter().chain(&config.default_route);
        Self { clients: routes.map(|route| (route.connect_timeout, clients(route.connect_timeout))).collect() }
    }

    /// Sends one guarded request, on a connection of its own: on a kept one, a close that crosses the request would
    /// look like a lost answer.
    pub(super) async fn send_once(&self, route: &Route, request: Request<Full<Bytes>>) -> Sent {
        let Some((once, _)) = self.clients.get(&route.connect_timeout) else {
            return Sent::NotReached("there is no client for this route".to_owned());
        };
        match once.request(request).await {
            Ok(answer) => Sent::Answer(answer),
            Err(error) if error.is_connect() => Sent::NotReached(cause(&error)),
            Err(error) => Sent::Lost(cause(&error)),
        }
    }

    /// Passes an unguarded request on.
    pub(super) async fn pass(
        &self,
        route: &Route,
        request: Request<AnyBody>,
    ) -> Result<Response<Incoming>, hyper_util::client::legacy::Error> {
        match self.clients.get(&route.connect_timeout) {
            Some((_, passing)) => passing.request(request).await,
            None => clients(route.connect_timeout).1.request(request).await,
        }
    }
}

fn clients(connect_timeout: Duration) -> (Once, Passing) {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(connect_timeout));
    connector.set_nodelay(true);
    let mut builder = Client::builder(TokioExecutor::new());
    builder.retry_canceled_requests(false);
    let passing = builder.build(connector.clone());
    (builder.pool_max_idle_per_host(0).build(connector), passing)
}

/// The head of a request as the upstream gets it: end-to-end headers only, and nothing said in our name.
pub(super) fn head(upstream: &Upstream, method: &Method, uri: &Uri, from: &HeaderMap) -> Option<Request<()>> {
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let target = Uri::builder().scheme("http").authority(upstream.authority().clone()).path_and_query(path).build().ok()?;
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
