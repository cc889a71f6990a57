//! The chores of the repository: `cargo xtask test` and its siblings.

mod bench;
mod fuzz;
mod mariadb;
mod page;
mod peers;
mod planted;
mod postgres;
mod server;
mod setup;
mod shell;
mod soak;
mod suite;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::shell::{Ended, cargo, run, workspace};

/// The chores of the repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Sets up what the tests need, starts a throw-away PostgreSQL and MariaDB, builds, and runs all tests.
    Test {
        /// Installs and fetches nothing; what is missing is an error.
        #[arg(long)]
        no_setup: bool,
        /// Passed on to the test runner, for example a part of a test's name. Documentation tests are then left out.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Installs and fetches what the tests need, and nothing that is already there.
    Setup,
    /// Checks formatting and lints.
    Check,
    /// Runs all tests with full counts, then a mixed load, and writes docs/reference/soak.md.
    Soak {
        /// Installs and fetches nothing; what is missing is an error.
        #[arg(long)]
        no_setup: bool,
        #[command(flatten)]
        options: soak::Options,
    },
    /// Tries the readers of foreign bytes with mutated inputs; a failure is reported with its input.
    Fuzz {
        /// How long each target is tried.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// One target only: key, json, form, multipart, encoding or config.
        target: Option<String>,
    },
    /// Plants named faults into a copy of the last commit: each must be caught by the tests that its patch names.
    Planted {
        /// Installs and fetches nothing; what is missing is an error.
        #[arg(long)]
        no_setup: bool,
        /// A part of the name of a fault in `planted/`; without it, all.
        only: Option<String>,
    },
    /// Measures, side by side.
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Runs what the continuous integration runs.
    Ci,
}

#[derive(Subcommand)]
enum Bench {
    Claim(bench::Claim),
}

fn main() -> ExitCode {
    match perform(Cli::parse().chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            // A failed command has said why; its own code is the best one.
            error.downcast_ref::<Ended>().map_or(ExitCode::FAILURE, Ended::exit_code)
        }
    }
}

fn perform(chore: Chore) -> anyhow::Result<()> {
    match chore {
        Chore::Test { no_setup, args } => {
            let inputs = prepare(no_setup)?;
            suite::test(&inputs, &args)
        }
        Chore::Setup => setup::all().map(drop),
        Chore::Check => check(),
        Chore::Soak { no_setup, options } => {
            let inputs = prepare(no_setup)?;
            soak::run(&inputs, &options)
        }
        Chore::Planted { no_setup, only } => {
            let inputs = prepare(no_setup)?;
            planted::plant(&inputs, only.as_deref())
        }
        Chore::Fuzz { seconds, target } => fuzz::fuzz(seconds, target.as_deref()),
        Chore::Bench { what: Bench::Claim(options) } => bench::claim(&options),
        Chore::Ci => run(std::process::Command::new("bash").arg(".ci/run").current_dir(workspace())),
    }
}

fn prepare(no_setup: bool) -> anyhow::Result<std::path::PathBuf> {
    if no_setup { setup::found() } else { setup::all() }
}

fn check() -> anyhow::Result<()> {
    run(cargo().args(["fmt", "--all", "--check"]))?;
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}
