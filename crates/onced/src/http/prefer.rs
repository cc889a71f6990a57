//! `Prefer: wait=N` (RFC 7240): how long a duplicate of a running request would wait for its outcome.

use std::time::Duration;

use http::HeaderMap;
use http::header::HeaderName;

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// Nobody waits longer for another's outcome, whatever was asked for.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How long this request waits at most; `otherwise` is its route's word.
pub fn wait_or(headers: &HeaderMap, otherwise: Duration) -> Duration {
    wait(headers).unwrap_or(otherwise).min(LONGEST_WAIT)
}

/// The seconds of the first `wait`. Later ones do not count, even where the first is none that can be read.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(PREFER).iter();
    let mut preferences = lines.flat_map(|line| split(line.as_bytes(), b','));
    // Behind a semicolon stand parameters, which `wait` has none of.
    let value = preferences.find_map(|preference| wait_of(split(preference, b';').next()?))?;
    let digits = unquoted(value)?;
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let seconds = std::str::from_utf8(&digits).ok()?.parse();
    // Too many to count is longer than anybody waits.
    Some(Duration::from_secs(seconds.unwrap_or(u64::MAX)))
}

/// The parts between separators outside of quotes.
fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |&byte| {
        let is_literal = escaped;
        escaped = quoted && !is_literal && byte == b'\\';
        if byte == b'"' && !is_literal {
            quoted = !quoted;
        }
        byte == separator && !quoted
    })
}

/// What is behind `wait=`, nothing where `wait` stands alone; `None` for another preference.
fn wait_of(preference: &[u8]) -> Option<&[u8]> {
    let mut parts = preference.splitn(2, |&byte| byte == b'=');
    let name = parts.next()?.trim_ascii();
    name.eq_ignore_ascii_case(b"wait").then(|| parts.next().unwrap_or_default().trim_ascii())
}

/// A token as it is, or what a quoted string says; `None` where the quotes do not match.
fn unquoted(value: &[u8]) -> Option<Vec<u8>> {
    let Some(rest) = value.strip_prefix(b"\"") else { return Some(value.to_vec()) };
    let mut bytes = rest.strip_suffix(b"\"")?.iter();
    let mut said = Vec::new();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => said.push(*bytes.next()?),
            b'"' => return None,
            plain => said.push(plain),
        }
    }
    Some(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn seconds(lines: &[&'static str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(PREFER, HeaderValue::from_static(line));
        }
        wait(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn the_first_wait_counts_however_it_is_written() {
        for line in [
            "wait=5",
            "Wait = 5",
            "wait=\"5\"",
            "wait=\"\\5\"",
            "wait=005",
            "wait=5; x=7, wait=9",
            "respond-async, wait=5",
            "handling=lenient; wait=7, WAIT=5",
            "note=\"a, wait=7\", wait=5",
            "note=\"\\\", wait=7\", wait=5",
            " , ,wait=5,",
        ] {
            assert_eq!(seconds(&[line]), Some(5), "{line}");
        }
        assert_eq!(seconds(&["return=minimal", "wait=5", "wait=9"]), Some(5));
        assert_eq!(seconds(&["wait=0"]), Some(0));
        assert_eq!(seconds(&["wait=99999999999999999999999"]), Some(u64::MAX));
    }

    #[test]
    fn what_cannot_be_read_is_no_preference() {
        for line in [
            "",
            "wait",
            "wait=",
            "wait=\"\"",
            "wait=-1",
            "wait=+1",
            "wait=1.5",
            "wait=5s",
            "wait=5 6",
            "wait=\"5",
            "wait=\"5\"6\"",
            "waiting=5",
            "note=\"a, wait=5",
            "wait=x, wait=5",
            "wait, wait=5",
        ] {
            assert_eq!(seconds(&[line]), None, "{line}");
        }
        assert_eq!(seconds(&[]), None);
    }
}
