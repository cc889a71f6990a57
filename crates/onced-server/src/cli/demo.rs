//! `onced demo`, and the hidden `onced demo-app` that it starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::demo::{self, Afterwards, Ledger};

#[derive(Args)]
#[command(after_help = "\
Examples:
  onced demo                    play the story, then leave the gateway up, with lines to try
  onced demo --exit             play the story and end: exit code 0 if every count is right, else 1
  onced demo --break-it --exit  the same clients and the same app without onced: see what is charged twice

Nothing has to be prepared. Configuration, logs and the SQLite file are in a temporary folder, removed at the end.")]
pub(crate) struct Demo {
    /// End after the story instead of leaving the gateway up
    #[arg(long)]
    exit: bool,
    /// Tell the same story without the gateway and its ledger, and show the double charges
    #[arg(long)]
    break_it: bool,
}

impl Demo {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let ledger = if self.break_it { Ledger::Without } else { Ledger::With };
        let afterwards = if self.exit { Afterwards::Exit } else { Afterwards::StayUp };
        demo::run(ledger, afterwards).await
    }
}

/// The payment app of `onced demo`. It ends when its standard input is closed.
#[derive(Args)]
pub(crate) struct DemoApp {
    /// The SQLite file of its orders
    #[arg(long, value_name = "FILE")]
    database: PathBuf,
    /// Where the payment provider listens
    #[arg(long, value_name = "ADDR")]
    provider: SocketAddr,
    /// Complete no record, and charge under a new key each time
    #[arg(long)]
    without_ledger: bool,
}

impl DemoApp {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let ledger = if self.without_ledger { Ledger::Without } else { Ledger::With };
        demo::app::serve(&self.database, self.provider, ledger).await?;
        Ok(ExitCode::SUCCESS)
    }
}
