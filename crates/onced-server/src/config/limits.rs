//! The times of a route, and how they must relate: a heartbeat to its lease, `settle` to the upstream's timeout.

use std::time::Duration;

use onced_core::lease::Lease;
use onced_core::retention::Retention;

use super::contract::{Contract, Contracted};
use super::defaults as d;
use super::document::Entry;
use super::values::{Given, Layers, shown};

const BRIEFEST: Duration = Duration::from_millis(1);

/// The times of a route.
pub(super) struct Times {
    pub(super) lease: Lease,
    pub(super) heartbeat: Duration,
    pub(super) upstream_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) upgraded_timeout: Duration,
    pub(super) max_execution: Duration,
    pub(super) settle: Duration,
    pub(super) retention: Retention,
    pub(super) downstream_window: Duration,
}

/// Reads them. `tick` is the smallest lease.
pub(super) fn read(layers: &Layers<'_, '_>, contracted: &Contracted<'_, '_, '_>, tick: Duration) -> Times {
    let time = |name, default, least| layers.read(name, default, |entry| entry.duration(least));
    let lease = time("lease", d::LEASE, tick);
    let heartbeat = time("heartbeat", lease.value / d::HEARTBEATS_PER_LEASE, BRIEFEST);
    let upstream_timeout = time("upstream_timeout", d::UPSTREAM_TIMEOUT, BRIEFEST);
    let connect_timeout = time("connect_timeout", d::CONNECT_TIMEOUT, BRIEFEST);
    let upgraded_timeout = time("upgraded_timeout", d::UPGRADED_TIMEOUT, BRIEFEST);
    let max_execution = time("max_execution", d::MAX_EXECUTION, BRIEFEST);
    let least_settle = upstream_timeout.value * d::SETTLE_TIMEOUTS;
    let settle = time("settle", least_settle.max(d::SETTLE_FLOOR), BRIEFEST);
    let retention = contracted.read("retention", Contract::retention, d::RETENTION, |entry| entry.duration(tick));
    let retry_window = time("retry_window", Retention::new(retention.value).retry_window, BRIEFEST);
    let downstream_window = time("downstream_window", d::DOWNSTREAM_WINDOW, BRIEFEST);

    check_heartbeat(layers, &heartbeat, &lease);
    check_execution(layers, &max_execution, &upstream_timeout);
    if connect_timeout.value >= upstream_timeout.value && connect_timeout.entry.is_some() {
        refuse(layers, &connect_timeout, &upstream_timeout, |timeout| {
            format!("leaves nothing of the upstream timeout {timeout}; write less than that")
        });
    }
    if settle.value < least_settle {
        refuse(layers, &settle, &upstream_timeout, |timeout| {
            format!("is less than twice the upstream timeout {timeout}; write at least \"{}\"", shown(least_settle))
        });
    }
    if retry_window.value > retention.value {
        refuse(layers, &retry_window, &retention, |kept| {
            format!("is longer than the retention {kept}; write at most \"{}\"", shown(retention.value))
        });
    }
    Times {
        lease: Lease { length: lease.value, tick },
        heartbeat: heartbeat.value,
        upstream_timeout: upstream_timeout.value,
        // The default gives way to a short upstream timeout.
        connect_timeout: connect_timeout.value.min(upstream_timeout.value / 2),
        upgraded_timeout: upgraded_timeout.value,
        max_execution: max_execution.value,
        settle: settle.value,
        retention: Retention { keep: retention.value, retry_window: retry_window.value },
        downstream_window: downstream_window.value,
    }
}

/// How long a duplicate waits.
pub(super) fn wait(entry: &Entry<'_>) -> Option<Duration> {
    let wait = entry.duration(Duration::ZERO)?;
    if wait > d::LONGEST_WAIT {
        entry.refuse(format!(
            "is longer than a client can be kept waiting; write at most \"{}\"",
            shown(d::LONGEST_WAIT)
        ));
        return None;
    }
    Some(wait)
}

/// A slower heartbeat would leave no room for one that fails.
fn check_heartbeat(layers: &Layers<'_, '_>, heartbeat: &Given<'_, Duration>, lease: &Given<'_, Duration>) {
    let slowest = lease.value / d::HEARTBEATS_PER_LEASE;
    if heartbeat.value > slowest {
        let written = Duration::from_millis(u64::try_from(slowest.as_millis()).unwrap_or(u64::MAX));
        refuse(layers, heartbeat, lease, |lease| {
            format!("is slower than a third of the lease {lease}; write at most \"{}\"", shown(written))
        });
    }
}

/// An execution that ends before the upstream's answer is due would lose its claim while it waits.
fn check_execution(layers: &Layers<'_, '_>, max_execution: &Given<'_, Duration>, timeout: &Given<'_, Duration>) {
    if max_execution.value >= timeout.value {
        return;
    }
    let least = shown(timeout.value);
    if max_execution.entry.is_some() {
        refuse(layers, max_execution, timeout, |timeout| {
            format!("is shorter than the upstream timeout {timeout}; write at least \"{least}\"")
        });
    } else {
        refuse(layers, timeout, max_execution, |most| {
            format!("is longer than max_execution {most}; write less, or beside it max_execution = \"{least}\"")
        });
    }
}

/// Refuses `wrong`, which does not go with `other`; silent where one of both could not be read anyway. `message` gets
/// the value of `other` in brackets, with its line where a route says it and inherits `wrong`.
fn refuse(
    layers: &Layers<'_, '_>,
    wrong: &Given<'_, Duration>,
    other: &Given<'_, Duration>,
    message: impl FnOnce(&str) -> String,
) {
    let Some(entry) = wrong.entry.filter(|_| wrong.sound && other.sound) else { return };
    // `[defaults]` on its own: every route may still say `other` itself.
    if layers.own.is_none() && other.entry.is_none() {
        return;
    }
    let other_line = match other.entry {
        Some(other) if !layers.is_own(&entry) && layers.is_own(&other) => {
            format!(" in line {}", other.document.line(other.at))
        }
        Some(_) | None => String::new(),
    };
    entry.refuse(message(&format!("({}{other_line})", shown(other.value))));
}
