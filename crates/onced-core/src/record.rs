//! The record: one row per (scope, key) as every backend reports it.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::fingerprint::RequestHash;
use crate::time::Timestamp;

/// What a record's `status` column says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Accepted with its payload; no attempt has begun.
    Queued,
    /// An attempt has begun and is known to have called nobody outside.
    InProgress,
    /// An outside call may have happened; whether it did is not known here.
    PendingExternal,
    /// The outcome is stored and final.
    Completed,
    /// The last attempt is known to have had no effect, or to be safe to repeat.
    Failed,
}

impl Status {
    /// All of them, in the order of a record's life.
    pub const ALL: [Self; 5] = [Self::Queued, Self::InProgress, Self::PendingExternal, Self::Completed, Self::Failed];

    /// The word in the `status` column.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::PendingExternal => "pending_external",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    /// Reads the `status` column; `None` for a word that this version does not know.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }

    /// Whether an outcome is recorded. Only finished records ever expire.
    pub fn is_finished(self) -> bool {
        match self {
            Self::Completed | Self::Failed => true,
            Self::Queued | Self::InProgress | Self::PendingExternal => false,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The fencing token of one claim: 32 lower-case hex digits, made by the claimant before it asks.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LeaseToken(String);

impl LeaseToken {
    /// The token for 16 random bytes.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(bytes.iter().fold(String::with_capacity(32), |mut hex, byte| {
            for nibble in [byte >> 4, byte & 15] {
                hex.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
            }
            hex
        }))
    }

    /// A token as a row holds it. Whatever stands there is only ever compared.
    pub fn from_row(text: String) -> Self {
        Self(text)
    }

    /// The text that goes into the row and to the upstream.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// A token lets its holder write to the record, so it stays out of logs.
impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseToken({}…)", self.0.get(..6).unwrap_or(""))
    }
}

/// A stored outcome: what a caller needs to be told again.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredResponse {
    /// The HTTP status, or what stands for one outside HTTP.
    pub code: u16,
    /// Header names in lower case with their values, every value, in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body, byte for byte; `None` where there was none.
    pub body: Option<Bytes>,
    /// Whether the body was too large to keep.
    pub body_omitted: bool,
}

impl StoredResponse {
    /// An outcome with neither headers nor body.
    pub fn bare(code: u16) -> Self {
        Self { code, headers: Vec::new(), body: None, body_omitted: false }
    }
}

// The body and the header values are the customer's: neither is ever printed.
impl fmt::Debug for StoredResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredResponse")
            .field("code", &self.code)
            .field("headers", &self.headers.len())
            .field("body_bytes", &self.body.as_ref().map(Bytes::len))
            .field("body_omitted", &self.body_omitted)
            .finish()
    }
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The hash of the request that the key is bound to.
    pub request_hash: RequestHash,
    /// The rules and recipe by which that hash was made.
    pub hash_version: String,
    /// Where the record stands.
    pub status: Status,
    /// How many times execution has begun.
    pub attempt: u32,
    /// The token of the last claim.
    pub lease_token: Option<LeaseToken>,
    /// Until when the owner is presumed alive.
    pub lease_until: Option<Timestamp>,
    /// The stored outcome, of success or of the last failure.
    pub response: Option<StoredResponse>,
    /// The key that goes along with outside calls.
    pub downstream_key: Option<String>,
    /// When the first outside call may have begun.
    pub called_at: Option<Timestamp>,
    /// The end of the last caller's lease, once a reconciler has taken over.
    pub called_until: Option<Timestamp>,
    /// How often a probe could not tell.
    pub probe_count: u32,
    /// When the next probe is due.
    pub next_probe_at: Option<Timestamp>,
    /// Since when a person is asked.
    pub held_at: Option<Timestamp>,
    /// Short text of the last failure.
    pub error: Option<String>,
    /// How long an ending keeps the record at least.
    pub retry_window: Duration,
    /// When the key was first claimed.
    pub created_at: Timestamp,
    /// When the record last changed.
    pub updated_at: Timestamp,
    /// When the outcome was stored.
    pub completed_at: Option<Timestamp>,
    /// From when on the key counts as unknown again; `None` means never.
    pub expires_at: Option<Timestamp>,
}

impl Record {
    /// Whether the record is finished and past its expiry: it then counts as absent.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.status.is_finished() && self.expires_at.is_some_and(|at| now >= at)
    }

    /// Whether the owner of an unfinished record is presumed alive.
    pub fn lease_is_alive(&self, now: Timestamp) -> bool {
        self.lease_until.is_some_and(|until| now < until)
    }
}

/// What was found under (scope, key): facts, not their meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The record, or none that is visible.
    pub record: Option<Record>,
    /// Whether the claim lock was got.
    pub lock: Lock,
    /// Whether the answer of the outside call is recorded as the step `scope#call`.
    pub call_answer: CallAnswer,
    /// Whether the payload of the first delivery is stored.
    pub payload: Payload,
}

/// Whether a claimant held the claim lock of (scope, key) when it looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// It did: nobody else can be claiming.
    Got,
    /// A rival's transaction is open: most of what was read may be about to change.
    Missed,
}

/// Whether the outside call's answer is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallAnswer {
    /// A step records it.
    Known,
    /// No step does.
    NotKnown,
}

/// Whether the payload of the first delivery is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// It lies in the inbox.
    Stored,
    /// Only its hash is known.
    NotStored,
}

/// Header names and values as the text of the `response_headers` column: a JSON array of `[name, value]` pairs.
/// Each byte of a value becomes the character of that number, so that no value is lost and SQL can write plain ones.
pub fn headers_to_text(headers: &[(String, Vec<u8>)]) -> String {
    let pairs: Vec<[String; 2]> = headers
        .iter()
        .map(|(name, value)| [name.clone(), value.iter().map(|byte| char::from(*byte)).collect()])
        .collect();
    serde_json::Value::from(pairs.into_iter().map(|[n, v]| serde_json::Value::from(vec![n, v])).collect::<Vec<_>>())
        .to_string()
}

/// Reads what [`headers_to_text`] wrote; `None` where the text is something else.
pub fn headers_from_text(text: &str) -> Option<Vec<(String, Vec<u8>)>> {
    let pairs: Vec<[String; 2]> = serde_json::from_str(text).ok()?;
    pairs
        .into_iter()
        .map(|[name, value]| {
            let bytes = value.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect::<Option<Vec<u8>>>()?;
            Some((name, bytes))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_read_back_and_others_are_not_guessed() {
        for status in Status::ALL {
            assert_eq!(Status::parse(status.as_str()), Some(status));
        }
        assert_eq!(Status::parse("COMPLETED"), None);
    }

    #[test]
    fn header_values_keep_every_byte() {
        let headers = vec![
            ("link".to_owned(), b"</a>; rel=\"prev\"".to_vec()),
            ("link".to_owned(), b"</b>".to_vec()),
            ("x".to_owned(), vec![0xE9, 0xFF, b'\t', b'\\']),
        ];
        assert_eq!(headers_from_text(&headers_to_text(&headers)), Some(headers));
        assert_eq!(headers_from_text("[]"), Some(vec![]));
        assert_eq!(headers_from_text(r#"{"a":1}"#), None);
        assert_eq!(headers_from_text(r#"[["a","\u20ac"]]"#), None);
    }

    #[test]
    fn a_token_is_hex_and_not_shown_whole() {
        let token = LeaseToken::from_random([0xAB; 16]);
        assert_eq!(token.as_str(), "ab".repeat(16));
        assert_eq!(format!("{token:?}"), "LeaseToken(ababab…)");
    }

    #[test]
    fn debug_output_shows_no_payload() {
        let stored = StoredResponse { body: Some(Bytes::from_static(b"secret")), ..StoredResponse::bare(200) };
        assert!(!format!("{stored:?}").contains("secret"));
    }
}
