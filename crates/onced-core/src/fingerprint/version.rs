//! Which rules and which recipe made a hash, and their text in the database.

use crate::pointer::Pointer;
use std::fmt::{self, Write as _};
use std::str::FromStr;

/// Which part of the body identifies a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum BodyRecipe {
    /// The whole body; JSON by its value rather than its text.
    #[default]
    All,
    /// What these pointers find in a JSON body; that one finds nothing counts too.
    Only(Vec<Pointer>),
    /// A JSON body without what these pointers find.
    Ignore(Vec<Pointer>),
    /// The bytes as they are.
    Raw,
    /// Nothing, and neither do method, path, query and media type: all requests are the same.
    None,
}

/// The rules and the recipe of a request's hash. Its text (`1:all`, `1:only=/id,/a`) is kept beside the hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HashVersion(BodyRecipe);

/// A hash version that this binary does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this hash version is unknown here; a newer version of onced may have written it")]
pub struct UnknownHashVersion;

impl HashVersion {
    /// The newest rules with this recipe.
    #[must_use]
    pub fn new(recipe: BodyRecipe) -> Self {
        Self(recipe)
    }

    /// The recipe.
    #[must_use]
    pub fn recipe(&self) -> &BodyRecipe {
        &self.0
    }
}

/// Printable ASCII without spaces, so that any column and any log can hold it.
impl fmt::Display for HashVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            BodyRecipe::All => f.write_str("1:all"),
            BodyRecipe::Only(pointers) => write_list(f, "1:only", pointers),
            BodyRecipe::Ignore(pointers) => write_list(f, "1:ignore", pointers),
            BodyRecipe::Raw => f.write_str("1:raw"),
            BodyRecipe::None => f.write_str("1:none"),
        }
    }
}

/// `=` and the pointers between commas. No list at all is without the `=`, since the whole-document pointer is empty.
fn write_list(f: &mut fmt::Formatter<'_>, name: &str, pointers: &[Pointer]) -> fmt::Result {
    f.write_str(name)?;
    for (at, pointer) in pointers.iter().enumerate() {
        f.write_char(if at == 0 { '=' } else { ',' })?;
        for byte in pointer.to_string().bytes() {
            if byte.is_ascii_graphic() && byte != b',' && byte != b'%' {
                f.write_char(char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
    }
    Ok(())
}

impl FromStr for HashVersion {
    type Err = UnknownHashVersion;

    /// Accepts exactly what `Display` writes. Anything else may have been meant in another way than we would read it.
    fn from_str(text: &str) -> Result<Self, UnknownHashVersion> {
        let recipe = text.strip_prefix("1:").ok_or(UnknownHashVersion)?;
        let (name, list) = recipe.split_once('=').map_or((recipe, None), |(name, list)| (name, Some(list)));
        let pointers = || list.map_or_else(|| Some(Vec::new()), |list| list.split(',').map(read_pointer).collect());
        let version = Self(match name {
            "all" => BodyRecipe::All,
            "only" => BodyRecipe::Only(pointers().ok_or(UnknownHashVersion)?),
            "ignore" => BodyRecipe::Ignore(pointers().ok_or(UnknownHashVersion)?),
            "raw" => BodyRecipe::Raw,
            "none" => BodyRecipe::None,
            _ => return Err(UnknownHashVersion),
        });
        if version.to_string() == text { Ok(version) } else { Err(UnknownHashVersion) }
    }
}

fn read_pointer(escaped: &str) -> Option<Pointer> {
    let mut plain = Vec::with_capacity(escaped.len());
    let mut rest = escaped.bytes();
    while let Some(byte) = rest.next() {
        plain.push(if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
        } else {
            byte
        });
    }
    Pointer::parse(std::str::from_utf8(&plain).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn recipe(text: &str) -> Option<BodyRecipe> {
        text.parse().ok().map(|HashVersion(recipe)| recipe)
    }

    fn pointers(texts: &[&str]) -> Vec<Pointer> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_version_has_one_text() {
        let check = |text: &str, expected: BodyRecipe| {
            assert_eq!(recipe(text), Some(expected.clone()), "{text}");
            assert_eq!(HashVersion::new(expected).to_string(), text);
        };
        check("1:all", BodyRecipe::All);
        check("1:raw", BodyRecipe::Raw);
        check("1:none", BodyRecipe::None);
        check("1:only=/id,/a", BodyRecipe::Only(pointers(&["/id", "/a"])));
        check("1:ignore=/x", BodyRecipe::Ignore(pointers(&["/x"])));
        check("1:only=/a%2Cb,/100%25/~1~0", BodyRecipe::Only(pointers(&["/a,b", "/100%/~1~0"])));
        check("1:only=/a%20%C3%A9%00=", BodyRecipe::Only(pointers(&["/a é\0="])));
        check("1:only", BodyRecipe::Only(Vec::new()));
        check("1:only=", BodyRecipe::Only(pointers(&[""]))); // the whole document
        check("1:ignore=,", BodyRecipe::Ignore(pointers(&["", ""])));
    }

    #[test]
    fn any_other_text_is_unknown_rather_than_guessed() {
        for text in [
            "",
            "1",
            "1:",
            ":all",
            "0:all",
            "2:all",
            "01:all",
            "1:All",
            "1:all ",
            " 1:all",
            "1:all=",
            "1:all=/a",
            "1:raw=",
            "1:none=/a",
            "1:form",
            "1:only=id",
            "1:only=/id,a",
            "1:only=/%",
            "1:only=/%2",
            "1:only=/%2c",
            "1:only=/%41",
            "1:only=/%+1",
            "1:only=/%FF",
            "1:only=/a b",
            "1:only=/é",
            "1:only=/~2",
            "1:only=/a\n",
        ] {
            assert_eq!(recipe(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_and_version_determine_each_other(
            texts in prop::collection::vec("(/([a,%=é\\PC]|~0|~1){0,4}){0,3}", 0..4),
            ignored: bool,
        ) {
            let list = texts.iter().filter_map(|text| text.parse().ok()).collect();
            let version = HashVersion::new(if ignored { BodyRecipe::Ignore(list) } else { BodyRecipe::Only(list) });
            let text = version.to_string();
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(text.parse(), Ok(version));
        }

        #[test]
        fn a_text_that_parses_is_displayed_as_it_was(text in "1:(only|ignore)(=[/a,%0-9A-F~]{0,8})?|\\PC{0,12}") {
            if let Ok(version) = text.parse::<HashVersion>() {
                prop_assert_eq!(version.to_string(), text);
            }
        }
    }
}
