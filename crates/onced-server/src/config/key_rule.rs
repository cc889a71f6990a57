//! Where a route's keys come from, and how that is written: `key = "required"`, `key = { from = … }`.

use http::HeaderName;
use onced_core::pointer::Pointer;

use super::defaults::KEY_HEADER;
use super::document::{Entry, Section};
use super::settings::Place;
use super::values::{Words, one_of};

/// Where the key comes from, and what a request without one gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRule {
    /// Where to look.
    pub(crate) source: KeySource,
    /// What a request without a key gets.
    pub(crate) missing: Missing,
}

/// Where to look for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySource {
    /// Nowhere: every request passes through.
    Off,
    /// In a header.
    Header {
        /// Its name.
        name: HeaderName,
    },
    /// In the JSON body.
    Pointer(Pointer),
    /// It is made from the step of a conversation that a tool call belongs to. An `Idempotency-Key` that the agent
    /// sends itself goes before it.
    Agent(AgentParts),
}

/// What an agent's key is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentParts {
    /// Where the conversation or run is named.
    pub(crate) conversation: PartSource,
    /// Where the step within it is named.
    pub(crate) step: PartSource,
    /// The tool's name.
    pub(crate) tool: Tool,
    /// Where in the JSON body the arguments are.
    pub(crate) arguments: Option<Pointer>,
    /// How the calls of one step are told apart.
    pub(crate) within_step: WithinStep,
}

/// Where a part of an agent's key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PartSource {
    /// In a header.
    Header(HeaderName),
    /// In the JSON body.
    Pointer(Pointer),
}

/// The name of the tool that is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// Always this one.
    Fixed(String),
    /// As the request names it.
    From(PartSource),
}

/// What a request without a key gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// 400.
    Refuse,
    /// It is forwarded unprotected.
    Pass,
}

impl Words for Missing {
    const WORDS: &'static [(&'static str, Self)] = &[("refuse", Self::Refuse), ("pass", Self::Pass)];
}

/// How the calls of one step are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithinStep {
    /// Each tool is called once: other arguments are another request under a known key.
    OnePerTool,
    /// Other arguments are another call.
    ByArguments,
}

impl Words for WithinStep {
    const WORDS: &'static [(&'static str, Self)] =
        &[("one-per-tool", Self::OnePerTool), ("by-arguments", Self::ByArguments)];
}

/// Where `key = { from = … }` looks.
#[derive(Clone, Copy, PartialEq)]
enum From {
    Header,
    Pointer,
    Agent,
}

impl Words for From {
    const WORDS: &'static [(&'static str, Self)] =
        &[("header", Self::Header), ("pointer", Self::Pointer), ("agent", Self::Agent)];
}

impl From {
    /// The settings that only make sense with it.
    fn own_settings(self) -> &'static [&'static str] {
        match self {
            Self::Header => &["header"],
            Self::Pointer => &["pointer"],
            Self::Agent => &["conversation", "step", "tool", "arguments", "within_step"],
        }
    }
}

/// Ways of finding a key that a later version will know.
const LATER: [&str; 3] = ["provider", "composite", "hash"];

impl KeyRule {
    /// Whether (a part of) the key is in the body.
    pub(crate) fn looks_into_body(&self) -> bool {
        let in_body = |part: &PartSource| matches!(part, PartSource::Pointer(_));
        match &self.source {
            KeySource::Off | KeySource::Header { .. } => false,
            KeySource::Pointer(_) => true,
            KeySource::Agent(parts) => {
                in_body(&parts.conversation)
                    || in_body(&parts.step)
                    || matches!(&parts.tool, Tool::From(part) if in_body(part))
                    || parts.within_step == WithinStep::ByArguments
            }
        }
    }

    /// A key in the header `Idempotency-Key`.
    pub(crate) fn standard(missing: Missing) -> Self {
        Self { source: KeySource::Header { name: standard_header() }, missing }
    }

    /// Reads what stands behind `key =`.
    pub(super) fn read(entry: &Entry<'_>) -> Option<Self> {
        if let Some(section) = entry.section(&[Place::Key]) {
            return read_table(&section);
        }
        match entry.value.as_str() {
            Some("required") => Some(Self::standard(Missing::Refuse)),
            Some("optional") => Some(Self::standard(Missing::Pass)),
            Some("off") => Some(Self { source: KeySource::Off, missing: Missing::Pass }),
            Some(_) | None => {
                entry.refuse(format!(
                    "is not known; write {}, or where the key comes from: {{ from = \"header\", header = \"X-…\" }}",
                    one_of(&["required", "optional", "off"])
                ));
                None
            }
        }
    }
}

fn standard_header() -> HeaderName {
    HeaderName::from_static(KEY_HEADER)
}

fn read_table(section: &Section<'_>) -> Option<KeyRule> {
    section.refuse_unknown();
    let from = read_from(section)?;
    for (word, other) in From::WORDS.iter().filter(|(_, other)| *other != from) {
        for entry in other.own_settings().iter().filter_map(|name| section.get(name)) {
            entry.refuse(format!("belongs to from = \"{word}\"; take it out, or write from = \"{word}\""));
        }
    }
    let missing = match section.get("missing") {
        Some(entry) => entry.word()?,
        None => Missing::Refuse,
    };
    let source = match from {
        From::Header => KeySource::Header {
            name: match section.get("header") {
                Some(entry) => harmless_header(&entry)?,
                None => standard_header(),
            },
        },
        From::Pointer => KeySource::Pointer(section.required("pointer", "pointer = \"/id\"")?.pointer()?),
        From::Agent => KeySource::Agent(read_agent(section)?),
    };
    Some(KeyRule { source, missing })
}

fn read_from(section: &Section<'_>) -> Option<From> {
    let entry = section.required("from", "from = \"header\"")?;
    let word = entry.value.as_str().unwrap_or("");
    if LATER.contains(&word) {
        entry.refuse(format!("is not in this version; write {}", one_of(&["header", "pointer", "agent"])));
        return None;
    }
    entry.word()
}

fn read_agent(section: &Section<'_>) -> Option<AgentParts> {
    let part = |name, example| section.required(name, example).and_then(|entry| read_part(&entry));
    let conversation = part("conversation", "conversation = { header = \"X-Conversation-Id\" }");
    let step = part("step", "step = { header = \"X-Step-Id\" }");
    let tool = section.required("tool", "tool = \"send_email\"").and_then(|entry| match entry.value.as_str() {
        Some("") => {
            entry.refuse("is empty; write the tool's name");
            None
        }
        Some(name) => Some(Tool::Fixed(name.to_owned())),
        None => read_part(&entry).map(Tool::From),
    });
    let arguments = section.get("arguments").map(|entry| entry.pointer());
    let within_step = match section.get("within_step") {
        Some(entry) => {
            let within_step = entry.word()?;
            if within_step == WithinStep::ByArguments && arguments.is_none() {
                entry.refuse(
                    "must know where the arguments are; write arguments = \"/arguments\", or \"\" for all of the body",
                );
                return None;
            }
            within_step
        }
        None => WithinStep::OnePerTool,
    };
    let arguments = match arguments {
        Some(read) => Some(read?),
        None => None,
    };
    Some(AgentParts { conversation: conversation?, step: step?, tool: tool?, arguments, within_step })
}

fn read_part(entry: &Entry<'_>) -> Option<PartSource> {
    let right = format!("write {0} = {{ header = \"X-…\" }} or {0} = {{ pointer = \"/…\" }}", entry.name);
    let Some(section) = entry.section(&[Place::Part]) else {
        entry.refuse(format!("does not say where to look; {right}"));
        return None;
    };
    section.refuse_unknown();
    match (section.get("header"), section.get("pointer")) {
        (Some(header), None) => harmless_header(&header).map(PartSource::Header),
        (None, Some(pointer)) => pointer.pointer().map(PartSource::Pointer),
        (Some(_), Some(_)) => {
            entry.refuse(format!("names two places; {right}"));
            None
        }
        (None, None) => {
            entry.refuse(format!("does not say where to look; {right}"));
            None
        }
    }
}

/// A header that may become a key: keys are stored, logged and shown, so that no credential may be one.
fn harmless_header(entry: &Entry<'_>) -> Option<HeaderName> {
    let name = entry.header_name()?;
    if ["authorization", "proxy-authorization", "cookie"].contains(&name.as_str()) {
        entry
            .refuse("holds a credential, and a key is stored and shown; name a header that holds an id of the request");
        return None;
    }
    if name.as_str().starts_with("onced-") {
        entry.refuse("is a header of the gateway's own, which it takes out of every request; name another one");
        return None;
    }
    Some(name)
}
