//! Bodies: read whole within a bound, given back whole or as they come.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use hyper::body::Incoming;
use onced::http::request;
use onced::http::respond::Problem;

/// Whatever may go wrong in a body.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// A body of whatever kind.
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BodyError>;

/// A body that is all there.
pub(crate) fn whole(bytes: Bytes) -> AnyBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// A body that is all there, and trailers behind it.
pub(super) fn whole_with(bytes: Bytes, trailers: HeaderMap) -> AnyBody {
    let data = (!bytes.is_empty()).then(|| Frame::data(bytes));
    let frames = data.into_iter().chain([Frame::trailers(trailers)]);
    any(StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, BodyError>))))
}

/// Any body as one.
pub(crate) fn any<B>(body: B) -> AnyBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// A body that holds something until it is gone, whether it was taken or not.
pub(super) fn holding<T: Send + Unpin + 'static>(body: AnyBody, held: T) -> AnyBody {
    Holding { body, _held: held }.boxed_unsync()
}

struct Holding<T> {
    body: AnyBody,
    _held: T,
}

impl<T: Unpin> Body for Holding<T> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What has been read of a body.
#[derive(Default)]
pub(super) struct Read {
    pub(super) bytes: Bytes,
    /// Its client has broken off: there is no rest.
    pub(super) is_broken: bool,
}

/// Reads a request's body whole, up to `limit` bytes and within `timeout`: of what says that it is larger, nothing is
/// read.
pub(super) async fn read(body: &mut Incoming, read: &mut Read, limit: u64, timeout: Duration) -> Result<(), Problem> {
    let mut buffer = BytesMut::new();
    let end = request::read(body, &mut buffer, limit, timeout).await;
    *read = Read { bytes: buffer.freeze(), is_broken: end == Err(Problem::BodyUnreadable) };
    end
}

/// A body of which a part has been read.
pub(super) fn resumed(read: Bytes, rest: Incoming) -> AnyBody {
    let read = futures_util::stream::iter((!read.is_empty()).then(|| Ok(Frame::data(read))));
    any(StreamBody::new(read.chain(BodyStream::new(rest))))
}
