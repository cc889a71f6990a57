//! The address of an upstream: `http://` or `https://` with a host and a port, or a Unix socket.

use std::fmt;
use std::path::{Path, PathBuf};

use http::Uri;
use http::uri::Authority;

use super::values::Words;

/// The app behind the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Upstream {
    /// Plain, to a host and a port.
    Http(Authority),
    /// With TLS, to a host and a port.
    Https(Authority),
    /// Plain, to a socket of this machine.
    Unix(PathBuf),
}

/// Which HTTP is spoken to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamHttp {
    /// With TLS what the upstream chooses, else 1.1.
    Auto,
    /// HTTP/1.1.
    One,
    /// HTTP/2, without TLS from the first byte on.
    Two,
}

impl Words for UpstreamHttp {
    const WORDS: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("1.1", Self::One), ("2", Self::Two)];
}

const RIGHT: &str = "write \"http://host:port\", \"https://host:port\" or \"unix:/path/of.sock\"";

impl Upstream {
    /// Reads an address. The message says what would be right, and does not repeat the URL.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(format!("names no Unix socket by its whole path; {RIGHT}"));
            }
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let with: fn(Authority) -> Self = match scheme.to_ascii_lowercase().as_str() {
            "http" => Self::Http,
            "https" => Self::Https,
            "http+unix" => return Err(format!("is written another way here; {RIGHT}")),
            _ => return Err(format!("is not the URL of an upstream; {RIGHT}")),
        };
        if rest.contains(['?', '#']) {
            return Err(format!("has a query; {RIGHT}: every request keeps its own"));
        }
        let uri: Uri = text.parse().map_err(|_| format!("is not a URL; {RIGHT}"))?;
        let Some(authority) = uri.authority().filter(|authority| !authority.host().is_empty()) else {
            return Err(format!("names no host; {RIGHT}"));
        };
        if authority.as_str().contains('@') {
            return Err(format!("has a user or password in it, which would not be sent; {RIGHT}"));
        }
        let after_host = authority.as_str().trim_start_matches(authority.host());
        if !after_host.is_empty() && authority.port_u16().is_none_or(|port| port == 0) {
            return Err(format!("has no valid port; {RIGHT}, with a port from 1 to 65535"));
        }
        if !matches!(uri.path(), "" | "/") {
            return Err(format!("has a path; {RIGHT}: every request keeps its own path"));
        }
        Ok(with(authority.clone()))
    }

    /// Host and port as written; a socket has none.
    pub(crate) fn authority(&self) -> Option<&Authority> {
        match self {
            Self::Http(authority) | Self::Https(authority) => Some(authority),
            Self::Unix(_) => None,
        }
    }

    /// What a `Host` header says where the client's request has none.
    pub(crate) fn host_header(&self) -> &str {
        self.authority().map_or("localhost", Authority::as_str)
    }

    /// The host, without the brackets of an IPv6 address, and the port, where it has them.
    pub(crate) fn host_and_port(&self) -> Option<(&str, u16)> {
        let standard = if self.is_tls() { 443 } else { 80 };
        self.authority()
            .map(|authority| (authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(standard)))
    }

    /// The socket, where it is one.
    pub(crate) fn socket(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) => Some(path),
            Self::Http(_) | Self::Https(_) => None,
        }
    }

    /// Whether it is spoken to through TLS.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Https(_))
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(authority) => write!(f, "http://{authority}"),
            Self::Https(authority) => write!(f, "https://{authority}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_a_port_are_taken() {
        for (text, host, port) in [
            ("http://127.0.0.1:3000", "127.0.0.1", 3000),
            ("http://app/", "app", 80),
            ("HTTP://[::1]:81", "::1", 81),
            ("https://app", "app", 443),
            ("https://app:8443", "app", 8443),
        ] {
            let upstream = Upstream::parse(text).unwrap();
            assert_eq!(upstream.host_and_port(), Some((host, port)), "{text}");
            assert_eq!(upstream.is_tls(), text.starts_with("https"), "{text}");
        }
    }

    #[test]
    fn a_socket_is_taken() {
        for text in ["unix:/run/app.sock", "unix:///run/app.sock"] {
            let upstream = Upstream::parse(text).unwrap();
            assert_eq!(upstream.socket(), Some(Path::new("/run/app.sock")), "{text}");
            assert_eq!((upstream.host_and_port(), upstream.host_header()), (None, "localhost"));
        }
    }

    #[test]
    fn everything_else_is_refused_with_words() {
        for (text, word) in [
            ("ftp://app", "http://host:port"),
            ("unix:app.sock", "whole path"),
            ("unix:", "whole path"),
            ("http+unix://%2Frun%2Fapp.sock", "unix:/path"),
            ("127.0.0.1:3000", "http://host:port"),
            ("http://app:3000/base", "path"),
            ("http://app?x=1", "query"),
            ("http://me:pw@app", "password"),
            ("http://", "write"),
            ("http://app:0", "port"),
            ("https://app:99999", "port"),
            ("http://app:", "port"),
            ("http://a b", "write"),
            ("", "http://host:port"),
        ] {
            let message = Upstream::parse(text).unwrap_err();
            assert!(message.contains(word), "{text}: {message}");
        }
    }
}
