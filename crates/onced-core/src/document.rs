//! A JSON text that is read once and asked several times: for an event's id, its tenant, its time.

use crate::canonical::{self, Json};
use crate::key::KeyError;
use crate::pointer::Pointer;

/// Longer whole numbers are no ids. It is also what a key may have.
const MAX_DIGITS: usize = 255;

/// A JSON text that can be read in exactly one way.
#[derive(Clone, Debug)]
pub struct Document(Json);

impl Document {
    /// Reads a text. Its size is for the caller to bound; it may nest 128 deep.
    ///
    /// # Errors
    /// [`KeyError::Malformed`] where it is no JSON, names a member twice, or nests deeper: the application behind might
    /// see something in it that we do not.
    pub fn parse(text: &[u8]) -> Result<Self, KeyError> {
        canonical::parse_of_any_size(text).map(Self).map_err(|_| KeyError::Malformed)
    }

    /// The text at a place: a string as it is, a whole number as its digits (`5`, `5.0` and `"5"` are all `5`); anything
    /// else, and an absent value, is `None`.
    ///
    /// # Errors
    /// [`KeyError::TooLong`] for a number of more than 255 digits.
    pub fn text(&self, pointer: &Pointer) -> Result<Option<String>, KeyError> {
        match self.0.get(pointer) {
            Some(Json::String(text)) => Ok(Some(text.clone())),
            Some(Json::Number(number)) if number.is_integer() => {
                number.integer_text(MAX_DIGITS).map(Some).ok_or(KeyError::TooLong)
            }
            Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) | Json::Removed)
            | None => Ok(None),
        }
    }

    /// As [`Document::text`], and `true` and `false` for a truth value: alone it is no id, beside others it is a part
    /// of one.
    pub fn word(&self, pointer: &Pointer) -> Result<Option<String>, KeyError> {
        match self.0.get(pointer) {
            Some(Json::Bool(value)) => Ok(Some(value.to_string())),
            Some(Json::Null | Json::Number(_) | Json::String(_) | Json::Array(_) | Json::Object(_) | Json::Removed)
            | None => self.text(pointer),
        }
    }

    /// The canonical form of the value at a place.
    pub fn canonical_at(&self, pointer: &Pointer) -> Option<Vec<u8>> {
        self.0.get(pointer).map(Json::canonical)
    }

    /// The canonical form of the whole.
    pub fn canonical(&self) -> Vec<u8> {
        self.0.canonical()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truth_value_is_a_part_of_an_id_and_never_one() {
        let document = Document::parse(br#"{"live":true,"id":5.0,"none":null,"much":[1]}"#).unwrap();
        let at = |place: &str| -> Pointer { place.parse().unwrap() };
        assert_eq!(document.text(&at("/live")), Ok(None));
        assert_eq!(document.word(&at("/live")), Ok(Some("true".to_owned())));
        assert_eq!(document.word(&at("/id")), Ok(Some("5".to_owned())));
        for nothing in ["/none", "/much", "/absent"] {
            assert_eq!(document.word(&at(nothing)), Ok(None), "{nothing}");
        }
        assert_eq!(document.canonical_at(&at("/much")), Some(b"[1e0]".to_vec()));
        assert!(Document::parse(br#"{"a":1,"a":1}"#).is_err());
    }
}
