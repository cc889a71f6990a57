//! Where a request's key comes from, as its route says.

use bytes::Bytes;
use http::HeaderMap;
use onced::core::derive::{AgentKey, AgentKeyError, json_at, key_from_pointer, text_from_pointer};
use onced::core::key::{Key, KeyError, key_from_header_lines};
use onced::http::respond::Problem;

use crate::config::{AgentParts, KeyRule, KeySource, Missing, PartSource, Tool, WithinStep};

/// The header that carries an explicit key.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// What came of looking for a key.
#[derive(Debug)]
pub(super) enum Derived {
    /// There is one.
    Key(Key),
    /// There is none, and the route lets such requests pass.
    Pass,
}

/// Finds the key of a request.
pub(super) fn derive(rule: &KeyRule, headers: &HeaderMap, body: &Bytes) -> Result<Derived, Problem> {
    let key = match &rule.source {
        KeySource::Off => None,
        KeySource::Header { name } => explicit(headers, name.as_str())?,
        KeySource::Pointer(pointer) => key_from_pointer(body, pointer).map_err(Problem::KeyInvalid)?,
        // The ladder: an explicit key goes before a derived one.
        KeySource::Agent(parts) => match explicit(headers, IDEMPOTENCY_KEY)? {
            Some(key) => Some(key),
            None => agent(parts, headers, body)?,
        },
    };
    match (key, rule.missing) {
        (Some(key), _) => Ok(Derived::Key(key)),
        (None, Missing::Pass) => Ok(Derived::Pass),
        (None, Missing::Refuse) => Err(Problem::KeyMissing),
    }
}

fn explicit(headers: &HeaderMap, name: &str) -> Result<Option<Key>, Problem> {
    key_from_header_lines(headers.get_all(name).iter().map(http::HeaderValue::as_bytes)).map_err(Problem::KeyInvalid)
}

fn agent(parts: &AgentParts, headers: &HeaderMap, body: &Bytes) -> Result<Option<Key>, Problem> {
    let part = |source: &PartSource| part(source, headers, body);
    let tool = match &parts.tool {
        Tool::Fixed(name) => Some(name.clone()),
        Tool::From(source) => part(source)?,
    };
    let (Some(conversation), Some(step), Some(tool)) = (part(&parts.conversation)?, part(&parts.step)?, tool) else {
        return Ok(None);
    };
    let invalid = |_: AgentKeyError| Problem::KeyInvalid(KeyError::Malformed);
    let step = AgentKey::step(&conversation, &step).map_err(invalid)?;
    let key = match parts.within_step {
        WithinStep::OnePerTool => step.call(&tool),
        WithinStep::ByArguments => {
            let arguments = parts.arguments.as_ref().map(|pointer| json_at(body, pointer).map_err(Problem::KeyInvalid));
            let arguments = arguments.transpose()?.flatten();
            step.call_by_arguments(&tool, &arguments.unwrap_or_default())
        }
    };
    key.map(Some).map_err(invalid)
}

fn part(source: &PartSource, headers: &HeaderMap, body: &Bytes) -> Result<Option<String>, Problem> {
    match source {
        // Taken as a key is: one line, printable, without the blanks around it.
        PartSource::Header(name) => Ok(explicit(headers, name.as_str())?.map(|key| key.as_str().to_owned())),
        PartSource::Pointer(pointer) => text_from_pointer(body, pointer).map_err(Problem::KeyInvalid),
    }
}
