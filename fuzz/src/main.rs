//! `onced-fuzz`: tries the readers of foreign bytes, each for a while. Run it by `cargo xtask fuzz`, which knows of the
//! configuration's reader, too.

mod targets;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Parser;
use onced_fuzz::{corpus, run};

/// Tries the readers of foreign bytes.
#[derive(Parser)]
struct Cli {
    /// How long each target is tried.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Draws the same inputs as an earlier run; by the clock if left out.
    #[arg(long)]
    seed: Option<u64>,
    /// One target only.
    #[arg(value_parser = targets::ALL.map(|(name, _)| name))]
    target: Option<String>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |age| age.as_secs());
    let seed = cli.seed.unwrap_or(clock);
    let chosen =
        targets::ALL.into_iter().filter(|(name, _)| cli.target.as_deref().is_none_or(|target| target == *name));
    for (name, target) in chosen {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let seeds = match corpus(&folder) {
            Ok(seeds) => seeds,
            Err(error) => {
                eprintln!("fuzz: {}: {error}", folder.display());
                return ExitCode::FAILURE;
            }
        };
        match run(seeds, Duration::from_secs(cli.seconds), seed, target) {
            Ok(report) => println!("fuzz: {name}: {report}"),
            Err(failure) => {
                eprintln!("fuzz: {name} failed: {failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
