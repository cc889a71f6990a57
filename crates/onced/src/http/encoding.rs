//! Content codings of a request's body, undone within a bound: what was said, however it was packed for the way.

use std::io::Read;

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// More codings in a row are not undone: nobody has a reason to send them.
const MAX_CODINGS: usize = 3;

/// Why a body could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecodable {
    /// It is over the limit once decoded, at the end or on the way there.
    #[error("the decoded body is too large")]
    TooLarge,
    /// It is not what its `Content-Encoding` says.
    #[error("the body is not encoded as its Content-Encoding says")]
    Malformed,
    /// A coding that is not known here, or too many; this names all of them, in lower case.
    #[error("the content coding {0} cannot be undone")]
    Unknown(String),
}

/// The body as it was before the codings that its `Content-Encoding` lines name: gzip (`x-gzip`) and deflate (a zlib
/// stream), at most three in a row. An empty body is empty, whatever they name.
///
/// No more than `limit` bytes are kept at each step, and nothing after them is decoded.
///
/// # Errors
/// See [`Undecodable`].
pub fn decode(headers: &HeaderMap, body: &Bytes, limit: u64) -> Result<Bytes, Undecodable> {
    if body.is_empty() {
        return Ok(Bytes::new());
    }
    let names = codings(headers);
    let known = names.iter().map(|name| Coding::of(name)).collect::<Option<Vec<_>>>();
    let Some(known) = known.filter(|known| known.len() <= MAX_CODINGS) else {
        return Err(Undecodable::Unknown(names.join(", ")));
    };
    let mut decoded = body.clone();
    // They are named in the order in which they were applied.
    for coding in known.into_iter().rev() {
        decoded = coding.undo(&decoded, limit)?.into();
    }
    Ok(decoded)
}

/// Whether a body of these headers has anything to decode.
#[must_use]
pub fn is_encoded(headers: &HeaderMap) -> bool {
    !codings(headers).is_empty()
}

/// The names in all lines, in order and in lower case; `identity` is none.
fn codings(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(CONTENT_ENCODING).iter();
    let names = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let names = names.map(|name| name.trim_ascii().to_ascii_lowercase().escape_ascii().to_string());
    names.filter(|name| !name.is_empty() && name != "identity").collect()
}

#[derive(Clone, Copy)]
enum Coding {
    Gzip,
    Deflate,
}

impl Coding {
    fn of(name: &str) -> Option<Self> {
        match name {
            "gzip" | "x-gzip" => Some(Self::Gzip),
            "deflate" => Some(Self::Deflate),
            _ => None,
        }
    }

    fn undo(self, encoded: &[u8], limit: u64) -> Result<Vec<u8>, Undecodable> {
        match self {
            Self::Gzip => gunzip(encoded, limit),
            Self::Deflate => inflate(encoded, limit),
        }
    }
}

/// Several members in a row are one body, as RFC 1952 says; anything else after them is malformed.
fn gunzip(encoded: &[u8], limit: u64) -> Result<Vec<u8>, Undecodable> {
    let mut decoded = Vec::new();
    let one_more = limit.saturating_add(1);
    MultiGzDecoder::new(encoded).take(one_more).read_to_end(&mut decoded).map_err(|_| Undecodable::Malformed)?;
    within(decoded, limit)
}

/// Step by step, since the library's readers take a stream that breaks off for one that has ended.
fn inflate(encoded: &[u8], limit: u64) -> Result<Vec<u8>, Undecodable> {
    let mut decoder = Decompress::new(true);
    let mut decoded = Vec::new();
    let mut piece = [0; 8192];
    let mut rest = encoded;
    loop {
        let before = (decoder.total_in(), decoder.total_out());
        let status = decoder.decompress(rest, &mut piece, FlushDecompress::None);
        let status = status.map_err(|_| Undecodable::Malformed)?;
        let read = usize::try_from(decoder.total_in() - before.0).unwrap_or(usize::MAX);
        let made = usize::try_from(decoder.total_out() - before.1).unwrap_or(usize::MAX);
        decoded.extend_from_slice(piece.get(..made).unwrap_or_default());
        rest = rest.get(read..).unwrap_or_default();
        decoded = within(decoded, limit)?;
        match status {
            Status::StreamEnd if rest.is_empty() => return Ok(decoded),
            Status::StreamEnd => return Err(Undecodable::Malformed),
            Status::Ok | Status::BufError if read == 0 && made == 0 => return Err(Undecodable::Malformed),
            Status::Ok | Status::BufError => {}
        }
    }
}

fn within(decoded: Vec<u8>, limit: u64) -> Result<Vec<u8>, Undecodable> {
    if decoded.len() as u64 > limit { Err(Undecodable::TooLarge) } else { Ok(decoded) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use http::HeaderValue;
    use onced_core::fingerprint::{Fingerprint, HashVersion, RequestParts, boundary_of, media_type_of};
    use std::io::Write as _;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(plain: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(CONTENT_ENCODING, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        headers
    }

    fn decode_of(lines: &[&str], body: &[u8]) -> Result<Vec<u8>, Undecodable> {
        decode(&headers(lines), &Bytes::copy_from_slice(body), 1000).map(|body| body.to_vec())
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let plain = b"{\"id\":1}\0\xff".repeat(20);
        let check = |lines: &[&str], body: &[u8]| assert_eq!(decode_of(lines, body), Ok(plain.clone()), "{lines:?}");
        check(&[], &plain);
        check(&["identity"], &plain);
        check(&["", " , "], &plain);
        check(&["gzip"], &gzip(&plain));
        check(&["GZip "], &gzip(&plain));
        check(&["x-gzip, identity"], &gzip(&plain));
        check(&["deflate"], &zlib(&plain));
        check(&["gzip, deflate"], &zlib(&gzip(&plain)));
        check(&["deflate", "gzip"], &gzip(&zlib(&plain)));
        check(&["gzip,gzip,\tgzip"], &gzip(&gzip(&gzip(&plain))));
        check(&["gzip"], &[gzip(&plain[..7]), gzip(&plain[7..])].concat());
        for lines in [["gzip"], ["deflate"], ["identity"], ["br"]] {
            assert_eq!(decode_of(&lines, b""), Ok(Vec::new()), "{lines:?}");
        }
        assert_eq!(decode_of(&["gzip"], &gzip(b"")), Ok(Vec::new()));
    }

    #[test]
    fn what_is_not_encoded_as_it_says_is_malformed() {
        let plain = b"{\"id\":1}".repeat(20);
        let mut raw_deflate = DeflateEncoder::new(Vec::new(), Compression::default());
        raw_deflate.write_all(&plain).unwrap();
        let raw_deflate = raw_deflate.finish().unwrap();
        for (line, sound) in [("gzip", gzip(&plain)), ("deflate", zlib(&plain))] {
            for broken_off in 1..sound.len() {
                assert_eq!(
                    decode_of(&[line], &sound[..broken_off]),
                    Err(Undecodable::Malformed),
                    "{line} {broken_off}"
                );
            }
            let mut other_sum = sound.clone();
            let at = sound.len() - if line == "gzip" { 5 } else { 1 };
            other_sum[at] ^= 1;
            for body in [other_sum, [&sound[..], b"x"].concat(), plain.clone(), raw_deflate.clone(), vec![0]] {
                assert_eq!(decode_of(&[line], &body), Err(Undecodable::Malformed), "{line}");
            }
        }
        assert_eq!(decode_of(&["gzip"], &zlib(&plain)), Err(Undecodable::Malformed));
        assert_eq!(decode_of(&["deflate"], &gzip(&plain)), Err(Undecodable::Malformed));
    }

    #[test]
    fn an_unknown_coding_is_named() {
        for (lines, name) in [
            (&["br"][..], "br"),
            (&["ZSTD"], "zstd"),
            (&["gzip", "br"], "gzip, br"),
            (&["br, gzip"], "br, gzip"),
            (&["gzip,gzip", "gzip , gzip"], "gzip, gzip, gzip, gzip"),
            (&["g\u{e9}"], "g\\xc3\\xa9"),
            (&["gzip;q=1"], "gzip;q=1"),
        ] {
            assert_eq!(decode_of(lines, &gzip(b"x")), Err(Undecodable::Unknown(name.to_owned())), "{lines:?}");
        }
    }

    #[test]
    fn the_limit_is_for_what_is_decoded() {
        type Pack = fn(&[u8]) -> Vec<u8>;
        let codings: [(&str, Pack); 2] = [("gzip", gzip), ("deflate", zlib)];
        for (coding, pack) in codings {
            let check = |size: usize, limit: u64| {
                let decoded = decode(&headers(&[coding]), &pack(&vec![0; size]).into(), limit);
                decoded.map(|body| body.len())
            };
            assert_eq!(check(100_000, 100_000), Ok(100_000));
            assert_eq!(check(100_001, 100_000), Err(Undecodable::TooLarge));
            assert_eq!(check(10 << 20, 1 << 20), Err(Undecodable::TooLarge));
            assert_eq!(check(1, 0), Err(Undecodable::TooLarge));
            assert_eq!(check(100_000, u64::MAX), Ok(100_000));
        }
        // On the way too: the outer layer alone is over the limit.
        let twice = gzip(&gzip(&vec![0; 10 << 20]));
        assert_eq!(decode(&headers(&["gzip, gzip"]), &twice.into(), 5000), Err(Undecodable::TooLarge));
    }

    #[test]
    fn fingerprints_are_those_of_the_vectors_whatever_the_coding() {
        let (mut rows, mut encoded) = (0, 0);
        let table = include_str!("../../../onced-core/vectors/fingerprints.tsv");
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let columns: [&str; 8] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            let [version, method, path, query, content_type, coding, body, expected] = columns;
            let body = match body.strip_prefix("hex:") {
                Some(hex) => {
                    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
                }
                None => Bytes::copy_from_slice(body.as_bytes()),
            };
            let (body, coding) = match decode(&headers(&[coding]), &body, 1 << 20) {
                Ok(decoded) => {
                    encoded += usize::from(!coding.is_empty());
                    (decoded, String::new())
                }
                Err(Undecodable::Unknown(coding)) => (body, coding),
                Err(error) => panic!("{line}: {error}"),
            };
            let version: HashVersion = version.parse().unwrap();
            let parts = RequestParts {
                method: method.into(),
                path: path.into(),
                query: query.into(),
                media_type: media_type_of(content_type),
                boundary: boundary_of(content_type),
                coding,
                body,
            };
            let hash = Fingerprint::new(parts, version.recipe().clone()).hash().to_string();
            assert_eq!(hash, expected, "{line}");
            rows += 1;
        }
        assert!(rows >= 40 && encoded >= 3, "{rows} {encoded}");
    }
}
