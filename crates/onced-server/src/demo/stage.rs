//! The stage: the folder, the outside world, the app, and the gateway in front of it, or none.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;

use super::Ledger;
use super::app::LISTENING;
use super::child::{Child, this_binary};
use super::provider::Provider;

const COUNT: &str = "SELECT count(*) FROM orders WHERE reference = ?1";
/// The gateway's first choice of a port, and how many after it are tried.
const PORTS: std::ops::Range<u16> = 8080..8180;

pub(super) struct Stage {
    pub(super) ledger: Ledger,
    pub(super) provider: Provider,
    // The children before the folder: dropped in this order.
    app: Server,
    gateway: Option<Server>,
    folder: TempDir,
}

struct Server {
    child: Child,
    address: SocketAddr,
}

impl Stage {
    pub(super) async fn set_up(ledger: Ledger) -> anyhow::Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("onced-demo-").tempdir().context("there is no room for a folder")?;
        match Self::set_up_in(folder.path(), ledger).await {
            Ok((provider, app, gateway)) => Ok(Self { ledger, provider, app, gateway, folder }),
            // The logs say why.
            Err(error) => Err(error.context(format!("the demo cannot start; see {}", folder.keep().display()))),
        }
    }

    async fn set_up_in(folder: &Path, ledger: Ledger) -> anyhow::Result<(Provider, Server, Option<Server>)> {
        let provider = Provider::start().await?;
        let app = start_app(folder, provider.address(), ledger).await.context("the app")?;
        let gateway = match ledger {
            Ledger::With => Some(start_gateway(folder, app.address, provider.bank()).await.context("the gateway")?),
            Ledger::Without => None,
        };
        Ok((provider, app, gateway))
    }

    /// Where clients send their charges.
    pub(super) fn entrance(&self) -> SocketAddr {
        self.gateway.as_ref().map_or(self.app.address, |gateway| gateway.address)
    }

    /// Where clients send their payouts: nothing of the app is on their way.
    pub(super) fn payouts(&self) -> SocketAddr {
        self.gateway.as_ref().map_or(self.provider.bank(), |gateway| gateway.address)
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The ledger as a URL.
    pub(super) fn store(&self) -> String {
        store(self.folder())
    }

    /// SIGKILL for what stands between the clients and the provider: the gateway, or without one the app.
    pub(super) async fn kill_the_middle(&mut self) -> anyhow::Result<()> {
        match &mut self.gateway {
            Some(gateway) => gateway.child.kill().await,
            None => self.app.child.kill().await,
        }
    }

    /// Starts again what was killed.
    pub(super) async fn restart_the_middle(&mut self) -> anyhow::Result<()> {
        match &mut self.gateway {
            Some(gateway) => gateway.child = serve(self.folder.path()).await?,
            None => self.app = start_app(self.folder.path(), self.provider.address(), self.ledger).await?,
        }
        Ok(())
    }

    /// Returns once the app works on nothing: how many of its attempts found that another had taken over.
    pub(super) async fn settled_app(&self) -> anyhow::Result<u64> {
        let answer = super::client::get("/settled", self.app.address).await.context("the app does not settle")?;
        Ok(std::str::from_utf8(&answer.body)?.parse()?)
    }

    /// Counts orders past all of our code: a connection of its own, and plain SQL.
    pub(super) async fn orders_of(&self, reference: &str) -> anyhow::Result<usize> {
        let options = SqliteConnectOptions::new().filename(self.folder().join("demo.db")).read_only(true);
        let mut connection: SqliteConnection = options.connect().await.context("the orders cannot be counted")?;
        let count: i64 = sqlx::query_scalar(COUNT).bind(reference).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(usize::try_from(count)?)
    }

    /// Runs `onced keys` with these arguments and the ledger's place; what it says.
    pub(super) async fn keys(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = this_binary()?;
        command.arg("keys").args(["--store", &self.store()]).args(args).kill_on_drop(true);
        let ended = command.output().await.context("onced keys cannot be started")?;
        if !ended.status.success() {
            bail!("onced keys {}: {}", args.join(" "), String::from_utf8_lossy(&ended.stderr));
        }
        Ok(String::from_utf8_lossy(&ended.stdout).trim().to_owned())
    }

    /// Ends the children and removes the folder; with `keep` the folder stays, and its path is given back.
    pub(super) async fn take_down(mut self, keep: bool) -> Option<PathBuf> {
        // One that has ended already needs no killing.
        drop(self.app.child.kill().await);
        if let Some(gateway) = &mut self.gateway {
            drop(gateway.child.kill().await);
        }
        if keep {
            return Some(self.folder.keep());
        }
        let path = self.folder.path().to_owned();
        self.folder.close().err().map(|_| path)
    }
}

async fn start_app(folder: &Path, provider: SocketAddr, ledger: Ledger) -> anyhow::Result<Server> {
    let mut args: Vec<OsString> = vec!["demo-app".into(), "--database".into(), folder.join("demo.db").into()];
    args.extend(["--provider".into(), provider.to_string().into()]);
    if ledger == Ledger::Without {
        args.push("--without-ledger".into());
    }
    let (child, line) = Child::start(args, &folder.join("app.log"), LISTENING).await?;
    let address = line.strip_prefix(LISTENING).unwrap_or_default();
    Ok(Server { address: address.parse().with_context(|| format!("it listens at {address:?}"))?, child })
}

/// Starts the gateway on the first port that is free.
async fn start_gateway(folder: &Path, app: SocketAddr, bank: SocketAddr) -> anyhow::Result<Server> {
    let mut refused = anyhow!("none of the ports {PORTS:?} is free");
    for port in PORTS {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_err() {
            continue;
        }
        std::fs::write(folder.join("demo.toml"), configuration(folder, address, app, bank))?;
        match serve(folder).await {
            Ok(child) => return Ok(Server { child, address }),
            // Somebody else was faster: the next port.
            Err(_) if TcpListener::bind(address).is_err() => {}
            Err(error) => {
                refused = error;
                break;
            }
        }
    }
    Err(refused)
}

async fn serve(folder: &Path) -> anyhow::Result<Child> {
    let args = vec!["serve".into(), "--config".into(), folder.join("demo.toml").into()];
    let (child, _) = Child::start(args, &folder.join("gateway.log"), "listening").await?;
    Ok(child)
}

fn store(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("demo.db").display())
}

fn configuration(folder: &Path, listen: SocketAddr, app: SocketAddr, bank: SocketAddr) -> String {
    let store = toml::Value::from(store(folder));
    format!(
        r#"# The demo's gateway. Leases are short, so that nobody has to wait for one to run out.
listen = "{listen}"

[store]
url = {store}

[defaults]
lease = "2s"
upstream_timeout = "15s"

# The app's orders and the ledger are in one database: the app completes each key in its own transaction.
[[route]]
name = "charges"
path = "/charges"
methods = ["POST"]
upstream = "http://{app}"
effect = "same-database"

# Straight to a bank that deduplicates nothing: an unknown outcome is held, never guessed.
[[route]]
name = "payouts"
path = "/payouts"
methods = ["POST"]
upstream = "http://{bank}"
effect = "external"

# An agent sends no key, and a new call id with every try: the key is made from conversation, step and tool.
[[route]]
name = "agent.buy"
path = "/tools/buy"
methods = ["POST"]
upstream = "http://{app}"
effect = "same-database"
fingerprint = {{ only = ["/arguments"] }}

[route.key]
from = "agent"
conversation = {{ header = "X-Conversation-Id" }}
step = {{ pointer = "/step" }}
tool = "buy"
arguments = "/arguments"
"#
    )
}
