//! The bench: release builds, a throw-away PostgreSQL, the peers; and the page of a full run.

use std::io::Read;
use std::process::{Command, Stdio};

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::page::{Page, facts};
use crate::peers::Peers;
use crate::postgres::{self, Postgres};
use crate::setup;
use crate::shell::{announce, cargo, ended, first_line, run, workspace};

const PAGE: Page = Page {
    path: "docs/reference/performance.md",
    begin: "<!-- bench:begin -->",
    end: "<!-- bench:end -->",
    opening: "# What a claim costs\n\nWritten by `cargo xtask bench claim` between the two markers; explanations stand outside them.\n\n\
        Ratios say more than rates: the sides take turns on the same machine, and each ratio is of one turn.",
};
/// Five hundred requests are held at once, each on three sockets.
const FILES: &str = "ulimit -n \"$(ulimit -H -n)\"; exec \"$@\"";

/// What a claim costs: the library beside plain SQL, the axum layer beside a bare handler, the gateway beside nginx and another idempotency proxy.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench claim
      The full run, on a machine that does nothing else; writes docs/reference/performance.md.
  cargo xtask bench claim --quick --only library
      Whether the bench works: two short turns of one part. Writes no page.
  cargo xtask bench claim --seconds 10 --pairs 9
      Longer, for a machine that is not quiet.")]
pub(crate) struct Claim {
    /// How long each side runs in its turn
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// How often the sides take turns
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Two turns of one second, and no page
    #[arg(long, conflicts_with_all = ["seconds", "pairs"])]
    quick: bool,
    /// Only this part, and no page; can be given again
    #[arg(long, value_name = "NAME")]
    only: Vec<Part>,
    /// Installs nothing; what is missing is an error
    #[arg(long)]
    no_setup: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Part {
    /// Beside plain SQL, on SQLite and PostgreSQL
    Library,
    /// The axum layer beside the same handler unprotected, on SQLite and PostgreSQL
    Layer,
    /// Beside its upstream and nginx, on SQLite and PostgreSQL
    Gateway,
    /// Beside idempotent-proxy-server
    Peer,
    /// With 500 requests held
    Memory,
}

/// Measures, prints the tables, and writes the page after a full run.
pub(crate) fn claim(options: &Claim) -> anyhow::Result<()> {
    // Of what the tests need, the bench needs the server only.
    if !options.no_setup && !postgres::is_installed() {
        setup::all()?;
    }
    let peers = if options.no_setup { Peers::found() } else { Peers::all() }?;
    // One after the other: the gateway is to be built with its own features, not with those of the bench.
    run(cargo().args(["build", "--release", "--package", "onced-server"]))?;
    run(cargo().args(["build", "--release", "--package", "onced-bench"]))?;
    let postgres = Postgres::start()?;
    let tables = measure(&mut bench(options, &peers, &postgres)?)?;
    if options.quick || !options.only.is_empty() {
        return Ok(());
    }
    let versions = format!("{}; {}", postgres.version(), peers.versions());
    PAGE.write(&format!("{}{}\n{tables}", facts(&versions), more_facts(options)))?;
    eprintln!("xtask: written to {}", PAGE.path);
    Ok(())
}

fn bench(options: &Claim, peers: &Peers, postgres: &Postgres) -> anyhow::Result<Command> {
    let release = std::path::absolute(workspace().join("target/release"))?;
    let mut command = Command::new("sh");
    command.args(["-c", FILES, "sh"]).arg(release.join("onced-bench"));
    let (seconds, pairs) = if options.quick { (1.0, 2) } else { (options.seconds, options.pairs) };
    command.args(["--seconds", &seconds.to_string(), "--pairs", &pairs.to_string()]);
    command.args(["--warm-up", if options.quick { "0.2" } else { "1" }]);
    for part in &options.only {
        let name = part.to_possible_value().context("every part has a name")?;
        command.args(["--only", name.get_name()]);
    }
    command.args(["--postgres", &postgres.url()]).arg("--onced").arg(release.join("onced"));
    command.arg("--nginx").arg(&peers.nginx).arg("--redis").arg(&peers.redis).arg("--peer").arg(&peers.proxy);
    Ok(command)
}

/// Shows the tables and keeps them.
fn measure(command: &mut Command) -> anyhow::Result<String> {
    announce(command);
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start the bench")?;
    let mut tables = String::new();
    child.stdout.take().context("stdout is piped")?.read_to_string(&mut tables)?;
    let status = child.wait()?;
    ended(command, status)?;
    println!("{tables}");
    Ok(tables)
}

fn more_facts(options: &Claim) -> String {
    let processor = first_line("sh", &["-c", "grep -m1 'model name' /proc/cpuinfo | cut -d: -f2"]).unwrap_or_default();
    let disk =
        first_line("sh", &["-c", "df --output=fstype,source \"${TMPDIR:-/tmp}\" | tail -n 1"]).unwrap_or_default();
    let memory = first_line("sh", &["-c", "grep MemTotal /proc/meminfo | tr -s ' ' | cut -d: -f2"]).unwrap_or_default();
    let Claim { seconds, pairs, .. } = options;
    format!(
        "| Hardware | {processor}; memory {memory}; databases on {disk} |\n\
         | Command | `cargo xtask bench claim --seconds {seconds} --pairs {pairs}` |\n"
    )
}
