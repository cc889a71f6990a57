//! A child process: its log in a file, the line by which it says that it is ready, and its certain end with the demo.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child as Process, Command};
use tokio::sync::mpsc;

/// How long a child may take until it is ready.
const LIMIT: Duration = Duration::from_secs(20);

/// A running child; killed when dropped. Its standard input is a pipe that closes with this process.
pub(super) struct Child {
    process: Process,
    log: PathBuf,
}

impl Child {
    /// Starts this binary with those arguments and returns once it has written a line with `ready` in it, with that
    /// line. What it writes is added to the file `log`.
    pub(super) async fn start(args: Vec<OsString>, log: &Path, ready: &str) -> anyhow::Result<(Self, String)> {
        let mut command = this_binary()?;
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        // Ctrl-C is the demo's to hear: it ends its children itself, and nothing looks like a crash meanwhile.
        command.process_group(0);
        let mut process = command.spawn().context("this program cannot be started a second time")?;
        let (lines, mut written) = mpsc::unbounded_channel();
        keep(process.stdout.take(), log, lines.clone())?;
        keep(process.stderr.take(), log, lines)?;
        let child = Self { process, log: log.to_owned() };
        let wanted = async {
            while let Some(line) = written.recv().await {
                if line.contains(ready) {
                    return Some(line);
                }
            }
            None
        };
        match tokio::time::timeout(LIMIT, wanted).await {
            Ok(Some(line)) => Ok((child, line)),
            Ok(None) => Err(anyhow!("it ended at once; its last words are in {}", child.log.display())),
            Err(_) => Err(anyhow!("it is not ready after {LIMIT:?}; its log is {}", child.log.display())),
        }
    }

    /// SIGKILL, and waits until it is gone.
    pub(super) async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await.with_context(|| format!("the process of {} cannot be killed", self.log.display()))
    }
}

/// A command of this very binary, without settings of onced in its environment: they would go before the demo's.
pub(super) fn this_binary() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("this program cannot be found")?);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ONCED_") {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// Adds each line to the file, and hands it on.
fn keep(
    output: Option<impl AsyncRead + Send + Unpin + 'static>,
    log: &Path,
    lines: mpsc::UnboundedSender<String>,
) -> anyhow::Result<()> {
    let output = output.context("the child has no output")?;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
    tokio::spawn(async move {
        let mut read = BufReader::new(output).lines();
        while let Ok(Some(line)) = read.next_line().await {
            // A log that cannot be written is no reason to end the demo; nobody listens once the child is ready.
            drop(writeln!(file, "{line}"));
            drop(lines.send(line));
        }
    });
    Ok(())
}
