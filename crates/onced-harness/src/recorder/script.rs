//! The script: which reply a call gets, by its path and by how many calls came before it.

use std::sync::{Mutex, PoisonError};

use super::log::Call;
use super::reply::Reply;

/// To which calls a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// To all.
    Always,
    /// To the nth call of its key, from 1. Calls without a key are counted together.
    Run(u64),
    /// To the nth call and all later ones of its key, from 1.
    FromRun(u64),
    /// To the nth call of all, from 1.
    Nth(u64),
}

/// One line of the script.
#[derive(Clone, Debug)]
pub struct Rule {
    when: When,
    path: Option<String>,
    reply: Reply,
}

impl Rule {
    /// The calls of `when` get `reply`.
    #[must_use]
    pub fn new(when: When, reply: Reply) -> Self {
        Self { when, path: None, reply }
    }

    /// Every call gets `reply`.
    #[must_use]
    pub fn always(reply: Reply) -> Self {
        Self::new(When::Always, reply)
    }

    /// The nth call of each key gets `reply`, from 1.
    #[must_use]
    pub fn on_run(run: u64, reply: Reply) -> Self {
        Self::new(When::Run(run), reply)
    }

    /// Only calls to exactly this path.
    #[must_use]
    pub fn at(mut self, path: &str) -> Self {
        self.path = Some(path.to_owned());
        self
    }

    fn applies_to(&self, call: &Call) -> bool {
        let timely = match self.when {
            When::Always => true,
            When::Run(run) => call.run == run,
            When::FromRun(run) => call.run >= run,
            When::Nth(seq) => call.seq == seq,
        };
        timely && self.path.as_deref().is_none_or(|path| path == call.path)
    }
}

/// The rules in force.
pub(super) struct Script(Mutex<Vec<Rule>>);

impl Script {
    pub(super) fn new(rules: Vec<Rule>) -> Self {
        Self(Mutex::new(rules))
    }

    pub(super) fn replace(&self, rules: Vec<Rule>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    pub(super) fn reply_to(&self, call: &Call) -> Reply {
        let rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rules.iter().find(|rule| rule.applies_to(call)).map_or_else(Reply::ok, |rule| rule.reply.clone())
    }
}
