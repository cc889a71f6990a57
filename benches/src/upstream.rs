//! A tiny upstream that answers at once, or holds what comes to `/hold` until it is told, and counts.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;

const ANSWER: &[u8] = br#"{"id":"ch_3MmlLrLkdIwHu7ix0snN0B15","amount":4200,"status":"succeeded"}"#;

/// A running upstream.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

struct State {
    calls: AtomicU64,
    held: AtomicU64,
    let_go: watch::Sender<bool>,
}

impl Upstream {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (let_go, _) = watch::channel(false);
        let state = Arc::new(State { calls: AtomicU64::new(0), held: AtomicU64::new(0), let_go });
        tokio::spawn(serve(listener, state.clone()));
        Ok(Self { address, state })
    }

    /// How many calls have arrived.
    pub(crate) fn calls(&self) -> u64 {
        self.state.calls.load(Ordering::SeqCst)
    }

    /// How many are being held.
    pub(crate) fn held(&self) -> u64 {
        self.state.held.load(Ordering::SeqCst)
    }

    pub(crate) fn let_go(&self) {
        self.state.let_go.send_replace(true);
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        // A hint only.
        let _ = stream.set_nodelay(true);
        let state = state.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, state.clone()));
            // A client that goes away in between is its own affair; who misses an answer says so.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, state: Arc<State>) -> Result<Response<Full<Bytes>>, Infallible> {
    state.calls.fetch_add(1, Ordering::SeqCst);
    let holds = request.uri().path() == "/hold";
    // Read whole, as a service does.
    let _ = request.into_body().collect().await;
    if holds {
        state.held.fetch_add(1, Ordering::SeqCst);
        // The sender lives as long as the state.
        let _ = state.let_go.subscribe().wait_for(|let_go| *let_go).await;
        state.held.fetch_sub(1, Ordering::SeqCst);
    }
    let mut response = Response::new(Full::new(Bytes::from_static(ANSWER)));
    *response.status_mut() = StatusCode::CREATED;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
