//! Running other programs: shown before they run, and failed with their own exit code.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::Context;

/// A program that ended badly.
#[derive(Debug)]
pub(crate) struct Ended {
    words: String,
    status: ExitStatus,
}

impl Ended {
    pub(crate) fn exit_code(&self) -> ExitCode {
        let code = self.status.code().and_then(|code| u8::try_from(code).ok());
        code.map_or(ExitCode::FAILURE, ExitCode::from)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` failed: {}", self.words, self.status)
    }
}

impl std::error::Error for Ended {}

/// Says what it runs, and runs it.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    announce(command);
    let status = command.status().with_context(|| format!("cannot start `{}`", in_words(command)))?;
    ended(command, status)
}

/// Fails where the program failed.
pub(crate) fn ended(command: &Command, status: ExitStatus) -> anyhow::Result<()> {
    if status.success() { Ok(()) } else { Err(Ended { words: in_words(command), status }.into()) }
}

/// The first line that a program prints; nothing is shown.
pub(crate) fn first_line(program: impl AsRef<OsStr>, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).current_dir(workspace()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.success().then(|| text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Whether a program runs and succeeds; nothing is shown.
pub(crate) fn works(program: &str, args: &[&str]) -> bool {
    first_line(program, args).is_some()
}

/// Says what is going to run.
pub(crate) fn announce(command: &Command) {
    eprintln!("xtask: {}", in_words(command));
}

/// Cargo of the same toolchain, in the root of the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    command
}

/// The root of the workspace.
pub(crate) fn workspace() -> PathBuf {
    // Set by `cargo run`; without it the program was started by hand, in the root.
    let own = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    own.as_deref().and_then(Path::parent).map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

fn in_words(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
