//! What the log says once at the start about a configuration that is sound but worth a second look.

use http::Method;
use onced_core::fingerprint::BodyRecipe;

use super::Config;
use super::key_rule::Missing;
use super::route::Route;
use super::values::shown;
use onced::store::deliveries::LogDeliveries;
use onced_core::failure::{Effect, FinalPolicy, On5xx};

impl Config {
    /// The notices, each a sentence or two.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut notices = Vec::new();
        if self.store.allow_weak_durability {
            notices.push(
                "allow_weak_durability = true: a commit that the database loses is an effect that may happen twice"
                    .to_owned(),
            );
        }
        if self.store.log_deliveries == LogDeliveries::Off {
            notices.push(
                "log_deliveries = \"off\": which deliveries came when, and what was decided, cannot be looked up later"
                    .to_owned(),
            );
        }
        for route in self.routes.iter().chain(&self.default_route) {
            notices.extend(about(route).into_iter().map(|text| format!("route \"{}\": {text}", route.name)));
        }
        for (i, route) in self.routes.iter().enumerate() {
            notices.extend(self.routes.iter().take(i).find_map(|earlier| shadowed(route, earlier)));
        }
        notices
    }
}

fn about(route: &Route) -> Vec<String> {
    let mut notices = Vec::new();
    if !route.is_keyed() {
        return notices;
    }
    if route.observe {
        notices.push(
            "observe = true: everything is decided and recorded, and nothing is withheld; nothing is protected"
                .to_owned(),
        );
    }
    match route.effect {
        Effect::External => notices.push(held(route)),
        Effect::Idempotent if route.downstream_window <= route.lease.length => notices.push(format!(
            "downstream_window ({}) is not longer than the lease ({}): by the time that a lost request may be sent \
             again, the window is over and its outcome is held",
            shown(route.downstream_window),
            shown(route.lease.length)
        )),
        Effect::Idempotent | Effect::SameDatabase => {}
    }
    if route.effect == Effect::External && route.final_policy == FinalPolicy::Success {
        notices.push(
            "final = \"success\" with effect = \"external\": a 3xx or 4xx of the upstream, unless listed in no_effect, \
             leaves the outcome unknown and is held"
                .to_owned(),
        );
    }
    if route.fingerprint == BodyRecipe::None {
        notices.push(
            "fingerprint = \"none\": a key that is used for another request gets the first one's answer".to_owned(),
        );
    }
    if route.methods.as_ref().is_some_and(|methods| methods.iter().all(is_passed_through)) {
        notices
            .push("GET, HEAD, OPTIONS and TRACE pass through without a key, and it lists no other method".to_owned());
    }
    if route.key.missing == Missing::Pass {
        notices.push("a request without a key is forwarded unprotected, counted and logged as such".to_owned());
    }
    notices
}

/// What a held answer means, and how to choose.
fn held(route: &Route) -> String {
    let (when, choice) = match (route.final_policy, route.on_5xx) {
        (FinalPolicy::Everything, _) => ("a time-out, a lost connection", ""),
        (FinalPolicy::Default | FinalPolicy::Success, On5xx::Failed) => {
            ("a time-out, a lost connection, a 408, 502 or 504", "")
        }
        (FinalPolicy::Default | FinalPolicy::Success, On5xx::Unknown) => (
            "a time-out, a lost connection, a 408, any 5xx",
            "; if it rolls everything back whenever it answers 5xx, on_5xx = \"failed\"",
        ),
    };
    format!(
        "effect = \"external\": where it stays unknown whether the upstream acted ({when}), the key is held, and later \
         deliveries get 409 outcome-unknown until a person resolves it. If the upstream deduplicates by the \
         Idempotency-Key that it is sent, say effect = \"idempotent\"; if it completes the record in its own \
         transaction, effect = \"same-database\"{choice}"
    )
}

fn is_passed_through(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method)
}

/// Whether requests of `route` go to `earlier` instead: same path, and a method that both take equally.
fn shadowed(route: &Route, earlier: &Route) -> Option<String> {
    if route.path != earlier.path {
        return None;
    }
    let shared = match (&route.methods, &earlier.methods) {
        (None, None) => "every method".to_owned(),
        (Some(own), Some(others)) => {
            let shared: Vec<&str> = own.iter().filter(|m| others.contains(m)).map(Method::as_str).collect();
            if shared.is_empty() {
                return None;
            }
            shared.join(", ")
        }
        (Some(_), None) | (None, Some(_)) => return None,
    };
    Some(format!(
        "route \"{}\": {shared} {} goes to route \"{}\" instead, which stands before it; change a path or the methods",
        route.name, route.path, earlier.name
    ))
}
