//! The long run: all tests with full counts, then a mixed load for as long as is asked, and the record of what was
//! counted. The load is a step of its own, so that its progress is seen and nothing else disturbs it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::Context;

use crate::page::{Page, facts};
use crate::shell::{announce, ended};
use crate::suite::{Runner, Servers, build, runner, with_environment};

const PAGE: Page = Page {
    path: "docs/reference/soak.md",
    begin: "<!-- soak:begin -->",
    end: "<!-- soak:end -->",
    opening: "# The last long run\n\nWritten by `cargo xtask soak`.",
};
const LOAD_PAGE: Page = Page { begin: "<!-- load:begin -->", end: "<!-- load:end -->", ..PAGE };
/// How the names of the load's tests begin.
const LOAD: &str = "load::";
/// A test prints what it counted on lines that begin like this.
const MARK: &str = "SOAK: ";

/// A part of the long run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// The mixed load.
    Load,
}

/// What is run, and for how long.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// One part only.
    #[arg(long)]
    only: Option<Part>,
    /// How long the mixed load lasts on each database.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Passed on to the test runner, for example a part of a test's name. There is no mixed load then.
    #[arg(last = true)]
    args: Vec<String>,
}

/// Runs the tests; the page is written only after a run without failure.
pub(crate) fn run(inputs: &Path, options: &Options) -> anyhow::Result<()> {
    build()?;
    let servers = Servers::start(inputs)?;
    if options.only.is_none() {
        let shown = ["--profile=soak", "--success-output=immediate", "--failure-output=immediate"];
        let args = if options.args.is_empty() { without_load(&Runner::found()) } else { options.args.clone() };
        let mut tests = runner(&Runner::found(), &shown, &args);
        with_environment(&mut tests, &servers, inputs).env("ONCED_SOAK", "1");
        let counted = collect(&mut tests)?;
        PAGE.write(&summary(&servers, &counted))?;
        eprintln!("xtask: {} counts written to {}", counted.len(), PAGE.path);
    }
    if options.args.is_empty() {
        let mut load = runner(&Runner::found(), &["--profile=soak", "--no-capture"], &load_alone(&Runner::found()));
        with_environment(&mut load, &servers, inputs).env("ONCED_SOAK", "1");
        load.env("ONCED_LOAD_MINUTES", options.minutes.to_string());
        let counted = collect(&mut load)?;
        let words = "## The mixed load\n\nWhat the test of that name in `crates/onced-server/tests/it/load.rs` has counted.\n\n";
        LOAD_PAGE.write(&format!("{words}{}", summary(&servers, &counted)))?;
        eprintln!("xtask: the load's counts are written to {}", LOAD_PAGE.path);
    }
    Ok(())
}

fn without_load(runner: &Runner) -> Vec<String> {
    match runner {
        Runner::Nextest => vec!["-E".to_owned(), format!("not test(/^{LOAD}/)")],
        Runner::Cargo => vec!["--skip".to_owned(), LOAD.to_owned()],
    }
}

fn load_alone(runner: &Runner) -> Vec<String> {
    match runner {
        Runner::Nextest => vec!["-E".to_owned(), format!("test(/^{LOAD}/)")],
        Runner::Cargo => vec![LOAD.to_owned()],
    }
}

/// Runs the command, shows everything, and keeps the marked lines.
fn collect(command: &mut Command) -> anyhow::Result<Vec<String>> {
    announce(command);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot start the tests")?;
    let output = child.stdout.take().context("stdout is piped")?;
    let errors = child.stderr.take().context("stderr is piped")?;
    let other = thread::spawn(move || marked(output, show));
    let mut counted = marked(errors, show);
    counted.extend(other.join().unwrap_or_default());
    let status = child.wait()?;
    ended(command, status)?;
    // The order of the tests is chance.
    counted.sort();
    counted.dedup();
    Ok(counted)
}

fn show(line: &str) {
    eprintln!("{line}");
}

fn marked(source: impl Read, show: fn(&str)) -> Vec<String> {
    let lines = BufReader::new(source).split(b'\n').map_while(Result::ok);
    let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned()).inspect(|line| show(line));
    lines.filter_map(|line| Some(line.split_once(MARK)?.1.trim().to_owned())).collect()
}

fn summary(servers: &Servers, counted: &[String]) -> String {
    let counts: String = counted.iter().map(|line| format!("- {line}\n")).collect();
    let counts = if counted.is_empty() { "No test reported a count.\n" } else { &counts };
    format!("{}\n{counts}", facts(&servers.versions()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_lines_are_kept_however_deep_they_stand() {
        let output = "PASS x\n    SOAK: 10 deliveries, 1 effect\nSOAK: 2\nother\n";
        // Shown to nobody: this test runs in the long run as well, and its lines are no counts.
        assert_eq!(marked(output.as_bytes(), |_| {}), ["10 deliveries, 1 effect", "2"]);
    }
}
