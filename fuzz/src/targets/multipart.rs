//! Multipart forms: the first line is the parameters of the content type, the rest the body. What is taken apart is the
//! same with any other boundary, and nothing that is added to a body is lost.

use onced_core::fingerprint::boundary_of;

use super::{hash_of, outcome, shape, split_line};

const MULTIPART: &str = "multipart/form-data";
const OTHER: &str = "0ther-Boundary.47";

pub(crate) fn target(input: &[u8]) -> u64 {
    let (line, body) = split_line(input);
    let boundary = boundary_of(&format!("{MULTIPART};{}", String::from_utf8_lossy(line)));
    let first = hash_of(MULTIPART, &boundary, body);
    for more in [&b"x"[..], b"--", b"\0"] {
        assert_ne!(first, hash_of(MULTIPART, &boundary, &[body, more].concat()));
    }
    // A line end before the first delimiter is nothing to a form, and something to bytes.
    let is_read = first == hash_of(MULTIPART, &boundary, &[b"\r\n", body].concat());
    if is_read && find(body, OTHER.as_bytes()).is_none() {
        let other = replaced(body, format!("--{boundary}").as_bytes(), format!("--{OTHER}").as_bytes());
        assert_eq!(first, hash_of(MULTIPART, OTHER, &other), "the boundary does not count");
    }
    outcome((is_read, boundary.is_empty(), shape(&body[body.len() / 2..])))
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

fn replaced(mut text: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = find(text, old) {
        out.extend_from_slice(&text[..at]);
        out.extend_from_slice(new);
        text = &text[at + old.len()..];
    }
    out.extend_from_slice(text);
    out
}
