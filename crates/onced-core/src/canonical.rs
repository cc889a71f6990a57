//! JSON as a value, strictly: two texts of the same value give the same bytes, texts of different values never do.
//!
//! Numbers are exact decimals and never become floating point: an id above 2^53 keeps its last digit. What cannot be
//! read in exactly one way (a member named twice, half a surrogate pair) is refused rather than interpreted, because
//! the application behind may interpret it differently.

#[cfg(test)]
mod laws;
mod number;
#[cfg(test)]
mod rfc8785;

pub(crate) use number::Number;

use crate::pointer::{self, Pointer};
use json_event_parser::{JsonEvent, SliceJsonParser};
use std::cmp::Ordering;
use std::fmt::Write as _;

/// Longer texts are not canonicalised: the raw bytes count.
pub(crate) const MAX_BYTES: usize = 256 * 1024;
/// Arrays and objects within each other. It also bounds the recursion of everything that walks a tree.
const MAX_DEPTH: usize = 128;

/// Why a text has no canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotCanonical {
    /// Over `MAX_BYTES`.
    TooLarge,
    /// Over `MAX_DEPTH`.
    TooDeep,
    /// An object names a member twice.
    DuplicateName,
    /// An exponent that is out of all bounds.
    Exponent,
    /// No JSON text in UTF-8, or more than one.
    Syntax,
}

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Json>),
    /// In UTF-16 order of the names; no name twice.
    Object(Vec<(String, Json)>),
    /// Was taken out of its array, whose other items stay where they are.
    Removed,
}

/// Reads one JSON text of at most `MAX_BYTES`.
pub(crate) fn parse(text: &[u8]) -> Result<Json, NotCanonical> {
    if text.len() > MAX_BYTES { Err(NotCanonical::TooLarge) } else { parse_of_any_size(text) }
}

/// Reads one JSON text whose size the caller has bounded.
pub(crate) fn parse_of_any_size(text: &[u8]) -> Result<Json, NotCanonical> {
    // The tokenizer skips a byte order mark, and looks at UTF-8 only within strings.
    if text.starts_with(b"\xEF\xBB\xBF") || std::str::from_utf8(text).is_err() {
        return Err(NotCanonical::Syntax);
    }
    let mut parser = SliceJsonParser::new(text);
    let mut root = None;
    let mut open: Vec<Json> = Vec::new();
    loop {
        // The tokenizer can go on after an error; we never do.
        let value = match parser.parse_next().map_err(|_| NotCanonical::Syntax)? {
            JsonEvent::Null => Json::Null,
            JsonEvent::Boolean(value) => Json::Bool(value),
            JsonEvent::Number(digits) => Json::Number(Number::parse(&digits)?),
            JsonEvent::String(value) => Json::String(value.into_owned()),
            JsonEvent::StartArray => {
                push_open(&mut open, Json::Array(Vec::new()))?;
                continue;
            }
            JsonEvent::StartObject => {
                push_open(&mut open, Json::Object(Vec::new()))?;
                continue;
            }
            JsonEvent::ObjectKey(name) => {
                if let Some(Json::Object(members)) = open.last_mut() {
                    members.push((name.into_owned(), Json::Null)); // the value follows
                }
                continue;
            }
            JsonEvent::EndArray | JsonEvent::EndObject => sorted(open.pop().ok_or(NotCanonical::Syntax)?)?,
            JsonEvent::Eof => return root.ok_or(NotCanonical::Syntax),
        };
        match open.last_mut() {
            Some(Json::Array(items)) => items.push(value),
            Some(Json::Object(members)) => members.last_mut().ok_or(NotCanonical::Syntax)?.1 = value,
            Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Removed) | None => {
                root = Some(value);
            }
        }
    }
}

fn push_open(open: &mut Vec<Json>, container: Json) -> Result<(), NotCanonical> {
    if open.len() == MAX_DEPTH {
        return Err(NotCanonical::TooDeep);
    }
    open.push(container);
    Ok(())
}

fn sorted(mut container: Json) -> Result<Json, NotCanonical> {
    if let Json::Object(members) = &mut container {
        members.sort_by(|(a, _), (b, _)| utf16_order(a, b));
        if members.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(NotCanonical::DuplicateName);
        }
    }
    Ok(container)
}

/// By UTF-16 code units, as RFC 8785 sorts: a character beyond U+FFFF stands before U+E000.
fn utf16_order(a: &str, b: &str) -> Ordering {
    a.encode_utf16().cmp(b.encode_utf16())
}

impl Json {
    /// The value at `pointer`.
    pub(crate) fn get(&self, pointer: &Pointer) -> Option<&Self> {
        pointer.tokens().iter().try_fold(self, |value, token| match value {
            Self::Object(members) => members
                .binary_search_by(|(name, _)| utf16_order(name, token))
                .ok()
                .and_then(|at| members.get(at))
                .map(|(_, member)| member),
            Self::Array(items) => items.get(pointer::index(token)?),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) | Self::Removed => None,
        })
    }

    /// Takes out what is at `pointer`, if anything. An item of an array leaves a mark: without it `[1, 2]` without its
    /// first item would equal `[2, 1]` without its last.
    pub(crate) fn remove(&mut self, pointer: &Pointer) {
        let Some((last, way)) = pointer.tokens().split_last() else {
            *self = Self::Removed;
            return;
        };
        let Some(parent) = way.iter().try_fold(self, |value, token| value.child_mut(token)) else { return };
        if let Self::Object(members) = parent {
            members.retain(|(name, _)| name != last);
        } else if let Some(item) = parent.child_mut(last) {
            *item = Self::Removed;
        }
    }

    fn child_mut(&mut self, token: &str) -> Option<&mut Self> {
        match self {
            Self::Object(members) => {
                let at = members.binary_search_by(|(name, _)| utf16_order(name, token)).ok()?;
                members.get_mut(at).map(|(_, member)| member)
            }
            Self::Array(items) => items.get_mut(pointer::index(token)?),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) | Self::Removed => None,
        }
    }

    /// The canonical bytes of this value.
    pub(crate) fn canonical(&self) -> Vec<u8> {
        let mut text = String::new();
        self.write_canonical(&mut text);
        text.into_bytes()
    }

    /// Appends the canonical form: members and string escapes as in RFC 8785, numbers as digits `e` exponent.
    pub(crate) fn write_canonical(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Number(number) => number.write_canonical(out),
            Self::String(text) => write_string(text, out),
            Self::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    item.write_canonical(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (at, (name, value)) in members.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    write_string(name, out);
                    out.push(':');
                    value.write_canonical(out);
                }
                out.push('}');
            }
            Self::Removed => out.push('?'), // begins no JSON value
        }
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control)); // writing to a String cannot fail
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        let json = parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error:?}"));
        String::from_utf8(json.canonical()).unwrap()
    }

    #[test]
    fn strings_and_members_have_one_form() {
        assert_eq!(
            canonical(r#""\u0008\u0009\u000A\f\r\"\\\/\u001F\u007f\u20AC""#),
            "\"\\b\\t\\n\\f\\r\\\"\\\\/\\u001f\u{7f}€\""
        );
        assert_eq!(canonical(r#""\ud83d\ude00""#), "\"😀\"");
        assert_eq!(canonical(" { } "), "{}");
        assert_eq!(canonical("[ ]"), "[]");
        // By UTF-16 code units: U+10000 is D800 DC00 there, so it comes before U+E000.
        assert_eq!(
            canonical("{\"\u{e000}\":1,\"\u{10000}\":2,\"b\":[{\"z\":null,\"\":true}]}"),
            "{\"b\":[{\"\":true,\"z\":null}],\"\u{10000}\":2e0,\"\u{e000}\":1e0}"
        );
    }

    #[rustfmt::skip]
    const NO_JSON: &[&str] = &[
        "", " ", "{", "[", "\"", "[1", "{\"a\"", "{\"a\":", "{\"a\":1", "]", "}", "[}", "{]", ",", ":", "1 1", "{}{}",
        "[] x", "null,", "nul", "truefalse", "True", "NaN", "Infinity", "-Infinity", "undefined", "'a'", "{a:1}",
        "{1:1}", "{\"a\" 1}", "{\"a\":1 \"b\":2}", "{\"a\":1,}", "{,}", "[1,]", "[,1]", "[1 2]", "[1,,2]", "01",
        "[01]", "-01", "00", "1.", "[1.]", "1.e1", ".5", "[.5]", "+1", "[+1]", "-", "[-]", "--1", "1e", "1e+", "[1e]",
        "1e1.5", "0x1", "1_0", "1f", "// a\n1", "/**/1", "#\n1", "\"a\nb\"", "\"a\tb\"", "\"\u{0}\"", "\"\u{1f}\"",
        "\"\\x41\"", "\"\\u12\"", "\"\\u12G4\"", "\"\\u+123\"", "\"\\'\"", "\"\\", "\"\\ud800\"", "\"\\ud800x\"",
        "\"\\udc00\"", "\"\\udc00\\ud800\"", "\"\\ud800\\ud800\"", "\"\\ud800\\u0041\"", "\"\\ud800\\n-----\"",
        "{\"\\ud800\":1}", "\"\\uDFFF\\uDFFF\"", "\u{feff}1", "\u{feff}", "1\u{feff}", "\u{a0}1", "1\u{b}", "1\0",
        "\u{c}1",
    ];

    #[test]
    fn what_can_be_read_in_two_ways_or_none_is_refused() {
        let refuse = |text: &[u8], error| {
            assert_eq!(parse(text), Err(error), "{}", String::from_utf8_lossy(text));
        };
        for text in NO_JSON {
            refuse(text.as_bytes(), NotCanonical::Syntax);
        }
        for text in [
            b"\"\xff\"".as_slice(),
            b"\"\xc3\"",
            b"\"\xed\xa0\x80\"",
            b"\"\xc0\x80\"",
            b"\"a\\n\xff\"",
            b"1\xff",
            b"\xff\xfe1\0",
        ] {
            refuse(text, NotCanonical::Syntax);
        }
        for text in [r#"{"a":1,"a":1}"#, r#"{"a":1,"b":2,"a":3}"#, r#"{"a":1,"\u0061":2}"#, r#"[{"x":{"":1,"":1}}]"#] {
            refuse(text.as_bytes(), NotCanonical::DuplicateName);
        }
        assert_eq!(canonical(r#"{"a":{"a":1},"A":1}"#), r#"{"A":1e0,"a":{"a":1e0}}"#);
    }

    #[test]
    fn the_bounds_of_size_and_depth() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let nested = |depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
            assert_eq!(canonical(&nested(128)), nested(128).replace('1', "1e0"));
            assert_eq!(parse(nested(129).as_bytes()), Err(NotCanonical::TooDeep));
            assert_eq!(parse(open.repeat(40_000).as_bytes()), Err(NotCanonical::TooDeep));
        }
        let sized = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
        assert!(parse(sized(MAX_BYTES).as_bytes()).is_ok());
        assert_eq!(parse(sized(MAX_BYTES + 1).as_bytes()), Err(NotCanonical::TooLarge));
        assert!(parse_of_any_size(sized(MAX_BYTES + 1).as_bytes()).is_ok());
    }

    #[test]
    fn places_are_found_and_taken_out() {
        let text = r#"{"a":{"b":[10,{"c":null}],"":1},"~/":2,"0":3}"#;
        let json = parse(text.as_bytes()).unwrap();
        let get = |at: &str| json.get(&at.parse().unwrap()).map(|value| String::from_utf8(value.canonical()).unwrap());
        for (at, found) in [("/a/b/0", "1e1"), ("/a/b/1/c", "null"), ("/a/", "1e0"), ("/~0~1", "2e0"), ("/0", "3e0")] {
            assert_eq!(get(at).as_deref(), Some(found), "{at}");
        }
        assert_eq!(get(""), Some(canonical(text)));
        for absent in ["/", "/b", "/a/b/2", "/a/b/-", "/a/b/00", "/a/b/0/x", "/a/b/1/c/d"] {
            assert_eq!(get(absent), None, "{absent}");
            let mut same = json.clone();
            same.remove(&absent.parse().unwrap());
            assert_eq!(same, json, "{absent}");
        }
        let without = |places: &[&str]| {
            let mut json = json.clone();
            for place in places {
                json.remove(&place.parse().unwrap());
            }
            String::from_utf8(json.canonical()).unwrap()
        };
        assert_eq!(without(&["/a/b/0", "/a/b/0/x", "/~0~1"]), r#"{"0":3e0,"a":{"":1e0,"b":[?,{"c":null}]}}"#);
        assert_eq!(without(&["/a", "/a/b", "/0"]), r#"{"~/":2e0}"#);
        assert_eq!(without(&["", "/a"]), "?");
    }
}
