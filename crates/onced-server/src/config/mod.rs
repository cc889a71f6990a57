//! The configuration of the gateway: one TOML file, or a few flags, read once at the start and refused as a whole
//! when anything in it is wrong.

mod caller;
mod contract;
mod cors;
mod defaults;
mod document;
mod errors;
mod file;
mod flags;
mod key_rule;
mod limits;
mod lists;
mod matching;
mod notices;
mod outside;
mod path;
mod read_route;
mod route;
mod settings;
mod store_url;
mod trust;
mod upstream;
mod values;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

pub(crate) use caller::{RateLimit, Tenant};
pub(crate) use cors::Origins;
pub(crate) use errors::{ConfigError, ConfigErrors, Position};
pub(crate) use flags::{Flags, effect_from_word};
pub(crate) use key_rule::{AgentParts, KeyRule, KeySource, Missing, PartSource, Tool, WithinStep};
pub(crate) use matching::Match;
pub(crate) use route::{BodySyntax, Route};
pub(crate) use settings::reference_table;
pub(crate) use store_url::{Backend, StoreUrl};
pub(crate) use trust::Certificates;
pub(crate) use upstream::{Upstream, UpstreamHttp};
pub(crate) use values::Words;

use document::Document;
use onced::store::Pooler;
use onced::store::deliveries::LogDeliveries;
use outside::{Outside, Process};

/// A sound configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Where to listen.
    pub(crate) listen: SocketAddr,
    /// What clients may ask of the listener.
    pub(crate) clients: ClientsConfig,
    /// The ledger's database.
    pub(crate) store: StoreConfig,
    /// Where the gateway's own endpoints live; with a slash at both ends.
    pub(crate) own_prefix: String,
    /// How long running requests may take to finish once the gateway is told to stop.
    pub(crate) shutdown_grace: Duration,
    /// How often expired keys are deleted, and how long the log of deliveries is kept.
    pub(crate) sweep: SweepConfig,
    /// What is logged and how.
    pub(crate) log: LogConfig,
    /// The route of what matches no other.
    pub(crate) default_route: Option<Route>,
    /// The routes, in the order of the file.
    pub(crate) routes: Vec<Route>,
    /// The smallest lease and the unit of `Retry-After`: a second, but for tests that count in tenths.
    pub(crate) tick: Duration,
}

/// What clients may ask of the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientsConfig {
    /// How many are connected at most; others wait.
    pub(crate) max_connections: usize,
    /// How many requests pass unguarded at once; others wait.
    pub(crate) max_passed: usize,
    /// How long a connection may be without a request: none comes, or its head does not end.
    pub(crate) head_timeout: Duration,
    /// How long the body of a request with a key may take.
    pub(crate) body_timeout: Duration,
    /// How long a client may read nothing of its answer.
    pub(crate) write_timeout: Duration,
    /// The largest head of a request.
    pub(crate) max_head_bytes: usize,
}

/// The ledger's database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreConfig {
    /// Its URL.
    pub(crate) url: StoreUrl,
    /// PostgreSQL: the schema of the tables.
    pub(crate) schema: String,
    /// How many connections are opened at most.
    pub(crate) max_connections: u32,
    /// How long a statement waits for the database's lock or for a free connection.
    pub(crate) busy_timeout: Duration,
    /// Which deliveries are written down.
    pub(crate) log_deliveries: LogDeliveries,
    /// How many bytes of outcomes that were lately replayed are kept in memory.
    pub(crate) replay_memory: u64,
    /// PostgreSQL: what stands before the server.
    pub(crate) pooler: Pooler,
    /// Whether to start on a database that may lose commits.
    pub(crate) allow_weak_durability: bool,
}

impl Words for LogDeliveries {
    const WORDS: &'static [(&'static str, Self)] =
        &[("all", Self::All), ("executed", Self::Executed), ("off", Self::Off)];
}

impl Words for Pooler {
    const WORDS: &'static [(&'static str, Self)] = &[("none", Self::None), ("transaction", Self::Transaction)];
}

/// How the ledger is kept small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SweepConfig {
    /// How often the gateway deletes what has expired; `None` where it does not.
    pub(crate) every: Option<Duration>,
    /// How long lines of the log of deliveries are kept.
    pub(crate) keep_deliveries: Duration,
}

impl Default for SweepConfig {
    fn default() -> Self {
        Self { every: Some(defaults::SWEEP_EVERY), keep_deliveries: defaults::KEEP_DELIVERIES }
    }
}

/// What is logged and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogConfig {
    /// For whom.
    pub(crate) format: LogFormat,
    /// How much.
    pub(crate) level: LogLevel,
}

/// For whom the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For machines, one object a line.
    Json,
}

impl Words for LogFormat {
    const WORDS: &'static [(&'static str, Self)] = &[("text", Self::Text), ("json", Self::Json)];
}

/// How much is logged; [`Words::word`] gives the filter's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogLevel {
    /// Only what failed.
    Error,
    /// Also what looks wrong.
    Warn,
    /// Also what happens.
    Info,
    /// Also why.
    Debug,
    /// Everything.
    Trace,
}

impl Words for LogLevel {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];
}

impl Config {
    /// Reads a configuration file.
    pub(crate) fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::load_with(path, &Flags::default())
    }

    /// Reads a configuration file; the flags go before it.
    pub(crate) fn load_with(path: &Path, flags: &Flags) -> Result<Self, ConfigErrors> {
        let file_name = path.display().to_string();
        let text = Process.file(path).map_err(|error| {
            let message = format!("cannot be read ({error}); name a file that exists and that this process may read");
            ConfigErrors::new(vec![ConfigError { at: Position::File(file_name.clone()), message }])
        })?;
        Self::read(&text, &file_name, flags, &Process)
    }

    /// What the flags alone configure: `onced serve --upstream URL`.
    pub(crate) fn from_flags(flags: &Flags) -> Result<Self, ConfigErrors> {
        if flags.upstream.is_none() {
            let message =
                "there is nothing to serve; add --upstream http://127.0.0.1:3000, or name a configuration file";
            let error = ConfigError { at: Position::Flags, message: message.to_owned() };
            return Err(ConfigErrors::new(vec![error]));
        }
        Self::read("", "flags", flags, &Process)
    }

    fn read(text: &str, file_name: &str, flags: &Flags, outside: &dyn Outside) -> Result<Self, ConfigErrors> {
        let document = Document::new(file_name, text, outside);
        let root = document.tables();
        // What follows a syntax error cannot be trusted: only the syntax is reported then.
        let config = if document.is_sound() { file::read(&document, &root, flags) } else { None };
        match config.filter(|_| document.is_sound()) {
            Some(config) => Ok(config),
            None => Err(ConfigErrors::new(document.into_errors())),
        }
    }
}
