//! Form bodies (`application/x-www-form-urlencoded`) as what they say: decoded pairs, in order.
//!
//! Senders write one pair in several ways (`x+y`, `x%20y`, `%c3%a9`, `%C3%A9`), and a retry may be written by other code.
//! What readers may tell apart stays apart: order, a name twice, `a` and `a=`, and an empty segment each count. Escapes
//! stand for bytes, which are never read as text.

use crate::key::Parts;

/// Adds the pairs of a form; `None` where an escape is malformed, since readers disagree on what that means.
pub(super) fn add(hash: Parts, body: &[u8]) -> Option<Parts> {
    body.split(|byte| *byte == b'&').try_fold(hash.add("form"), |hash, segment| {
        Some(match segment.iter().position(|byte| *byte == b'=') {
            Some(at) => hash.add("pair").add(decoded(&segment[..at])?).add(decoded(&segment[at + 1..])?),
            None => hash.add("name").add(decoded(segment)?),
        })
    })
}

fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        plain.push(match byte {
            b'+' => b' ',
            b'%' => (digit(*rest.next()?)? << 4) | digit(*rest.next()?)?,
            other => *other,
        });
    }
    Some(plain)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BodyRecipe, Fingerprint, RequestHash, RequestParts};
    use bytes::Bytes;
    use proptest::prelude::*;

    fn hash(body: impl AsRef<[u8]>) -> RequestHash {
        hash_as("application/x-www-form-urlencoded", body, BodyRecipe::All)
    }

    fn hash_as(media_type: &str, body: impl AsRef<[u8]>, recipe: BodyRecipe) -> RequestHash {
        let body = Bytes::copy_from_slice(body.as_ref());
        *Fingerprint::new(RequestParts { media_type: media_type.into(), body, ..RequestParts::default() }, recipe)
            .hash()
    }

    #[test]
    fn one_pair_written_in_several_ways_is_the_same() {
        for (first, second) in [
            ("a=1&b=x+y", "a=1&b=x%20y"),
            ("a=%c3%a9", "a=%C3%A9"),
            ("a=é", "a=%C3%A9"),
            ("a=b", "%61=%62"),
            ("a=%7E", "a=~"),
            ("a==", "a=%3D"),
        ] {
            assert_eq!(hash(first), hash(second), "{first} {second}");
        }
    }

    #[test]
    fn what_readers_may_tell_apart_is_another_request() {
        let bodies: [&[u8]; 27] = [
            b"",
            b"&",
            b"a",
            b"a=",
            b"=a",
            b"=",
            b"a=1",
            b"a=1&",
            b"&a=1",
            b"a=1&&",
            b"a=1&b=2",
            b"b=2&a=1",
            b"a=1&a=1",
            b"a=1&a=2",
            b"a=2&a=1",
            b"a%3D=1",
            b"a==1",
            b"a%26b=1",
            b"a&b=1",
            b"a=1;b=2",
            b"A=1",
            b"a=+1",
            b"a=%2B1",
            b"a=%00",
            b"a=%FF",
            b"a=%EF%BF%BD",
            b"a=\xe9",
        ];
        let distinct: std::collections::HashSet<_> = bodies.iter().map(hash).collect();
        assert_eq!(distinct.len(), bodies.len());
    }

    #[test]
    fn a_malformed_escape_leaves_the_raw_bytes() {
        for body in ["a=%", "a=%2", "a=%2&b=1", "a=%zz", "a=%+1", "%=1", "a=%u00e9", "a=1&b=x+y&c=%G0", "a=%%20"] {
            let raw = hash_as("text/plain", body, BodyRecipe::All);
            assert_ne!(hash(body), raw, "the media type counts");
            assert_eq!(hash(body), hash_as("application/x-www-form-urlencoded", body, BodyRecipe::Raw), "{body}");
        }
        assert_ne!(hash("a=x+y&b=%"), hash("a=x%20y&b=%"));
    }

    #[test]
    fn pointers_are_for_json() {
        let only = || BodyRecipe::Only(vec!["/a".parse().unwrap()]);
        let form = "application/x-www-form-urlencoded";
        assert_ne!(hash_as(form, "a=x+y", only()), hash_as(form, "a=x%20y", only()));
        assert_ne!(hash_as(form, "a=x+y", BodyRecipe::Raw), hash_as(form, "a=x%20y", BodyRecipe::Raw));
    }

    /// Pairs of bytes; few letters, so that equal and nearly equal ones do occur.
    fn pairs() -> impl Strategy<Value = Vec<(Vec<u8>, Option<Vec<u8>>)>> {
        let bytes = || prop::collection::vec(prop::sample::select(b"a =&%+\xff".to_vec()), 0..3);
        prop::collection::vec((bytes(), prop::option::of(bytes())), 1..4)
    }

    /// Writes pairs in one of many ways, as the bits of `dice` choose.
    fn write(pairs: &[(Vec<u8>, Option<Vec<u8>>)], dice: &mut u64) -> Vec<u8> {
        let mut text = |bytes: &[u8]| {
            let mut out = Vec::new();
            for byte in bytes {
                *dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                match ((*dice >> 33) % 3, byte) {
                    (0, b' ') => out.push(b'+'),
                    (0 | 1, b'a' | b' ' | 0xff) => out.push(*byte),
                    (1, _) => out.extend(format!("%{byte:02x}").bytes()),
                    (_, _) => out.extend(format!("%{byte:02X}").bytes()),
                }
            }
            out
        };
        let segments = pairs.iter().map(|(name, value)| match value {
            Some(value) => [text(name), b"=".to_vec(), text(value)].concat(),
            None => text(name),
        });
        segments.collect::<Vec<_>>().join(&b'&')
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn equal_pairs_and_only_those_have_equal_hashes(a in pairs(), b in pairs(), mut dice: u64) {
            let first = hash(write(&a, &mut dice));
            prop_assert_eq!(first, hash(write(&a, &mut dice)), "the same pairs written twice");
            prop_assert_eq!(first == hash(write(&b, &mut dice)), a == b);
        }

        #[test]
        fn no_bytes_make_it_panic(body: Vec<u8>, text in "[a%+=&0-9fF]{0,30}") {
            hash(body);
            hash(text);
        }
    }
}
