//! How a provider signs, as data: which headers, which layout, which text, which algorithm, how old it may be.

use std::time::Duration;

use serde::Deserialize;

use super::message::Template;

/// How deliveries are signed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureRule {
    /// The headers that a signature may stand in. One is enough; during a rotation some senders fill two.
    pub headers: Vec<String>,
    /// How a header's value is laid out.
    #[serde(default)]
    pub layout: Layout,
    /// What stands between the pairs of a value.
    #[serde(default = "comma")]
    pub separator: char,
    /// What is signed.
    pub message: Template,
    /// Where the time stands at which it was signed.
    pub timestamp: Option<TimestampRule>,
    /// How far that time may be from ours, earlier or later.
    #[serde(default, deserialize_with = "duration")]
    pub tolerance: Option<Duration>,
    /// The query parameter with the SHA-256 of a body that is no form, where the text that is signed has the form's fields only.
    pub body_hash: Option<String>,
    /// What a signature may be made with.
    #[serde(rename = "scheme")]
    pub schemes: Vec<Scheme>,
}

/// How the value of a signature's header is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// The value is the signature, behind the scheme's label: `sha256=…`.
    #[default]
    Whole,
    /// Names and values: `t=…,v1=…,v1=…`. The names of the signatures are the schemes' labels.
    Pairs,
    /// Separated by spaces, each a label, a comma and a signature: `v1,… v1,…`.
    List,
}

/// Where the time stands at which a delivery was signed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimestampRule {
    /// In a header of its own.
    pub header: Option<String>,
    /// In a pair of the signature's header.
    pub pair: Option<String>,
    /// What it counts since 1970.
    #[serde(default)]
    pub unit: Unit,
}

/// What a time counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Unit {
    /// Seconds.
    #[default]
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
}

/// What a signature is made with.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheme {
    /// What marks a signature as this scheme's; empty where the layout has no marks.
    #[serde(default)]
    pub label: String,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// How a signature is written.
    pub encoding: Encoding,
    /// How its secret or public key is written.
    #[serde(default)]
    pub secret: SecretForm,
    /// What its secrets begin with, which is no part of them. The first scheme takes secrets without it as well.
    #[serde(default)]
    pub secret_prefix: String,
}

/// The algorithm of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// HMAC with SHA-256.
    HmacSha256,
    /// HMAC with SHA-1: weak as a hash, still sound in an HMAC; some senders know no other.
    HmacSha1,
    /// ECDSA over P-256 with SHA-256; a signature is ASN.1 DER.
    EcdsaP256Sha256,
    /// Ed25519.
    Ed25519,
}

impl Algorithm {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::HmacSha256 => "HMAC-SHA256",
            Self::HmacSha1 => "HMAC-SHA1",
            Self::EcdsaP256Sha256 => "ECDSA P-256 SHA-256",
            Self::Ed25519 => "Ed25519",
        }
    }

    /// Whether whoever can verify can sign as well.
    pub fn is_shared_secret(self) -> bool {
        matches!(self, Self::HmacSha256 | Self::HmacSha1)
    }
}

/// How bytes are written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// Two hexadecimal digits for each byte, in either case.
    Hex,
    /// Base64, with or without padding.
    Base64,
}

/// How a secret or a public key is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecretForm {
    /// The characters are the bytes.
    #[default]
    Text,
    /// Hexadecimal.
    Hex,
    /// Base64.
    Base64,
    /// A public key as X.509 `SubjectPublicKeyInfo`: PEM, or DER in base64.
    Spki,
}

/// What a signature proves. It follows from what is signed, so that no row can claim more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strength {
    /// The body is the one that was signed.
    pub binds_body: bool,
    /// The delivery was made within the tolerance. Otherwise whoever recorded it may send it at any later time, and only
    /// the ledger holds it off.
    pub binds_time: bool,
}

impl SignatureRule {
    /// What a signature proves.
    pub fn strength(&self) -> Strength {
        Strength {
            binds_body: self.message.has_body(),
            binds_time: self.message.has_timestamp() && self.timestamp.is_some() && self.tolerance.is_some(),
        }
    }

    /// Whether a delivery's public URL has to be known.
    pub fn needs_url(&self) -> bool {
        self.message.has_url()
    }

    /// Looks for what no deserialiser sees.
    ///
    /// # Errors
    /// What is wrong, as half a sentence after the rule's name.
    pub fn check(&self) -> Result<(), &'static str> {
        let place = self.timestamp.as_ref().map(|time| (time.header.is_some(), time.pair.is_some()));
        if self.headers.is_empty() || self.headers.iter().any(|name| http::HeaderName::try_from(name).is_err()) {
            Err("needs headers that a signature may stand in")
        } else if self.schemes.is_empty() {
            Err("needs a scheme")
        } else if matches!(place, Some((true, true) | (false, false))) {
            Err("needs one place for its timestamp: a header or a pair")
        } else if matches!(place, Some((_, true))) && self.layout != Layout::Pairs {
            Err("has its timestamp in a pair, but its layout has none")
        } else if self.message.has_timestamp() && place.is_none() {
            Err("signs a timestamp without saying where it stands")
        } else if self.tolerance.is_some() && !self.message.has_timestamp() {
            Err("has a tolerance, but signs no timestamp")
        } else if self.layout != Layout::Whole && self.schemes.iter().any(|scheme| scheme.label.is_empty()) {
            Err("needs a label for each scheme in this layout")
        } else if self.schemes.iter().skip(1).any(|scheme| scheme.secret_prefix.is_empty()) {
            Err("needs a secret_prefix for each scheme after the first, to know whose a secret is")
        } else {
            Ok(())
        }
    }
}

fn comma() -> char {
    ','
}

/// Reads `"5min"`.
pub(super) fn duration<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| humantime::parse_duration(&text).map_err(serde::de::Error::custom)).transpose()
}
