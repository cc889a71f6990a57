//! Which paths a route is for, and when two spellings of a path are the same one.

use std::fmt;

/// The paths of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathPattern {
    /// `/api/order`: that path alone.
    Exact(String),
    /// `/api/order/*`: every path that begins with `/api/order/`. The star is not part of it.
    Prefix(String),
}

impl PathPattern {
    /// Reads a path. The message says what would be right.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err(
                "does not begin with \"/\"; write \"/api/order\", or \"/api/order/*\" for all below it".to_owned()
            );
        }
        if text.contains(['?', '#']) {
            return Err("has a query; write the path alone: every query matches".to_owned());
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("has a character that no path has; write it percent-encoded, \"%20\" for a space".to_owned());
        }
        let (path, pattern): (&str, fn(String) -> Self) = match text.strip_suffix("/*") {
            Some(_) => (text.trim_end_matches('*'), Self::Prefix),
            None => (text, Self::Exact),
        };
        if path.contains('*') || text.ends_with("**") {
            return Err("has a `*` that is not at the end after a slash; write \"/api/order/*\"".to_owned());
        }
        let normal = normalise(path);
        if normal != path {
            let star = if text.ends_with('*') { "*" } else { "" };
            return Err(format!("is not in normal form, so that nothing would match it; write \"{normal}{star}\""));
        }
        Ok(pattern(normal))
    }

    /// Whether a path in normal form is one of the route's.
    pub(crate) fn matches(&self, normal_path: &str) -> bool {
        match self {
            // Many servers take the path with a slash behind it for the same.
            Self::Exact(path) => {
                normal_path == path
                    || normal_path.strip_suffix('/') == Some(path.as_str())
                    || path.strip_suffix('/') == Some(normal_path)
            }
            Self::Prefix(prefix) => normal_path.starts_with(prefix.as_str()),
        }
    }

    /// How much the pattern says: an exact path more than any beginning, a longer beginning more than a shorter one.
    pub(crate) fn rank(&self) -> (bool, usize) {
        match self {
            Self::Exact(path) => (true, path.len()),
            Self::Prefix(prefix) => (false, prefix.len()),
        }
    }

    /// The path without its star.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Prefix(text) => text,
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(path) => f.write_str(path),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// The normal form of a path: no needless percent-encoding and no `.` and `..` (RFC 3986, 6.2.2), no empty segments,
/// no parameters after a `;`. Many servers treat all spellings alike; if the gateway did not, another spelling would
/// reach the upstream past its route.
pub(crate) fn normalise(path: &str) -> String {
    let decoded = decode_unreserved(path);
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = decoded.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        let name = segment.split(';').next().unwrap_or(segment);
        match name {
            "" if !is_last => {}
            "." | ".." => {
                if name == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            other => kept.push(other),
        }
    }
    format!("/{}", kept.join("/"))
}

fn decode_unreserved(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let code = after.get(..2).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        rest = match code.and_then(|hex| u8::from_str_radix(hex, 16).ok().map(|byte| (hex, byte))) {
            Some((hex, byte)) => {
                if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                    text.push(char::from(byte));
                } else {
                    text.push('%');
                    text.push_str(&hex.to_ascii_uppercase());
                }
                after.get(2..).unwrap_or("")
            }
            None => {
                text.push('%');
                after
            }
        };
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_path_are_one_path() {
        for (path, normal) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/%61/b", "/a/b"),
            ("/a/./b", "/a/b"),
            ("/x/../a/b", "/a/b"),
            ("/x/%2e%2E/a/b", "/a/b"),
            ("/../../a", "/a"),
            ("/a/..", "/"),
            ("/a/.", "/a/"),
            ("/a%2fb", "/a%2Fb"),
            ("/a//b", "/a/b"),
            ("//a", "/a"),
            ("///a//", "/a/"),
            ("/a;v=1/b;w", "/a/b"),
            ("/x/..;/a", "/a"),
            ("/a/", "/a/"),
            ("/100%", "/100%"),
            ("/%zz%4", "/%zz%4"),
            ("/%é", "/%é"),
        ] {
            assert_eq!(normalise(path), normal, "{path}");
        }
    }

    #[test]
    fn a_pattern_is_exact_or_a_beginning() {
        let exact = PathPattern::parse("/api/order").unwrap();
        assert!(exact.matches("/api/order"));
        assert!(exact.matches("/api/order/") && !exact.matches("/api/orders") && !exact.matches("/api/order/1"));
        let prefix = PathPattern::parse("/api/order/*").unwrap();
        assert!(prefix.matches("/api/order/") && prefix.matches("/api/order/1/lines"));
        assert!(!prefix.matches("/api/order") && !prefix.matches("/api/orders"));
        assert!(PathPattern::parse("/*").unwrap().matches("/"));
        assert_eq!((exact.to_string(), prefix.to_string()), ("/api/order".into(), "/api/order/*".into()));
    }

    #[test]
    fn other_patterns_are_refused() {
        for (text, right) in [
            ("api", "/api/order"),
            ("/a*", "/api/order/*"),
            ("/*/a", "/api/order/*"),
            ("/a/**", "/api/order/*"),
            ("/a?b=1", "path alone"),
            ("/a b", "%20"),
            ("/a/../b/*", "\"/b/*\""),
            ("/%61", "\"/a\""),
        ] {
            let message = PathPattern::parse(text).unwrap_err();
            assert!(message.contains(right), "{text}: {message}");
        }
    }
}
