//! One attempt under a permit: send the request, once; its answer is read in `receive`.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use onced::guard::{OwnRecord, Permit};
use onced::http::headers;
use onced::store::AnyStore;
use onced_core::failure::Effect;
use onced_core::key::Scope;
use onced_core::time::Timestamp;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::body::{AnyBody, whole};
use super::transport::{Reuse, SendError, Target};
use super::upstream::head;
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
pub(super) async fn execute(delivery: Delivery, permit: Right, target: &Target, answer: oneshot::Sender<Outgoing>) {
    let attempt = Attempt {
        delivery,
        own_record: permit.own_record(),
        number: permit.attempt(),
        expires_at: permit.expires_at(),
    };
    attempt.phase("claimed");
    attempt.run(permit, target, answer).await;
}

impl Attempt {
    async fn run(self, permit: Right, target: &Target, answer: oneshot::Sender<Outgoing>) {
        // Only an app in the same database has work of its own left to do after the call.
        let route = &self.delivery.route;
        let may_be_known = route.effect != Effect::SameDatabase && !route.observe;
        let known = permit.call_answer().cloned().filter(|_| may_be_known);
        if let Some(known) = known {
            let response = self.complete_known(permit, known).await;
            return self.finish(answer, response).await;
        }
        let Some(request) = self.request(&permit) else {
            let response = self.not_reached(permit, "its head cannot be forwarded").await;
            return self.finish(answer, response).await;
        };
        self.send(permit, request, target, answer).await;
    }

    /// Sends the request, once. Only where a kept connection turns out to have ended before a byte of it went out, it
    /// goes out on a new one.
    async fn send(
        self,
        permit: Right,
        mut request: Request<AnyBody>,
        target: &Target,
        answer: oneshot::Sender<Outgoing>,
    ) {
        let mut reuse = match self.delivery.route.effect {
            Effect::External => Reuse::No,
            Effect::Idempotent | Effect::SameDatabase => Reuse::Yes,
        };
        let mut deadline = None;
        loop {
            let connection = match target.open(reuse, self.delivery.route.connect_timeout).await {
                Ok(connection) => connection,
                Err(unsent) => {
                    let response = self.not_reached(permit, &unsent.why).await;
                    return self.finish(answer, response).await;
                }
            };
            // Asked right before the first byte: afterwards nothing can be taken back.
            if !permit.may_start_call() && !self.delivery.route.observe {
                let response = self.too_late();
                return self.finish(answer, response).await;
            }
            self.phase("sent");
            let was_kept = connection.is_kept();
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.delivery.route.upstream_timeout);
            let response = match tokio::time::timeout_at(deadline, connection.send(request)).await {
                Ok(Ok(got)) => return self.receive(permit, got, deadline, answer).await,
                Ok(Err(SendError::Unsent { request: again, .. })) if was_kept => {
                    request = *again;
                    reuse = Reuse::No;
                    continue;
                }
                Ok(Err(SendError::Unsent { why, .. })) => self.not_reached(permit, &why).await,
                Ok(Err(SendError::Lost { why })) => self.lost(permit, &why).await,
                Err(_) => self.lost(permit, "no answer within the upstream's timeout").await,
            };
            return self.finish(answer, response).await;
        }
    }

    /// The request as the upstream gets it.
    fn request(&self, permit: &Right) -> Option<Request<AnyBody>> {
        let delivery = &self.delivery;
        let mut request = head(&delivery.route.upstream, &delivery.method, &delivery.uri, &delivery.headers)?;
        let headers = request.headers_mut();
        headers.remove(header::CONTENT_LENGTH);
        if delivery.route.observe {
            return Some(request.map(|()| whole(delivery.body.clone())));
        }
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
        Some(request.map(|()| whole(delivery.body.clone())))
    }

    pub(super) fn scope(&self) -> &Scope {
        &self.delivery.scope
    }

    /// Says where the attempt is. Written at once, so that after a crash the last line is true.
    pub(super) fn phase(&self, phase: &'static str) {
        tracing::debug!(target: "onced::phase", phase, scope = %self.scope(), key = self.delivery.key.shortened(), attempt = self.number);
    }

    pub(super) async fn note(&self, status: StatusCode) {
        self.own_record.answered(status.as_u16()).await;
        note(&self.delivery, "execute", self.number, status.as_u16());
    }

    pub(super) async fn finish(self, answer: oneshot::Sender<Outgoing>, response: Response<Bytes>) {
        self.finish_with(answer, response.map(whole)).await;
    }

    pub(super) async fn finish_with(self, answer: oneshot::Sender<Outgoing>, response: Outgoing) {
        self.phase("ended");
        self.note(response.status()).await;
        // The client may have hung up: the outcome is stored all the same.
        let _ = answer.send(response);
    }
}

/// A trace context for a request that came without one, so that its attempts can be found in the upstream's traces.
fn new_traceparent() -> String {
    let (trace, span) = (uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple().to_string());
    format!("00-{trace}-{}-01", &span[..16])
}
