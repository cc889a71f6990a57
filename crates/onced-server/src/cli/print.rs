//! `onced print`: one file for an application in another language, which calls the ledger's SQL functions.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

#[derive(Args)]
#[command(after_help = "\
Examples:
  onced print python > onced.py     needs psycopg 3 and nothing else
  onced print node > onced.mjs      needs pg and nothing else

The file is yours: keep it beside your code, read it, change it. It calls the SQL functions that `onced migrate` makes in a
PostgreSQL ledger, in your own transactions, and decides nothing itself. Let your application's role call them by
`onced migrate --store URL --grant ROLE`. docs/guides/first-handler.md shows its use.")]
pub(crate) struct Print {
    /// The language of your application
    language: Language,
}

#[derive(Clone, Copy, ValueEnum)]
enum Language {
    /// For psycopg 3
    Python,
    /// An ES module, for pg
    Node,
}

impl Print {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let text = match self.language {
            Language::Python => include_str!("../../print/onced.py"),
            Language::Node => include_str!("../../print/onced.mjs"),
        };
        std::io::stdout().write_all(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}
