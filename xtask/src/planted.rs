//! Planted faults: named patches that break what the suite must prove, each of which it must catch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};

use crate::shell::{cargo, run, workspace};
use crate::suite::{self, Servers};

/// A patch, with what stands above its first `diff` line.
struct Fault {
    name: String,
    patch: PathBuf,
    /// What is broken, in words.
    words: String,
    /// The parts of tests' names that are run: whoever reads the patch sees who is to catch it.
    tests: Vec<String>,
}

/// Plants each fault, or those whose name contains `only`, into a copy of the last commit, and runs its tests there.
pub(crate) fn plant(inputs: &Path, only: Option<&str>) -> anyhow::Result<()> {
    let mut faults = faults()?;
    faults.retain(|fault| only.is_none_or(|only| fault.name.contains(only)));
    ensure!(!faults.is_empty(), "no fault has that name; they are in {}", folder().display());
    let copy = tempfile::tempdir()?;
    check_out(copy.path())?;
    let servers = Servers::start(inputs)?;

    let mut all: Vec<String> = faults.iter().flat_map(|fault| fault.tests.clone()).collect();
    all.sort();
    all.dedup();
    eprintln!("xtask: without a fault: {}", all.join(" "));
    build(copy.path())?;
    for name in &all {
        let listed = tests(copy.path()).args(["--", "--list", name]).output()?;
        ensure!(String::from_utf8_lossy(&listed.stdout).contains(": test"), "no test is called {name}");
    }
    run(suite::with_environment(tests(copy.path()).args(["--", "--test-threads=2"]).args(&all), &servers, inputs))
        .context("the tests fail without a fault")?;

    let mut missed = Vec::new();
    for (number, fault) in faults.iter().enumerate() {
        let started = Instant::now();
        apply(copy.path(), &fault.patch, &[])?;
        build(copy.path()).with_context(|| format!("{} does not compile", fault.name))?;
        let caught = !passes(copy.path(), &servers, inputs, &fault.tests)?;
        apply(copy.path(), &fault.patch, &["--reverse"])?;
        let (verdict, seconds) = (if caught { "caught" } else { "MISSED" }, started.elapsed().as_secs());
        eprintln!("xtask: {}/{} {verdict}: {} ({}), {seconds} s", number + 1, faults.len(), fault.name, fault.words);
        if !caught {
            missed.push(fault.name.as_str());
        }
    }
    ensure!(missed.is_empty(), "the suite does not catch: {}", missed.join(", "));
    eprintln!("xtask: all {} planted faults were caught", faults.len());
    Ok(())
}

fn folder() -> PathBuf {
    workspace().join("planted")
}

fn faults() -> anyhow::Result<Vec<Fault>> {
    let mut faults = Vec::new();
    for entry in fs::read_dir(folder())? {
        let patch = entry?.path();
        if patch.extension().is_none_or(|extension| extension != "patch") {
            continue;
        }
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&patch)?;
        let said = |what: &str| text.lines().find_map(|line| line.strip_prefix(what)).map(str::trim);
        let (Some(words), Some(tests)) = (said("Fault:"), said("Tests:")) else {
            bail!("{} has no `Fault:` and `Tests:` lines at its head", patch.display());
        };
        let tests = tests.split_whitespace().map(str::to_owned).collect();
        faults.push(Fault { words: words.to_owned(), tests, name, patch });
    }
    faults.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(faults)
}

/// Outside of this repository: there, a patch names files from where it stands.
fn check_out(copy: &Path) -> anyhow::Result<()> {
    let mut archive = Command::new("git")
        .args(["archive", "HEAD"])
        .current_dir(workspace())
        .stdout(Stdio::piped())
        .spawn()
        .context("git")?;
    let packed = archive.stdout.take().context("git says nothing")?;
    // Files are as old as this copy: the last run may have left what it built with a fault.
    run(Command::new("tar").arg("-xm").current_dir(copy).stdin(packed))?;
    ensure!(archive.wait()?.success(), "git archive failed");
    Ok(())
}

fn apply(copy: &Path, patch: &Path, more: &[&str]) -> anyhow::Result<()> {
    let mut git = Command::new("git");
    git.args(["apply", "--whitespace=nowarn"]).args(more).arg(patch).current_dir(copy);
    run(&mut git).with_context(|| format!("{} is out of date: plant it again", patch.display()))
}

/// The tests of the library, which all faults are in; in a target of their own.
fn tests(copy: &Path) -> Command {
    let mut command = cargo();
    command.args(["test", "--quiet", "-p", "onced", "--test", "it"]).current_dir(copy);
    command.env("CARGO_TARGET_DIR", workspace().join("target/planted"));
    command
}

fn build(copy: &Path) -> anyhow::Result<()> {
    run(tests(copy).arg("--no-run"))
}

fn passes(copy: &Path, servers: &Servers, inputs: &Path, names: &[String]) -> anyhow::Result<bool> {
    let mut command = tests(copy);
    command.args(["--", "--test-threads=2"]).args(names).stdout(Stdio::null()).stderr(Stdio::null());
    let ended = suite::with_environment(&mut command, servers, inputs).status()?;
    Ok(ended.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a patch changes must still be there: a fault that cannot be planted shows nothing.
    #[test]
    fn every_fault_can_be_planted() {
        let faults = faults().unwrap();
        assert!(faults.len() >= 14, "{} faults", faults.len());
        for fault in faults {
            apply(&workspace(), &fault.patch, &["--check"]).unwrap();
        }
    }
}
