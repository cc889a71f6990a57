//! Reads the settings that are lists: methods, statuses, header names, and the fingerprint with its pointers.

use http::{HeaderName, Method, StatusCode};
use onced_core::fingerprint::BodyRecipe;
use onced_core::pointer::Pointer;

use super::document::{Entry, Section};
use super::settings::Place;
use super::values::one_of;

/// The methods of a route.
pub(super) fn methods(entry: &Entry<'_>) -> Option<Vec<Method>> {
    let elements = entry.elements("[\"POST\"]")?;
    if elements.is_empty() {
        entry.refuse("is empty, so that nothing would match; take it out for all methods");
        return None;
    }
    elements.iter().map(method).collect()
}

fn method(element: &Entry<'_>) -> Option<Method> {
    let text = element.value.as_str().unwrap_or("");
    let method = Method::from_bytes(text.as_bytes()).ok();
    let upper = text.to_ascii_uppercase();
    if method.is_none() || method == Some(Method::CONNECT) {
        element.refuse("is not a method that can be forwarded; write \"POST\", \"PUT\", \"PATCH\", \"DELETE\"");
        return None;
    }
    if text != upper {
        element.refuse(format!("is not how the method is spelt; write \"{upper}\""));
        return None;
    }
    method
}

/// The statuses by which an upstream says that it did nothing.
pub(super) fn no_effect(entry: &Entry<'_>) -> Option<Vec<StatusCode>> {
    entry.elements("[401, 403, 407, 425, 429]")?.iter().map(status).collect()
}

fn status(element: &Entry<'_>) -> Option<StatusCode> {
    let number = element.number(400..=599)?;
    if matches!(number, 502 | 504) {
        element.refuse("may come from something between the gateway and the upstream, and proves nothing; take it out");
        return None;
    }
    u16::try_from(number).ok().and_then(|number| StatusCode::from_u16(number).ok())
}

/// Why a header is never stored; `None` where it may be.
fn never_stored(name: &HeaderName) -> Option<&'static str> {
    const CONNECTION: [&str; 9] = [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    const CREDENTIALS: [&str; 3] = ["set-cookie", "set-cookie2", "www-authenticate"];
    const MADE_ANEW: [&str; 4] = ["date", "server", "content-length", "idempotent-replayed"];
    const REQUEST_IDS: [&str; 4] = ["x-request-id", "request-id", "x-correlation-id", "traceparent"];
    let name = name.as_str();
    if CONNECTION.contains(&name) {
        Some("belongs to one connection")
    } else if CREDENTIALS.contains(&name) {
        Some("is for one caller at one time")
    } else if MADE_ANEW.contains(&name) || name.starts_with("onced-") {
        Some("is made anew for every answer")
    } else if REQUEST_IDS.contains(&name) || name.starts_with("access-control-") {
        Some("belongs to the present request")
    } else {
        None
    }
}

/// Further headers to store.
pub(super) fn store_headers(entry: &Entry<'_>) -> Option<Vec<HeaderName>> {
    let read = |element: &Entry<'_>| {
        let name = element.header_name()?;
        if let Some(reason) = never_stored(&name) {
            element.refuse(format!("{reason} and is never replayed; take it out"));
            return None;
        }
        Some(name)
    };
    entry.elements("[\"X-Invoice-Id\"]")?.iter().map(read).collect()
}

/// What of the body tells two requests apart.
pub(super) fn fingerprint(entry: &Entry<'_>) -> Option<BodyRecipe> {
    if let Some(section) = entry.section(&[Place::Fingerprint]) {
        return chosen(entry, &section);
    }
    match entry.value.as_str() {
        Some("all") => Some(BodyRecipe::All),
        Some("raw") => Some(BodyRecipe::Raw),
        Some("none") => Some(BodyRecipe::None),
        Some(_) | None => {
            entry.refuse(format!(
                "is not known; write {}, {{ only = [\"/id\"] }} or {{ ignore = [\"/sent_at\"] }}",
                one_of(&["all", "raw", "none"])
            ));
            None
        }
    }
}

fn chosen(entry: &Entry<'_>, section: &Section<'_>) -> Option<BodyRecipe> {
    section.refuse_unknown();
    let right = "write { only = [\"/id\"] } or { ignore = [\"/sent_at\"] }";
    match (section.get("only"), section.get("ignore")) {
        (Some(only), None) => pointers(&only, "none").map(BodyRecipe::Only),
        (None, Some(ignore)) => pointers(&ignore, "all").map(BodyRecipe::Ignore),
        (Some(_), Some(_)) => {
            entry.refuse(format!("says both; {right}"));
            None
        }
        (None, None) => {
            entry.refuse(format!("says nothing; {right}"));
            None
        }
    }
}

fn pointers(entry: &Entry<'_>, instead_of_nothing: &str) -> Option<Vec<Pointer>> {
    let elements = entry.elements("[\"/id\"]")?;
    if elements.is_empty() {
        entry.refuse(format!("is empty; write fingerprint = \"{instead_of_nothing}\", which means the same"));
        return None;
    }
    elements.iter().map(Entry::pointer).collect()
}
