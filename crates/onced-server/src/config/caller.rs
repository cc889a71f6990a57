//! Who calls a route, and how often it may: `tenant`, `rate_limit`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use sha2::{Digest, Sha256};

use super::defaults as d;
use super::document::Entry;
use super::outside;
use super::settings::Place;
use super::values::Words;

/// Longer names leave no room for a tenant before them.
pub(super) const LONGEST_NAME: usize = 47;

/// What is counted must fit into 64 bits of nanoseconds; no burst needs longer.
const LONGEST_BURST: Duration = Duration::from_secs(31 * 24 * 60 * 60);

/// Where the tenant is named whose keys these are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tenant {
    /// Nowhere: all callers share one space of keys.
    None,
    /// In a header that a trusted proxy sets.
    Header(HeaderName),
    /// By a bearer token of this list.
    Listed(Tokens),
    /// The hash of whatever bearer token comes.
    Hashed,
    /// In a claim of a JWT that something in front has verified.
    Claim {
        /// The header that holds it.
        header: HeaderName,
        /// The claim's name.
        claim: String,
    },
}

/// The tokens that are known, by their digests, with whose they are. Cloning shares them.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Tokens(Arc<HashMap<[u8; 32], String>>);

impl Tokens {
    /// Whose token it is. Digests are compared, so that the time which it takes tells nothing of a token.
    pub(crate) fn tenant_of(&self, credential: &str) -> Option<&str> {
        self.0.get(&digest(credential)).map(String::as_str)
    }
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Shows how many, and nothing of them.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

/// How often one caller may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateLimit {
    /// So many requests …
    pub(crate) requests: u32,
    /// … in so much time,
    pub(crate) per: Duration,
    /// and so many at once.
    pub(crate) burst: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum From {
    Header,
    Bearer,
    Jwt,
}

impl Words for From {
    const WORDS: &'static [(&'static str, Self)] =
        &[("header", Self::Header), ("bearer", Self::Bearer), ("jwt", Self::Jwt)];
}

/// Reads `tenant`.
pub(super) fn tenant(entry: &Entry<'_>) -> Option<Tenant> {
    let right = "write \"none\", { from = \"header\", header = \"X-Tenant\" }, { from = \"bearer\" } or \
                 { from = \"jwt\", claim = \"sub\" }";
    if entry.value.as_str() == Some("none") {
        return Some(Tenant::None);
    }
    let Some(section) = entry.section(&[Place::Tenant]) else {
        entry.refuse(format!("does not say who calls; {right}"));
        return None;
    };
    section.refuse_unknown();
    let from: From = section.required("from", "from = \"bearer\"")?.word()?;
    let mut sound = true;
    for (name, of) in [("tokens", &[From::Bearer][..]), ("header", &[From::Header, From::Jwt]), ("claim", &[From::Jwt])]
    {
        if let Some(foreign) = section.get(name).filter(|_| !of.contains(&from)) {
            foreign.refuse(format!("belongs to from = \"{}\"; take it out", of.first().map_or("", |of| of.word())));
            sound = false;
        }
    }
    let read = match from {
        From::Header => Tenant::Header(plain_header(&section.required("header", "header = \"X-Tenant\"")?)?),
        From::Bearer => match section.get("tokens") {
            Some(entry) => Tenant::Listed(tokens(&entry)?),
            None => Tenant::Hashed,
        },
        From::Jwt => Tenant::Claim {
            claim: section.required("claim", "claim = \"sub\"")?.text("sub")?.to_owned(),
            header: match section.get("header") {
                Some(entry) => entry.header_name()?,
                None => http::header::AUTHORIZATION,
            },
        },
    };
    sound.then_some(read)
}

/// A tenant stands in the ledger, in logs and in answers, so that no credential may be one.
fn plain_header(entry: &Entry<'_>) -> Option<HeaderName> {
    let name = entry.header_name()?;
    if ["authorization", "proxy-authorization", "cookie"].contains(&name.as_str()) {
        entry.refuse(
            "holds a credential, and a tenant is stored and shown; write from = \"bearer\", which stores a hash",
        );
        return None;
    }
    Some(name)
}

fn tokens(entry: &Entry<'_>) -> Option<Tokens> {
    let elements = entry.elements("[{ tenant = \"acme\", env = \"ACME_TOKEN\" }]")?;
    if elements.is_empty() {
        entry.refuse("is empty, so that nobody could call; take it out for the hash of whatever token comes");
        return None;
    }
    let mut known = HashMap::new();
    for element in &elements {
        let (digest, tenant) = token(element)?;
        if known.insert(digest, tenant).is_some() {
            element.refuse("holds the same token as one before it; a token must belong to one tenant");
            return None;
        }
    }
    Some(Tokens(Arc::new(known)))
}

fn token(element: &Entry<'_>) -> Option<([u8; 32], String)> {
    let right = "write { tenant = \"acme\", env = \"ACME_TOKEN\" } or { tenant = \"acme\", file = \"PATH\" }";
    let Some(section) = element.section(&[Place::Token]) else {
        // Perhaps the token itself: it is not shown.
        element.document.refuse(element.at, format!("a token is not written here; {right}"));
        return None;
    };
    section.refuse_unknown();
    let tenant = section.required("tenant", "tenant = \"acme\"")?.text("acme")?;
    let (_, secret) = outside::kept(element, &section, right)?;
    if tenant.is_empty() || secret.is_empty() || secret.bytes().any(|byte| !byte.is_ascii_graphic()) {
        element.refuse("has no tenant, or its token is empty or holds more than printable ASCII without spaces");
        return None;
    }
    Some((digest(&secret), tenant.to_owned()))
}

/// Reads `rate_limit`.
pub(super) fn rate_limit(entry: &Entry<'_>) -> Option<Option<RateLimit>> {
    let right = "write { requests = 100, per = \"1s\" } or \"none\"";
    if entry.value.as_str() == Some("none") {
        return Some(None);
    }
    let Some(section) = entry.section(&[Place::RateLimit]) else {
        entry.refuse(format!("is no limit; {right}"));
        return None;
    };
    section.refuse_unknown();
    let requests = section.required("requests", "requests = 100")?.number(1..=1_000_000)?;
    let per = match section.get("per") {
        Some(per) => per.duration(Duration::from_millis(1))?,
        None => d::RATE_PER,
    };
    let burst = match section.get("burst") {
        Some(burst) => burst.number(1..=1_000_000)?,
        None => requests,
    };
    if per > Duration::from_secs(24 * 60 * 60) {
        entry.refuse("counts over more than a day; write per = \"1day\" at most");
        return None;
    }
    if (per / requests).saturating_mul(burst) > LONGEST_BURST {
        entry.refuse("takes over a month to allow its burst again; write a smaller burst");
        return None;
    }
    Some(Some(RateLimit { requests, per, burst }))
}
