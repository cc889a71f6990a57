//! `onced serve`: reads flags and file into one configuration, and runs the gateway.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use onced_core::failure::Effect;

use crate::config::{Config, Flags, effect_from_word};
use crate::{app, logging};

#[derive(Args)]
#[command(after_help = "\
Examples:
  onced serve --upstream http://127.0.0.1:3000
      A ledger of its own in onced.db; a request with an Idempotency-Key takes effect once, as far as a separate
      ledger can know: an outcome that it did not see is held, never guessed.
  onced serve --upstream http://127.0.0.1:3000 --store postgres://app@localhost/shop --effect same-database
      The ledger in the application's own database, which completes each key in its own transaction.
  onced serve --config onced.toml
      Routes, each with its own key, effect and limits; see onced.example.toml.")]
pub(crate) struct Serve {
    /// The service behind the gateway, for whatever matches no route
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Where to listen [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// The ledger: sqlite:PATH, postgres://… or mysql://… (MariaDB) [default: sqlite:onced.db]
    #[arg(long, value_name = "URL", env = "ONCED_STORE", hide_env_values = true)]
    store: Option<String>,
    /// A file with routes and all other settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What the upstream is: same-database, idempotent or external [default: external]
    #[arg(long, value_name = "EFFECT", value_parser = effect_from_word)]
    effect: Option<Effect>,
    /// Refuse requests without a key instead of forwarding them unprotected
    #[arg(long)]
    require_key: bool,
}

impl Serve {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let flags = Flags {
            listen: self.listen,
            upstream: self.upstream,
            store: self.store,
            effect: self.effect,
            require_key: self.require_key,
        };
        let config = match self.config {
            Some(file) => Config::load_with(&file, &flags)?,
            None => Config::from_flags(&flags)?,
        };
        logging::start(config.log);
        app::serve(config).await?;
        Ok(ExitCode::SUCCESS)
    }
}
