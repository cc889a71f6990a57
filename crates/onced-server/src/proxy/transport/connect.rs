//! A stream of bytes to an upstream: TCP, TCP with TLS, or a Unix socket.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::cause;
use crate::config::{Certificates, Upstream, UpstreamHttp};
use crate::sockets;

const HTTP_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";

/// Bytes in both directions.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A stream, and which HTTP is to be spoken on it.
pub(super) struct Connected {
    pub(super) stream: Box<dyn Stream>,
    pub(super) is_http2: bool,
}

/// Connects. Nothing of a request has been sent then.
pub(super) async fn connect(
    upstream: &Upstream,
    http: UpstreamHttp,
    tls: Option<&TlsConnector>,
) -> Result<Connected, String> {
    let plain = |stream: Box<dyn Stream>| Connected { stream, is_http2: http == UpstreamHttp::Two };
    if let Some(path) = upstream.socket() {
        let stream = UnixStream::connect(path).await.map_err(|error| cause(&error))?;
        return Ok(plain(Box::new(stream)));
    }
    let address = upstream.host_and_port().ok_or("it has no address")?;
    let stream = TcpStream::connect(address).await.map_err(|error| cause(&error))?;
    sockets::tune(&stream);
    let Some(tls) = tls else { return Ok(plain(Box::new(stream))) };
    let name = ServerName::try_from(address.0.to_owned()).map_err(|error| cause(&error))?;
    let stream = tls.connect(name, stream).await.map_err(|error| format!("no TLS: {}", cause(&error)))?;
    let is_http2 = match stream.get_ref().1.alpn_protocol() {
        Some(protocol) => protocol == HTTP_2,
        None if http == UpstreamHttp::Two => return Err("it does not offer HTTP/2".to_owned()),
        None => false,
    };
    Ok(Connected { stream: Box::new(stream), is_http2 })
}

/// TLS with the certificates of the file, or with those that the machine trusts.
pub(super) fn tls(http: UpstreamHttp, own: Option<&Certificates>) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    match own {
        Some(own) => drop(roots.add_parsable_certificates(own.iter().cloned())),
        None => {
            let found = rustls_native_certs::load_native_certs();
            let (taken, _) = roots.add_parsable_certificates(found.certs);
            let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
            anyhow::ensure!(
                taken > 0,
                "an upstream is spoken to through TLS, and this machine trusts no certificates{why}: install \
                 ca-certificates, or name a file with `upstream_ca`"
            );
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = match http {
        UpstreamHttp::Auto => vec![HTTP_2.to_vec(), HTTP_1.to_vec()],
        UpstreamHttp::One => vec![HTTP_1.to_vec()],
        UpstreamHttp::Two => vec![HTTP_2.to_vec()],
    };
    Ok(TlsConnector::from(Arc::new(config)))
}
