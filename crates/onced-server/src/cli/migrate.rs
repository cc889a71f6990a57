//! `onced migrate`: brings the ledger's schema up to date, or prints it for those who run it themselves.

use std::process::ExitCode;

use clap::Args;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;

use super::ledger::Ledger;
use crate::app;
use crate::config::Backend;

#[derive(Args)]
#[command(after_help = "\
Examples:
  onced migrate                                             the embedded ledger, onced.db
  onced migrate --store postgres://app@localhost/shop       the schema `onced` in the application's database
  onced migrate --store mysql://app@localhost/shop          tables `onced_…` in the application's MariaDB database
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
            let printed = match store.url.backend() {
                Backend::Sqlite => SqliteStore::migrations(),
                Backend::Postgres => PgStore::migrations(&store.schema),
                Backend::MariaDb => MySqlStore::migrations(),
            };
            print!("{printed}");
            return Ok(ExitCode::SUCCESS);
        }
        app::open_store(&store).await?;
        println!("The ledger {} is up to date.", store.url);
        Ok(ExitCode::SUCCESS)
    }
}
