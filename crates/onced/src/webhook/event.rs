//! Which event a delivery brings: where its id stands, as data, and the key and tenant that are made of it.

use http::{HeaderMap, HeaderName};
use onced_core::derive;
use onced_core::document::Document;
use onced_core::key::{Key, KeyError};
use onced_core::pointer::Pointer;
use serde::Deserialize;

use super::message::is_form;

/// Where an event's id and tenant stand.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRule {
    /// The parts of the id; of several lists, the first one counts whose parts are all there.
    pub id: Vec<Vec<Part>>,
    /// The parts of the tenant, whose events are apart from another's: `-` stands for one that is not there, and where
    /// none is there, neither is a tenant.
    #[serde(default)]
    pub tenant: Vec<Part>,
    /// What becomes of an event that has no id.
    #[serde(default)]
    pub without_id: WithoutId,
}

/// What becomes of an event that has no id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutId {
    /// It is refused.
    #[default]
    Refuse,
    /// Its content is its key: two events that say the same are one.
    Content,
}

/// A place in a delivery.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawPart")]
pub enum Part {
    /// A header.
    Header(HeaderName),
    /// A place in a JSON body.
    Pointer(Pointer),
    /// A field of a form.
    Form(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPart {
    header: Option<String>,
    pointer: Option<String>,
    form: Option<String>,
}

impl TryFrom<RawPart> for Part {
    type Error = String;

    fn try_from(raw: RawPart) -> Result<Self, String> {
        match (raw.header, raw.pointer, raw.form) {
            (Some(header), None, None) => HeaderName::try_from(&header)
                .map(Self::Header)
                .map_err(|_| format!("\"{header}\" is not the name of a header")),
            (None, Some(pointer), None) => {
                pointer.parse().map(Self::Pointer).map_err(|error| format!("\"{pointer}\": {error}"))
            }
            (None, None, Some(form)) => Ok(Self::Form(form)),
            _ => Err("write one of { header = \"…\" }, { pointer = \"/…\" }, { form = \"…\" }".to_owned()),
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {name}"),
            Self::Pointer(pointer) => write!(f, "body {pointer}"),
            Self::Form(name) => write!(f, "form field {name}"),
        }
    }
}

/// A delivery, read as far as its parts ask for.
struct Delivery<'a> {
    headers: &'a HeaderMap,
    body: &'a [u8],
    document: Option<Document>,
}

impl EventRule {
    /// The event's key; `None` where it has no id and must have one.
    ///
    /// # Errors
    /// [`KeyError`] where the id may stand in the body and the body can be read in more than one way, or not at all; where
    /// a header with it was sent twice.
    pub fn key(&self, headers: &HeaderMap, body: &[u8]) -> Result<Option<Key>, KeyError> {
        let mut delivery = Delivery { headers, body, document: None };
        for parts in &self.id {
            let found: Vec<Option<String>> =
                parts.iter().map(|part| delivery.word(part, parts.len() > 1)).collect::<Result<_, _>>()?;
            if let Some(words) = found.into_iter().collect::<Option<Vec<String>>>()
                && let Some(key) = derive::key_of_parts(&words)
            {
                return Ok(Some(key));
            }
        }
        match self.without_id {
            WithoutId::Refuse => Ok(None),
            WithoutId::Content => derive::key_of_content(body).map(Some),
        }
    }

    /// Whose event it is.
    ///
    /// # Errors
    /// As [`EventRule::key`].
    pub fn tenant(&self, headers: &HeaderMap, body: &[u8]) -> Result<Option<String>, KeyError> {
        let mut delivery = Delivery { headers, body, document: None };
        let words: Vec<Option<String>> =
            self.tenant.iter().map(|part| delivery.word(part, true)).collect::<Result<_, _>>()?;
        if words.iter().all(Option::is_none) {
            return Ok(None);
        }
        let words: Vec<String> = words.into_iter().map(|word| word.unwrap_or_else(|| "-".to_owned())).collect();
        Ok(Some(words.join("/")))
    }
}

impl Delivery<'_> {
    fn word(&mut self, part: &Part, beside_others: bool) -> Result<Option<String>, KeyError> {
        let word = match part {
            Part::Header(name) => {
                let mut lines = self.headers.get_all(name).iter();
                let Some(line) = lines.next() else { return Ok(None) };
                if lines.next().is_some() {
                    return Err(KeyError::Repeated);
                }
                Some(line.to_str().map_err(|_| KeyError::NotPrintable)?.trim().to_owned())
            }
            // A form says of itself that it is no JSON.
            Part::Pointer(_) if is_form(self.headers) => None,
            Part::Pointer(pointer) => {
                let document = match self.document.take() {
                    Some(document) => document,
                    None => Document::parse(self.body)?,
                };
                let document = self.document.insert(document);
                if beside_others { document.word(pointer)? } else { document.text(pointer)? }
            }
            Part::Form(name) => {
                if !is_form(self.headers) {
                    return Ok(None);
                }
                let mut values = form_urlencoded::parse(self.body).filter(|(field, _)| field == name);
                let value = values.next().map(|(_, value)| value.into_owned());
                if values.next().is_some() {
                    return Err(KeyError::Repeated);
                }
                value
            }
        };
        Ok(word.filter(|word| !word.is_empty()))
    }
}
