//! Verifies a delivery on the bytes as they came: whether one of its signatures was made with one of the secrets, and, only
//! then, whether it is of our time. Nothing here reads a body as anything but bytes, and nothing knows of a ledger.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use onced_core::time::Timestamp;

pub use super::crypto::SecretError;
use super::crypto::{self, Lock};
use super::message::{is_form, single};
use super::signature::{Layout, SignatureRule, Strength, Unit};
use super::signatures::Brought;

/// A delivery, as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Its body: not one byte more, less or other than what was sent.
    pub body: &'a [u8],
    /// The URL that the sender called, where the rule signs it: scheme, host, path and query as the sender knows them.
    pub url: Option<&'a str>,
}

/// A delivery that its sender has signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// When it was signed, where that is signed as well.
    pub signed_at: Option<Timestamp>,
    /// What the signature proves.
    pub strength: Strength,
}

/// Why a delivery is not taken. It says nothing of what the delivery holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No signature.
    #[error("the delivery is not signed: none of the headers that a signature may stand in is there")]
    Unsigned,
    /// A header that may stand once stands twice, or a timestamp does.
    #[error("a header or a timestamp of the signature was sent more than once")]
    Repeated,
    /// More signatures than any rotation needs.
    #[error("the delivery brings too many signatures")]
    TooMany,
    /// Something that is signed along is not there, or is no number where it should be one.
    #[error("something that is signed along is missing or cannot be read: a timestamp, an id, the hash of the body")]
    PartMissing,
    /// No signature fits.
    #[error("no signature of the delivery was made with one of the route's secrets over these bytes")]
    Invalid,
    /// Signed, but too long ago, or by a clock that is ahead.
    #[error("the delivery was signed at a time that is too far from now")]
    Expired,
}

impl Refused {
    /// The stable code: `signature-expired` for what was once good, `signature-invalid` for all else.
    pub fn code(self) -> &'static str {
        match self {
            Self::Expired => "signature-expired",
            Self::Unsigned | Self::Repeated | Self::TooMany | Self::PartMissing | Self::Invalid => "signature-invalid",
        }
    }
}

/// Why a delivery cannot be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The rule's first secret is a public key.
    #[error("there is no secret to sign with: a public key only verifies")]
    PublicKey,
    /// Something that is signed along is not there.
    #[error("something that is signed along is missing: {0}")]
    Missing(Refused),
}

/// A rule with the secrets of one route: any of them may have signed, so that they can be rotated.
pub struct Verifier {
    rule: SignatureRule,
    /// Each with the index of its scheme.
    locks: Vec<(usize, Lock)>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("rule", &self.rule).field("secrets", &self.locks.len()).finish_non_exhaustive()
    }
}

impl Verifier {
    /// Takes the secrets as the provider shows them.
    ///
    /// # Errors
    /// [`SecretError`] where there is none, or one cannot be read.
    pub fn new(rule: &SignatureRule, secrets: &[String]) -> Result<Self, SecretError> {
        if secrets.is_empty() {
            return Err(SecretError::None);
        }
        let locks = secrets.iter().map(|secret| lock(rule, secret.trim())).collect::<Result<_, _>>()?;
        Ok(Self { rule: rule.clone(), locks })
    }

    /// Whether the delivery was signed with one of the secrets, within the tolerance around `now`. It takes time and
    /// memory in proportion to the body, and at most 16 signatures are looked at.
    ///
    /// # Errors
    /// [`Refused`], which says what the sender may know and nothing of what it sent.
    pub fn verify(&self, incoming: &Incoming<'_>, now: Timestamp) -> Result<Verified, Refused> {
        let brought = Brought::read(&self.rule, incoming.headers)?;
        let timestamp = self.timestamp(incoming.headers, &brought)?;
        self.check_body_hash(incoming)?;
        let texts = self.texts(incoming, timestamp.unwrap_or_default())?;
        let fits = self.locks.iter().any(|(scheme, lock)| {
            let signatures = brought.of(&self.rule.schemes, *scheme);
            texts.iter().any(|text| lock.opens(text, &signatures))
        });
        if !fits {
            return Err(Refused::Invalid);
        }
        let signed_at = timestamp.map(|text| self.time_of(text)).transpose()?;
        if let (Some(signed_at), Some(tolerance)) = (signed_at, self.rule.tolerance)
            && now.since(signed_at).max(signed_at.since(now)) > tolerance
        {
            return Err(Refused::Expired);
        }
        Ok(Verified { signed_at, strength: self.rule.strength() })
    }

    /// The headers that sign a delivery at `now`, as its sender would: for tests of receivers, and to pass events on. The
    /// headers that are signed along, such as the event's id, must be in `incoming`.
    ///
    /// # Errors
    /// [`SignError`] where the secret is a public key, or something to be signed along is missing.
    pub fn sign(&self, incoming: &Incoming<'_>, now: Timestamp) -> Result<Vec<(HeaderName, HeaderValue)>, SignError> {
        let missing = SignError::Missing(Refused::PartMissing);
        let (scheme, lock) = self.locks.first().ok_or(SignError::PublicKey)?;
        let scheme = self.rule.schemes.get(*scheme).ok_or(SignError::PublicKey)?;
        let time = match self.rule.timestamp.as_ref().map(|rule| rule.unit) {
            Some(Unit::Milliseconds) => (now.as_micros() / 1000).to_string(),
            Some(Unit::Seconds) | None => now.as_seconds().to_string(),
        };
        let texts = self.texts(incoming, time.as_bytes()).map_err(SignError::Missing)?;
        let text = texts.first().ok_or(missing)?;
        let signature = crypto::encoded(scheme.encoding, &lock.sign(text).ok_or(SignError::PublicKey)?);
        let label = &scheme.label;
        let place = self.rule.timestamp.as_ref();
        let value = match self.rule.layout {
            Layout::Whole => format!("{label}{signature}"),
            Layout::List => format!("{label},{signature}"),
            Layout::Pairs => {
                let pair = place.and_then(|place| place.pair.as_ref());
                let pair = pair.map(|pair| format!("{pair}={time}{}", self.rule.separator)).unwrap_or_default();
                format!("{pair}{label}={signature}")
            }
        };
        let mut named = Vec::new();
        named.extend(self.rule.headers.first().map(|name| (name, value)));
        named.extend(place.and_then(|place| place.header.as_ref()).map(|name| (name, time)));
        let headers = named
            .into_iter()
            .map(|(name, value)| Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?)));
        headers.collect::<Option<_>>().ok_or(missing)
    }

    /// The timestamp as it was sent.
    fn timestamp<'a>(&self, headers: &'a HeaderMap, brought: &Brought<'a>) -> Result<Option<&'a [u8]>, Refused> {
        let Some(place) = &self.rule.timestamp else { return Ok(None) };
        let text = match &place.header {
            Some(name) => single(headers, &HeaderName::try_from(name).map_err(|_| Refused::PartMissing)?)?,
            None => brought.timestamp,
        };
        text.ok_or(Refused::PartMissing).map(Some)
    }

    fn time_of(&self, text: &[u8]) -> Result<Timestamp, Refused> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let count: i64 = text.and_then(|text| text.parse().ok()).ok_or(Refused::PartMissing)?;
        let micros = match self.rule.timestamp.as_ref().map(|place| place.unit) {
            Some(Unit::Milliseconds) => 1000,
            Some(Unit::Seconds) | None => 1_000_000,
        };
        count.checked_mul(micros).map(Timestamp::from_micros).ok_or(Refused::PartMissing)
    }

    /// Where the text that is signed has a form's fields only, a body that is no form is bound by a hash in the URL.
    fn check_body_hash(&self, incoming: &Incoming<'_>) -> Result<(), Refused> {
        if !self.rule.message.has_form() || incoming.body.is_empty() {
            return Ok(());
        }
        if is_form(incoming.headers) {
            // A form without a field adds nothing to the text: its bytes would be anyone's.
            let has_fields = form_urlencoded::parse(incoming.body).next().is_some();
            return if has_fields { Ok(()) } else { Err(Refused::PartMissing) };
        }
        let query = incoming.url.and_then(|url| url.split_once('?')).map_or("", |(_, query)| query);
        let mut hashes = form_urlencoded::parse(query.as_bytes())
            .filter(|(name, _)| self.rule.body_hash.as_deref() == Some(name))
            .map(|(_, hash)| hash);
        let (hash, another) = (hashes.next().ok_or(Refused::PartMissing)?, hashes.next());
        if another.is_none() && crypto::is_sha256_of(&hash, incoming.body) { Ok(()) } else { Err(Refused::Invalid) }
    }

    /// The texts that may have been signed: senders differ on whether the URL has the port that goes without saying.
    fn texts(&self, incoming: &Incoming<'_>, timestamp: &[u8]) -> Result<Vec<Vec<u8>>, Refused> {
        if !self.rule.needs_url() {
            return Ok(vec![self.rule.message.fill(incoming, "", timestamp)?]);
        }
        let url = incoming.url.ok_or(Refused::PartMissing)?;
        let urls = std::iter::once(url.to_owned()).chain(other_port(url));
        urls.map(|url| self.rule.message.fill(incoming, &url, timestamp)).collect()
    }
}

/// The URL with its scheme's port where it has none, and without it where it has.
fn other_port(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let port = match scheme {
        "https" => ":443",
        "http" => ":80",
        _ => return None,
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match authority.strip_suffix(port) {
        Some(host) => Some(format!("{scheme}://{host}{path}")),
        // `]` ends an address of IPv6, which has colons of its own.
        None if !authority.rsplit(']').next().is_some_and(|end| end.contains(':')) => {
            Some(format!("{scheme}://{authority}{port}{path}"))
        }
        None => None,
    }
}

/// A secret belongs to the scheme whose prefix it has, otherwise to the first.
fn lock(rule: &SignatureRule, secret: &str) -> Result<(usize, Lock), SecretError> {
    let with_prefix = rule.schemes.iter().enumerate().find_map(|(at, scheme)| {
        let prefix = Some(&scheme.secret_prefix).filter(|prefix| !prefix.is_empty())?;
        Some((at, scheme, secret.strip_prefix(prefix.as_str())?))
    });
    let first = rule.schemes.first().map(|scheme| (0, scheme, secret));
    let (at, scheme, secret) = with_prefix.or(first).ok_or(SecretError::None)?;
    Ok((at, Lock::new(scheme.algorithm, scheme.secret, secret)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_that_goes_without_saying_is_added_and_taken_away() {
        for (one, other) in [
            ("https://a.example/x?y=1", "https://a.example:443/x?y=1"),
            ("http://a.example", "http://a.example:80"),
            ("https://[::1]/x", "https://[::1]:443/x"),
        ] {
            assert_eq!(other_port(one).as_deref(), Some(other));
            assert_eq!(other_port(other).as_deref(), Some(one));
        }
        for neither in ["https://a.example:8443/x", "https://[::1]:8443/", "ftp://a.example/", "a"] {
            assert_eq!(other_port(neither), None, "{neither}");
        }
    }
}
