//! `onced migrate`: brings the ledger's schema up to date, or prints it for those who run it themselves.

use std::process::ExitCode;

use clap::Args;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;

use super::ledger::Ledger;
use crate::app;

#[derive(Args)]
#[command(after_help = "\
Examples:
  onced migrate                                             the embedded ledger, onced.db
  onced migrate --store postgres://app@localhost/shop       the schema `onced` in the application's database
  onced migrate --store postgres://app@localhost/shop --print > onced.sql")]
pub(crate) struct Migrate {
    #[command(flatten)]
    ledger: Ledger,
    /// Print the SQL of all migrations instead of running them; no database is opened
    #[arg(long)]
    print: bool,
}

impl Migrate {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let store = self.ledger.settings()?;
        if self.print {
            let is_sqlite = store.url.expose().starts_with("sqlite:");
            print!("{}", if is_sqlite { SqliteStore::migrations() } else { PgStore::migrations(&store.schema) });
            return Ok(ExitCode::SUCCESS);
        }
        app::open_store(&store).await?;
        println!("The ledger {} is up to date.", store.url);
        Ok(ExitCode::SUCCESS)
    }
}
