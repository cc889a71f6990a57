//! `onced sweep`: deletes keys that have finished and expired, and old lines of the log of deliveries.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use comfy_table::{Table, presets};
use indicatif::ProgressBar;
use onced::store::AnyStore;
use onced::store::sweep::Sweep as _;

use super::ledger::Ledger;
use crate::maintenance::sweeper::{BATCH, Next, Report, Sweeper};

#[derive(Args)]
#[command(after_help = "\
Examples:
  onced sweep --dry-run                               what would go, by scope
  onced sweep --config onced.toml                     delete it, with the file's ledger and settings
  onced sweep --store postgres://app@localhost/shop   from cron, where the gateway has [sweep] every = \"off\"

What is unfinished (queued, in_progress, pending_external), held or without an expiry is never deleted. `onced serve`
sweeps by itself unless told otherwise. It can run beside gateways, and be ended at any time.")]
pub(crate) struct Sweep {
    #[command(flatten)]
    ledger: Ledger,
    /// Count what would go, and delete nothing
    #[arg(long)]
    dry_run: bool,
    /// How long lines of the log of deliveries are kept [default: that of --config, else 30days]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    keep_deliveries: Option<Duration>,
    /// The size of every batch [default: at most 10000, as many as take a moment]
    #[arg(long, hide = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(BATCH)))]
    batch: Option<u32>,
}

impl Sweep {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let store = self.ledger.open().await?;
        let keep_deliveries = match self.keep_deliveries {
            Some(keep) => keep,
            None => self.ledger.config()?.map(|config| config.sweep).unwrap_or_default().keep_deliveries,
        };
        if self.dry_run {
            return count(store, keep_deliveries).await;
        }
        delete(Sweeper { store, keep_deliveries, batch: self.batch }).await
    }
}

async fn count(mut store: AnyStore, keep_deliveries: Duration) -> anyhow::Result<ExitCode> {
    let due = store.due(keep_deliveries).await?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["SCOPE", "KEYS", "DELIVERIES"]);
    for due in &due {
        table.add_row([due.scope.clone(), due.keys.to_string(), due.deliveries.to_string()]);
    }
    if !due.is_empty() {
        println!("{table}");
    }
    let keys = due.iter().map(|due| due.keys).sum();
    let deliveries = due.iter().map(|due| due.deliveries).sum();
    println!("{} would be deleted. Nothing was.", counted(keys, deliveries));
    Ok(ExitCode::SUCCESS)
}

async fn delete(mut sweeper: Sweeper) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let progress = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    });
    let swept = sweeper
        .run_once(|report| {
            if let Some(bar) = &progress {
                bar.set_message(format!("{} deleted", counted(report.keys, report.deliveries)));
            }
            Next::GoOn
        })
        .await;
    if let Some(bar) = progress {
        bar.finish_and_clear();
    }
    let Report { keys, deliveries, batches, elsewhere } = swept?;
    let took = began.elapsed().as_secs_f64();
    println!(
        "{} deleted, in {batches} {} and {took:.1} s.",
        counted(keys, deliveries),
        if batches == 1 { "batch" } else { "batches" }
    );
    if elsewhere {
        println!("Another process is sweeping this ledger; the rest was left to it.");
    }
    Ok(ExitCode::SUCCESS)
}

fn counted(keys: u64, deliveries: u64) -> String {
    let some = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    format!("{} and {} of deliveries", some(keys, "key"), some(deliveries, "line"))
}
