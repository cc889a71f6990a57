//! One attempt under a permit: send, read the answer, have it settled, tell the client if that still listens.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderName, HeaderValue};
use http::response::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use onced::guard::{OwnRecord, Permit};
use onced::http::{headers, respond};
use onced::store::AnyStore;
use onced_core::failure::Effect;
use onced_core::key::Scope;
use onced_core::record::StoredResponse;
use onced_core::time::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::body::{any, whole};
use super::upstream::{Connection, head};
use super::{Delivery, Outgoing, note};

const SCOPE: HeaderName = HeaderName::from_static("onced-scope");
const KEY: HeaderName = HeaderName::from_static("onced-key");
const ATTEMPT: HeaderName = HeaderName::from_static("onced-attempt");
const LEASE_TOKEN: HeaderName = HeaderName::from_static("onced-lease-token");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The permit of an attempt, until it is spent.
pub(super) type Right = Permit<AnyStore>;

/// An attempt: what is known of it beyond its permit.
pub(super) struct Attempt {
    pub(super) delivery: Delivery,
    pub(super) own_record: OwnRecord<AnyStore>,
    pub(super) number: u32,
    pub(super) expires_at: Option<Timestamp>,
}

/// Executes one attempt and answers its client, if that still listens.
pub(super) async fn execute(delivery: Delivery, permit: Right, answer: oneshot::Sender<Outgoing>) {
    let attempt = Attempt {
        delivery,
        own_record: permit.own_record(),
        number: permit.attempt(),
        expires_at: permit.expires_at(),
    };
    attempt.phase("claimed");
    attempt.run(permit, answer).await;
}

impl Attempt {
    async fn run(self, permit: Right, answer: oneshot::Sender<Outgoing>) {
        // Only an app in the same database has work of its own left to do after the call.
        let known = permit.call_answer().cloned().filter(|_| self.delivery.route.effect != Effect::SameDatabase);
        if let Some(known) = known {
            let response = self.complete_known(permit, known).await;
            return self.finish(answer, response).await;
        }
        let Some(request) = self.request(&permit) else {
            let response = self.not_reached(permit, "its head cannot be forwarded").await;
            return self.finish(answer, response).await;
        };
        let connection = match Connection::open(&self.delivery.route).await {
            Ok(connection) => connection,
            Err(why) => {
                let response = self.not_reached(permit, &why).await;
                return self.finish(answer, response).await;
            }
        };
        // Asked right before the first byte: afterwards nothing can be taken back.
        if !permit.may_start_call() {
            let response = self.too_late();
            return self.finish(answer, response).await;
        }
        self.phase("sent");
        let deadline = Instant::now() + self.delivery.route.upstream_timeout;
        let response = match tokio::time::timeout_at(deadline, connection.send(request)).await {
            Ok(Ok(got)) => return self.receive(permit, got, deadline, answer).await,
            Ok(Err(why)) => self.lost(permit, &why).await,
            Err(_) => self.lost(permit, "no answer within the upstream's timeout").await,
        };
        self.finish(answer, response).await;
    }

    /// The request as the upstream gets it.
    fn request(&self, permit: &Right) -> Option<Request<Full<Bytes>>> {
        let delivery = &self.delivery;
        let mut request = head(&delivery.route.upstream, &delivery.method, &delivery.uri, &delivery.headers)?;
        let headers = request.headers_mut();
        headers.remove(header::CONTENT_LENGTH);
        headers::strip_key(headers);
        headers.insert(SCOPE, HeaderValue::from_str(self.scope().as_str()).ok()?);
        headers.insert(KEY, HeaderValue::from_str(delivery.key.as_str()).ok()?);
        headers.insert(ATTEMPT, HeaderValue::from(self.number));
        let mut token = HeaderValue::from_str(permit.lease_token().as_str()).ok()?;
        token.set_sensitive(true);
        headers.insert(LEASE_TOKEN, token);
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_str(permit.downstream_key()).ok()?);
        if !headers.contains_key(TRACEPARENT) {
            headers.insert(TRACEPARENT, HeaderValue::from_str(&new_traceparent()).ok()?);
        }
        Some(request.map(|()| Full::new(delivery.body.clone())))
    }

    /// Reads the answer; one that is over the limit is streamed on while it is read.
    async fn receive(
        self,
        permit: Right,
        got: Response<Incoming>,
        deadline: Instant,
        answer: oneshot::Sender<Outgoing>,
    ) {
        let (mut head, mut body) = got.into_parts();
        headers::strip_hop_by_hop(&mut head.headers);
        let limit = usize::try_from(self.delivery.route.max_response_bytes).unwrap_or(usize::MAX);
        let mut read = BytesMut::new();
        let broken = loop {
            match tokio::time::timeout_at(deadline, body.frame()).await {
                Ok(None) => break None,
                Ok(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    read.extend_from_slice(&data);
                    if read.len() > limit {
                        return self.stream(permit, head, read.freeze(), body, answer).await;
                    }
                }
                Ok(Some(Err(error))) => break Some(format!("the answer broke off: {error}")),
                Err(_) => break Some("the answer was not complete within the upstream's timeout".to_owned()),
            }
        };
        self.phase("answered");
        let response = match broken {
            Some(why) => self.lost(permit, &why).await,
            None => self.settled(permit, head, read.freeze()).await,
        };
        self.finish(answer, response).await;
    }

    async fn settled(&self, permit: Right, mut head: Parts, body: Bytes) -> Response<Bytes> {
        let stored = self.to_store(&head, Some(body.clone()));
        match self.settle(permit, &head, stored).await {
            Ok(expires_at) => {
                head.headers.remove(header::CONTENT_LENGTH);
                respond::expires(&mut head.headers, expires_at);
                Response::from_parts(head, body)
            }
            Err(instead) => instead,
        }
    }

    /// Streams an answer that is too large to keep. Its last piece is held back until the outcome is stored; where
    /// that fails, the connection is broken off. A client that stops reading is given up, the answer is not.
    async fn stream(
        self,
        permit: Right,
        mut head: Parts,
        read: Bytes,
        mut body: Incoming,
        answer: oneshot::Sender<Outgoing>,
    ) {
        let idle = self.delivery.route.upstream_timeout;
        let (sender, receiver) = mpsc::channel(4);
        let mut client = Client { sender: Some(sender), patience: idle };
        let stored = StoredResponse { body_omitted: true, ..self.to_store(&head, None) };
        respond::expires(&mut head.headers, self.expires_at);
        // The client may have hung up; the answer is read all the same, for its outcome.
        let _ = answer.send(Response::from_parts(head.clone(), any(StreamBody::new(receiver_stream(receiver)))));
        let mut held = Frame::data(read);
        let broken = loop {
            match tokio::time::timeout(idle, body.frame()).await {
                Ok(None) => break None,
                Ok(Some(Ok(frame))) => client.send(Ok(std::mem::replace(&mut held, frame))).await,
                Ok(Some(Err(error))) => break Some(format!("the answer broke off: {error}")),
                Err(_) => break Some("nothing more of the answer came within the upstream's timeout".to_owned()),
            }
        };
        self.phase("answered");
        let known = match broken {
            Some(why) => {
                self.lost(permit, &why).await;
                false
            }
            None => self.settle(permit, &head, stored).await.is_ok(),
        };
        let last = if known { Ok(held) } else { Err(std::io::Error::other("the outcome of this answer is not known")) };
        client.send(last).await;
        self.phase("ended");
        self.note(head.status).await;
    }

    pub(super) fn scope(&self) -> &Scope {
        &self.delivery.scope
    }

    /// Says where the attempt is. Written at once, so that after a crash the last line is true.
    pub(super) fn phase(&self, phase: &'static str) {
        tracing::debug!(target: "onced::phase", phase, scope = %self.scope(), key = self.delivery.key.shortened(), attempt = self.number);
    }

    async fn note(&self, status: StatusCode) {
        self.own_record.answered(status.as_u16()).await;
        note(&self.delivery, "execute", self.number, status.as_u16());
    }

    async fn finish(self, answer: oneshot::Sender<Outgoing>, response: Response<Bytes>) {
        self.phase("ended");
        self.note(response.status()).await;
        // The client may have hung up: the outcome is stored all the same.
        let _ = answer.send(response.map(whole));
    }
}

/// The client of a streamed answer, until it hangs up or stops reading.
struct Client {
    sender: Option<mpsc::Sender<Result<Frame<Bytes>, std::io::Error>>>,
    patience: Duration,
}

impl Client {
    async fn send(&mut self, piece: Result<Frame<Bytes>, std::io::Error>) {
        let Some(sender) = &self.sender else { return };
        if sender.send_timeout(piece, self.patience).await.is_err() {
            self.sender = None;
        }
    }
}

fn receiver_stream<T>(receiver: mpsc::Receiver<T>) -> impl futures_util::Stream<Item = T> {
    futures_util::stream::unfold(receiver, async |mut receiver| receiver.recv().await.map(|item| (item, receiver)))
}

/// A trace context for a request that came without one, so that its attempts can be found in the upstream's traces.
fn new_traceparent() -> String {
    let (trace, span) = (uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple().to_string());
    format!("00-{trace}-{}-01", &span[..16])
}
