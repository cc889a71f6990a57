//! Throw-away PostgreSQL servers for one test run: from the binaries of the system, and of the newest version from those
//! that setup has fetched. They touch no other server.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::server::{Guarded, User, in_a_folder, on_a_free_port};
use crate::shell::{first_line, run};

/// A running server; dropped, it is gone with its files.
pub(crate) struct Postgres {
    _guard: Guarded,
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
        let (guard, port) = on_a_free_port(|port| Ok((start_on(programs, port)?, port)))?;
        Ok(Self { _guard: guard, port, version })
    }

    /// With the right to create databases.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
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

fn start_on(programs: &Programs, port: u16) -> anyhow::Result<Guarded> {
    let user = User::of_the_server(&["postgres", "nobody"])?;
    // Short, because the path of a unix socket may have 107 bytes only.
    in_a_folder("/tmp/onced-pg-XXXXXX", &user, |folder| {
        let binaries = match programs {
            Programs::At(binaries) => binaries.clone(),
            Programs::Packed { package, binaries } => {
                let own = folder.join("package");
                run(Command::new("cp").arg("-r").arg(package).arg(&own))?;
                user.give(&own)?;
                own.join(binaries)
            }
        };
        init(&binaries, folder, &user)?;
        let (data, folder_name) = (folder.join("data").display().to_string(), folder.display().to_string());
        let port = port.to_string();
        let mut args = vec!["-D", &data, "-k", &folder_name, "-p", &port];
        // fsync is on: crash tests must meet what a real server does.
        let settings = ["listen_addresses=127.0.0.1", "max_connections=800", "fsync=on", "lc_messages=C"];
        let logging = ["logging_collector=off", "log_destination=stderr"];
        args.extend(settings.into_iter().chain(logging).flat_map(|setting| ["-c", setting]));
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        let ready = "database system is ready to accept connections";
        Guarded::start(&user, folder, "QUIT", &binaries.join("postgres"), &args, ready)
    })
}

fn init(binaries: &Path, folder: &Path, user: &User) -> anyhow::Result<()> {
    let mut command = user.command(&binaries.join("initdb"));
    command.args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"]);
    let output = command.arg(folder.join("data")).output().context("cannot start initdb")?;
    ensure!(output.status.success(), "initdb failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
