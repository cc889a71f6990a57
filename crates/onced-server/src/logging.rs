//! The log: structured, on standard error, and without payloads: keys are shortened, bodies and credentials absent.

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat, Words};

/// Starts logging. The variable `ONCED_LOG` (a filter such as `onced=debug,sqlx=warn`) goes before the configuration.
pub(crate) fn start(config: LogConfig) {
    let level = config.level.word();
    let filter = EnvFilter::try_from_env("ONCED_LOG").unwrap_or_else(|_| EnvFilter::new(format!("warn,onced={level}")));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(true);
    // A second start, in one process, keeps the first.
    let _ = match config.format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init(),
    };
}
