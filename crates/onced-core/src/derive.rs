//! Keys for triggers that carry none of ours: a place in the body, the parts of an event's id, an event's content, or the
//! step of a conversation that a tool call belongs to.
//!
//! A key is never random and never the hash of nothing: where the parts are missing there is no key.

use crate::canonical;
use crate::document::Document;
use crate::key::{self, Key, KeyError, Parts};
use crate::pointer::Pointer;
use std::fmt::Write as _;

/// The text at a place of a JSON body: a string as it is, a whole number as its digits (`5`, `5.0` and `"5"` are all
/// `5`); anything else, and an absent value, is `None`. The size of the body is for the caller to bound.
///
/// # Errors
/// [`KeyError::Malformed`] where there is a body that cannot be read in exactly one way (no JSON, or a member that is
/// named twice): the application behind might see a key in it, so it must not count as "no key".
/// [`KeyError::TooLong`] for a number of more than 255 digits.
pub fn text_from_pointer(body: &[u8], pointer: &Pointer) -> Result<Option<String>, KeyError> {
    if body.is_empty() {
        return Ok(None);
    }
    Document::parse(body)?.text(pointer)
}

/// The key at a place of a JSON body, read as [`text_from_pointer`] does.
///
/// # Errors
/// As there, and where the text is no valid key: an empty string is an error, not "no key".
pub fn key_from_pointer(body: &[u8], pointer: &Pointer) -> Result<Option<Key>, KeyError> {
    text_from_pointer(body, pointer)?.map(|text| Key::new(&text)).transpose()
}

/// The JSON value at a place of a JSON body, in its canonical form. `Ok(None)` where there is none, or no body.
///
/// # Errors
/// [`KeyError::Malformed`] where the body is no JSON: it may hold a value there for somebody else.
pub fn json_at(body: &[u8], pointer: &Pointer) -> Result<Option<Vec<u8>>, KeyError> {
    if body.is_empty() {
        return Ok(None);
    }
    Ok(Document::parse(body)?.canonical_at(pointer))
}

/// The key of an event that several parts name together, such as its kind and its id: the parts in their order with `|`
/// between them. In a part, `%`, `|` and whatever a key may not hold stand as `%` and two hexadecimal digits for each byte, so that
/// different parts never make the same key. Where that is longer than 255 characters, the key is `event1_` and a hash
/// of the parts. `None` where there is no part, or all are empty.
///
/// ```
/// # use onced_core::derive::key_of_parts;
/// assert_eq!(key_of_parts(&["AUTHORISATION", "8515", "true"]).unwrap().as_str(), "AUTHORISATION|8515|true");
/// assert_eq!(key_of_parts(&["a|b"]).unwrap().as_str(), "a%7Cb");
/// ```
pub fn key_of_parts<T: AsRef<str>>(parts: &[T]) -> Option<Key> {
    if parts.iter().all(|part| part.as_ref().is_empty()) {
        return None;
    }
    let mut text = String::new();
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            text.push('|');
        }
        let part = part.as_ref().as_bytes();
        for (at, byte) in part.iter().enumerate() {
            let blank_at_an_end = *byte == b' ' && (at == 0 || at + 1 == part.len());
            if matches!(byte, b'%' | b'|') || !(0x20..=0x7e).contains(byte) || blank_at_an_end {
                let _ = write!(text, "%{byte:02X}"); // writing to a String cannot fail
            } else {
                text.push(char::from(*byte));
            }
        }
    }
    Key::new(&text).or_else(|_| hashed("event1_", parts.iter().map(AsRef::as_ref))).ok()
}

/// The key of an event that has no id: a hash of its content. Equal JSON gives equal keys, however it is written;
/// anything else counts byte for byte. Two events that say the same are one.
pub fn key_of_content(content: &[u8]) -> Result<Key, KeyError> {
    match Document::parse(content) {
        Ok(document) => hashed("content1_", [&b"json"[..], &document.canonical()]),
        Err(_) => hashed("content1_", [&b"raw"[..], content]),
    }
}

fn hashed<T: AsRef<[u8]>>(prefix: &str, parts: impl IntoIterator<Item = T>) -> Result<Key, KeyError> {
    let hash = parts.into_iter().fold(Parts::default().add(prefix), Parts::add);
    Key::new(&format!("{prefix}{}", key::base64_of(hash.finish())))
}

/// Keys of tool calls, from what survives a retry: the conversation (or run) and its step.
///
/// ```
/// # use onced_core::derive::AgentKey;
/// let step = AgentKey::step("conversation-17", "4")?;
/// let key = step.call("send_email")?;
/// assert_eq!(key, AgentKey::step("conversation-17", "4")?.call("send_email")?);
/// assert_ne!(key, AgentKey::step("conversation-17", "5")?.call("send_email")?);
/// # Ok::<(), onced_core::derive::AgentKeyError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum AgentKey {}

/// Why there is no key for a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentKeyError {
    /// The conversation's or run's id is empty.
    #[error("the id of the conversation or run is empty")]
    EmptyConversation,
    /// The step is empty.
    #[error("the step within the conversation or run is empty")]
    EmptyStep,
    /// The tool's name is empty.
    #[error("the name of the tool is empty")]
    EmptyTool,
    /// The hash is no valid key. It always is one; this only spares the caller a panic.
    #[error("the derived key is not valid")]
    Key(#[from] KeyError),
}

impl AgentKey {
    /// The step of a conversation or run, whatever their ids look like.
    pub fn step(conversation: &str, step: &str) -> Result<AgentStep, AgentKeyError> {
        if conversation.is_empty() {
            Err(AgentKeyError::EmptyConversation)
        } else if step.is_empty() {
            Err(AgentKeyError::EmptyStep)
        } else {
            Ok(AgentStep { conversation: conversation.to_owned(), step: step.to_owned() })
        }
    }
}

/// One step of a conversation or run, in which tools are called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgentStep {
    conversation: String,
    step: String,
}

impl AgentStep {
    /// The key where a tool is called once in a step: a repeated call with other arguments has the same key, and is
    /// then seen as another request.
    pub fn call(&self, tool: &str) -> Result<Key, AgentKeyError> {
        finish(self.parts("tool", tool)?)
    }

    /// The key where calls of a step are told apart by their arguments: parallel calls are separate effects, and so is
    /// a repeated call whose arguments the model changed. Equal JSON gives equal keys, however it is written.
    pub fn call_by_arguments(&self, tool: &str, arguments_json: &[u8]) -> Result<Key, AgentKeyError> {
        let parts = self.parts("arguments", tool)?;
        finish(match canonical::parse(arguments_json) {
            Ok(json) => parts.add("json").add(json.canonical()),
            Err(_) => parts.add("raw").add(arguments_json),
        })
    }

    /// The key where calls of a step are told apart by their order, which must be the same on every retry.
    pub fn call_numbered(&self, tool: &str, ordinal: u32) -> Result<Key, AgentKeyError> {
        finish(self.parts("number", tool)?.add(ordinal.to_string()))
    }

    fn parts(&self, kind: &str, tool: &str) -> Result<Parts, AgentKeyError> {
        if tool.is_empty() {
            return Err(AgentKeyError::EmptyTool);
        }
        Ok(Parts::default().add("onced.agent.1").add(kind).add(&self.conversation).add(&self.step).add(tool))
    }
}

fn finish(parts: Parts) -> Result<Key, AgentKeyError> {
    Ok(Key::new(&format!("agent1_{}", key::base64_of(parts.finish())))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn at(body: impl AsRef<[u8]>, pointer: &str) -> Result<Option<String>, KeyError> {
        key_from_pointer(body.as_ref(), &pointer.parse().unwrap()).map(|key| key.map(|key| key.as_str().to_owned()))
    }

    #[test]
    fn a_string_is_the_key_as_it_is_and_an_integer_its_digits() {
        let check = |value: &str, expected: &str| {
            assert_eq!(at(format!("{{\"id\":{value}}}"), "/id"), Ok(Some(expected.to_owned())), "{value}");
        };
        check(r#""evt_1""#, "evt_1");
        check(r#""\u0065vt_1""#, "evt_1");
        check(r#""5""#, "5");
        check("5", "5");
        check("5.0", "5");
        check("50e-1", "5");
        check("1e3", "1000");
        check("-7", "-7");
        check("-0", "0");
        check("9007199254740993", "9007199254740993");
        check("184467440737095516160", "184467440737095516160");
        check("1e254", &format!("1{}", "0".repeat(254)));
        assert_eq!(at(r#"{"data":[{"id":"a"},{"id":"b"}]}"#, "/data/1/id"), Ok(Some("b".to_owned())));
    }

    #[test]
    fn anything_else_is_no_key() {
        for value in ["null", "true", "1.5", "5e-1", "1e-999999999", "[1]", "{\"a\":1}"] {
            assert_eq!(at(format!("{{\"id\":{value}}}"), "/id"), Ok(None), "{value}");
        }
        assert_eq!(at("{}", "/id"), Ok(None));
        assert_eq!(at("[1]", "/-"), Ok(None));
        assert_eq!(at("", "/id"), Ok(None));
    }

    #[test]
    fn a_value_that_is_no_valid_key_is_an_error() {
        assert_eq!(at(r#"{"id":""}"#, "/id"), Err(KeyError::Empty));
        assert_eq!(at(r#"{"id":" a"}"#, "/id"), Err(KeyError::Malformed));
        assert_eq!(at(r#"{"id":"é"}"#, "/id"), Err(KeyError::NotPrintable));
        assert_eq!(at(r#"{"id":"a\u0000"}"#, "/id"), Err(KeyError::NotPrintable));
        assert_eq!(at(format!("{{\"id\":\"{}\"}}", "x".repeat(256)), "/id"), Err(KeyError::TooLong));
        assert_eq!(at(r#"{"id":1e255}"#, "/id"), Err(KeyError::TooLong));
        assert_eq!(at(r#"{"id":1e999999999}"#, "/id"), Err(KeyError::TooLong));
    }

    #[test]
    fn a_body_with_two_readings_is_an_error_and_not_without_key() {
        for body in [r#"{"id":"a","id":"b"}"#, r#"{"id":"a","x":1,"x":2}"#, "id=a", "{\"id\":\"a\"", " "] {
            assert_eq!(at(body, "/id"), Err(KeyError::Malformed), "{body}");
        }
        let large = format!("{{\"id\":\"a\",\"x\":\"{}\"}}", "x".repeat(canonical::MAX_BYTES));
        assert_eq!(at(large, "/id"), Ok(Some("a".to_owned())));
    }

    #[test]
    fn parts_never_run_into_each_other() {
        let all: [&[&str]; 12] = [
            &["a", "b"],
            &["a|b"],
            &["a", "", "b"],
            &["a|", "b"],
            &["a", "|b"],
            &["a%7Cb"],
            &["a%", "7Cb"],
            &["", "a", "b"],
            &["a", "b", ""],
            &[" a", "b"],
            &["a", "b "],
            &["a\n", "b"],
        ];
        let keys: HashSet<Key> = all.iter().map(|parts| key_of_parts(parts).unwrap()).collect();
        assert_eq!(keys.len(), all.len());
        assert_eq!(key_of_parts(&["é", " x "]).unwrap().as_str(), "%C3%A9|%20x%20");
        assert_eq!(key_of_parts(&["", ""]), None);
        assert_eq!(key_of_parts::<&str>(&[]), None);
        let fits = key_of_parts(&["x".repeat(255)]).unwrap();
        assert_eq!(fits.as_str(), "x".repeat(255));
        let long = key_of_parts(&["x".repeat(256)]).unwrap();
        assert!(long.as_str().starts_with("event1_") && long.as_str().len() == 50, "{long:?}");
        assert_ne!(long, key_of_parts(&["x".repeat(255), "x".to_owned()]).unwrap());
    }

    #[test]
    fn content_is_one_event_however_it_is_written() {
        let of = |text: &str| key_of_content(text.as_bytes()).unwrap();
        assert_eq!(of(r#"{"a":1,"b":[2]}"#), of("{ \"b\": [2.0], \"a\": 1 }"));
        assert_ne!(of(r#"{"a":1}"#), of(r#"{"a":2}"#));
        assert_ne!(of("a=1"), of("a=1 "));
        assert_ne!(of("1"), of("\"1\""));
        assert!(of("").as_str().starts_with("content1_"));
    }

    fn step(conversation: &str, step: &str) -> AgentStep {
        AgentKey::step(conversation, step).unwrap()
    }

    #[test]
    fn a_repeated_call_has_the_key_of_the_first() {
        let first = br#"{"to":["a@example.com"],"subject":"s","text":"t"}"#;
        let reordered = br#"{ "text":"t", "subject":"\u0073", "to":["a@example.com"] }"#;
        let replanned = br#"{"to":["b@example.com"],"subject":"s","text":"t"}"#;
        let key = |arguments: &[u8]| step("c1", "4").call_by_arguments("send_email", arguments).unwrap();
        assert_eq!(key(first), key(reordered));
        assert_ne!(key(first), key(replanned));
        assert_ne!(key(b"{"), key(b"{ "));
        assert_eq!(step("c1", "4").call("send_email"), step("c1", "4").call("send_email"));
    }

    #[test]
    fn another_step_conversation_tool_or_number_is_another_key() {
        let keys = [
            step("c1", "4").call("send_email"),
            step("c1", "5").call("send_email"),
            step("c2", "4").call("send_email"),
            step("c1", "4").call("send_emai"),
            step("c14", "send").call("_email"),
            step("c", "14").call("send_email"),
            step("c1", "4").call_numbered("send_email", 0),
            step("c1", "4").call_numbered("send_email", 1),
            step("c1", "4").call_by_arguments("send_email", b""),
            step("c1", "4").call_by_arguments("send_email", b"0"),
            step("c1", "4").call_by_arguments("send_email", b"0e0."),
        ];
        let distinct: HashSet<Key> = keys.iter().cloned().map(Result::unwrap).collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn there_is_no_key_of_nothing() {
        assert_eq!(AgentKey::step("", "4"), Err(AgentKeyError::EmptyConversation));
        assert_eq!(AgentKey::step("c1", ""), Err(AgentKeyError::EmptyStep));
        assert_eq!(step("c1", "4").call(""), Err(AgentKeyError::EmptyTool));
        assert_eq!(step("c1", "4").call_numbered("", 0), Err(AgentKeyError::EmptyTool));
        assert_eq!(step("c1", "4").call_by_arguments("", b"{}"), Err(AgentKeyError::EmptyTool));
    }

    #[test]
    fn agent_keys_are_those_of_the_vectors() {
        let mut rows = 0;
        for line in include_str!("../vectors/agent-keys.tsv").lines().filter(|line| !line.starts_with('#')) {
            let [kind, conversation, at, tool, last, expected] =
                line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            let step = step(conversation, at);
            let actual = match kind {
                "tool" => step.call(tool),
                "arguments" => step.call_by_arguments(tool, last.as_bytes()),
                "number" => step.call_numbered(tool, last.parse().unwrap()),
                other => panic!("{other}"),
            };
            assert_eq!(actual.unwrap().as_str(), expected, "{line}");
            rows += 1;
        }
        assert!(rows >= 7);
    }

    proptest! {
        #[test]
        fn whatever_the_parts_are_the_key_is_valid(conversation in ".{1,40}", at in ".{1,9}", tool in ".{1,9}", body: Vec<u8>) {
            let step = step(&conversation, &at);
            prop_assert!(step.call(&tool).is_ok());
            prop_assert!(step.call_by_arguments(&tool, &body).is_ok());
        }

        #[test]
        fn no_body_makes_it_panic(body: Vec<u8>, text in "\\PC{0,30}") {
            let _ = at(body, "/0");
            let _ = at(text, "");
        }
    }
}
