//! The gateway's memory while five hundred requests are held at the upstream.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::Options;
use crate::http_load::{Keys, Target};
use crate::library::fresh_database;
use crate::report::Report;
use crate::servers;
use crate::upstream::Upstream;

const HELD: u64 = 500;

pub(crate) async fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    report.part(
        "Memory of the gateway",
        "A fresh `onced serve` with its defaults; the requests carry a key each and are executing: claimed, sent, and not yet answered.",
    );
    measure("SQLite", None, options, report).await?;
    let url = fresh_database(&options.postgres).await?;
    measure("PostgreSQL", Some(&url), options, report).await
}

async fn measure(backend: &str, store: Option<&str>, options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let upstream = Upstream::start().await?;
    let gateway = servers::gateway(&options.onced, upstream.address, store).await?;
    let idle = resident(gateway.pid, "VmRSS")?;
    let target = Target { address: gateway.address, path: "/hold", keys: Keys::Fresh };
    let requests: Vec<_> = (0..HELD)
        .map(|_| {
            let target = target.clone();
            tokio::spawn(async move { target.call().await })
        })
        .collect();
    let begun = Instant::now();
    while upstream.held() < HELD {
        ensure!(begun.elapsed() < Duration::from_secs(25), "only {} of {HELD} are held", upstream.held());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let now = resident(gateway.pid, "VmRSS")?;
    upstream.let_go();
    for request in requests {
        request.await??;
    }
    let peak = resident(gateway.pid, "VmHWM")?;
    ensure!(upstream.calls() == HELD, "{HELD} requests, {} calls", upstream.calls());
    report.line(&format!(
        "On {backend}: {idle:.0} MiB idle, {now:.0} MiB with {HELD} requests held (VmRSS), {peak:.0} MiB at most (VmHWM)."
    ));
    report.goal_below(format!("Memory of the gateway on {backend}, {HELD} requests held (VmHWM)"), 100.0, peak);
    Ok(())
}

/// In MiB.
fn resident(pid: u32, field: &str) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the gateway is gone")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib: f64 = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).context("no such field")?;
    Ok(kib / 1024.0)
}
