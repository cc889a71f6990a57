//! One thing that the doctor looked at: what was seen, and what that means.

use serde::Serialize;

/// Whether it is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// It is.
    Ok,
    /// It may be meant so; a person should look.
    Warn,
    /// The promise does not hold, or the gateway does not start.
    Wrong,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Wrong => "wrong",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    /// What was seen.
    pub(super) seen: String,
    /// What it means.
    pub(super) means: String,
    /// What to do; empty where nothing is to be done.
    #[serde(rename = "do")]
    pub(super) to_do: String,
}

impl Finding {
    pub(super) fn ok(name: &'static str, seen: impl Into<String>, means: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, seen: seen.into(), means: means.into(), to_do: String::new() }
    }

    pub(super) fn warn(
        name: &'static str,
        seen: impl Into<String>,
        means: impl Into<String>,
        to_do: impl Into<String>,
    ) -> Self {
        Self { name, verdict: Verdict::Warn, seen: seen.into(), means: means.into(), to_do: to_do.into() }
    }

    pub(super) fn wrong(
        name: &'static str,
        seen: impl Into<String>,
        means: impl Into<String>,
        to_do: impl Into<String>,
    ) -> Self {
        Self { name, verdict: Verdict::Wrong, seen: seen.into(), means: means.into(), to_do: to_do.into() }
    }
}
