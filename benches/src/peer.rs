//! The gateway on SQLite beside another idempotency proxy, `idempotent-proxy-server`.

use anyhow::ensure;

use crate::Options;
use crate::gateway::replays_of;
use crate::http_load::{Keys, Target};
use crate::pairs::{Plan, Side, take_turns};
use crate::report::Report;
use crate::servers::{self, Server};
use crate::upstream::Upstream;

const CONNECTIONS: [usize; 2] = [16, 64];
const WHAT_EACH_DOES: &str = "
The same clients and upstream as above.

- **onced**: `onced serve` with its defaults on SQLite: two durable commits for a first delivery.
- **peer, Redis**: `idempotent-proxy-server` with its defaults on a Redis with `appendonly yes` and
  `appendfsync always`: two durable writes for a first delivery. It keeps its connections to the upstream.
- **peer, memory**: the same with its store in memory: a restart forgets every key.
";

pub(crate) async fn run(options: &Options, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.part("Beside another idempotency proxy", WHAT_EACH_DOES);
    for connections in CONNECTIONS {
        let upstream = Upstream::start().await?;
        let redis = servers::redis(&options.redis).await?;
        let durable = servers::peer(&options.peer, upstream.address, Some(redis.address)).await?;
        let in_memory = servers::peer(&options.peer, upstream.address, None).await?;
        let gateway = servers::gateway(&options.onced, upstream.address, None).await?;

        let title = format!("First deliveries, {connections} connections");
        let first = |server: &Server, path| Target { address: server.address, path, keys: Keys::Fresh };
        let sides = vec![
            Side::new("peer, Redis", first(&durable, "/URL_CHARGES").clients(connections)),
            Side::new("onced", first(&gateway, "/charges").clients(connections)),
            Side::new("peer, memory", first(&in_memory, "/URL_CHARGES").clients(connections)),
        ];
        let outcome = take_turns(&title, sides, plan).await?;
        report.comparison(&title, &outcome, &["peer, Redis"]);
        report.goal(format!("{title}: onced on SQLite × peer, Redis"), 2.0, outcome.ratio("onced", "peer, Redis"));

        let title = format!("Replays, {connections} connections");
        let sides = vec![
            Side::new("peer, Redis", replays_of_peer(&durable, &upstream).await?.clients(connections)),
            Side::new("onced", replays_of(&gateway, &upstream).await?.clients(connections)),
            Side::new("peer, memory", replays_of_peer(&in_memory, &upstream).await?.clients(connections)),
        ];
        let outcome = take_turns(&title, sides, plan).await?;
        report.comparison(&title, &outcome, &["peer, Redis"]);
    }
    Ok(())
}

async fn replays_of_peer(peer: &Server, upstream: &Upstream) -> anyhow::Result<Target> {
    let replay = Target { address: peer.address, path: "/URL_CHARGES", keys: Keys::same() };
    replay.call().await?;
    let calls = upstream.calls();
    replay.call().await?;
    ensure!(upstream.calls() == calls, "the peer has sent a known key to the upstream");
    Ok(replay)
}
