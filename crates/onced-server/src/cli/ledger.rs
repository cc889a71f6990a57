//! Which ledger a subcommand means: the one of a configuration file, of a URL, or the default.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use onced::store::AnyStore;

use crate::app;
use crate::config::{Config, Flags, StoreConfig, StoreUrl};

#[derive(Args)]
pub(super) struct Ledger {
    /// The ledger: sqlite:PATH, postgres://… or mysql://… (MariaDB) [default: sqlite:onced.db]
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

    /// Opens a ledger that is there and up to date. Nothing is made or changed.
    pub(super) async fn open(&self) -> anyhow::Result<AnyStore> {
        let settings = self.settings()?;
        if let Some(file) = missing_file(&settings.url) {
            bail!("there is no file {}: name the ledger with --store or --config", file.display());
        }
        let store = app::open_store_as_it_is(&settings).await?;
        store.check_schema().await?;
        Ok(store)
    }
}

/// The file of a SQLite ledger that is not there; opening it would make an empty one.
pub(super) fn missing_file(url: &StoreUrl) -> Option<PathBuf> {
    let path = url.expose().strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    let path = path.split('?').next().unwrap_or(path);
    // What is written with escapes is left to SQLite.
    let file = Some(PathBuf::from(path)).filter(|_| !path.contains('%'))?;
    (!file.exists()).then_some(file)
}
