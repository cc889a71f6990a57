//! Bodies: a request's read whole within bounds, an answer's of known length read as far as it is stored.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use http_body::Frame;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};

use crate::http::request;
use crate::http::respond::Problem;

/// Reads a request's body whole.
pub(super) async fn whole(mut body: Body, limit: u64, timeout: Duration) -> Result<Bytes, Problem> {
    let mut read = BytesMut::new();
    request::read(&mut body, &mut read, limit, timeout).await?;
    Ok(read.freeze())
}

/// An answer's body, as far as it is kept.
pub(super) struct Kept {
    /// What goes into the record; `None` where it is too large.
    pub(super) bytes: Option<Bytes>,
    /// What the caller gets: all of it, whatever is kept.
    pub(super) body: Body,
}

/// Reads an answer's body up to `limit` bytes; what is beyond stays to be sent as it comes. `None` where it breaks off.
pub(super) async fn kept(mut body: Body, limit: usize) -> Option<Kept> {
    let (mut frames, mut read) = (Vec::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.ok()?;
        if let Some(data) = frame.data_ref() {
            read.extend_from_slice(data);
        }
        frames.push(frame);
        if read.len() > limit {
            let begun = stream::iter(frames.into_iter().map(Ok::<Frame<Bytes>, axum::Error>));
            let body = Body::new(StreamBody::new(begun.chain(BodyStream::new(body))));
            return Some(Kept { bytes: None, body });
        }
    }
    let bytes = read.freeze();
    // Where nothing but data has come its length is known, and is told.
    let body = if frames.iter().all(Frame::is_data) {
        Body::from(bytes.clone())
    } else {
        Body::new(StreamBody::new(stream::iter(frames.into_iter().map(Ok::<Frame<Bytes>, axum::Error>))))
    };
    Some(Kept { bytes: Some(bytes), body })
}
