//! The long run: all tests with full counts, and the record of what was counted.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::Context;

use crate::page::{Page, facts};
use crate::postgres::Postgres;
use crate::shell::{announce, ended};
use crate::suite::{Runner, build, runner, with_environment};

const PAGE: Page = Page {
    path: "docs/reference/soak.md",
    begin: "<!-- soak:begin -->",
    end: "<!-- soak:end -->",
    opening: "# The last long run\n\nWritten by `cargo xtask soak`.",
};
/// A test prints what it counted on lines that begin like this.
const MARK: &str = "SOAK: ";

/// Runs the tests; the page is written only after a run without failure.
pub(crate) fn run(inputs: &Path, args: &[String]) -> anyhow::Result<()> {
    build()?;
    let postgres = Postgres::start()?;
    let shown = ["--profile=soak", "--success-output=immediate", "--failure-output=immediate"];
    let mut tests = runner(&Runner::found(), &shown, args);
    with_environment(&mut tests, &postgres, inputs).env("ONCED_SOAK", "1");
    let counted = collect(&mut tests)?;
    PAGE.write(&summary(&postgres, &counted))?;
    eprintln!("xtask: {} counts written to {}", counted.len(), PAGE.path);
    Ok(())
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

fn summary(postgres: &Postgres, counted: &[String]) -> String {
    let counts: String = counted.iter().map(|line| format!("- {line}\n")).collect();
    let counts = if counted.is_empty() { "No test reported a count.\n" } else { &counts };
    format!("{}\n{counts}", facts(postgres.version()))
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
