//! A MariaDB of a test's own, for settings that are the whole server's: other tests share that of the run. However the
//! test process ends, the server ends with it: a small shell stands between, holds the read end of a pipe whose write end
//! only this process has, and stops it at the pipe's end.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::free_port;

const GUARD: &str = r#"
trap '' HUP INT TERM
folder=$1; shift
"$@" </dev/null &
server=$!
exec 2>/dev/null
while read -r _; do :; done
kill -KILL "$server"
wait "$server"
rm -rf "$folder"
"#;
const PLACES: [&str; 3] = ["/usr/sbin", "/usr/bin", "/usr/local/bin"];
const LIMIT: Duration = Duration::from_secs(60);

/// A running server; dropped, it is gone with its files.
#[derive(Debug)]
pub struct MariaDbServer {
    guard: Child,
    port: u16,
}

impl MariaDbServer {
    /// Starts one with those options, `--sync-binlog=0`.
    ///
    /// # Panics
    /// Where it cannot be started: that is a failure, not a reason to skip.
    #[must_use]
    pub fn start(options: &[&str]) -> Self {
        // Another program may take the port between its choice and its use.
        let mut said = String::new();
        for _ in 0..3 {
            match start_on(free_port(), options) {
                Ok(server) => return server,
                Err(why) => said = why,
            }
        }
        panic!("MariaDB does not start: {said}")
    }

    /// A database of that name there, for the user who may do everything.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("mysql://root@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for MariaDbServer {
    /// Closes the pipe, on which the guard does its work.
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        self.guard.wait().ok();
    }
}

fn start_on(port: u16, options: &[&str]) -> Result<MariaDbServer, String> {
    let folder = tempfile::Builder::new().prefix("onced-own-db-").tempdir().expect("no temporary folder");
    // The guard removes it: a server that lives as long as the process is never dropped.
    let folder = folder.keep();
    if rustix::process::geteuid().is_root() {
        // As root it refuses to run; 65534 is `nobody` on every Linux.
        std::os::unix::fs::chown(&folder, Some(65534), Some(65534)).expect("root may give it away");
    }
    let inside = |option: &str, name: &str| format!("--{option}={}", folder.join(name).display());
    let data = inside("datadir", "data");
    let mut install = as_nobody(Command::new("env"));
    install.arg(program("mariadb-install-db")).args(["--no-defaults", "--auth-root-authentication-method=normal"]);
    let installed = install.args(["--skip-test-db", "--skip-name-resolve", &data]).current_dir("/").output();
    let installed = installed.expect("mariadb-install-db can be run");
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));

    let mut shell = Command::new("sh");
    shell.args(["-c", GUARD, "onced-own-db"]).arg(&folder);
    let mut command = as_nobody(shell);
    command.arg(program("mariadbd")).args(["--no-defaults", &data]);
    command.args([inside("socket", "socket"), inside("pid-file", "pid"), format!("--port={port}")]);
    command.args(["--bind-address=127.0.0.1", "--skip-name-resolve"]).args(options).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut guard = command.spawn().expect("there is no shell");
    let errors = guard.stderr.take().expect("stderr is piped");
    let (up, is_up) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            if line.contains("ready for connections") {
                up.send(()).ok();
            }
            // Its first lines tell why it does not start.
            if said.len() < 200 {
                said.push(line);
            }
        }
        said.join("\n")
    });
    let mut server = MariaDbServer { guard, port };
    match is_up.recv_timeout(LIMIT) {
        Ok(()) => Ok(server),
        Err(_) => {
            drop(server.guard.stdin.take());
            server.guard.wait().ok();
            Err(reader.join().unwrap_or_default())
        }
    }
}

/// Whatever that command is to run, as another user where this is root.
fn as_nobody(mut command: Command) -> Command {
    if rustix::process::geteuid().is_root() {
        command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig", "KILL"]);
    }
    command
}

fn program(name: &str) -> PathBuf {
    let found = PLACES.iter().map(|place| Path::new(place).join(name)).find(|program| program.is_file());
    found.unwrap_or_else(|| panic!("there is no {name}: run `cargo xtask setup`"))
}
