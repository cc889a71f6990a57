//! Throw-away PostgreSQL servers for one test run: from the binaries of the system, and of the newest version from those
//! that setup has fetched. They touch no other server.
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

use crate::shell::{first_line, run, works};

/// Waits for the end of its input, then stops the server at once and removes the folder.
const GUARD: &str = r#"
trap '' HUP INT TERM
folder=$1; shift
"$@" </dev/null &
server=$!
exec 2>/dev/null
while read -r _; do :; done
kill -QUIT "$server"
wait "$server"
rm -rf "$folder"
"#;

/// A running server; dropped, it is gone with its files.
pub(crate) struct Postgres {
    guard: Child,
    port: u16,
    version: String,
}

impl Postgres {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let binaries = binaries().context("no PostgreSQL server found; `cargo xtask setup` installs it")?;
        Self::start_from(&Programs::At(binaries))
    }

    /// One from a package in a folder that another user need not be able to see, with its programs in `binaries` there.
    pub(crate) fn start_packed(package: PathBuf, binaries: &'static str) -> anyhow::Result<Self> {
        Self::start_from(&Programs::Packed { package, binaries })
    }

    fn start_from(programs: &Programs) -> anyhow::Result<Self> {
        let binaries = programs.place();
        let version = first_line(binaries.join("postgres"), &["--version"]).unwrap_or_default();
        eprintln!("xtask: starting a throw-away server: {version}");
        // Another program may take the port between its choice and its use.
        let mut last = None;
        for _ in 0..3 {
            match start_on(programs, free_port()?) {
                Ok((guard, port)) => return Ok(Self { guard, port, version }),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no server was started")?)
    }

    /// With the right to create databases.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        end(&mut self.guard);
    }
}

/// Where a server's programs are.
enum Programs {
    At(PathBuf),
    /// Beside the libraries that they need: the package is copied as a whole, and goes with the server.
    Packed {
        package: PathBuf,
        binaries: &'static str,
    },
}

impl Programs {
    fn place(&self) -> PathBuf {
        match self {
            Self::At(binaries) => binaries.clone(),
            Self::Packed { package, binaries } => package.join(binaries),
        }
    }
}

/// Whether the server's programs are there.
pub(crate) fn is_installed() -> bool {
    binaries().is_some()
}

fn binaries() -> Option<PathBuf> {
    let configured = first_line("pg_config", &["--bindir"]).map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let candidates = configured.into_iter().chain(debian_folders()).chain(env::split_paths(&path));
    let mut complete =
        candidates.filter(|folder| ["initdb", "postgres"].iter().all(|name| folder.join(name).is_file()));
    complete.next()
}

/// `/usr/lib/postgresql/VERSION/bin`, the highest version first.
fn debian_folders() -> Vec<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut numbered: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    numbered.sort();
    numbered.into_iter().rev().map(|(_, folder)| folder).collect()
}

fn start_on(programs: &Programs, port: u16) -> anyhow::Result<(Child, u16)> {
    let user = User::of_the_server()?;
    // Short, because the path of a unix socket may have 107 bytes only.
    let folder = PathBuf::from(first_line("mktemp", &["-d", "/tmp/onced-pg-XXXXXX"]).context("mktemp failed")?);
    let started = (|| {
        let binaries = match programs {
            Programs::At(binaries) => binaries.clone(),
            Programs::Packed { package, binaries } => {
                let own = folder.join("package");
                run(Command::new("cp").arg("-r").arg(package).arg(&own))?;
                own.join(binaries)
            }
        };
        user.give(&folder)?;
        init(&binaries, &folder, &user)?;
        let mut guard = spawn(&binaries, &folder, &user, port)?;
        wait_until_ready(&mut guard).inspect_err(|_| end(&mut guard))?;
        Ok((guard, port))
    })();
    if started.is_err() {
        fs::remove_dir_all(&folder).ok();
    }
    started
}

fn init(binaries: &Path, folder: &Path, user: &User) -> anyhow::Result<()> {
    let mut command = user.command(&binaries.join("initdb"));
    command.args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"]);
    let output = command.arg(folder.join("data")).output().context("cannot start initdb")?;
    ensure!(output.status.success(), "initdb failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn spawn(binaries: &Path, folder: &Path, user: &User, port: u16) -> anyhow::Result<Child> {
    let mut guard = user.command(Path::new("sh"));
    guard.args(["-c", GUARD, "onced-postgres"]).arg(folder);
    if works("setpriv", &["--pdeathsig", "KILL", "true"]) {
        // Should the guard itself be killed, the server dies with it.
        guard.args(["setpriv", "--pdeathsig", "KILL"]);
    }
    guard.arg(binaries.join("postgres")).arg("-D").arg(folder.join("data")).arg("-k").arg(folder);
    // fsync is on: crash tests must meet what a real server does.
    let settings = ["listen_addresses=127.0.0.1", "max_connections=800", "fsync=on", "lc_messages=C"];
    guard.args(settings.iter().flat_map(|setting| ["-c", setting])).args(["-p", &port.to_string()]);
    guard.args(["-c", "logging_collector=off", "-c", "log_destination=stderr"]);
    // In a group of its own, so that Ctrl-C ends this process first and the server by the guard.
    guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    guard.spawn().context("cannot start the server")
}

/// Reads what the server says until it is ready; a thread goes on reading, or the server would block in the end.
fn wait_until_ready(guard: &mut Child) -> anyhow::Result<()> {
    let errors = guard.stderr.take().context("stderr is piped")?;
    let (ready, is_ready) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut last = VecDeque::new();
        let mut ready = Some(ready);
        for line in BufReader::new(errors).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.contains("database system is ready to accept connections")
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

/// Closes the pipe, on which the guard does its work.
fn end(guard: &mut Child) {
    drop(guard.stdin.take());
    guard.wait().ok();
}

fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    Ok(listener.local_addr()?.port())
}

/// Who runs the server: PostgreSQL refuses to run as root.
enum User {
    Own,
    Other { name: &'static str, group: String },
}

impl User {
    fn of_the_server() -> anyhow::Result<Self> {
        if first_line("id", &["-u"]).as_deref() != Some("0") {
            return Ok(Self::Own);
        }
        ensure!(works("setpriv", &["--version"]), "as root, `setpriv` is needed to run PostgreSQL as another user");
        let other = ["postgres", "nobody"].into_iter().find_map(|name| Some((name, first_line("id", &["-gn", name])?)));
        let (name, group) = other.context("there is neither a user postgres nor a user nobody to run PostgreSQL")?;
        Ok(Self::Other { name, group })
    }

    fn command(&self, program: &Path) -> Command {
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
        for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
            command.env_remove(name);
        }
        // The other user may have no right to see this folder.
        command.current_dir("/");
        command
    }

    fn give(&self, folder: &Path) -> anyhow::Result<()> {
        let Self::Other { name, group } = self else { return Ok(()) };
        let status = Command::new("chown").arg("-R").arg(format!("{name}:{group}")).arg(folder).status()?;
        ensure!(status.success(), "chown of the server's folder failed");
        Ok(())
    }
}
