//! The long run: all tests with full counts, and the record of what was counted.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::Context;

use crate::postgres::Postgres;
use crate::shell::{announce, ended, first_line, workspace};
use crate::suite::{Runner, build, runner, with_environment};

const PAGE: &str = "docs/reference/soak.md";
const BEGIN: &str = "<!-- soak:begin -->";
const END: &str = "<!-- soak:end -->";
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
    let page = workspace().join(PAGE);
    let old = fs::read_to_string(&page).unwrap_or_default();
    fs::create_dir_all(page.parent().context("the page has a folder")?)?;
    fs::write(&page, with_summary(&old, &summary(&postgres, &counted)))?;
    eprintln!("xtask: {} counts written to {PAGE}", counted.len());
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
    let say = |program: &str, args: &[&str]| first_line(program, args).unwrap_or_else(|| "unknown".to_owned());
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let changed = first_line("git", &["status", "--porcelain"]).is_none_or(|line| !line.is_empty());
    let rows = [
        ("Date", say("date", &["-u", "+%Y-%m-%d"])),
        ("Commit", say("git", &["rev-parse", "HEAD"]) + if changed { ", with changes" } else { "" }),
        ("Machine", format!("{cores} cores, {}", say("uname", &["-srm"]))),
        ("Versions", format!("{}; {}", say("rustc", &["--version"]), postgres.version())),
    ];
    let facts: String = rows.iter().map(|(name, value)| format!("| {name} | {value} |\n")).collect();
    let counts: String = counted.iter().map(|line| format!("- {line}\n")).collect();
    let counts = if counted.is_empty() { "No test reported a count.\n" } else { &counts };
    format!("| Run | |\n| --- | --- |\n{facts}\n{counts}")
}

/// Replaces what stands between the markers, or starts the page.
fn with_summary(page: &str, summary: &str) -> String {
    let block = format!("{BEGIN}\n{summary}{END}");
    let between = page.find(BEGIN).zip(page.find(END)).filter(|(begin, end)| begin < end);
    match between {
        Some((begin, end)) => format!("{}{block}{}", &page[..begin], &page[end + END.len()..]),
        None if page.is_empty() => format!("# The last long run\n\nWritten by `cargo xtask soak`.\n\n{block}\n"),
        None => format!("{}\n\n{block}\n", page.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_markers_is_replaced() {
        let first = with_summary("", "one\n");
        assert_eq!(first.matches(BEGIN).count(), 1);
        let framed = format!("{first}\nAfter.\n");
        assert_eq!(with_summary(&framed, "two\n"), framed.replace("one", "two"));
        assert!(with_summary("# Own page\n", "three\n").starts_with("# Own page\n\n<!--"));
    }

    #[test]
    fn marked_lines_are_kept_however_deep_they_stand() {
        let output = "PASS x\n    SOAK: 10 deliveries, 1 effect\nSOAK: 2\nother\n";
        // Shown to nobody: this test runs in the long run as well, and its lines are no counts.
        assert_eq!(marked(output.as_bytes(), |_| {}), ["10 deliveries, 1 effect", "2"]);
    }
}
