//! JSON pointers (RFC 6901): how a configuration names one place in a JSON body.

use std::fmt::{self, Write as _};
use std::str::FromStr;

/// A JSON pointer. The empty text is the whole document, `/a/0` the first item of member `a`.
///
/// Text and value determine each other: what was parsed is displayed as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer(Vec<String>);

/// Why a text is no JSON pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    /// It is neither empty nor begins with a slash.
    #[error("a JSON pointer is empty or begins with '/'")]
    NoSlash,
    /// A tilde that is followed by neither `0` nor `1`.
    #[error("in a JSON pointer '~' is followed by 0 (a tilde) or 1 (a slash)")]
    BadEscape,
}

impl Pointer {
    /// Reads a pointer from its text form. The URI fragment form (`#/a`) is not accepted.
    ///
    /// # Errors
    /// Where the text is no JSON pointer.
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let tokens = text.strip_prefix('/').ok_or(PointerError::NoSlash)?;
        tokens.split('/').map(unescape).collect::<Result<_, _>>().map(Self)
    }

    /// The unescaped member names or indexes on the way from the root.
    pub(crate) fn tokens(&self) -> &[String] {
        &self.0
    }
}

fn unescape(token: &str) -> Result<String, PointerError> {
    let mut plain = String::with_capacity(token.len());
    let mut rest = token.chars();
    while let Some(next) = rest.next() {
        plain.push(match next {
            '~' => match rest.next() {
                Some('0') => '~',
                Some('1') => '/',
                Some(_) | None => return Err(PointerError::BadEscape),
            },
            other => other,
        });
    }
    Ok(plain)
}

/// The array index that a token stands for: digits without leading zeros. `-`, the place after the last item, is
/// never found, and neither is an index that no memory could hold.
pub(crate) fn index(token: &str) -> Option<usize> {
    let canonical = token == "0" || (!token.starts_with('0') && token.bytes().all(|byte| byte.is_ascii_digit()));
    if canonical { token.parse().ok() } else { None }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for token in &self.0 {
            f.write_char('/')?;
            for c in token.chars() {
                match c {
                    '~' => f.write_str("~0")?,
                    '/' => f.write_str("~1")?,
                    other => f.write_char(other)?,
                }
            }
        }
        Ok(())
    }
}

impl FromStr for Pointer {
    type Err = PointerError;

    fn from_str(text: &str) -> Result<Self, PointerError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tokens_are_unescaped_once() {
        let check = |text: &str, tokens: &[&str]| assert_eq!(Pointer::parse(text).unwrap().tokens(), tokens);
        check("", &[]);
        check("/", &[""]);
        check("//", &["", ""]);
        check("/a/0", &["a", "0"]);
        check("/a~1b/m~0n", &["a/b", "m~n"]);
        check("/~01", &["~1"]); // not a slash: each tilde is read once, from the left
        check("/é %,\"\\", &["é %,\"\\"]);
    }

    #[test]
    fn what_is_no_pointer_is_refused() {
        for text in ["a", "#/a", " /a", "a/b"] {
            assert_eq!(Pointer::parse(text), Err(PointerError::NoSlash), "{text}");
        }
        for text in ["/~", "/a~", "/~2", "/~~0", "/~/a"] {
            assert_eq!(Pointer::parse(text), Err(PointerError::BadEscape), "{text}");
        }
    }

    #[test]
    fn an_index_is_written_in_one_way_only() {
        assert_eq!(index("0"), Some(0));
        assert_eq!(index("10"), Some(10));
        for token in ["", "-", "-1", "+1", "01", "00", "1.0", "1e1", " 1", "a", "99999999999999999999999"] {
            assert_eq!(index(token), None, "{token}");
        }
    }

    proptest! {
        #[test]
        fn text_and_value_determine_each_other(tokens in prop::collection::vec("[~/01a-cé]{0,6}", 0..5)) {
            let pointer = Pointer(tokens);
            prop_assert_eq!(&Pointer::parse(&pointer.to_string()).unwrap(), &pointer);
        }

        #[test]
        fn a_text_that_parses_is_displayed_as_it_was(text in "(/[~01ab]{0,5}){0,4}") {
            if let Ok(pointer) = text.parse::<Pointer>() {
                prop_assert_eq!(pointer.to_string(), text);
            }
        }
    }
}
