//! A throw-away PgBouncer before the test server. However the test process ends, the pooler ends with it: a small shell
//! stands between, holds the read end of a pipe whose write end only this process has, and stops it at the pipe's end.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::{free_port, postgres};

const GUARD: &str = r#"
trap '' HUP INT TERM
folder=$1; shift
"$@" </dev/null &
pooler=$!
exec 2>/dev/null
while read -r _; do :; done
kill -KILL "$pooler"
wait "$pooler"
rm -rf "$folder"
"#;
/// The package puts it where only root looks.
const PLACES: [&str; 3] = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];
const LIMIT: Duration = Duration::from_secs(30);

/// For how long a server's connection is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// While the client's lasts.
    Session,
    /// For one transaction.
    Transaction,
    /// For one statement.
    Statement,
}

/// How it is set.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// For how long a server's connection is lent.
    pub mode: PoolMode,
    /// How many it has for each database.
    pub size: u32,
    /// In turn, instead of the one that came back last.
    pub in_turn: bool,
    /// What it does not know of a session's settings is dropped, instead of the client refused.
    pub ignores_settings: bool,
}

impl PoolOptions {
    /// Four connections, lent for one transaction.
    #[must_use]
    pub fn transaction() -> Self {
        Self { mode: PoolMode::Transaction, size: 4, in_turn: false, ignores_settings: false }
    }
}

/// A running pooler; dropped, it is gone.
#[derive(Debug)]
pub struct PgBouncer {
    guard: Child,
    port: u16,
}

impl PgBouncer {
    /// Starts one before the server of the test run, for whichever of its databases is asked for.
    ///
    /// # Panics
    /// Where it cannot be started: that is a failure, not a reason to skip.
    #[must_use]
    pub fn start(options: PoolOptions) -> Self {
        // Another program may take the port between its choice and its use.
        let mut said = String::new();
        for _ in 0..3 {
            match start_on(free_port(), options) {
                Ok(pooler) => return pooler,
                Err(why) => said = why,
            }
        }
        panic!("PgBouncer does not start: {said}")
    }

    /// The same database, by way of the pooler.
    ///
    /// # Panics
    /// Where the URL is not one of the test server.
    #[must_use]
    pub fn url(&self, direct: &str) -> String {
        let (user, rest) = direct.split_once('@').expect("the URL names a user");
        let (_, database) = rest.split_once('/').expect("the URL names a database");
        format!("{user}@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for PgBouncer {
    /// Closes the pipe, on which the guard does its work.
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        self.guard.wait().ok();
    }
}

fn start_on(port: u16, options: PoolOptions) -> Result<PgBouncer, String> {
    let program = PLACES.iter().find(|place| std::path::Path::new(place).is_file());
    let program = program.expect("there is no pgbouncer: run `cargo xtask setup`");
    let folder = tempfile::Builder::new().prefix("onced-pool-").tempdir().expect("no temporary folder");
    // The guard removes it: a pooler that lives as long as the process is never dropped.
    let folder = folder.keep();
    // It runs as another user, where this is root.
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).expect("the folder is ours");
    let (users, settings) = (folder.join("users.txt"), folder.join("pgbouncer.ini"));
    std::fs::write(&users, "\"postgres\" \"\"\n").expect("the folder is ours");
    std::fs::write(&settings, configuration(port, options, &users.display().to_string())).expect("the folder is ours");
    let mut command = Command::new("sh");
    command.args(["-c", GUARD, "onced-pool"]).arg(&folder);
    if rustix::process::geteuid().is_root() {
        // As root it refuses to run; 65534 is `nobody` on every Linux.
        command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig", "KILL"]);
    }
    command.arg(program).arg(&settings).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut guard = command.spawn().expect("there is no shell");
    let errors = guard.stderr.take().expect("stderr is piped");
    let (up, is_up) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            if line.contains("process up") {
                up.send(()).ok();
            }
            // Its first lines tell why it does not start; later ones are of each connection.
            if said.len() < 50 {
                said.push(line);
            }
        }
        said.join("\n")
    });
    let mut pooler = PgBouncer { guard, port };
    match is_up.recv_timeout(LIMIT) {
        Ok(()) => Ok(pooler),
        Err(_) => {
            drop(pooler.guard.stdin.take());
            pooler.guard.wait().ok();
            Err(reader.join().unwrap_or_default())
        }
    }
}

fn configuration(port: u16, options: PoolOptions, users: &str) -> String {
    let server = postgres::server_url();
    let (_, rest) = server.split_once('@').expect("the server's URL names a user");
    let (place, _) = rest.split_once('/').expect("the server's URL names a database");
    let (host, server_port) = place.split_once(':').expect("the server's URL names a port");
    let mode = match options.mode {
        PoolMode::Session => "session",
        PoolMode::Transaction => "transaction",
        PoolMode::Statement => "statement",
    };
    let ignored = if options.ignores_settings { "extra_float_digits,options" } else { "" };
    format!(
        "[databases]\n* = host={host} port={server_port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         unix_socket_dir =\nauth_type = trust\nauth_file = {users}\npool_mode = {mode}\ndefault_pool_size = {size}\n\
         server_round_robin = {in_turn}\nignore_startup_parameters = {ignored}\nmax_client_conn = 2000\n\
         server_idle_timeout = 5\nlog_connections = 0\nlog_disconnections = 0\n",
        size = options.size,
        in_turn = u8::from(options.in_turn),
    )
}
