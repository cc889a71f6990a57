//! A throw-away MariaDB for one test run, from the binaries of the system; it touches no other server.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::server::{Guarded, User, in_a_folder, on_a_free_port};
use crate::shell::first_line;

/// A running server; dropped, it is gone with its files.
pub(crate) struct MariaDb {
    _guard: Guarded,
    port: u16,
    version: String,
}

impl MariaDb {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let server = program("mariadbd").context("no MariaDB server found; `cargo xtask setup` installs it")?;
        let version = first_line(&server, &["--no-defaults", "--version"]).unwrap_or_default();
        // The rest is the path of the program.
        let version = version.split_once("mariadbd").map_or(version.as_str(), |(_, rest)| rest).trim().to_owned();
        eprintln!("xtask: starting a throw-away server: MariaDB {version}");
        let (guard, port) = on_a_free_port(|port| Ok((start_on(&server, port)?, port)))?;
        Ok(Self { _guard: guard, port, version: format!("MariaDB {version}") })
    }

    /// With the right to create databases.
    pub(crate) fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/", self.port)
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }
}

/// Whether the server's programs are there.
pub(crate) fn is_installed() -> bool {
    program("mariadbd").is_some() && program("mariadb-install-db").is_some()
}

/// In the path, or where Debian puts servers, which is not in everybody's path.
fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin", "/usr/bin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

fn start_on(server: &Path, port: u16) -> anyhow::Result<Guarded> {
    let user = User::of_the_server(&["mysql", "nobody"])?;
    in_a_folder("/tmp/onced-db-XXXXXX", &user, |folder| {
        init(folder, &user)?;
        let inside = |name: &str| folder.join(name).display().to_string();
        let mut args = vec!["--no-defaults".to_owned(), format!("--datadir={}", inside("data"))];
        args.push(format!("--socket={}", inside("socket")));
        args.push(format!("--pid-file={}", inside("pid")));
        args.push(format!("--port={port}"));
        // Every commit is on the disk: crash tests must meet what a real server does.
        let settings = ["bind-address=127.0.0.1", "innodb-flush-log-at-trx-commit=1", "max-connections=300"];
        // A time zone far from UTC: the ledger's times do not depend on it.
        let others = ["skip-name-resolve", "default-time-zone=+12:45"];
        args.extend(settings.into_iter().chain(others).map(|setting| format!("--{setting}")));
        Guarded::start(&user, folder, "KILL", server, &args, "ready for connections")
    })
}

fn init(folder: &Path, user: &User) -> anyhow::Result<()> {
    let install = program("mariadb-install-db").context("no mariadb-install-db found")?;
    let mut command = user.command(&install);
    // Without a password, and for who comes from this machine only.
    command.args([
        "--no-defaults",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
    ]);
    let output = command.arg(format!("--datadir={}", folder.join("data").display())).output();
    let output = output.context("cannot start mariadb-install-db")?;
    ensure!(
        output.status.success(),
        "mariadb-install-db failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
