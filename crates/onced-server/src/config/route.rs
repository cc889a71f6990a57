//! What a route is, once its configuration has been read and found sound.

use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use onced_core::decision::{Enter, MismatchPolicy, OnUnknown, Policy};
use onced_core::fingerprint::BodyRecipe;
use onced_core::key::Scope;
use onced_core::lease::Lease;
use onced_core::retention::Retention;

use super::key_rule::{KeyRule, KeySource};
use super::path::PathPattern;
use super::upstream::Upstream;
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
    /// What the upstream does with a request.
    pub(crate) effect: Effect,
    /// Where the key comes from.
    pub(crate) key: KeyRule,
    /// What of the body tells two requests apart.
    pub(crate) fingerprint: BodyRecipe,
    /// What a known key with another request means.
    pub(crate) mismatch: MismatchPolicy,
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
            enter: match self.effect {
                Effect::SameDatabase => Enter::InProgress,
                Effect::Idempotent | Effect::External => Enter::PendingExternal,
            },
        }
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

/// What an upstream does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It writes only into the ledger's own database and completes the record in the same transaction.
    SameDatabase,
    /// It deduplicates by the forwarded key.
    Idempotent,
    /// Anything else, or not known.
    External,
}

impl Words for Effect {
    const WORDS: &'static [(&'static str, Self)] =
        &[("same-database", Self::SameDatabase), ("idempotent", Self::Idempotent), ("external", Self::External)];
}

/// So that a flag is read with the words of the file.
impl std::str::FromStr for Effect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::from_word(text).ok_or_else(|| Self::advice(text))
    }
}

impl std::fmt::Display for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// Which answers are the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinalPolicy {
    /// 2xx, 3xx and 4xx, but for those that ask to come again.
    Default,
    /// Whatever was answered.
    Everything,
    /// Only 2xx.
    Success,
}

impl Words for FinalPolicy {
    const WORDS: &'static [(&'static str, Self)] =
        &[("default", Self::Default), ("everything", Self::Everything), ("success", Self::Success)];
}

/// What a 5xx of an `external` upstream proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On5xx {
    /// Nothing.
    Unknown,
    /// That everything was rolled back: the route's own statement.
    Failed,
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
