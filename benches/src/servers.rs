//! Private servers: each on a free port, in a folder of its own, ended and removed however this process ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::net::{TcpListener, TcpStream};

/// Says the server's process id, waits for the end of its input, then ends the server and removes the folder.
const GUARD: &str = r#"
trap '' HUP INT TERM
folder=$1; shift
"$@" </dev/null >"$folder/out" 2>&1 &
server=$!
echo "$server"
while read -r _; do :; done
kill -TERM "$server" 2>/dev/null
(sleep 5; kill -KILL "$server" 2>/dev/null) &
timer=$!
wait "$server"
kill "$timer" 2>/dev/null
rm -rf "$folder"
"#;

/// A running server; dropped, it is gone with its files.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
    guard: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        // Nothing is left to be told.
        let _ = self.guard.wait();
    }
}

/// The gateway, with its defaults, on that ledger; without a URL on a SQLite file of its own.
pub(crate) async fn gateway(onced: &Path, upstream: SocketAddr, store: Option<&str>) -> anyhow::Result<Server> {
    let (folder, address) = (Folder::new()?, free_address().await?);
    let store = store.map_or_else(|| format!("sqlite:{}", folder.path.join("onced.db").display()), str::to_owned);
    let mut command = Command::new(onced);
    command.args(["serve", "--listen", &address.to_string(), "--upstream", &format!("http://{upstream}")]);
    command.env("ONCED_STORE", store).env_remove("ONCED_LOG");
    folder.start(&command, address).await
}

/// A plain reverse proxy: keeps its connections to the upstream, writes no log of requests.
pub(crate) async fn nginx(program: &Path, upstream: SocketAddr) -> anyhow::Result<Server> {
    let (folder, address) = (Folder::new()?, free_address().await?);
    let here = folder.path.display();
    let configuration = format!(
        "daemon off; worker_processes auto; pid {here}/pid; error_log {here}/errors warn;
         events {{ worker_connections 4096; }}
         http {{
             access_log off; client_body_temp_path {here}/body; proxy_temp_path {here}/proxy;
             fastcgi_temp_path {here}/fastcgi; uwsgi_temp_path {here}/uwsgi; scgi_temp_path {here}/scgi;
             upstream app {{ server {upstream}; keepalive 64; }}
             server {{
                 listen {address}; keepalive_requests 1000000000;
                 location / {{
                     proxy_pass http://app; proxy_http_version 1.1;
                     proxy_set_header Connection \"\"; proxy_set_header Host $host;
                 }}
             }}
         }}"
    );
    let file = folder.path.join("nginx.conf");
    fs::write(&file, configuration)?;
    let mut command = folder.unprivileged(program)?;
    command.arg("-p").arg(&folder.path).arg("-c").arg(file).arg("-e").arg(folder.path.join("errors"));
    folder.start(&command, address).await
}

/// A Redis that has each write on the disk before it answers.
pub(crate) async fn redis(program: &Path) -> anyhow::Result<Server> {
    let (folder, address) = (Folder::new()?, free_address().await?);
    let mut command = folder.unprivileged(program)?;
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""]);
    command.args(["--appendonly", "yes", "--appendfsync", "always", "--dir"]).arg(&folder.path);
    folder.start(&command, address).await
}

/// `idempotent-proxy-server` in front of `/charges`; without a Redis it keeps its keys in memory.
pub(crate) async fn peer(program: &Path, upstream: SocketAddr, redis: Option<SocketAddr>) -> anyhow::Result<Server> {
    let (folder, address) = (Folder::new()?, free_address().await?);
    let redis = redis.map(|address| format!("REDIS_URL=redis://{address}\n")).unwrap_or_default();
    // It reads its settings from the environment or from such a file in its folder, which may have to be there. It
    // forgets a key after its request timeout: that is set long enough for the whole run.
    let settings =
        format!("SERVER_ADDR={address}\n{redis}REQUEST_TIMEOUT=3600000\nURL_CHARGES=http://{upstream}/charges\n");
    fs::write(folder.path.join(".env"), &settings)?;
    let mut command = Command::new(program);
    command.envs(settings.lines().filter_map(|line| line.split_once('=')));
    folder.start(&command, address).await
}

/// A folder of a server's own; removed, unless the server's guard does that.
struct Folder {
    path: PathBuf,
    given_away: bool,
}

impl Folder {
    fn new() -> anyhow::Result<Self> {
        let path = tempfile::Builder::new().prefix("onced-bench-").tempdir()?.keep();
        Ok(Self { path, given_away: false })
    }

    /// A program as somebody without rights, where this process has them; that one owns the folder then.
    fn unprivileged(&self, program: &Path) -> anyhow::Result<Command> {
        let id = Command::new("id").arg("-u").output().context("cannot start id")?;
        if id.stdout.trim_ascii() != b"0" {
            return Ok(Command::new(program));
        }
        let given = Command::new("chown").arg("nobody:nogroup").arg(&self.path).status()?;
        ensure!(given.success(), "chown of a server's folder failed");
        let mut command = Command::new("setpriv");
        command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]).arg(program);
        Ok(command)
    }

    /// Starts the program under its guard, and waits until it takes connections.
    async fn start(mut self, command: &Command, address: SocketAddr) -> anyhow::Result<Server> {
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "onced-bench"]).arg(&self.path).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => guard.env(name, value),
                None => guard.env_remove(name),
            };
        }
        // In a group of its own, so that Ctrl-C ends this process first and the server by the guard.
        guard.current_dir(&self.path).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut guard = guard.spawn().context("cannot start a server")?;
        self.given_away = true;
        let mut said = String::new();
        BufReader::new(guard.stdout.take().context("stdout is piped")?).read_line(&mut said)?;
        let pid = said.trim().parse().context("the guard says no process id")?;
        let server = Server { address, pid, guard };
        let begun = Instant::now();
        while TcpStream::connect(address).await.is_err() {
            let output = self.path.join("out");
            let exists = Path::new(&format!("/proc/{pid}")).exists();
            if begun.elapsed() > Duration::from_secs(20) || !exists {
                let said = fs::read_to_string(output).unwrap_or_default();
                bail!("{} does not listen: {said}", Path::new(command.get_program()).display());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(server)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.given_away {
            // A folder in the system's place for temporary files; it goes with the machine at the latest.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

async fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()?)
}
