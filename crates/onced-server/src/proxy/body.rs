//! Bodies: read whole within a bound, given back whole or as they come.

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use onced::http::respond::Problem;

/// Whatever may go wrong in a body.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// A body of whatever kind.
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BodyError>;

/// A body that is all there.
pub(crate) fn whole(bytes: Bytes) -> AnyBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// Any body as one.
pub(crate) fn any<B>(body: B) -> AnyBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// Reads a request's body whole, up to `limit` bytes: of what says that it is larger, nothing is read.
pub(super) async fn read(mut body: axum::body::Body, limit: u64) -> Result<Bytes, Problem> {
    if body.size_hint().lower() > limit {
        return Err(Problem::BodyTooLarge { limit });
    }
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Problem::BodyUnreadable)?.into_data() else { continue };
        if read.len() as u64 + data.len() as u64 > limit {
            return Err(Problem::BodyTooLarge { limit });
        }
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}
