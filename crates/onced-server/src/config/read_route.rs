//! Reads one `[[route]]`, with the `[defaults]` behind it.

use std::time::Duration;

use onced_core::decision::{MismatchPolicy, OnUnknown};
use onced_core::fingerprint::BodyRecipe;
use onced_core::key::Scope;

use super::caller::{self, Tenant};
use super::contract::{Contract, Contracted};
use super::cors;
use super::defaults as d;
use super::document::{Entry, Section};
use super::key_rule::{KeyRule, KeySource, Missing};
use super::limits;
use super::lists;
use super::path::PathPattern;
use super::route::{BodySyntax, Route};
use super::trust;
use super::upstream::{Upstream, UpstreamHttp};
use super::values::Layers;
use onced_core::failure::{Effect, FinalPolicy, On5xx};

/// No body may be larger: each is held in memory.
const LARGEST_BODY: u64 = 256 << 20;

/// What a route cannot inherit.
pub(super) struct Identity {
    pub(super) name: Scope,
    pub(super) path: PathPattern,
    pub(super) upstream: Upstream,
    /// `None` where it is missing, which was then refused.
    pub(super) effect: Option<Effect>,
}

/// Reads a `[[route]]`. `None` where it lacks what nothing can stand in for; that was then refused.
pub(super) fn read(
    section: &Section<'_>,
    defaults: Option<&Section<'_>>,
    own_prefix: &str,
    tick: Duration,
) -> Option<Route> {
    section.refuse_unknown();
    let layers = Layers { own: Some(section), defaults };
    let name = section.required("name", "name = \"orders\"").and_then(|entry| read_name(&entry));
    let path = section.required("path", "path = \"/api/order\"").and_then(|entry| read_path(&entry, own_prefix));
    let upstream =
        section.required("upstream", "upstream = \"http://127.0.0.1:3000\"").and_then(|entry| read_upstream(&entry));
    let effect = match section.get("effect") {
        Some(entry) => entry.word(),
        None => {
            ask_for_effect(section, &layers);
            None
        }
    };
    // What is still missing gets a stand-in, so that the other settings are checked in the same run.
    let complete = name.is_some() && path.is_some() && upstream.is_some();
    let identity = stand_in(name, path, upstream, effect)?;
    refuse_without_keys(&layers);
    let route = read_settings(&layers, identity, KeyRule::standard(Missing::Refuse), tick);
    if let Some(entry) = section.get("name").filter(|_| complete && route.lacks_room_for_a_tenant()) {
        entry.refuse(format!(
            "is too long beside a tenant, which stands before it in the scope; write at most {} characters",
            caller::LONGEST_NAME
        ));
    }
    complete.then_some(route)
}

fn stand_in(
    name: Option<Scope>,
    path: Option<PathPattern>,
    upstream: Option<Upstream>,
    effect: Option<Effect>,
) -> Option<Identity> {
    Some(Identity {
        name: name.or_else(|| Scope::new(d::DEFAULT_SCOPE).ok())?,
        path: path.unwrap_or(PathPattern::Prefix("/".to_owned())),
        upstream: upstream.or_else(|| Upstream::parse("http://127.0.0.1").ok())?,
        effect,
    })
}

/// Checks `[defaults]` on its own, so that it is checked even where no route inherits it.
pub(super) fn check_defaults(defaults: &Section<'_>, tick: Duration) {
    defaults.refuse_unknown();
    if let Some(identity) = stand_in(None, None, None, None) {
        let layers = Layers { own: None, defaults: Some(defaults) };
        read_settings(&layers, identity, KeyRule::standard(Missing::Refuse), tick);
    }
}

/// The route of what matches no other.
pub(super) fn default_route(
    defaults: Option<&Section<'_>>,
    upstream: Upstream,
    effect: Effect,
    tick: Duration,
) -> Option<Route> {
    let mut identity = stand_in(None, None, Some(upstream), Some(effect))?;
    identity.name = Scope::new(d::DEFAULT_SCOPE).ok()?;
    let layers = Layers { own: None, defaults };
    let route = read_settings(&layers, identity, KeyRule::standard(Missing::Pass), tick);
    Some(Route { methods: None, ..route })
}

/// Everything that a route may inherit.
fn read_settings(layers: &Layers<'_, '_>, identity: Identity, standard_key: KeyRule, tick: Duration) -> Route {
    let Identity { name, path, upstream, effect } = identity;
    refuse_foreign_settings(layers, effect);
    let key = layers.read("key", standard_key, KeyRule::read).value;
    let fingerprint = layers.read("fingerprint", standard_fingerprint(&key), lists::fingerprint).value;
    let no_effect = layers.read("no_effect", no_effect_by_default(), lists::no_effect).value;
    let bytes = |name, default, least| layers.read(name, default, |entry| entry.bytes(least..=LARGEST_BODY)).value;
    let contracted = Contracted::new(layers);
    let times = limits::read(layers, &contracted, tick);
    let keep_alive = layers.read("upstream_keep_alive", d::UPSTREAM_KEEP_ALIVE, |entry| entry.duration(Duration::ZERO));
    Route {
        name,
        path,
        methods: contracted.read("methods", Contract::methods, None, |entry| lists::methods(entry).map(Some)).value,
        upstream,
        upstream_http: layers.read("upstream_http", UpstreamHttp::Auto, Entry::word).value,
        upstream_ca: layers.read("upstream_ca", None, trust::certificates).value,
        upstream_keep_alive: keep_alive.value,
        observe: layers.read("observe", false, Entry::switch).value,
        effect: effect.unwrap_or(Effect::External),
        tenant: layers.read("tenant", Tenant::None, caller::tenant).value,
        cors: layers.read("cors", None, cors::read).value,
        rate_limit: layers.read("rate_limit", None, caller::rate_limit).value,
        body_syntax: layers.read("body_syntax", BodySyntax::Any, Entry::word).value,
        key,
        fingerprint,
        mismatch: layers.read("mismatch", MismatchPolicy::Reject, Entry::word).value,
        wait: layers.read("wait", d::WAIT, limits::wait).value,
        final_policy: contracted.read("final", Contract::final_policy, FinalPolicy::Default, Entry::word).value,
        on_5xx: layers.read("on_5xx", On5xx::Unknown, Entry::word).value,
        no_effect,
        on_unknown: read_on_unknown(layers, effect),
        max_attempts: layers.read("max_attempts", d::MAX_ATTEMPTS, |entry| entry.number(1..=1_000_000)).value,
        lease: times.lease,
        heartbeat: times.heartbeat,
        upstream_timeout: times.upstream_timeout,
        connect_timeout: times.connect_timeout,
        upgraded_timeout: times.upgraded_timeout,
        max_execution: times.max_execution,
        settle: times.settle,
        retention: times.retention,
        downstream_window: times.downstream_window,
        max_request_bytes: bytes("max_request_bytes", d::MAX_REQUEST_BYTES, 1),
        max_response_bytes: bytes("max_response_bytes", d::MAX_RESPONSE_BYTES, 0),
        store_headers: layers.read("store_headers", Vec::new(), lists::store_headers).value,
    }
}

fn no_effect_by_default() -> Vec<http::StatusCode> {
    d::NO_EFFECT.iter().filter_map(|status| http::StatusCode::from_u16(*status).ok()).collect()
}

/// An agent's arguments are its request; what else stands in the body may change between two tries.
fn standard_fingerprint(key: &KeyRule) -> BodyRecipe {
    match &key.source {
        KeySource::Agent(parts) => {
            parts.arguments.clone().map_or(BodyRecipe::All, |arguments| BodyRecipe::Only(vec![arguments]))
        }
        KeySource::Off | KeySource::Header { .. } | KeySource::Pointer(_) => BodyRecipe::All,
    }
}

/// Where no key is looked at, neither is the caller nor the body: such a setting would only seem to protect.
fn refuse_without_keys(layers: &Layers<'_, '_>) {
    if layers.get("key").is_some_and(|entry| entry.value.as_str() == Some("off")) {
        for entry in
            ["tenant", "rate_limit", "body_syntax", "wait", "contract"].iter().filter_map(|name| layers.own_entry(name))
        {
            entry
                .refuse("means something only where keys are looked at, and this route has key = \"off\"; take it out");
        }
    }
}

/// A setting that the route's effect does not look at would only seem to do something.
fn refuse_foreign_settings(layers: &Layers<'_, '_>, effect: Option<Effect>) {
    let Some(effect) = effect else { return };
    let foreign: &[(&'static str, Effect)] = match effect {
        Effect::External => &[("downstream_window", Effect::Idempotent)],
        Effect::Idempotent => &[("on_5xx", Effect::External), ("no_effect", Effect::External)],
        Effect::SameDatabase => {
            &[("downstream_window", Effect::Idempotent), ("on_5xx", Effect::External), ("no_effect", Effect::External)]
        }
    };
    for (name, home) in foreign {
        if let Some(entry) = layers.own_entry(name) {
            entry.refuse(format!(
                "means something only with effect = \"{home}\", and this route has \"{effect}\"; take it out"
            ));
        }
    }
}

fn read_on_unknown(layers: &Layers<'_, '_>, effect: Option<Effect>) -> OnUnknown {
    let given = layers.read("on_unknown", OnUnknown::Reconcile, Entry::word);
    let own = given.entry.filter(|entry| layers.is_own(entry));
    match (effect, given.value) {
        (Some(Effect::Idempotent), OnUnknown::Retry) => OnUnknown::Retry,
        (Some(Effect::Idempotent), OnUnknown::Reconcile | OnUnknown::Hold) => {
            if let Some(entry) = own.filter(|_| given.sound) {
                entry.refuse(
                    "contradicts effect = \"idempotent\", which sends again; take it out, or write \
                     effect = \"external\"",
                );
            }
            OnUnknown::Retry
        }
        (_, OnUnknown::Retry) => {
            if let Some(entry) = given.entry {
                entry.refuse(
                    "would send again without knowing whether it happened; where the upstream deduplicates by the \
                     forwarded key, write effect = \"idempotent\" instead, elsewhere \"reconcile\" or \"hold\"",
                );
            }
            OnUnknown::Reconcile
        }
        (_, other @ (OnUnknown::Reconcile | OnUnknown::Hold)) => other,
    }
}

/// The question that has no default. A route without keys executes nothing under one, and is not asked.
fn ask_for_effect(section: &Section<'_>, layers: &Layers<'_, '_>) {
    if layers.get("key").is_some_and(|entry| entry.value.as_str() == Some("off")) {
        return;
    }
    section.document.refuse(
        section.at,
        format!(
            "{} has no `effect`. What does its upstream do with a request? Add one of\n  \
             effect = \"same-database\"  it writes only into the database of [store], and calls onced.complete in the \
             same transaction\n  \
             effect = \"idempotent\"     it deduplicates by the Idempotency-Key that the gateway sends along, so that \
             sending again is safe\n  \
             effect = \"external\"       anything else, or not known: an unknown outcome is held, never guessed",
            section.title
        ),
    );
}

fn read_name(entry: &Entry<'_>) -> Option<Scope> {
    let text = entry.text("orders")?;
    if text == d::DEFAULT_SCOPE {
        entry.refuse("is the scope of what matches no route; write another name, such as \"http.orders\"");
        return None;
    }
    if text.contains(':') {
        entry.refuse(format!(
            "has a colon, which stands between a tenant and a name; write \"{}\"",
            text.replace(':', ".")
        ));
        return None;
    }
    let scope = Scope::new(text);
    if let Err(error) = &scope {
        entry.refuse(format!(
            "is no scope ({error}); write 1 to 96 of A-Z a-z 0-9 . _ / @ -, such as \"orders.create\""
        ));
    }
    scope.ok()
}

fn read_path(entry: &Entry<'_>, own_prefix: &str) -> Option<PathPattern> {
    let pattern = PathPattern::parse(entry.text("/api/order")?).map_err(|message| entry.refuse(message)).ok()?;
    if pattern.as_str().starts_with(own_prefix) {
        entry.refuse(format!(
            "lies below \"{own_prefix}\", where the gateway's own endpoints are; write another path, or another \
             own_prefix"
        ));
        return None;
    }
    Some(pattern)
}

/// Reads the URL of an upstream, of a route or at the top of the file.
pub(super) fn read_upstream(entry: &Entry<'_>) -> Option<Upstream> {
    Upstream::parse(entry.text("http://127.0.0.1:3000")?).map_err(|message| entry.refuse(message)).ok()
}

/// How messages call a route.
pub(super) fn title(table: &toml::de::DeTable<'_>, number: usize) -> String {
    match table.get("name").and_then(|name| name.get_ref().as_str()) {
        Some(name) => format!("[[route]] {name:?}"),
        None => format!("[[route]] number {number}"),
    }
}
