//! The head of a request as the upstream gets it: end-to-end headers only, and nothing said in our name.

use http::header::{self, HeaderMap, HeaderValue};
use http::uri::{PathAndQuery, Uri};
use http::{Method, Request};
use onced::http::headers;

use crate::config::Upstream;

/// The head of a request as the upstream gets it.
pub(super) fn head(upstream: &Upstream, method: &Method, uri: &Uri, from: &HeaderMap) -> Option<Request<()>> {
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let host = upstream.host_header();
    let mut request = Request::new(());
    *request.method_mut() = method.clone();
    *request.uri_mut() = Uri::builder().scheme("http").authority(host).path_and_query(path).build().ok()?;
    let mut end_to_end = from.clone();
    headers::strip_hop_by_hop(&mut end_to_end);
    headers::strip_own(&mut end_to_end);
    end_to_end.remove(header::EXPECT);
    join_cookies(&mut end_to_end);
    // A target that names its host, as every one of HTTP/2 does, goes before the header (RFC 9112, 3.2.2).
    let named = uri.authority().and_then(|authority| authority.as_str().rsplit('@').next());
    if named.is_some() || !end_to_end.contains_key(header::HOST) {
        end_to_end.insert(header::HOST, HeaderValue::from_str(named.unwrap_or(host)).ok()?);
    }
    *request.headers_mut() = end_to_end;
    Some(request)
}

/// HTTP/2 may cut a `Cookie` header into several, which HTTP/1.1 does not know.
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(uri: &'static str, pairs: &[(&'static str, &'static str)]) -> Request<()> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        head(&Upstream::parse("http://app:3000").unwrap(), &Method::POST, &Uri::from_static(uri), &headers).unwrap()
    }

    #[test]
    fn the_host_is_the_clients_where_it_names_one() {
        assert_eq!(sent("/a?b", &[("host", "shop.example")]).headers()["host"], "shop.example");
        assert_eq!(sent("http://shop.example/a", &[]).headers()["host"], "shop.example");
        assert_eq!(sent("http://shop.example:81/a", &[("host", "other")]).headers()["host"], "shop.example:81");
        assert_eq!(sent("http://me:pw@shop.example/a", &[]).headers()["host"], "shop.example");
        assert_eq!(sent("/a", &[]).headers()["host"], "app:3000");
    }

    #[test]
    fn cookies_that_were_cut_are_one_header_again() {
        let request = sent("/", &[("cookie", "a=1"), ("cookie", "b=2")]);
        assert_eq!(request.headers().get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"]);
    }
}
