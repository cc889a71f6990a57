//! How an attempt ends its record, and what its client is told instead of the upstream's answer where that proves
//! nothing or could not be stored. What an answer proves is decided in `onced_core::failure`; this carries it out.

use bytes::Bytes;
use http::response::Parts;
use http::{Response, StatusCode};
use onced::guard::{EndError, Standing};
use onced::http::outcome;
use onced::http::respond::{self, Problem, Subject};
use onced_core::failure::{EarlierCall, Effect, Rules, Settlement};
use onced_core::record::{Status, StoredResponse};
use onced_core::time::Timestamp;

use super::execute::{Attempt, Right};

impl Attempt {
    /// Ends the record by what the answer proves. `Err` is what the client gets instead of that answer.
    pub(super) async fn settle(
        &self,
        permit: Right,
        head: &Parts,
        stored: StoredResponse,
    ) -> Result<Option<Timestamp>, Response<Bytes>> {
        let mut status = Status::PendingExternal;
        if self.delivery.route.effect == Effect::SameDatabase {
            let standing = self.own_record.standing().await.map_err(|error| self.withheld(&error))?;
            match standing.status {
                Some(Status::InProgress | Status::PendingExternal) if standing.is_mine => {
                    status = standing.status.unwrap_or(status);
                }
                // The app ended the record itself, in its own transaction.
                Some(Status::Completed) if standing.is_mine => return Ok(standing.expires_at),
                // It says that nothing happened: then its answer may not say otherwise.
                Some(Status::Failed) if standing.is_mine && head.status.as_u16() >= 400 => {
                    return Ok(standing.expires_at);
                }
                // The app took the record away itself; there is nothing left to end.
                None => return Ok(None),
                Some(_) => return Err(self.claim_lost(&standing)),
            }
        }
        let (rules, answer) = (self.rules(), outcome::answer(head, &stored));
        let earlier = if permit.earlier_call_is_unknown() { EarlierCall::Unknown } else { EarlierCall::None };
        let settlement = rules.settle(&answer, status, earlier);
        if rules.effect == Effect::SameDatabase && settlement == Settlement::Complete && answer.status < 400 {
            self.warn("the app answered but did not complete the record in its transaction; the gateway does");
        }
        self.phase("completing");
        let permit = permit.only_from(status);
        let ended = match settlement {
            Settlement::Complete => permit.complete(stored).await.map(|completed| completed.expires_at),
            Settlement::Fail => {
                let words = format!("the upstream answered {}", answer.status);
                permit.fail(&words, Some(stored)).await.map(|()| self.expires_at)
            }
            Settlement::LeavePending => {
                self.warn("the upstream's answer does not say whether it took effect: the outcome is held");
                Ok(self.expires_at)
            }
        };
        match ended {
            Ok(expires_at) => Ok(expires_at),
            Err(error) => self.not_ended(error).await,
        }
    }

    /// The upstream's answer goes out only where the record turns out to hold this attempt's outcome, or where the app
    /// has announced an outside call meanwhile, of which that answer is all that is known.
    async fn not_ended(&self, error: EndError) -> Result<Option<Timestamp>, Response<Bytes>> {
        let EndError::ClaimLost { .. } = error else { return Err(self.withheld(&error)) };
        let standing = self.own_record.standing().await.map_err(|error| self.withheld(&error))?;
        match standing.status {
            Some(Status::Completed | Status::PendingExternal) if standing.is_mine => Ok(standing.expires_at),
            Some(_) | None => Err(self.claim_lost(&standing)),
        }
    }

    /// Somebody else has taken the record over, or ended it: its truth is told, not this attempt's.
    fn claim_lost(&self, standing: &Standing) -> Response<Bytes> {
        self.warn("lost ownership: another attempt has taken over, and nothing of this one was written");
        respond::standing(standing, &self.subject(standing.expires_at), &self.delivery.route.lease)
    }

    /// Nothing was sent.
    pub(super) async fn not_reached(&self, permit: Right, why: &str) -> Response<Bytes> {
        self.warn_why("the upstream was not reached", why);
        // That this attempt was not sent says nothing about an earlier one.
        if !permit.earlier_call_is_unknown()
            && let Err(error) = permit.fail(&format!("the upstream was not reached: {why}"), None).await
        {
            return match self.not_ended(error).await {
                Ok(expires_at) => {
                    self.problem(&Problem::OutcomeUnknown { retry_after: self.delivery.route.lease.tick }, expires_at)
                }
                Err(instead) => instead,
            };
        }
        let retry_after = self.delivery.route.lease.tick;
        self.problem(&Problem::UpstreamUnreachable { retry_after }, self.expires_at)
    }

    /// It was sent, and no whole answer came: it may have taken effect. The heartbeat ends here, so that the lease
    /// runs out; the record says what is known.
    pub(super) async fn lost(&self, permit: Right, why: &str) -> Response<Bytes> {
        drop(permit);
        self.warn_why("the upstream was lost after the request had been sent", why);
        let standing = match self.own_record.standing().await {
            Ok(standing) => standing,
            Err(error) => return self.withheld(&error),
        };
        if standing.status == Some(Status::Completed) {
            return match standing.is_mine {
                true => respond::from_record(&standing.outcome(), standing.expires_at),
                false => respond::replayed(&standing.outcome(), standing.expires_at),
            };
        }
        self.problem(&Problem::OutcomeLost { retry_after: standing.retry_after }, standing.expires_at)
    }

    /// The call's answer was recorded by an earlier attempt or a reconciler: nothing is sent.
    pub(super) async fn complete_known(&self, permit: Right, known: StoredResponse) -> Response<Bytes> {
        self.phase("completing");
        match permit.complete(known.clone()).await {
            Ok(completed) => respond::replayed(&known, completed.expires_at),
            Err(error) => match self.not_ended(error).await {
                Ok(expires_at) => respond::replayed(&known, expires_at),
                Err(instead) => instead,
            },
        }
    }

    /// The store was so slow that the lease is nearly over: nothing is sent, and the record is left as it is.
    pub(super) fn too_late(&self) -> Response<Bytes> {
        self.warn("too little of the lease was left to send anything");
        self.problem(&Problem::StoreUnavailable, self.expires_at)
    }

    fn withheld(&self, error: &EndError) -> Response<Bytes> {
        tracing::error!(target: "onced::deliver", %error, "the outcome could not be stored or read: the answer is withheld");
        self.problem(&Problem::StoreUnavailable, self.expires_at)
    }

    fn problem(&self, problem: &Problem, expires_at: Option<Timestamp>) -> Response<Bytes> {
        respond::problem(problem, Some(&self.subject(expires_at)), &self.delivery.route.lease)
    }

    fn subject(&self, expires_at: Option<Timestamp>) -> Subject {
        Subject { scope: self.scope().clone(), key: Some(self.delivery.key.clone()), expires_at }
    }

    /// What of an answer goes into the record.
    pub(super) fn to_store(&self, head: &Parts, body: Option<Bytes>) -> StoredResponse {
        outcome::to_store(head, body, &self.delivery.route.store_headers)
    }

    fn rules(&self) -> Rules {
        let route = &self.delivery.route;
        Rules {
            effect: route.effect,
            final_policy: route.final_policy,
            on_5xx: route.on_5xx,
            no_effect: route.no_effect.iter().map(StatusCode::as_u16).collect(),
        }
    }

    fn warn(&self, words: &'static str) {
        self.warn_why(words, "");
    }

    fn warn_why(&self, words: &'static str, why: &str) {
        let (key, attempt) = (self.delivery.key.shortened(), self.number);
        tracing::warn!(target: "onced::deliver", scope = %self.scope(), key, attempt, why, "{words}");
    }
}
