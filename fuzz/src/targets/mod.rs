//! What is tried: each target panics where a law does not hold, and otherwise tells outcomes apart.

mod encoding;
mod form;
mod json;
mod key;
mod multipart;

use std::hash::{DefaultHasher, Hash, Hasher};

use onced_core::fingerprint::{BodyRecipe, Fingerprint, RequestHash, RequestParts};

/// Tries one input, and says by what it came to which other inputs it is like.
pub(crate) type Target = fn(&[u8]) -> u64;

/// All of them by name, which is also the name of the folder of their corpus.
pub(crate) const ALL: [(&str, Target); 5] = [
    ("key", key::target),
    ("json", json::target),
    ("form", form::target),
    ("multipart", multipart::target),
    ("encoding", encoding::target),
];

fn outcome(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// The bytes by their kinds, each run once: what a parser may take for another shape.
fn shape(bytes: &[u8]) -> Vec<u8> {
    let mut kinds: Vec<u8> = bytes
        .iter()
        .map(|byte| match byte {
            b'0'..=b'9' => b'0',
            b'a'..=b'z' | b'A'..=b'Z' => b'a',
            0x80.. => 0x80,
            other => *other,
        })
        .take(64)
        .collect();
    kinds.dedup();
    kinds.truncate(12);
    kinds
}

fn hash_of(media_type: &str, boundary: &str, body: &[u8]) -> RequestHash {
    let parts = RequestParts {
        media_type: media_type.to_owned(),
        boundary: boundary.to_owned(),
        body: body.to_vec().into(),
        ..RequestParts::default()
    };
    *Fingerprint::new(parts, BodyRecipe::All).hash()
}

/// The first line, and what follows.
fn split_line(input: &[u8]) -> (&[u8], &[u8]) {
    match input.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, b""),
    }
}
