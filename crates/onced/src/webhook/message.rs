//! The text that is signed: a template such as `v0:{timestamp}:{body}`, filled in from a delivery.

use std::fmt;

use http::HeaderMap;
use serde::Deserialize;

use super::verify::{Incoming, Refused};

/// A text with places to be filled in: `{timestamp}`, `{body}`, `{url}`, `{form}` (the fields of a form in the order of their
/// names, each a name and a value), `{header:NAME}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Timestamp,
    Body,
    Url,
    Form,
    Header(http::HeaderName),
}

/// Why something is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace that has no partner.
    #[error("a brace is not closed or not opened")]
    Brace,
    /// A place of a kind that there is not.
    #[error("{{{0}}} is not known; there are {{timestamp}}, {{body}}, {{url}}, {{form}} and {{header:NAME}}")]
    Unknown(String),
    /// Nothing to fill in, or nothing of the delivery.
    #[error("it has neither {{body}} nor {{form}} nor a {{timestamp}}: it would be the same for every delivery")]
    Nothing,
}

impl TryFrom<String> for Template {
    type Error = TemplateError;

    fn try_from(text: String) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let end = rest.find(['{', '}']).unwrap_or(rest.len());
            let (plain, behind) = rest.split_at(end);
            if !plain.is_empty() {
                parts.push(Part::Text(plain.to_owned()));
            }
            let Some(place) = behind.strip_prefix('{') else {
                if behind.is_empty() {
                    break;
                }
                return Err(TemplateError::Brace);
            };
            let (name, after) = place.split_once('}').ok_or(TemplateError::Brace)?;
            parts.push(Part::named(name)?);
            rest = after;
        }
        let template = Self(parts);
        if template.has_body() || template.has_timestamp() { Ok(template) } else { Err(TemplateError::Nothing) }
    }
}

impl Part {
    fn named(name: &str) -> Result<Self, TemplateError> {
        Ok(match name {
            "timestamp" => Self::Timestamp,
            "body" => Self::Body,
            "url" => Self::Url,
            "form" => Self::Form,
            other => {
                let header = other.strip_prefix("header:").and_then(|name| http::HeaderName::try_from(name).ok());
                Self::Header(header.ok_or_else(|| TemplateError::Unknown(other.to_owned()))?)
            }
        })
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            Part::Text(text) => f.write_str(text),
            Part::Timestamp => f.write_str("{timestamp}"),
            Part::Body => f.write_str("{body}"),
            Part::Url => f.write_str("{url}"),
            Part::Form => f.write_str("{form}"),
            Part::Header(name) => write!(f, "{{header:{name}}}"),
        })
    }
}

impl Template {
    pub(super) fn has_body(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Body | Part::Form))
    }

    pub(super) fn has_form(&self) -> bool {
        self.0.contains(&Part::Form)
    }

    pub(super) fn has_timestamp(&self) -> bool {
        self.0.contains(&Part::Timestamp)
    }

    pub(super) fn has_url(&self) -> bool {
        self.0.contains(&Part::Url)
    }

    /// The text for a delivery. `url` is the one to fill in, `timestamp` the text as it was sent.
    pub(super) fn fill(&self, incoming: &Incoming<'_>, url: &str, timestamp: &[u8]) -> Result<Vec<u8>, Refused> {
        let mut text = Vec::with_capacity(incoming.body.len() + 128);
        for part in &self.0 {
            match part {
                Part::Text(plain) => text.extend_from_slice(plain.as_bytes()),
                Part::Timestamp => text.extend_from_slice(timestamp),
                Part::Body => text.extend_from_slice(incoming.body),
                Part::Url => text.extend_from_slice(url.as_bytes()),
                Part::Form => add_form(&mut text, incoming),
                Part::Header(name) => {
                    text.extend_from_slice(single(incoming.headers, name)?.ok_or(Refused::PartMissing)?);
                }
            }
        }
        Ok(text)
    }
}

/// The value of a header that may be sent once.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Result<Option<&'a [u8]>, Refused> {
    let mut lines = headers.get_all(name).iter();
    let value = lines.next().map(http::HeaderValue::as_bytes);
    if lines.next().is_some() { Err(Refused::Repeated) } else { Ok(value) }
}

/// Whether the body says of itself that it is a form.
pub(super) fn is_form(headers: &HeaderMap) -> bool {
    let media_type = headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

fn add_form(text: &mut Vec<u8>, incoming: &Incoming<'_>) {
    if !is_form(incoming.headers) {
        return;
    }
    let mut fields: Vec<_> = form_urlencoded::parse(incoming.body).collect();
    fields.sort_unstable();
    fields.dedup();
    for (name, value) in fields {
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(value.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Result<Template, TemplateError> {
        Template::try_from(text.to_owned())
    }

    #[test]
    fn a_template_is_shown_as_it_was_written() {
        for text in [
            "{body}",
            "{timestamp}.{body}",
            "v0:{timestamp}:{body}",
            "{header:webhook-id}.{timestamp}.{body}",
            "{url}{form}",
        ] {
            assert_eq!(template(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for text in ["{body", "body}", "{{body}", "{body}}"] {
            assert!(template(text).is_err(), "{text}");
        }
        assert_eq!(template("{bodies}"), Err(TemplateError::Unknown("bodies".to_owned())));
        assert_eq!(template("{header:a b}{body}"), Err(TemplateError::Unknown("header:a b".to_owned())));
        for text in ["", "v0", "{url}", "{header:x}"] {
            assert_eq!(template(text), Err(TemplateError::Nothing), "{text}");
        }
    }
}
