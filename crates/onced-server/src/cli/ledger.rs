//! Which ledger a subcommand means: the one of a configuration file, of a URL, or the default.

use std::path::PathBuf;

use clap::Args;

use crate::config::{Config, Flags, StoreConfig};

#[derive(Args)]
pub(super) struct Ledger {
    /// The ledger: sqlite:PATH or postgres://… [default: sqlite:onced.db]
    #[arg(long, global = true, value_name = "URL", env = "ONCED_STORE", hide_env_values = true)]
    store: Option<String>,
    /// Take the ledger and the scopes' settings from this file
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Ledger {
    /// The whole configuration, where a file is named.
    pub(super) fn config(&self) -> anyhow::Result<Option<Config>> {
        let flags = Flags { store: self.store.clone(), ..Flags::default() };
        Ok(match &self.config {
            Some(file) => Some(Config::load_with(file, &flags)?),
            None => None,
        })
    }

    /// The ledger's settings.
    pub(super) fn settings(&self) -> anyhow::Result<StoreConfig> {
        if let Some(config) = self.config()? {
            return Ok(config.store);
        }
        // Only the ledger's part of this is used.
        let upstream = Some("http://127.0.0.1:1".to_owned());
        Ok(Config::from_flags(&Flags { store: self.store.clone(), upstream, ..Flags::default() })?.store)
    }
}
