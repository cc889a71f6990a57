//! What a route is, once its configuration has been read and found sound.

use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use onced_core::decision::{MismatchPolicy, OnUnknown, Policy};
use onced_core::failure::{Effect, FinalPolicy, On5xx};
use onced_core::fingerprint::BodyRecipe;
use onced_core::key::Scope;
use onced_core::lease::Lease;
use onced_core::retention::Retention;

use super::caller::{LONGEST_NAME, RateLimit, Tenant};
use super::cors::Cors;
use super::key_rule::{KeyRule, KeySource};
use super::path::PathPattern;
use super::trust::Certificates;
use super::upstream::{Upstream, UpstreamHttp};
use super::values::Words;

/// One route: which requests, where to, and what is done with their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The scope of its keys, unique among the routes.
    pub(crate) name: Scope,
    /// Which paths.
    pub(crate) path: PathPattern,
    /// Which methods; `None` for all.
    pub(crate) methods: Option<Vec<Method>>,
    /// Where its requests go.
    pub(crate) upstream: Upstream,
    /// Which HTTP is spoken to it.
    pub(crate) upstream_http: UpstreamHttp,
    /// Whose certificates it may show, instead of those that the machine trusts.
    pub(crate) upstream_ca: Option<Certificates>,
    /// How long a connection to it is kept for the next request; zero for not at all.
    pub(crate) upstream_keep_alive: Duration,
    /// Whether everything is decided and recorded, and nothing withheld.
    pub(crate) observe: bool,
    /// What the upstream does with a request.
    pub(crate) effect: Effect,
    /// Whose keys these are.
    pub(crate) tenant: Tenant,
    /// Which pages of other origins may call it.
    pub(crate) cors: Option<Cors>,
    /// How often one caller may send.
    pub(crate) rate_limit: Option<RateLimit>,
    /// What every body must be.
    pub(crate) body_syntax: BodySyntax,
    /// Where the key comes from.
    pub(crate) key: KeyRule,
    /// What of the body tells two requests apart.
    pub(crate) fingerprint: BodyRecipe,
    /// What a known key with another request means.
    pub(crate) mismatch: MismatchPolicy,
    /// How long a duplicate of a running request waits for its outcome.
    pub(crate) wait: Duration,
    /// Which answers are the outcome.
    pub(crate) final_policy: FinalPolicy,
    /// What a 5xx of an `external` upstream proves.
    pub(crate) on_5xx: On5xx,
    /// The statuses by which an `external` upstream says that it did nothing.
    pub(crate) no_effect: Vec<StatusCode>,
    /// What happens to an unknown outcome; always `Retry` where the effect is `idempotent`, never elsewhere.
    pub(crate) on_unknown: OnUnknown,
    /// How often execution may begin.
    pub(crate) max_attempts: u32,
    /// The lease of each attempt.
    pub(crate) lease: Lease,
    /// How often it is renewed; at most a third of it.
    pub(crate) heartbeat: Duration,
    /// How long the upstream may take to answer.
    pub(crate) upstream_timeout: Duration,
    /// How long connecting to it may take.
    pub(crate) connect_timeout: Duration,
    /// How long an upgraded connection may be silent.
    pub(crate) upgraded_timeout: Duration,
    /// How long an attempt's lease is renewed at most.
    pub(crate) max_execution: Duration,
    /// How long after an unclear call "it did not happen" is first believed.
    pub(crate) settle: Duration,
    /// How long keys and outcomes are kept, from the claim and from an ending.
    pub(crate) retention: Retention,
    /// How long an `idempotent` upstream remembers a key.
    pub(crate) downstream_window: Duration,
    /// The largest request body.
    pub(crate) max_request_bytes: u64,
    /// The largest answer body that is stored.
    pub(crate) max_response_bytes: u64,
    /// Headers of the answer that are stored beside the usual ones.
    pub(crate) store_headers: Vec<HeaderName>,
}

impl Route {
    /// What the core decides by.
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            lease: self.lease,
            retention: self.retention,
            max_attempts: Some(self.max_attempts),
            mismatch: self.mismatch,
            on_unknown: self.on_unknown,
            downstream_window: self.downstream_window,
            enter: self.effect.enter(),
        }
    }

    /// Whether keys of that scope, of whichever tenant, are this route's.
    pub(crate) fn is_of(&self, scope: &Scope) -> bool {
        let name = scope.as_str().split_once(':').map_or(scope.as_str(), |(_, name)| name);
        name == self.name.as_str()
    }

    /// Whether the name is too long to stand behind a tenant.
    pub(super) fn lacks_room_for_a_tenant(&self) -> bool {
        self.tenant != Tenant::None && self.name.as_str().len() > LONGEST_NAME
    }

    /// Whether the route is for that method.
    pub(crate) fn takes(&self, method: &Method) -> bool {
        self.methods.as_ref().is_none_or(|methods| methods.contains(method))
    }

    /// Whether anything is ever executed under a key here.
    pub(crate) fn is_keyed(&self) -> bool {
        self.key.source != KeySource::Off
    }
}

/// What every body of a route must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodySyntax {
    /// Anything.
    Any,
    /// JSON.
    Json,
}

impl Words for BodySyntax {
    const WORDS: &'static [(&'static str, Self)] = &[("any", Self::Any), ("json", Self::Json)];
}

impl Words for Effect {
    const WORDS: &'static [(&'static str, Self)] =
        &[("same-database", Self::SameDatabase), ("idempotent", Self::Idempotent), ("external", Self::External)];
}

impl Words for FinalPolicy {
    const WORDS: &'static [(&'static str, Self)] =
        &[("default", Self::Default), ("everything", Self::Everything), ("success", Self::Success)];
}

impl Words for On5xx {
    const WORDS: &'static [(&'static str, Self)] = &[("unknown", Self::Unknown), ("failed", Self::Failed)];
}

impl Words for MismatchPolicy {
    const WORDS: &'static [(&'static str, Self)] = &[("reject", Self::Reject), ("note", Self::Note)];
}

impl Words for OnUnknown {
    const WORDS: &'static [(&'static str, Self)] =
        &[("reconcile", Self::Reconcile), ("hold", Self::Hold), ("retry", Self::Retry)];
}
