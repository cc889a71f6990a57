//! The command line. One file per subcommand; this one only lists them.

mod check;
mod demo;
mod doctor;
mod keys;
mod ledger;
mod migrate;
mod observe;
mod print;
mod serve;
mod sweep;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Makes each trigger take effect once.
#[derive(Parser)]
#[command(name = "onced", version, about = "Makes each trigger take effect once", arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  onced demo                                        see it work: gateway, app and load, nothing to prepare
  onced serve --upstream http://127.0.0.1:3000      put it in front of a service
  onced serve --config onced.toml                   the same with routes
  onced print python > onced.py                     protect a handler in its own transaction (PostgreSQL)
  onced keys list                                   what is in the ledger
  onced doctor                                      whether the ledger is sound";

#[derive(Subcommand)]
enum Command {
    /// See it work: gateway, payment app and load, nothing to prepare
    Demo(demo::Demo),
    /// The payment app of the demo
    #[command(hide = true)]
    DemoApp(demo::DemoApp),
    /// Run the gateway in front of an HTTP service
    Serve(serve::Serve),
    /// Look at keys, and resolve unknown outcomes
    Keys(keys::Keys),
    /// Look at a ledger, and say what is right, doubtful or wrong
    Doctor(doctor::Doctor),
    /// Delete keys that have finished and expired
    Sweep(sweep::Sweep),
    /// See what onced would have withheld, where it only observes
    Observe(observe::Observe),
    /// Bring the ledger's schema up to date, or print it
    Migrate(migrate::Migrate),
    /// Print the file by which an application in Python or Node uses the ledger in its own transactions
    Print(print::Print),
    /// Check a configuration file
    Config(check::Config),
}

impl Cli {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Demo(demo) => demo.run().await,
            Command::DemoApp(app) => app.run().await,
            Command::Serve(serve) => serve.run().await,
            Command::Keys(keys) => keys.run().await,
            Command::Doctor(doctor) => doctor.run().await,
            Command::Sweep(sweep) => sweep.run().await,
            Command::Observe(observe) => observe.run().await,
            Command::Migrate(migrate) => migrate.run().await,
            Command::Print(print) => print.run(),
            Command::Config(config) => config.run(),
        }
    }
}
