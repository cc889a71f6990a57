//! Connections that become something else, WebSockets most of all: passed on by `GET` alone, unguarded, and said so.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::config::Route;
use crate::server::Place;

/// What a client asks for, until the upstream has answered.
pub(super) struct Asked {
    protocol: HeaderValue,
    client: OnUpgrade,
    /// Its place among the connections is taken for as long as bytes are passed.
    place: Option<Place>,
}

/// What the request asks to become, if anything. Read before its hop-by-hop headers are gone.
pub(super) fn asked<B>(request: &mut Request<B>) -> Option<Asked> {
    let protocol = request.headers().get(header::UPGRADE).cloned()?;
    if request.method() != Method::GET || !names_upgrade(request.headers()) || speaks_http(request.headers()) {
        return None;
    }
    let place = request.extensions_mut().remove::<Place>();
    Some(Asked { protocol, client: hyper::upgrade::on(request), place })
}

/// HTTP within an upgraded connection would be requests that nobody here looks at, with keys or without.
fn speaks_http(headers: &HeaderMap) -> bool {
    let mut protocols =
        headers.get_all(header::UPGRADE).iter().flat_map(|value| value.as_bytes().split(|&b| b == b','));
    protocols.any(|protocol| {
        let name = protocol.trim_ascii().to_ascii_lowercase();
        [&b"h2"[..], b"http", b"tls"].iter().any(|beginning| name.starts_with(beginning))
    })
}

fn names_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
}

/// Says in the forwarded request what is asked for.
pub(super) fn ask(headers: &mut HeaderMap, asked: &Asked) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, asked.protocol.clone());
}

/// Where the upstream agrees, bytes are passed in both directions from here on, until both sides have ended, or have been
/// silent for too long; `passed` is held as long. To be called before the answer's hop-by-hop headers are taken out; they
/// are put back here.
pub(super) fn agreed<B>(
    asked: Asked,
    answer: &mut Response<B>,
    route: &Route,
    passed: Arc<Option<OwnedSemaphorePermit>>,
) -> Option<HeaderMap> {
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return None;
    }
    let mut kept = HeaderMap::new();
    kept.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    kept.insert(header::UPGRADE, answer.headers().get(header::UPGRADE).cloned().unwrap_or(asked.protocol));
    let (client, upstream) = (asked.client, hyper::upgrade::on(answer));
    let (scope, limit) = (route.name.clone(), route.upgraded_timeout);
    tracing::info!(target: "onced::pass", %scope, "upgraded: what passes from here on is unguarded");
    tokio::spawn(async move {
        let _places = (asked.place, passed);
        if let Ok((client, upstream)) = tokio::try_join!(client, upstream) {
            pass(client, upstream, limit).await;
        }
        tracing::debug!(target: "onced::pass", %scope, "the upgraded connection has ended");
    });
    Some(kept)
}

async fn pass(client: Upgraded, upstream: Upgraded, limit: Duration) {
    // Whatever passes in either direction passes the client's end.
    let (mut client, mut upstream) = (Noted::new(TokioIo::new(client)), TokioIo::new(upstream));
    let moved_at = client.moved_at.clone();
    tokio::select! {
        // Either side may hang up whenever it likes.
        _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
        () = silent_for(&moved_at, limit) => {}
    }
}

/// Returns once nothing has moved for so long.
async fn silent_for(moved_at: &Mutex<Instant>, limit: Duration) {
    loop {
        let since = *moved_at.lock().unwrap_or_else(PoisonError::into_inner);
        if since.elapsed() >= limit {
            return;
        }
        tokio::time::sleep_until(since + limit).await;
    }
}

/// A stream that notes when bytes moved on it last.
struct Noted<S> {
    stream: S,
    moved_at: Arc<Mutex<Instant>>,
}

impl<S> Noted<S> {
    fn new(stream: S) -> Self {
        Self { stream, moved_at: Arc::new(Mutex::new(Instant::now())) }
    }

    fn note(&self) {
        *self.moved_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.note();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if matches!(written, Poll::Ready(Ok(count)) if count > 0) {
            self.note();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_asked(method: Method, connection: &str, upgrade: &str) -> bool {
        let request = Request::builder().method(method).header("connection", connection).header("upgrade", upgrade);
        asked(&mut request.body(()).unwrap()).is_some()
    }

    #[test]
    fn an_upgrade_is_asked_for_by_get_and_is_not_to_http() {
        assert!(is_asked(Method::GET, "keep-alive, Upgrade", "websocket"));
        assert!(is_asked(Method::GET, "upgrade", "recorder/1"));
        for (method, connection, upgrade) in [
            (Method::POST, "upgrade", "websocket"),
            (Method::GET, "keep-alive", "websocket"),
            (Method::GET, "upgrade, http2-settings", "h2c"),
            (Method::GET, "upgrade", "websocket, H2C"),
            (Method::GET, "upgrade", "HTTP/2.0"),
            (Method::GET, "upgrade", "TLS/1.3"),
        ] {
            assert!(!is_asked(method, connection, upgrade), "{connection}: {upgrade}");
        }
    }
}
