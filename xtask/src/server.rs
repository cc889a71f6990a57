//! What the throw-away servers of a test run have in common: who runs them, their guard, and how they come to be ready.
//!
//! A small shell stands between: it holds the read end of a pipe whose write end only this process has. However this
//! process ends, the shell sees the end of the pipe, stops the server and removes its files.

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::shell::{first_line, works};

/// Waits for the end of its input, then stops the server by the signal and removes the folder.
const GUARD: &str = r#"
trap '' HUP INT TERM
folder=$1; signal=$2; shift 2
"$@" </dev/null &
server=$!
exec 2>/dev/null
while read -r _; do :; done
kill -"$signal" "$server"
wait "$server"
rm -rf "$folder"
"#;

/// A running server; dropped, it is gone with its files.
pub(crate) struct Guarded(Child);

impl Guarded {
    /// Runs the server behind a guard, and returns once it has said `ready`.
    pub(crate) fn start(
        user: &User,
        folder: &Path,
        signal: &str,
        server: &Path,
        args: &[String],
        ready: &'static str,
    ) -> anyhow::Result<Self> {
        let mut guard = user.command(Path::new("sh"));
        guard.args(["-c", GUARD, "onced-server"]).arg(folder).arg(signal);
        if works("setpriv", &["--pdeathsig", "KILL", "true"]) {
            // Should the guard itself be killed, the server dies with it.
            guard.args(["setpriv", "--pdeathsig", "KILL"]);
        }
        guard.arg(server).args(args);
        // In a group of its own, so that Ctrl-C ends this process first and the server by the guard.
        guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let mut guarded = Self(guard.spawn().context("cannot start the server")?);
        wait_until_ready(&mut guarded.0, ready)?;
        Ok(guarded)
    }
}

impl Drop for Guarded {
    /// Closes the pipe, on which the guard does its work.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().ok();
    }
}

/// Reads what the server says until it is ready; a thread goes on reading, or the server would block in the end.
fn wait_until_ready(guard: &mut Child, words: &'static str) -> anyhow::Result<()> {
    let errors = guard.stderr.take().context("stderr is piped")?;
    let (ready, is_ready) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut last = VecDeque::new();
        let mut ready = Some(ready);
        for line in BufReader::new(errors).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.contains(words)
                && let Some(ready) = ready.take()
            {
                // The receiver is gone only if this process gave up.
                ready.send(()).ok();
            }
            last.push_back(line);
            if last.len() > 20 {
                last.pop_front();
            }
        }
        last
    });
    match is_ready.recv_timeout(Duration::from_secs(60)) {
        Ok(()) => Ok(()),
        Err(mpsc::RecvTimeoutError::Timeout) => bail!("the server is not ready after a minute"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let said = reader.join().unwrap_or_default();
            bail!("the server has ended: {}", said.into_iter().collect::<Vec<_>>().join("\n"))
        }
    }
}

/// Tries to start a server on three ports: another program may take one between its choice and its use.
pub(crate) fn on_a_free_port<T>(start: impl Fn(u16) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut last = None;
    for _ in 0..3 {
        match start(free_port()?) {
            Ok(started) => return Ok(started),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("no server was started")?)
}

fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    Ok(listener.local_addr()?.port())
}

/// A folder of the server's own, removed where starting fails.
pub(crate) fn in_a_folder<T>(
    template: &str,
    user: &User,
    start: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let folder = PathBuf::from(first_line("mktemp", &["-d", template]).context("mktemp failed")?);
    let started = user.give(&folder).and_then(|()| start(&folder));
    if started.is_err() {
        fs::remove_dir_all(&folder).ok();
    }
    started
}

/// Who runs the server: one that serves others refuses to run as root.
pub(crate) enum User {
    Own,
    Other { name: &'static str, group: String },
}

impl User {
    /// This user; as root, the first of `names` that the system has.
    pub(crate) fn of_the_server(names: &[&'static str]) -> anyhow::Result<Self> {
        if first_line("id", &["-u"]).as_deref() != Some("0") {
            return Ok(Self::Own);
        }
        ensure!(works("setpriv", &["--version"]), "as root, `setpriv` is needed to run a server as another user");
        let other = names.iter().find_map(|name| Some((*name, first_line("id", &["-gn", name])?)));
        let (name, group) =
            other.with_context(|| format!("there is no user to run the server: {}", names.join(" or ")))?;
        Ok(Self::Other { name, group })
    }

    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = match self {
            Self::Own => Command::new(program),
            Self::Other { name, group } => {
                let mut command = Command::new("setpriv");
                command.arg(format!("--reuid={name}")).arg(format!("--regid={group}")).arg("--clear-groups");
                command.arg(program);
                command
            }
        };
        // The settings of another server must not leak in.
        for (name, _) in env::vars_os() {
            let bytes = name.as_encoded_bytes();
            if bytes.starts_with(b"PG") || bytes.starts_with(b"MYSQL") || bytes.starts_with(b"MARIADB") {
                command.env_remove(name);
            }
        }
        // The other user may have no right to see this folder.
        command.current_dir("/");
        command
    }

    /// The folder, with what is in it, is the user's.
    pub(crate) fn give(&self, folder: &Path) -> anyhow::Result<()> {
        let Self::Other { name, group } = self else { return Ok(()) };
        let status = Command::new("chown").arg("-R").arg(format!("{name}:{group}")).arg(folder).status()?;
        ensure!(status.success(), "chown of the server's folder failed");
        Ok(())
    }
}
