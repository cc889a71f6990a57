//! Building and running all tests on throw-away servers.

use std::path::Path;
use std::process::Command;

use crate::mariadb::MariaDb;
use crate::postgres::Postgres;
use crate::setup;
use crate::shell::{cargo, run, works};

/// Builds, then runs the tests; with `args` only those, and no documentation tests.
pub(crate) fn test(inputs: &Path, args: &[String]) -> anyhow::Result<()> {
    build()?;
    let servers = Servers::start(inputs)?;
    if args.is_empty() {
        // First, so that the run closes on the tests' own summary.
        let mut documentation = cargo();
        documentation.args(["test", "--quiet", "--doc", "--workspace"]);
        run(with_environment(&mut documentation, &servers, inputs))?;
    }
    let mut tests = runner(&Runner::found(), &[], args);
    run(with_environment(&mut tests, &servers, inputs))?;
    eprintln!("xtask: all tests passed");
    Ok(())
}

/// The servers that the tests run on.
pub(crate) struct Servers {
    /// Of the system's version.
    postgres: Postgres,
    /// Of the newest version.
    new: Postgres,
    mariadb: MariaDb,
}

impl Servers {
    pub(crate) fn start(inputs: &Path) -> anyhow::Result<Self> {
        let new = Postgres::start_packed(setup::new_postgres_folder(inputs), setup::NEW_POSTGRES_BINARIES)?;
        Ok(Self { postgres: Postgres::start()?, new, mariadb: MariaDb::start()? })
    }

    /// What runs there, in words.
    pub(crate) fn versions(&self) -> String {
        format!("{}, {}", self.postgres.version(), self.mariadb.version())
    }
}

/// Builds everything that tests may start.
pub(crate) fn build() -> anyhow::Result<()> {
    run(cargo().args(["build", "--workspace", "--all-targets"]))
}

/// Which program runs the tests.
pub(crate) enum Runner {
    /// Each test in a process of its own.
    Nextest,
    /// What every Rust installation has.
    Cargo,
}

impl Runner {
    pub(crate) fn found() -> Self {
        if works("cargo", &["nextest", "--version"]) { Self::Nextest } else { Self::Cargo }
    }
}

/// The command that runs the tests; `shown` are nextest's options to print what tests print.
pub(crate) fn runner(runner: &Runner, shown: &[&str], args: &[String]) -> Command {
    let mut command = cargo();
    match runner {
        Runner::Nextest => command.args(["nextest", "run", "--workspace"]).args(shown).args(args),
        Runner::Cargo => {
            command.args(["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast", "--"]);
            if !shown.is_empty() {
                command.arg("--nocapture");
            }
            // Tests measure times, and there may be two cores only.
            command.arg("--test-threads=2").args(args)
        }
    };
    command
}

/// What the tests read.
pub(crate) fn with_environment<'a>(command: &'a mut Command, servers: &Servers, inputs: &Path) -> &'a mut Command {
    command.env("ONCED_TEST_POSTGRES", servers.postgres.url()).env("ONCED_TEST_POSTGRES_NEW", servers.new.url());
    command.env("ONCED_TEST_MARIADB", servers.mariadb.url());
    command.env("ONCED_TEST_INPUTS", inputs)
}
