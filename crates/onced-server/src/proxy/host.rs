//! Whether a request says in one way only which host it is for (RFC 9112, 3.2): two readers of it must not see two.

use http::header::{HOST, HeaderMap, HeaderValue};
use http::uri::Authority;
use http::{Request, Version};

/// Whether it is so. HTTP/2 names the host in its target, and HTTP/1.0 need not.
pub(super) fn is_said_once<B>(request: &Request<B>) -> bool {
    let is_needed = request.version() == Version::HTTP_11;
    match lines(request.headers()) {
        (None, _) => !is_needed,
        (Some(host), None) => is_host(host),
        (Some(_), Some(_)) => false,
    }
}

/// The first two lines.
fn lines(headers: &HeaderMap) -> (Option<&HeaderValue>, Option<&HeaderValue>) {
    let mut lines = headers.get_all(HOST).iter();
    (lines.next(), lines.next())
}

/// A host with a port or without. It may be empty, where the target has none.
fn is_host(value: &HeaderValue) -> bool {
    if value.is_empty() {
        return true;
    }
    let Ok(authority) = Authority::try_from(value.as_bytes()) else { return false };
    let port = authority.as_str().strip_prefix(authority.host());
    // Whoever is named before an `@` is no part of it.
    let is_port = |rest: &str| rest.strip_prefix(':').unwrap_or(rest).bytes().all(|byte| byte.is_ascii_digit());
    !authority.host().is_empty() && port.is_some_and(is_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_sound(version: Version, hosts: &[&str]) -> bool {
        let request = Request::builder().version(version);
        is_said_once(&hosts.iter().fold(request, |request, host| request.header("host", *host)).body(()).unwrap())
    }

    #[test]
    fn one_host_and_no_more() {
        for host in
            ["shop.example", "shop.example:81", "shop.example:", "127.0.0.1:8080", "[::1]", "[::1]:80", "a_b", ""]
        {
            assert!(is_sound(Version::HTTP_11, &[host]), "{host}");
        }
        for host in [
            "a b",
            "a/b",
            "a,b:1,c",
            "me@shop.example",
            "me:pw@a",
            "a:b",
            "a:1:2",
            ":80",
            "http://a",
            "a?b",
            "a#b",
            "[::1",
        ] {
            assert!(!is_sound(Version::HTTP_11, &[host]), "{host}");
            assert!(!is_sound(Version::HTTP_2, &[host]), "{host}");
        }
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            assert!(!is_sound(version, &["a", "a"]));
            assert!(!is_sound(version, &["a", "b"]));
            assert!(!is_sound(version, &["", "b"]));
        }
        assert!(!is_sound(Version::HTTP_11, &[]));
        assert!(is_sound(Version::HTTP_10, &[]) && is_sound(Version::HTTP_2, &[]));
    }
}
