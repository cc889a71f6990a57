//! `onced config`: checks a configuration file, and prints what can be set.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::config;

#[derive(Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Check a file: every mistake with its line and what would be right. Exit code 1 if there is one
    Check {
        /// The file
        #[arg(value_name = "FILE", default_value = "onced.toml")]
        file: PathBuf,
    },
    /// Print every setting with its default, as a Markdown table
    Reference,
}

impl Config {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Check { file } => {
                let config = match config::Config::load(&file) {
                    Ok(config) => config,
                    Err(errors) => {
                        eprintln!("{errors}");
                        return Ok(ExitCode::FAILURE);
                    }
                };
                for notice in config.warnings() {
                    println!("note: {notice}");
                }
                println!("{} is sound: {} routes, ledger {}.", file.display(), config.routes.len(), config.store.url);
            }
            Action::Reference => print!("{}", config::reference_table()),
        }
        Ok(ExitCode::SUCCESS)
    }
}
