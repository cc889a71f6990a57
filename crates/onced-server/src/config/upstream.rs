//! The address of an upstream: plain HTTP, a host and a port.

use std::fmt;

use http::Uri;
use http::uri::Authority;

/// The app behind the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Upstream(Authority);

impl Upstream {
    /// Reads `http://host:port`. The message says what would be right, and does not repeat the URL.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        const RIGHT: &str = "write \"http://host:port\"";
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        match scheme.to_ascii_lowercase().as_str() {
            "http" => {}
            "https" => {
                return Err(format!(
                    "asks for TLS to the upstream, which is not in this version; {RIGHT}, of a local proxy that adds \
                     TLS if need be"
                ));
            }
            "unix" | "http+unix" => {
                return Err(format!(
                    "is a Unix socket, which is not in this version; let the upstream listen on a port and {RIGHT}"
                ));
            }
            "" if text.starts_with("unix:") => {
                return Err(format!(
                    "is a Unix socket, which is not in this version; let the upstream listen on a port and {RIGHT}"
                ));
            }
            _ => return Err(format!("is not the URL of an upstream; {RIGHT}")),
        }
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
        Ok(Self(authority.clone()))
    }

    /// Host and port as written.
    pub(crate) fn authority(&self) -> &Authority {
        &self.0
    }

    /// The host, with brackets where it is an IPv6 address.
    pub(crate) fn host(&self) -> &str {
        self.0.host()
    }

    /// The port; 80 where none is written.
    pub(crate) fn port(&self) -> u16 {
        self.0.port_u16().unwrap_or(80)
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_a_port_are_taken() {
        for (text, host, port) in
            [("http://127.0.0.1:3000", "127.0.0.1", 3000), ("http://app/", "app", 80), ("HTTP://[::1]:81", "[::1]", 81)]
        {
            let upstream = Upstream::parse(text).unwrap();
            assert_eq!((upstream.host(), upstream.port()), (host, port), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_words() {
        for (text, word) in [
            ("https://app", "TLS"),
            ("unix:/run/app.sock", "Unix socket"),
            ("unix:///run/app.sock", "Unix socket"),
            ("127.0.0.1:3000", "http://host:port"),
            ("http://app:3000/base", "path"),
            ("http://app?x=1", "query"),
            ("http://me:pw@app", "password"),
            ("http://", "write"),
            ("http://app:0", "port"),
            ("http://app:99999", "port"),
            ("http://app:", "port"),
            ("http://a b", "write"),
            ("", "http://host:port"),
        ] {
            let message = Upstream::parse(text).unwrap_err();
            assert!(message.contains(word), "{text}: {message}");
        }
    }
}
