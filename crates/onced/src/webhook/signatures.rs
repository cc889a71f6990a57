//! Reads what a delivery brings as signatures: from one header or several, in the rule's layout, up to a limit.

use http::{HeaderMap, HeaderName};

use super::crypto;
use super::message::single;
use super::signature::{Layout, Scheme, SignatureRule};
use super::verify::Refused;

/// More signatures than this are no rotation of secrets, but an attempt to make us work.
pub(super) const MOST: usize = 16;
/// A header with so many is longer than any sender's.
const LONGEST: usize = 16 * 1024;

/// What stands in the headers of a delivery.
#[derive(Debug, Default)]
pub(super) struct Brought<'a> {
    /// The scheme's index and the signature as it is written.
    written: Vec<(usize, &'a [u8])>,
    /// The time in a pair, as it is written.
    pub(super) timestamp: Option<&'a [u8]>,
}

impl<'a> Brought<'a> {
    pub(super) fn read(rule: &SignatureRule, headers: &'a HeaderMap) -> Result<Self, Refused> {
        let mut brought = Self::default();
        let mut any = false;
        for name in rule.headers.iter().filter_map(|name| HeaderName::try_from(name).ok()) {
            if let Some(value) = single(headers, &name)? {
                any = true;
                brought.add(rule, value)?;
            }
        }
        if any { Ok(brought) } else { Err(Refused::Unsigned) }
    }

    fn add(&mut self, rule: &SignatureRule, value: &'a [u8]) -> Result<(), Refused> {
        if value.len() > LONGEST {
            return Err(Refused::TooMany);
        }
        match rule.layout {
            Layout::Whole => {
                for (at, scheme) in rule.schemes.iter().enumerate() {
                    if let Some(signature) = value.trim_ascii().strip_prefix(scheme.label.as_bytes()) {
                        self.push(at, signature)?;
                    }
                }
            }
            Layout::Pairs => {
                let pair = rule.timestamp.as_ref().and_then(|time| time.pair.as_deref());
                for (name, value) in split(value, rule.separator, b'=') {
                    if pair.is_some_and(|pair| pair.as_bytes() == name) {
                        if self.timestamp.replace(value).is_some() {
                            return Err(Refused::Repeated);
                        }
                    } else {
                        self.push_labelled(&rule.schemes, name, value)?;
                    }
                }
            }
            Layout::List => {
                for (name, value) in split(value, ' ', b',') {
                    self.push_labelled(&rule.schemes, name, value)?;
                }
            }
        }
        Ok(())
    }

    fn push_labelled(&mut self, schemes: &[Scheme], label: &[u8], signature: &'a [u8]) -> Result<(), Refused> {
        for (at, scheme) in schemes.iter().enumerate() {
            if scheme.label.as_bytes() == label {
                self.push(at, signature)?;
            }
        }
        Ok(())
    }

    fn push(&mut self, scheme: usize, signature: &'a [u8]) -> Result<(), Refused> {
        if self.written.len() == MOST {
            return Err(Refused::TooMany);
        }
        self.written.push((scheme, signature));
        Ok(())
    }

    /// The signatures of one scheme; what is not written in its encoding is none.
    pub(super) fn of(&self, schemes: &[Scheme], at: usize) -> Vec<Vec<u8>> {
        let Some(scheme) = schemes.get(at) else { return Vec::new() };
        let own = self.written.iter().filter(|(scheme, _)| *scheme == at);
        own.filter_map(|(_, written)| crypto::decoded(scheme.encoding, written)).collect()
    }
}

/// Names and values; what has no name is left out.
fn split(value: &[u8], between: char, within: u8) -> impl Iterator<Item = (&[u8], &[u8])> {
    value.split(move |byte| char::from(*byte) == between).filter_map(move |item| {
        let at = item.iter().position(|byte| *byte == within)?;
        Some((item[..at].trim_ascii(), item[at + 1..].trim_ascii()))
    })
}
