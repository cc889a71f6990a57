//! The way to the upstreams: connections opened, or kept from an earlier request, and each request sent once. Nothing
//! here sends a second time; what is known of a request that failed is said, and the caller decides.

mod answer;
mod connect;
mod kept;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use onced_core::key::Scope;
use tokio_rustls::TlsConnector;

pub(super) use self::answer::Answer;
use self::connect::{Connected, connect};
use self::kept::Kept;
use super::body::AnyBody;
use crate::config::{Certificates, Route, Upstream, UpstreamHttp};

/// The largest head of an answer in bytes, and the most headers in it.
const LARGEST_HEAD: usize = 64 * 1024;
const MOST_HEADERS: usize = 256;

/// The upstreams of all routes.
pub(super) struct Targets(HashMap<Scope, Arc<Target>>);

impl Targets {
    /// Fails where one is spoken to through TLS and nothing is known to trust.
    pub(super) fn new<'r>(routes: impl Iterator<Item = &'r Route>) -> anyhow::Result<Self> {
        let mut known: Vec<Arc<Target>> = Vec::new();
        let mut of = HashMap::new();
        for route in routes {
            let way = Way::of(route);
            let target = match known.iter().find(|target| target.way == way) {
                Some(target) => target.clone(),
                None => {
                    let target = Arc::new(Target::new(way)?);
                    known.push(target.clone());
                    target
                }
            };
            of.insert(route.name.clone(), target);
        }
        Ok(Self(of))
    }

    /// The upstream of a route.
    pub(super) fn of(&self, route: &Route) -> Option<&Arc<Target>> {
        self.0.get(&route.name)
    }
}

/// Where to and how: routes that have all of it in common share connections.
#[derive(PartialEq, Eq)]
struct Way {
    upstream: Upstream,
    http: UpstreamHttp,
    certificates: Option<Certificates>,
    keep: Duration,
}

impl Way {
    fn of(route: &Route) -> Self {
        Self {
            upstream: route.upstream.clone(),
            http: route.upstream_http,
            certificates: route.upstream_ca.clone(),
            keep: route.upstream_keep_alive,
        }
    }
}

/// One upstream.
pub(super) struct Target {
    way: Way,
    tls: Option<TlsConnector>,
    kept: Arc<Kept>,
}

/// Whether a connection may be one that an earlier request has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reuse {
    /// It may: a close that crosses the request makes no harm.
    Yes,
    /// It may not: on a kept connection a close that crosses the request looks like a lost answer.
    No,
}

/// Nothing was sent.
#[derive(Debug)]
pub(super) struct Unsent {
    pub(super) why: String,
}

/// The request did not get an answer.
#[derive(Debug)]
pub(super) enum SendError {
    /// Not one byte of it went out.
    Unsent {
        /// The request again.
        request: Box<Request<AnyBody>>,
        /// What happened.
        why: String,
    },
    /// It may have been received.
    Lost {
        /// What happened.
        why: String,
    },
}

impl Target {
    fn new(way: Way) -> anyhow::Result<Self> {
        let tls = way.upstream.is_tls().then(|| connect::tls(way.http, way.certificates.as_ref())).transpose()?;
        let kept = Kept::new(way.keep);
        Ok(Self { way, tls, kept })
    }

    /// A connection on which nothing has been sent for this request. Whatever goes wrong here, the upstream was not
    /// reached.
    pub(super) async fn open(&self, reuse: Reuse, timeout: Duration) -> Result<Connection, Unsent> {
        if reuse == Reuse::Yes
            && let Some(sender) = self.kept.take()
        {
            return Ok(self.connection(sender, true));
        }
        match tokio::time::timeout(timeout, self.connect()).await {
            Ok(Ok(sender)) => Ok(self.connection(sender, false)),
            Ok(Err(why)) => Err(Unsent { why }),
            Err(_) => Err(Unsent { why: "no connection within connect_timeout".to_owned() }),
        }
    }

    fn connection(&self, sender: Sender, is_kept: bool) -> Connection {
        let scheme = if self.way.upstream.is_tls() { Scheme::HTTPS } else { Scheme::HTTP };
        Connection { sender, is_kept, scheme, kept: self.kept.clone() }
    }

    async fn connect(&self) -> Result<Sender, String> {
        let Connected { stream, is_http2 } = connect(&self.way.upstream, self.way.http, self.tls.as_ref()).await?;
        let stream = TokioIo::new(stream);
        // The errors of a connection come out of its requests and their answers as well.
        if is_http2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            let size = u32::try_from(LARGEST_HEAD).unwrap_or(u32::MAX);
            builder.timer(TokioTimer::new()).max_header_list_size(size);
            let (sender, connection) = builder.handshake(stream).await.map_err(|error| cause(&error))?;
            tokio::spawn(async move { drop(connection.await) });
            Ok(Sender::Two(sender))
        } else {
            let mut builder = http1::Builder::new();
            builder.max_buf_size(LARGEST_HEAD).max_headers(MOST_HEADERS);
            let (sender, connection) = builder.handshake(stream).await.map_err(|error| cause(&error))?;
            tokio::spawn(async move { drop(connection.with_upgrades().await) });
            Ok(Sender::One(sender))
        }
    }
}

/// The right to send one request on a connection.
pub(super) struct Connection {
    sender: Sender,
    is_kept: bool,
    scheme: Scheme,
    kept: Arc<Kept>,
}

impl Connection {
    /// Whether an earlier request has left it.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Sends the request, once. After [`SendError::Lost`] it may have taken effect.
    pub(super) async fn send(self, request: Request<AnyBody>) -> Result<Response<Answer>, SendError> {
        let Self { mut sender, scheme, kept, .. } = self;
        let asks = request.headers().contains_key(UPGRADE);
        let sent = match &mut sender {
            Sender::One(sender) => sender.try_send_request(for_http1(request)).await,
            Sender::Two(sender) => sender.try_send_request(for_http2(request, scheme)).await,
        };
        match sent {
            // What it means is not known, and a client would take it for the answer to a question it has not put.
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS && !asks => {
                Err(SendError::Lost { why: "it switched protocols unasked".to_owned() })
            }
            Ok(mut response) => {
                // Whatever was spoken behind the gateway, its client speaks as it does.
                *response.version_mut() = Version::HTTP_11;
                // A connection that has become something else is nobody's to reuse.
                let sender = Some(sender).filter(|_| response.status() != StatusCode::SWITCHING_PROTOCOLS);
                Ok(response.map(|body| Answer::new(body, sender, kept)))
            }
            Err(mut error) => {
                let request = error.take_message();
                let why = cause(&error.into_error());
                match request {
                    Some(request) => Err(SendError::Unsent { request: Box::new(request), why }),
                    None => Err(SendError::Lost { why }),
                }
            }
        }
    }
}

/// A connection's end to send on.
enum Sender {
    One(http1::SendRequest<AnyBody>),
    Two(http2::SendRequest<AnyBody>),
}

impl Sender {
    fn is_ready(&self) -> bool {
        match self {
            Self::One(sender) => sender.is_ready(),
            Self::Two(sender) => sender.is_ready(),
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::One(sender) => sender.is_closed(),
            Self::Two(sender) => sender.is_closed(),
        }
    }
}

/// The target as HTTP/1.1 has it: a path. The `Host` header says the rest; a request that was made ready for HTTP/2 gets it
/// back.
fn for_http1(mut request: Request<AnyBody>) -> Request<AnyBody> {
    if !request.headers().contains_key(HOST)
        && let Some(host) = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok())
    {
        request.headers_mut().insert(HOST, host);
    }
    *request.version_mut() = Version::HTTP_11;
    if let Some(path) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(path);
    }
    // Unless it is said, the client library takes a GET without a length to have no body.
    if request.body().size_hint().exact().is_none() && !request.headers().contains_key(CONTENT_LENGTH) {
        request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    request
}

/// The target as HTTP/2 has it: the authority in it, where HTTP/1.1 has a header.
fn for_http2(mut request: Request<AnyBody>, scheme: Scheme) -> Request<AnyBody> {
    let host = request.headers_mut().remove(HOST);
    let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut parts = request.uri().clone().into_parts();
    parts.scheme = Some(scheme);
    parts.authority = host.or(parts.authority);
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = Version::HTTP_2;
    request
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::proxy::whole;

    fn request() -> Request<AnyBody> {
        let request = Request::post("http://app:3000/pay?a=1").header(HOST, "shop.example:81");
        request.body(whole(Bytes::from_static(b"{}"))).unwrap()
    }

    /// Where the upstream no longer speaks HTTP/2 by the time at which a request is sent again, or speaks it by then.
    #[test]
    fn a_request_that_is_sent_again_names_its_host_whatever_is_spoken() {
        let again = for_http1(for_http2(request(), Scheme::HTTPS));
        assert_eq!(again.headers()[HOST], "shop.example:81");
        assert_eq!((again.uri().to_string().as_str(), again.version()), ("/pay?a=1", Version::HTTP_11));
        for again in [
            for_http2(for_http2(request(), Scheme::HTTPS), Scheme::HTTPS),
            for_http2(for_http1(request()), Scheme::HTTPS),
        ] {
            assert_eq!(again.uri(), "https://shop.example:81/pay?a=1");
            assert!(!again.headers().contains_key(HOST));
        }
    }
}
