//! The gateway beside the upstream itself, and its replays beside a plain nginx in front of the same upstream.

use anyhow::ensure;

use crate::Options;
use crate::http_load::{Keys, Target};
use crate::library::fresh_database;
use crate::pairs::{Plan, Side, take_turns};
use crate::report::Report;
use crate::servers::{self, Server};
use crate::upstream::Upstream;

const CONNECTIONS: [usize; 2] = [16, 64];
const PATH: &str = "/charges";
const WHAT_EACH_DOES: &str = "
`onced serve` with its defaults (`effect = external`, all deliveries logged, a line of its own log for each request)
before a tiny upstream that answers at once. The clients (keep-alive connections, one POST of 64 bytes after the other,
every answer read and its status looked at) and that upstream run in one process on the same machine as the gateway,
and take their share of it.

- **upstream**: the clients call the upstream themselves.
- **first**: first deliveries through the gateway, each under a new key; two commits each, and each on a new connection
  to the upstream.
- **replay**: always the same key; the upstream sees nothing.
- **nginx**: a plain reverse proxy in front of the same upstream, with kept connections to it, without a ledger and
  without a log.
";

pub(crate) async fn run(options: &Options, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.part("The gateway", WHAT_EACH_DOES);
    for connections in CONNECTIONS {
        compare("SQLite", None, connections, options, plan, report).await?;
    }
    for connections in CONNECTIONS {
        let url = fresh_database(&options.postgres).await?;
        compare("PostgreSQL", Some(&url), connections, options, plan, report).await?;
    }
    Ok(())
}

async fn compare(
    backend: &str,
    store: Option<&str>,
    connections: usize,
    options: &Options,
    plan: &Plan,
    report: &mut Report,
) -> anyhow::Result<()> {
    let upstream = Upstream::start().await?;
    let nginx = servers::nginx(&options.nginx, upstream.address).await?;
    let gateway = servers::gateway(&options.onced, upstream.address, store).await?;
    let first = Target { address: gateway.address, path: PATH, keys: Keys::Fresh };
    let replay = replays_of(&gateway, &upstream).await?;
    let direct = Target { address: upstream.address, ..first.clone() };
    let plain = Target { address: nginx.address, ..first.clone() };
    let sides = vec![
        Side::new("upstream", direct.clients(connections)),
        Side::new("first", first.clients(connections)),
        Side::new("replay", replay.clients(connections)),
        Side::new("nginx", plain.clients(connections)),
    ];
    let title = format!("Gateway on {backend}, {connections} connections");
    let outcome = take_turns(&title, sides, plan).await?;
    report.comparison(&title, &outcome, &["first", "nginx"]);
    report.goal(format!("{title}: replay × first"), 5.0, outcome.ratio("replay", "first"));
    report.goal(format!("{title}: replay × nginx"), 0.5, outcome.ratio("replay", "nginx"));
    Ok(())
}

/// A key that is completed, and requests under it; none of them may reach the upstream.
pub(crate) async fn replays_of(gateway: &Server, upstream: &Upstream) -> anyhow::Result<Target> {
    let replay = Target { address: gateway.address, path: PATH, keys: Keys::same() };
    replay.call().await?;
    let calls = upstream.calls();
    replay.call().await?;
    ensure!(upstream.calls() == calls, "a replay has reached the upstream");
    Ok(replay)
}
