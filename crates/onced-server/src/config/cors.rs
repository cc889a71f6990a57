//! Reads `cors`: which pages of other origins may call a route from a browser.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};

use super::defaults as d;
use super::document::{Entry, Section};
use super::settings::Place;
use super::values::shown;

/// No browser remembers a preflight for longer.
const LONGEST_MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Which pages of other origins may call a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cors {
    /// From where.
    pub(crate) origins: Origins,
    /// Whether a browser may send its cookies and the like. Never with [`Origins::Any`].
    pub(crate) credentials: bool,
    /// Request headers that they may send beside the usual ones.
    pub(crate) headers: Vec<HeaderName>,
    /// How long a browser may remember what a preflight has said; a day at most.
    pub(crate) max_age: Duration,
}

/// From where a route may be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origins {
    /// From anywhere.
    Any,
    /// From these, each `scheme://host` or `scheme://host:port` as a browser writes it.
    Listed(Vec<HeaderValue>),
}

/// Reads `cors`.
pub(super) fn read(entry: &Entry<'_>) -> Option<Option<Cors>> {
    if entry.value.as_str() == Some("none") {
        return Some(None);
    }
    let Some(section) = entry.section(&[Place::Cors]) else {
        entry.refuse("does not say who may call; write { origins = [\"https://shop.example\"] } or \"none\"");
        return None;
    };
    section.refuse_unknown();
    let origins = section.required("origins", "origins = [\"https://shop.example\"]").and_then(|entry| origins(&entry));
    let credentials = or(&section, "credentials", d::CORS_CREDENTIALS, Entry::switch);
    let headers = or(&section, "headers", Vec::new(), headers);
    let max_age = or(&section, "max_age", d::CORS_MAX_AGE, max_age);
    let cors = Cors { origins: origins?, credentials: credentials?, headers: headers?, max_age: max_age? };
    if let Some(entry) = section.get("credentials").filter(|_| cors.credentials && cors.origins == Origins::Any) {
        entry.refuse(
            "would let any page act with its visitor's credentials, and no browser takes it together with \
             origins = [\"*\"]; name the origins",
        );
        return None;
    }
    Some(Some(cors))
}

fn or<'a, T>(
    section: &Section<'a>,
    name: &'static str,
    default: T,
    read: impl FnOnce(&Entry<'a>) -> Option<T>,
) -> Option<T> {
    section.get(name).map_or(Some(default), |entry| read(&entry))
}

fn origins(entry: &Entry<'_>) -> Option<Origins> {
    let elements = entry.elements("[\"https://shop.example\"]")?;
    if elements.is_empty() {
        entry.refuse("is empty, so that nobody could call; write cors = \"none\"");
        return None;
    }
    match elements.iter().find(|element| element.value.as_str() == Some("*")) {
        Some(_) if elements.len() == 1 => Some(Origins::Any),
        Some(any) => {
            any.refuse("means every origin, those beside it, too; write origins = [\"*\"], or the others alone");
            None
        }
        None => elements.iter().map(origin).collect::<Option<Vec<_>>>().map(Origins::Listed),
    }
}

/// An origin is compared byte for byte with what a browser sends, so what no browser sends is refused.
fn origin(element: &Entry<'_>) -> Option<HeaderValue> {
    let text = element.text("https://shop.example")?;
    let uri: Option<Uri> = text.parse().ok();
    let parts = uri.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.authority()?)));
    let Some((scheme, authority)) = parts.filter(|_| text.is_ascii()) else {
        element.refuse(
            "is not an origin; write scheme and host, such as \"https://shop.example\", international names in their \
             ASCII form (xn--…)",
        );
        return None;
    };
    if authority.as_str().contains('*') {
        element.refuse("has a `*`, which stands for nothing within an origin; name each origin");
        return None;
    }
    let default_port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => "",
    };
    let host = authority.as_str().rsplit('@').next().unwrap_or_default();
    let host = host.strip_suffix(default_port).unwrap_or(host).trim_end_matches(':');
    let as_sent = format!("{scheme}://{host}").to_ascii_lowercase();
    if text != as_sent {
        element.refuse(format!("is not how a browser writes an origin; write \"{as_sent}\""));
        return None;
    }
    HeaderValue::from_str(text).ok()
}

fn headers(entry: &Entry<'_>) -> Option<Vec<HeaderName>> {
    let read = |element: &Entry<'_>| {
        let name = element.header_name()?;
        if name.as_str() == "*" {
            element.refuse("stands for all headers only to some browsers; name each header");
            return None;
        }
        Some(name)
    };
    entry.elements("[\"X-Cart-Id\"]")?.iter().map(read).collect()
}

fn max_age(entry: &Entry<'_>) -> Option<Duration> {
    let max_age = entry.duration(Duration::ZERO)?;
    if max_age > LONGEST_MAX_AGE {
        entry.refuse(format!("is longer than any browser remembers it; write at most \"{}\"", shown(LONGEST_MAX_AGE)));
        return None;
    }
    Some(max_age)
}
