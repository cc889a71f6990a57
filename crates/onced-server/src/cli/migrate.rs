//! `onced migrate`: brings the ledger's schema up to date, or prints it for those who run it themselves.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use onced::store::AnyStore;
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
  onced migrate --store postgres://app@localhost/shop --print > onced.sql
  onced migrate --store postgres://owner@localhost/shop --grant app    let the role `app` call the SQL functions")]
pub(crate) struct Migrate {
    #[command(flatten)]
    ledger: Ledger,
    /// Print the SQL of all migrations instead of running them; no database is opened
    #[arg(long)]
    print: bool,
    /// Let this role call the SQL functions of the ledger, and nothing else (PostgreSQL)
    #[arg(long, value_name = "ROLE", conflicts_with = "print")]
    grant: Option<String>,
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
        let ledger = app::open_store(&store).await?;
        println!("The ledger {} is up to date.", store.url);
        if let Some(role) = self.grant {
            let AnyStore::Postgres(ledger) = ledger else {
                bail!("--grant is for PostgreSQL: other databases have no SQL functions of ours");
            };
            let granted = ledger.grant(&role).await;
            granted.with_context(|| format!("the role {role} cannot be let call the functions of {}", store.url))?;
            println!("The role {role} may call its functions.");
        }
        Ok(ExitCode::SUCCESS)
    }
}
