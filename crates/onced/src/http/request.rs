//! What of an HTTP request identifies it.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use http_body::Body;
use http_body_util::BodyExt as _;
use onced_core::fingerprint::{RequestParts, boundary_of, media_type_of};

use super::encoding::{self, Undecodable};
use super::respond::Problem;

const SMALL_BODY: usize = 64 * 1024;

/// Whether requests of that method have no effect, and so need no key.
pub fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method)
}

/// The parts that a fingerprint is made of: `uri` as the client sent it, and the body, decoded unless it is still under
/// `coding`.
pub fn parts(head: &Parts, uri: &Uri, body: Bytes, coding: String) -> RequestParts {
    let content_type = content_type(head);
    RequestParts {
        method: head.method.as_str().to_owned(),
        path: uri.path().to_owned(),
        query: uri.query().unwrap_or("").to_owned(),
        media_type: media_type_of(&content_type),
        boundary: boundary_of(&content_type),
        coding,
        body,
    }
}

/// Whether a body is small, and will stay so: others are read off the threads that serve.
pub fn is_read_at_once(headers: &HeaderMap, body: &Bytes) -> bool {
    body.len() <= SMALL_BODY && !encoding::is_encoded(headers)
}

/// Reads a body into `read`, up to `limit` bytes and within `timeout`. Of what says that it is larger, nothing is read;
/// what had come stands in `read` either way.
///
/// # Errors
/// Where it is larger, late, or breaks off.
///
/// # Cancel safety
/// If the future is dropped, what had come stands in `read`, and the rest of the body has not been read.
pub async fn read<B>(body: &mut B, read: &mut BytesMut, limit: u64, timeout: Duration) -> Result<(), Problem>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > limit {
        return Err(Problem::BodyTooLarge { limit });
    }
    let reading = async {
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| Problem::BodyUnreadable)?.into_data() else { continue };
            read.extend_from_slice(&data);
            if read.len() as u64 > limit {
                return Err(Problem::BodyTooLarge { limit });
            }
        }
        Ok(())
    };
    tokio::time::timeout(timeout, reading).await.unwrap_or(Err(Problem::BodyTimeout))
}

/// The body with its content codings undone, and those of them that are unknown here and stay.
///
/// # Errors
/// Where it would be larger than `limit`, or is not coded as it says.
pub fn decoded(headers: &HeaderMap, body: &Bytes, limit: u64) -> Result<(Bytes, String), Problem> {
    match encoding::decode(headers, body, limit) {
        Ok(decoded) => Ok((decoded, String::new())),
        Err(Undecodable::Unknown(coding)) => Ok((body.clone(), coding)),
        Err(Undecodable::TooLarge) => Err(Problem::BodyTooLarge { limit }),
        Err(Undecodable::Malformed) => Err(Problem::BodyUnreadable),
    }
}

/// The `Content-Type`, byte for character, so that none is taken for another; several lines are one that nothing reads.
fn content_type(head: &Parts) -> String {
    let lines = head.headers.get_all(http::header::CONTENT_TYPE).iter();
    let lines = lines.map(|line| line.as_bytes().iter().copied().map(char::from).collect::<String>());
    lines.collect::<Vec<_>>().join(", ")
}
