//! What an effect is called: the scope says what kind and for whom, the key which one.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::fmt::Write as _;

const MAX_SCOPE: usize = 96;
/// With the `#`.
const MAX_STEP: usize = 31;
const MAX_TENANT: usize = 48;
const MAX_KEY: usize = 255;

/// What kind of effect, and for whom: `stripe.charge`, `acme:orders.create`. With `#step` it names one recorded step
/// of the work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(String);

/// Why a text is no scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// Nothing before the `#`.
    #[error("a scope is not empty")]
    Empty,
    /// Over 96 characters, its tenant included.
    #[error("a scope has at most 96 characters, its tenant included")]
    TooLong,
    /// A character outside of the alphabet.
    #[error("a scope consists of A-Z a-z 0-9 . _ : / @ -")]
    Character,
    /// A tenant without a name.
    #[error("a tenant is not empty")]
    EmptyTenant,
    /// A step's name that is empty, over 30 characters or outside of its alphabet.
    #[error("a step has 1 to 30 of A-Z a-z 0-9 . _ / @ -")]
    Step,
    /// A step, where the scope of the whole work is wanted.
    #[error("a step has neither steps nor a tenant of its own")]
    StepOfStep,
}

impl Scope {
    /// A scope of 1 to 96 of `A-Za-z0-9._:/@-`.
    pub fn new(text: &str) -> Result<Self, ScopeError> {
        if text.is_empty() {
            Err(ScopeError::Empty)
        } else if !text.bytes().all(|byte| byte == b':' || is_name_byte(byte)) {
            Err(ScopeError::Character)
        } else if text.len() > MAX_SCOPE {
            Err(ScopeError::TooLong)
        } else {
            Ok(Self(text.to_owned()))
        }
    }

    /// `tenant:name`. A tenant that is too long, has other characters, or looks like one that was hashed, is replaced
    /// by its hash; the last so that nobody can choose a name under which another tenant's records lie.
    pub fn with_tenant(tenant: &str, name: &Self) -> Result<Self, ScopeError> {
        if tenant.is_empty() {
            return Err(ScopeError::EmptyTenant);
        }
        if name.is_step() {
            return Err(ScopeError::StepOfStep);
        }
        let fits = tenant.len() <= MAX_TENANT && tenant.bytes().all(is_name_byte) && !looks_hashed(tenant);
        let tenant = if fits { tenant.to_owned() } else { hashed_tenant(tenant) };
        Self::new(&format!("{tenant}:{}", name.0))
    }

    /// `scope#step`: the scope of one recorded step of this scope's work.
    pub fn step(&self, step: &str) -> Result<Self, ScopeError> {
        if self.is_step() {
            return Err(ScopeError::StepOfStep);
        }
        if step.is_empty() || step.len() >= MAX_STEP || !step.bytes().all(is_name_byte) {
            return Err(ScopeError::Step);
        }
        Ok(Self(format!("{}#{step}", self.0)))
    }

    /// Reads what a database holds: a scope, or one with a step.
    pub fn parse_stored(text: &str) -> Result<Self, ScopeError> {
        match text.split_once('#') {
            Some((scope, step)) => Self::new(scope)?.step(step),
            None => Self::new(text),
        }
    }

    /// Whether this names a step rather than the whole work.
    pub fn is_step(&self) -> bool {
        self.0.contains('#')
    }

    /// The scope as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The alphabet of tenants and steps; scopes have the colon as well.
fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._/@-".contains(&byte)
}

fn looks_hashed(tenant: &str) -> bool {
    tenant.strip_prefix("h_").is_some_and(|rest| {
        rest.len() == 32 && rest.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}

fn hashed_tenant(tenant: &str) -> String {
    let mut text = String::from("h_");
    for byte in Sha256::digest(tenant).iter().take(16) {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
    }
    text
}

/// The sender's id of one effect, or a derived hash. Keys are compared byte for byte.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

/// Why something is no key. The texts never quote it: it may be a secret in the wrong header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Empty, or nothing but blanks.
    #[error("the idempotency key is empty")]
    Empty,
    /// Over 255 characters.
    #[error("the idempotency key is longer than 255 characters")]
    TooLong,
    /// A byte outside of printable ASCII.
    #[error("the idempotency key has characters other than printable ASCII")]
    NotPrintable,
    /// A space at either end, a broken quoted string, or a body in which the key cannot be looked up.
    #[error("the idempotency key cannot be read: a space at its end, a broken quotation, or an unreadable body")]
    Malformed,
    /// More than one header line, equal or not.
    #[error("the idempotency key was sent more than once")]
    Repeated,
}

impl Key {
    /// A key of 1 to 255 printable ASCII characters without a space at either end.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        if text.bytes().all(|byte| byte == b' ') {
            Err(KeyError::Empty)
        } else if text.len() > MAX_KEY {
            Err(KeyError::TooLong)
        } else if !text.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) {
            Err(KeyError::NotPrintable)
        } else if text.starts_with(' ') || text.ends_with(' ') {
            Err(KeyError::Malformed)
        } else {
            Ok(Self(text.to_owned()))
        }
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key as it stands in messages and logs: enough to find it, not enough to use it.
    pub fn shortened(&self) -> String {
        let key = &self.0;
        match (key.get(..6), key.get(key.len().saturating_sub(3)..)) {
            (Some(head), Some(tail)) if key.len() > 12 => format!("{head}…{tail}"),
            _ => key.clone(),
        }
    }
}

/// The key in the values of all `Idempotency-Key` lines of a request; `None` where there is no such line.
///
/// `"k"` (a structured-field string, its parameters ignored) and the bare `k` are the same key. A second line is
/// refused even when it is equal: who added it, and which one the next hop takes, is unknown.
pub fn key_from_header_lines<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Result<Option<Key>, KeyError> {
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(KeyError::Repeated);
    }
    let value = trim_blanks(line);
    if value.first() == Some(&b'"') {
        let item: sfv::Item = sfv::Parser::new(value).parse().map_err(|_| KeyError::Malformed)?;
        let text = item.bare_item.as_string().ok_or(KeyError::Malformed)?;
        return Key::new(text.as_str()).map(Some);
    }
    let text = std::str::from_utf8(value).map_err(|_| KeyError::NotPrintable)?;
    Key::new(text).map(Some)
}

fn trim_blanks(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// The key that is sent along to an outside system: the same for every attempt of one step, different for all else.
pub fn downstream_key(scope: &Scope, key: &Key, step: &str) -> String {
    let hash = Parts::default().add(scope.as_str()).add(key.as_str()).add(step).finish();
    format!("onced1_{}", base64_of(hash))
}

pub(crate) fn base64_of(hash: [u8; 32]) -> String {
    URL_SAFE_NO_PAD.encode(hash)
}

/// A hash over parts that cannot run into each other: each is preceded by its length (four bytes, big endian).
#[derive(Clone, Default)]
pub(crate) struct Parts(Sha256);

impl Parts {
    pub(crate) fn add(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        // A part of 4 GiB or more does not occur: a request's body is bounded far below.
        self.0.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.0.update(part);
        self
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(lines: &[&[u8]]) -> Result<Option<Key>, KeyError> {
        key_from_header_lines(lines.iter().copied())
    }

    fn one(line: impl AsRef<[u8]>) -> Result<String, KeyError> {
        header(&[line.as_ref()]).map(|key| key.expect("one line is a key or an error").as_str().to_owned())
    }

    #[test]
    fn a_scope_keeps_to_its_alphabet_and_length() {
        for text in ["a", "stripe.charge", "acme:orders.create", "A-Z_0/9@x", &"s".repeat(96)] {
            assert_eq!(Scope::new(text).unwrap().as_str(), text);
        }
        assert_eq!(Scope::new(""), Err(ScopeError::Empty));
        assert_eq!(Scope::new(&"s".repeat(97)), Err(ScopeError::TooLong));
        for text in ["a b", "a#b", "#", "é", "a\n", "a%b", "a,b", "a\0"] {
            assert_eq!(Scope::new(text), Err(ScopeError::Character), "{text}");
        }
    }

    #[test]
    fn a_step_belongs_to_one_scope_and_has_none_of_its_own() {
        let scope = Scope::new(&"s".repeat(96)).unwrap();
        let longest = scope.step(&"t".repeat(30)).unwrap();
        assert_eq!(longest.as_str().len(), 96 + 31);
        assert_eq!(Scope::parse_stored(longest.as_str()), Ok(longest.clone()));
        assert_eq!(Scope::parse_stored("a:b"), Scope::new("a:b"));
        assert_eq!(Scope::new("a").unwrap().step("call").unwrap().to_string(), "a#call");
        assert_eq!(longest.step("x"), Err(ScopeError::StepOfStep));
        assert_eq!(Scope::with_tenant("t", &longest), Err(ScopeError::StepOfStep));
        for step in ["", "a:b", "a#b", "a b", &"t".repeat(31)] {
            assert_eq!(scope.step(step), Err(ScopeError::Step), "{step}");
        }
        for (text, error) in
            [("#a", ScopeError::Empty), ("a#", ScopeError::Step), ("a#b#c", ScopeError::Step), ("", ScopeError::Empty)]
        {
            assert_eq!(Scope::parse_stored(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_tenant_is_kept_readable_or_hashed() {
        let name = Scope::new("orders.create").unwrap();
        let check = |tenant: &str, expected: &str| {
            assert_eq!(Scope::with_tenant(tenant, &name).unwrap().as_str(), format!("{expected}:orders.create"));
        };
        let hash_of_a_b = "h_6783a31eabf68ccc0660f935c0826282"; // printf a:b | sha256sum
        check("acme", "acme");
        check(&"t".repeat(48), &"t".repeat(48));
        check("a:b", hash_of_a_b);
        for tenant in [&"t".repeat(49), "a#b", "a b", "é", "\0", hash_of_a_b] {
            let scope = Scope::with_tenant(tenant, &name).unwrap();
            assert!(looks_hashed(scope.as_str().strip_suffix(":orders.create").unwrap()), "{scope}");
            assert!(!scope.as_str().starts_with(tenant), "{tenant} would meet the tenant a:b");
        }
        check("h_short", "h_short");
        assert_eq!(Scope::with_tenant("", &name), Err(ScopeError::EmptyTenant));
        assert_eq!(Scope::with_tenant("a", &Scope::new(&"s".repeat(95)).unwrap()), Err(ScopeError::TooLong));
    }

    #[test]
    fn no_header_line_is_no_key_and_two_are_an_error() {
        assert_eq!(header(&[]), Ok(None));
        for lines in [[b"k".as_slice(), b"k"], [b"k", b"K2"], [b"", b""], [b"k", b"\"k\""]] {
            assert_eq!(header(&lines), Err(KeyError::Repeated));
        }
    }

    #[test]
    fn the_bare_and_the_quoted_form_are_the_same_key() {
        for line in ["k14", "\"k14\"", "k14   ", " \tk14\t ", " \"k14\" ", "\"k14\";v=1", "\"k14\"; a;b=?0"] {
            assert_eq!(one(line), Ok("k14".to_owned()), "{line}");
        }
        assert_eq!(one(r#""a\"b\\c""#), Ok(r#"a"b\c"#.to_owned()));
        assert_ne!(one("Key-14"), one("key-14"));
    }

    #[test]
    fn anything_else_is_the_bare_key_taken_raw() {
        for line in ["k, k", "' OR 1=1 --", "%00", "../x", "a:b", "k;v=1", "k\"x\"", "1", "?1", ":aGk=:", "a  b"] {
            assert_eq!(one(line), Ok(line.to_owned()));
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let long = |n: usize| "x".repeat(n);
        assert_eq!(one(long(255)), Ok(long(255)));
        assert_eq!(one(format!("\"{}\"", long(255))), Ok(long(255)));
        for n in [256, 4096, 16384] {
            assert_eq!(one(long(n)), Err(KeyError::TooLong));
            assert_eq!(one(format!("\"{}\"", long(n))), Err(KeyError::TooLong));
        }
        for line in ["", "   \t", "\"\"", "\"  \""] {
            assert_eq!(one(line), Err(KeyError::Empty), "{line}");
        }
        for line in
            ["\"k14", "\"", "\"a\" b", "\"a\", \"b\"", "\"a\"b", r#""a\x""#, "\"a\";", "\"a\" ;v=1", "\" a\"", "\"é\""]
        {
            assert_eq!(one(line), Err(KeyError::Malformed), "{line}");
        }
        for line in [b"a\x07b".as_slice(), b"\xE9", "a…".as_bytes(), b"a\tb", b"\x7f", b"\0"] {
            assert_eq!(one(line), Err(KeyError::NotPrintable), "{line:?}");
        }
        assert_eq!(Key::new(" a"), Err(KeyError::Malformed));
        assert_eq!(Key::new("a "), Err(KeyError::Malformed));
    }

    #[test]
    fn no_error_text_quotes_the_key() {
        for line in ["\"sk_live", "sk_live\x07", &"sk_live".repeat(99), "\" sk_live\""] {
            let error = one(line).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("sk_live"));
        }
    }

    #[test]
    fn downstream_keys_are_those_of_the_vectors() {
        let mut seen = std::collections::HashSet::new();
        for line in include_str!("../vectors/downstream-keys.tsv").lines().filter(|line| !line.starts_with('#')) {
            let [scope, key, step, expected] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            let actual = downstream_key(&Scope::parse_stored(scope).unwrap(), &Key::new(key).unwrap(), step);
            assert_eq!(actual, expected, "{line}");
            assert!(seen.insert(actual), "{line}");
        }
        assert!(seen.len() >= 6);
    }
}
