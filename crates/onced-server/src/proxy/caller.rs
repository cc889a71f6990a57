//! Who calls, and whether it may call yet: looked at before anything else, and before the ledger is asked, so that no
//! answer tells a stranger whether a key exists.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota};
use http::header::{self, HeaderMap, HeaderName};
use onced::core::key::Scope;
use onced::http::respond::Problem;
use sha2::{Digest, Sha256};

use crate::config::{RateLimit, Route, Tenant};

/// Callers are dealt out over so many counts, by chance anew in each process: strangers can neither fill the memory nor
/// choose whose count they share.
const COUNTS: u64 = 1 << 16;

/// The scope of a request's key: the route's name, behind the tenant where the route has tenants.
pub(super) fn scope_of(route: &Route, headers: &HeaderMap) -> Result<Scope, Problem> {
    let tenant = match &route.tenant {
        Tenant::None => return Ok(route.name.clone()),
        Tenant::Header(name) => one_value(headers, name).map(str::to_owned),
        Tenant::Listed(tokens) => {
            bearer(headers).and_then(|credential| tokens.tenant_of(credential)).map(str::to_owned)
        }
        Tenant::Hashed => bearer(headers).map(hashed),
        Tenant::Claim { header, claim } => jwt(headers, header).and_then(|jwt| claim_of(jwt, claim)),
    };
    let tenant = tenant.filter(|tenant| !tenant.is_empty()).ok_or(Problem::CallerUnknown)?;
    // The configuration has seen to the length of the name.
    Scope::with_tenant(&tenant, &route.name).map_err(|_| Problem::CallerUnknown)
}

/// The value of a header that comes once, in UTF-8.
fn one_value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = std::str::from_utf8(values.next()?.as_bytes()).ok()?.trim();
    values.next().is_none().then_some(value)
}

/// The credential of `Authorization: Bearer …`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, credential) = one_value(headers, &header::AUTHORIZATION)?.split_once(' ')?;
    let credential = credential.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !credential.is_empty()).then_some(credential)
}

/// As a tenant. All tenants of a route come from one place, so that nobody can name himself so.
fn hashed(credential: &str) -> String {
    let digest = Sha256::digest(credential);
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("bearer_{hex}")
}

fn jwt<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    if *name == header::AUTHORIZATION { bearer(headers) } else { one_value(headers, name) }
}

/// A claim of a token whose signature something in front has looked at: a text, or a whole number as its digits.
fn claim_of(jwt: &str, claim: &str) -> Option<String> {
    let payload = jwt.split('.').nth(1)?;
    let payload: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    let value = payload.get(claim)?;
    let number = || value.as_i64().map(|n| n.to_string()).or_else(|| value.as_u64().map(|n| n.to_string()));
    value.as_str().map(str::to_owned).or_else(number)
}

/// Routes without tenants to which somebody has sent a credential: said once each, since only traffic shows it.
#[derive(Default)]
pub(super) struct SharedKeys(Mutex<BTreeSet<Scope>>);

impl SharedKeys {
    pub(super) fn look_at(&self, route: &Route, headers: &HeaderMap) {
        if route.tenant == Tenant::None && headers.contains_key(header::AUTHORIZATION) {
            let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if said.insert(route.name.clone()) {
                tracing::warn!(
                    target: "onced::config",
                    scope = %route.name,
                    "requests carry an Authorization header, and the route has no `tenant`: all callers share its keys, \
                     and one that knows another's key and request gets its answer; set `tenant`"
                );
            }
        }
    }
}

/// The limits of all routes that have one.
pub(super) struct Limits {
    of: HashMap<Scope, Limiter>,
    dealt: RandomState,
    clock: DefaultClock,
}

type Limiter = DefaultKeyedRateLimiter<u64>;

impl Limits {
    pub(super) fn new<'r>(routes: impl Iterator<Item = &'r Route>) -> Self {
        let limiter = |route: &Route| Some((route.name.clone(), Limiter::keyed(quota(&route.rate_limit?)?)));
        let of = routes.filter_map(limiter).collect();
        Self { of, dealt: RandomState::new(), clock: DefaultClock::default() }
    }

    /// Counts a request of that caller.
    pub(super) fn check(&self, route: &Route, caller: &Scope) -> Result<(), Problem> {
        let Some(limiter) = self.of.get(&route.name) else { return Ok(()) };
        let count = self.dealt.hash_one(caller) % COUNTS;
        limiter.check_key(&count).map_err(|until| {
            let retry_after = until.wait_time_from(self.clock.now()).max(Duration::from_millis(1));
            Problem::RateLimited { retry_after }
        })
    }
}

fn quota(limit: &RateLimit) -> Option<Quota> {
    let each = limit.per.checked_div(limit.requests)?.max(Duration::from_nanos(1));
    Some(Quota::with_period(each)?.allow_burst(NonZeroU32::new(limit.burst)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    #[test]
    fn a_credential_is_one_bearer_token() {
        assert_eq!(bearer(&headers(&[("authorization", "bearer  t ")])), Some("t"));
        for value in ["", "Bearer", "Bearer ", "Basic dDp0", "t"] {
            assert_eq!(bearer(&headers(&[("authorization", value)])), None, "{value}");
        }
        let mut twice = headers(&[("authorization", "Bearer a")]);
        twice.append("authorization", HeaderValue::from_static("Bearer b"));
        assert_eq!(bearer(&twice), None);
    }

    #[test]
    fn a_claim_is_a_text_or_a_whole_number() {
        let of = |payload: &str, claim: &str| claim_of(&format!("h.{}.s", URL_SAFE_NO_PAD.encode(payload)), claim);
        assert_eq!(of(r#"{"org":"acme"}"#, "org").as_deref(), Some("acme"));
        assert_eq!(of(r#"{"org":7}"#, "org").as_deref(), Some("7"));
        for payload in [r#"{"org":7.5}"#, r#"{"org":null}"#, r#"{"org":{}}"#, "{}", "[]", "x"] {
            assert_eq!(of(payload, "org"), None, "{payload}");
        }
        for jwt in ["", "a", "a.b.c", "a.*.c"] {
            assert_eq!(claim_of(jwt, "org"), None, "{jwt}");
        }
    }
}
