//! Content codings: the first line is the `Content-Encoding`, the rest the body. What comes of it keeps to the limit.

use http::header::{CONTENT_ENCODING, HeaderMap, HeaderValue};
use onced::http::encoding::{Undecodable, decode};

use super::{outcome, shape, split_line};

const LIMIT: u64 = 64 * 1024;

pub(crate) fn target(input: &[u8]) -> u64 {
    let (line, body) = split_line(input);
    let Ok(value) = HeaderValue::from_bytes(line) else { return 0 };
    let headers = HeaderMap::from_iter([(CONTENT_ENCODING, value)]);
    let decoded = decode(&headers, &body.to_vec().into(), LIMIT);
    if let Ok(decoded) = &decoded {
        assert!(decoded.len() as u64 <= LIMIT || decoded.len() == body.len());
        if decoded.len() as u64 <= LIMIT {
            let at_the_limit = decode(&headers, &body.to_vec().into(), decoded.len() as u64);
            // With several codings a step on the way may be larger than what comes of it.
            assert!(
                at_the_limit.as_ref() == Ok(decoded)
                    || (at_the_limit == Err(Undecodable::TooLarge) && line.contains(&b','))
            );
        }
    }
    match decoded {
        Ok(decoded) => outcome((0, shape(&decoded), decoded.len().checked_ilog2())),
        Err(Undecodable::TooLarge) => outcome((1, shape(line))),
        Err(Undecodable::Malformed) => outcome((2, shape(line), body.len() / 8)),
        Err(Undecodable::Unknown(_)) => outcome((3, shape(line))),
    }
}
