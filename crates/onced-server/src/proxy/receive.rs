//! Reads the answer of an attempt and has it settled. An answer is kept back until its outcome is stored; one that is
//! too large for that, or that comes little by little, is passed on while it is read, and only its end is kept back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap};
use http::response::Parts;
use http::{Response, StatusCode, Version};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use onced::core::fingerprint::media_type_of;
use onced::http::{headers, respond};
use onced_core::record::StoredResponse;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Outgoing;
use super::body::{BodyError, any, whole, whole_with};
use super::execute::{Attempt, Right};
use super::transport::Answer;

/// So long an answer without a length is waited for before what is there of it goes out.
const PATIENCE: Duration = Duration::from_millis(100);
/// So many pieces wait for a client that reads slowly.
const WAITING: usize = 4;

impl Attempt {
    /// Reads the answer and tells the client, if that still listens.
    pub(super) async fn receive(
        self,
        permit: Right,
        got: Response<Answer>,
        deadline: Instant,
        answer: oneshot::Sender<Outgoing>,
    ) {
        let (mut head, mut body) = got.into_parts();
        headers::strip_hop_by_hop(&mut head.headers);
        let patience = if self.ends_within(&head) {
            None
        } else if is_event_stream(&head) {
            Some(Instant::now())
        } else {
            Some(Instant::now() + PATIENCE)
        };
        let patience = patience.filter(|at| *at < deadline);
        let mut record = Record::new(self.delivery.route.max_response_bytes);
        if self.delivery.route.observe {
            return self.stream(permit, head, Vec::new(), record, body, answer).await;
        }
        let mut first = Vec::new();
        let broken = loop {
            match tokio::time::timeout_at(patience.unwrap_or(deadline), body.frame()).await {
                Ok(None) => break record.falls_short_of(&head),
                Ok(Some(Ok(frame))) => {
                    record.take(&frame);
                    first.push(frame);
                    if record.is_over() && !is_head_alone(&head) {
                        return self.stream(permit, head, first, record, body, answer).await;
                    }
                }
                Ok(Some(Err(error))) => break Some(broke_off(error)),
                Err(_) if patience.is_some() => {
                    return self.stream(permit, head, first, record, body, answer).await;
                }
                Err(_) => break Some("the answer was not complete within the upstream's timeout".to_owned()),
            }
        };
        self.phase("answered");
        let response = match broken {
            Some(why) => self.lost(permit, &why).await.map(whole),
            None => self.settled(permit, head, record.bytes(), self.trailers(first)).await,
        };
        self.finish_with(answer, response).await;
    }

    /// The trailers, for a client that they can be told to.
    fn trailers(&self, frames: Vec<Frame<Bytes>>) -> Option<HeaderMap> {
        let trailers = frames.into_iter().find_map(|frame| frame.into_trailers().ok())?;
        (self.delivery.version == Version::HTTP_2).then_some(trailers)
    }

    async fn settled(&self, permit: Right, mut head: Parts, body: Bytes, trailers: Option<HeaderMap>) -> Outgoing {
        let stored = self.to_store(&head, Some(body.clone()));
        match self.settle(permit, &head, stored).await {
            Err(instead) => instead.map(whole),
            Ok(expires_at) => {
                head.headers.remove(header::CONTENT_LENGTH);
                respond::expires(&mut head.headers, expires_at);
                let body = match trailers {
                    Some(trailers) => whole_with(body, trailers),
                    None => whole(body),
                };
                Response::from_parts(head, body)
            }
        }
    }

    /// Whether the client sees by itself where the answer ends, so that it would take a part of it for the whole unless
    /// something is missing. Elsewhere the end is said, and can be kept back.
    fn ends_within(&self, head: &Parts) -> bool {
        let is_old = self.delivery.version <= Version::HTTP_10;
        head.headers.contains_key(header::CONTENT_LENGTH) || is_head_alone(head) || is_old
    }

    /// Passes an answer on while it is read. Its end, or its last piece, is kept back until the outcome is stored;
    /// where that fails, the connection is broken off. A client that stops reading is given up, the answer is not. What is
    /// only watched is not kept back, and has all the time that its client takes for it.
    async fn stream(
        self,
        permit: Right,
        mut head: Parts,
        first: Vec<Frame<Bytes>>,
        mut record: Record,
        mut body: Answer,
        answer: oneshot::Sender<Outgoing>,
    ) {
        let idle = self.delivery.route.upstream_timeout;
        let (began, most) = (Instant::now(), self.delivery.route.max_execution);
        let last_moment = began + most;
        let (sender, receiver) = mpsc::channel(WAITING);
        let is_watched = self.delivery.route.observe;
        let held = if self.ends_within(&head) && !is_watched { Held::Piece(None) } else { Held::End(None) };
        let is_whole = Arc::new(AtomicBool::new(false));
        let until = began + most.saturating_sub(idle).max(most / 2);
        let bounds = (!is_watched).then_some(Bounds { patience: idle, until });
        let mut client = Client { sender: Some(sender), bounds, held, is_whole: is_whole.clone() };
        let status = head.status;
        respond::expires(&mut head.headers, self.expires_at);
        let outgoing = Response::from_parts(head.clone(), any(StreamBody::new(pieces(receiver, is_whole))));
        // The client may have hung up; the answer is read all the same, for its outcome.
        let _ = answer.send(outgoing);
        for frame in first {
            client.pass(frame).await;
        }
        let broken = loop {
            let next = if is_watched && client.is_there() {
                tokio::select! {
                    next = body.frame() => next.transpose().map_err(broke_off),
                    () = client.leaves() => continue,
                }
            } else {
                next_within(&mut body, idle, last_moment).await
            };
            match next {
                Ok(Some(frame)) => {
                    record.take(&frame);
                    client.pass(frame).await;
                }
                Ok(None) => break record.falls_short_of(&head),
                Err(why) => break Some(why),
            }
        };
        self.phase("answered");
        if is_watched {
            client.end(broken.is_none()).await;
            self.is_stored(permit, &head, record, broken).await;
        } else {
            let is_known = self.is_stored(permit, &head, record, broken).await;
            client.end(is_known).await;
        }
        self.phase("ended");
        self.note(status).await;
    }

    /// Whether the outcome of an answer that has been passed on is stored now.
    async fn is_stored(&self, permit: Right, head: &Parts, record: Record, broken: Option<String>) -> bool {
        if let Some(why) = broken {
            self.lost(permit, &why).await;
            return false;
        }
        let stored = match record.is_over() {
            true => StoredResponse { body_omitted: true, ..self.to_store(head, None) },
            false => self.to_store(head, Some(record.bytes())),
        };
        self.settle(permit, head, stored).await.is_ok()
    }
}

/// The next frame of an answer, or why none comes.
async fn next_within(body: &mut Answer, idle: Duration, last_moment: Instant) -> Result<Option<Frame<Bytes>>, String> {
    let until = last_moment.min(Instant::now() + idle);
    match tokio::time::timeout_at(until, body.frame()).await {
        Ok(Some(Ok(_))) if Instant::now() >= last_moment => Err("the answer took longer than max_execution".to_owned()),
        Ok(next) => next.transpose().map_err(broke_off),
        Err(_) if until == last_moment => Err("the answer took longer than max_execution".to_owned()),
        Err(_) => Err("nothing more of the answer came within the upstream's timeout".to_owned()),
    }
}

fn broke_off(error: BodyError) -> String {
    format!("the answer broke off: {error}")
}

/// Whether the head is all there is: a client has the whole answer as soon as it has that.
fn is_head_alone(head: &Parts) -> bool {
    matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

fn is_event_stream(head: &Parts) -> bool {
    let media_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(media_type_of);
    media_type.as_deref() == Some("text/event-stream")
}

/// What of an answer is to be stored, up to the limit; beyond it nothing is kept.
struct Record {
    read: BytesMut,
    limit: usize,
    is_over: bool,
    /// All of it, also what is not kept.
    length: u64,
}

impl Record {
    fn new(limit: u64) -> Self {
        Self { read: BytesMut::new(), limit: usize::try_from(limit).unwrap_or(usize::MAX), is_over: false, length: 0 }
    }

    fn take(&mut self, frame: &Frame<Bytes>) {
        let Some(data) = frame.data_ref() else { return };
        self.length += data.len() as u64;
        if self.is_over {
            return;
        }
        if data.len() > self.limit - self.read.len() {
            self.is_over = true;
            self.read = BytesMut::new();
        } else {
            self.read.extend_from_slice(data);
        }
    }

    /// Whether less has come than was said: over HTTP/2 an answer can break off as if it had ended.
    fn falls_short_of(&self, head: &Parts) -> Option<String> {
        let said = head.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse::<u64>().ok()?;
        (!is_head_alone(head) && self.length != said)
            .then(|| format!("the answer ended after {} of {said} bytes", self.length))
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn bytes(self) -> Bytes {
        self.read.freeze()
    }
}

/// What is kept back of a streamed answer until its outcome is stored.
enum Held {
    /// The latest piece: the client sees by itself where the answer ends.
    Piece(Option<Frame<Bytes>>),
    /// The end alone, which is said, by trailers where there are any.
    End(Option<Frame<Bytes>>),
}

/// The client of a streamed answer, until it hangs up or stops reading.
struct Client {
    sender: Option<mpsc::Sender<Frame<Bytes>>>,
    /// None where it may take what time it likes.
    bounds: Option<Bounds>,
    held: Held,
    /// Said last: without it what the client has got is not the whole.
    is_whole: Arc<AtomicBool>,
}

/// What time a client has.
struct Bounds {
    /// For each piece.
    patience: Duration,
    /// From then on it has no more: what is left is the upstream's.
    until: Instant,
}

impl Client {
    fn is_there(&self) -> bool {
        self.sender.is_some()
    }

    /// Returns once it has hung up.
    async fn leaves(&mut self) {
        if let Some(sender) = &self.sender {
            sender.closed().await;
        }
        self.sender = None;
    }

    async fn pass(&mut self, frame: Frame<Bytes>) {
        let next = match &mut self.held {
            // Whoever counts bytes is done with the last of them, whatever comes behind.
            Held::Piece(_) if frame.data_ref().is_none_or(Bytes::is_empty) => None,
            Held::Piece(held) => held.replace(frame),
            Held::End(held) if frame.is_trailers() => {
                *held = Some(frame);
                None
            }
            Held::End(_) => Some(frame),
        };
        if let Some(frame) = next {
            self.send(frame).await;
        }
    }

    /// Where the outcome is not known, hanging up without a word is what breaks the answer off.
    async fn end(mut self, is_known: bool) {
        if !is_known {
            return;
        }
        let (Held::Piece(held) | Held::End(held)) = &mut self.held;
        if let Some(frame) = held.take() {
            self.send(frame).await;
        }
        if self.sender.is_some() {
            self.is_whole.store(true, Ordering::Release);
        }
    }

    async fn send(&mut self, piece: Frame<Bytes>) {
        let Some(sender) = &self.sender else { return };
        let is_sent = match &self.bounds {
            Some(Bounds { patience, until }) => {
                let patience = until.saturating_duration_since(Instant::now()).min(*patience);
                sender.send_timeout(piece, patience).await.is_ok()
            }
            None => sender.send(piece).await.is_ok(),
        };
        if !is_sent {
            self.sender = None;
        }
    }
}

/// What has been sent, in order. Where it ends without being said to be whole, it breaks off.
fn pieces(
    receiver: mpsc::Receiver<Frame<Bytes>>,
    is_whole: Arc<AtomicBool>,
) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, std::io::Error>> {
    futures_util::stream::unfold(Some((receiver, is_whole)), async |state| {
        let (mut receiver, is_whole) = state?;
        match receiver.recv().await {
            Some(piece) => Some((Ok(piece), Some((receiver, is_whole)))),
            None if is_whole.load(Ordering::Acquire) => None,
            None => Some((Err(std::io::Error::other("the outcome of this answer is not known")), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &'static str) -> Frame<Bytes> {
        Frame::data(Bytes::from_static(text.as_bytes()))
    }

    fn head(status: u16, length: &'static str) -> Parts {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response.headers_mut().insert(header::CONTENT_LENGTH, header::HeaderValue::from_static(length));
        response.into_parts().0
    }

    #[tokio::test]
    async fn what_comes_behind_the_last_bytes_does_not_set_them_free() {
        let (sender, mut receiver) = mpsc::channel(WAITING);
        let mut client =
            Client { sender: Some(sender), bounds: None, held: Held::Piece(None), is_whole: Arc::default() };
        for piece in [frame("first"), frame("last"), frame(""), Frame::trailers(http::HeaderMap::new())] {
            client.pass(piece).await;
        }
        assert_eq!(receiver.recv().await.unwrap().into_data().unwrap(), "first");
        assert!(receiver.try_recv().is_err(), "the outcome is not stored yet");
        client.end(true).await;
        assert_eq!(receiver.recv().await.unwrap().into_data().unwrap(), "last");
        assert!(receiver.recv().await.is_none());
    }

    #[tokio::test]
    async fn trailers_say_the_end_and_are_kept_back_with_it() {
        for is_known in [true, false] {
            let (sender, mut receiver) = mpsc::channel(WAITING);
            let (held, is_whole) = (Held::End(None), Arc::default());
            let mut client = Client { sender: Some(sender), bounds: None, held, is_whole };
            client.pass(frame("piece")).await;
            client.pass(Frame::trailers(http::HeaderMap::new())).await;
            assert_eq!(receiver.recv().await.unwrap().into_data().unwrap(), "piece");
            assert!(receiver.try_recv().is_err(), "the outcome is not stored yet");
            client.end(is_known).await;
            assert_eq!(receiver.recv().await.is_some_and(|frame| frame.is_trailers()), is_known);
        }
    }

    #[test]
    fn an_answer_that_ends_too_early_is_not_whole() {
        let mut record = Record::new(3);
        record.take(&frame("four"));
        record.take(&frame("five"));
        assert!(record.is_over());
        assert_eq!(record.falls_short_of(&head(200, "8")), None);
        assert_eq!(record.falls_short_of(&head(200, "9")).as_deref(), Some("the answer ended after 8 of 9 bytes"));
        assert_eq!(Record::new(3).falls_short_of(&head(304, "9")), None);
    }
}
