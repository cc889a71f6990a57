//! `cargo xtask bench claim` starts this: measures what a claim costs, side by side, and prints the tables as Markdown.

mod gateway;
mod http_load;
mod library;
mod memory;
mod pairs;
mod peer;
mod report;
mod servers;
mod upstream;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::pairs::Plan;
use crate::report::Report;

/// Measures what a claim costs. Progress goes to stderr, the tables to stdout.
#[derive(Parser)]
struct Options {
    /// How long each side of a pair runs.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// How often the sides take turns.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// How long each side runs before it counts.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Only these parts.
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// A PostgreSQL with the right to create databases.
    #[arg(long)]
    postgres: String,
    /// The gateway, a release build.
    #[arg(long)]
    onced: PathBuf,
    #[arg(long)]
    nginx: PathBuf,
    #[arg(long)]
    redis: PathBuf,
    /// `idempotent-proxy-server`.
    #[arg(long)]
    peer: PathBuf,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The library beside plain SQL.
    Library,
    /// The axum layer beside the same handler unprotected.
    Layer,
    /// The gateway beside its upstream and nginx.
    Gateway,
    /// The gateway beside another idempotency proxy.
    Peer,
    /// The gateway's memory under held requests.
    Memory,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let measured = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(measure(&options)));
    match measured {
        Ok(report) => {
            print!("{}", report.markdown());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options) -> anyhow::Result<Report> {
    let plan = Plan {
        pairs: options.pairs.max(1),
        lasts: Duration::from_secs_f64(options.seconds.max(0.1)),
        warm_up: Duration::from_secs_f64(options.warm_up.max(0.0)),
    };
    let mut report = Report::default();
    let wanted = |part| options.only.is_empty() || options.only.contains(&part);
    if wanted(Part::Library) {
        library::run(&options.postgres, &plan, &mut report).await?;
    }
    if wanted(Part::Layer) {
        library::layer::run(&options.postgres, &plan, &mut report).await?;
    }
    if wanted(Part::Gateway) {
        gateway::run(options, &plan, &mut report).await?;
    }
    if wanted(Part::Peer) {
        peer::run(options, &plan, &mut report).await?;
    }
    if wanted(Part::Memory) {
        memory::run(options, &mut report).await?;
    }
    Ok(report)
}
