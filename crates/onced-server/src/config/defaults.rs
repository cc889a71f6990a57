//! What holds where the configuration says nothing: every default of the gateway, in one place.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

pub(crate) const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
pub(crate) const OWN_PREFIX: &str = "/_onced/";
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(30);
/// The scope of what matches no route.
pub(crate) const DEFAULT_SCOPE: &str = "http";

pub(crate) const MAX_CLIENTS: u32 = 1000;
pub(crate) const MAX_PASSED: u32 = 1000;
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const MAX_HEAD_BYTES: u64 = 64 << 10;

pub(crate) const STORE_URL: &str = "sqlite:onced.db";
pub(crate) const SCHEMA: &str = "onced";
pub(crate) const MAX_CONNECTIONS: u32 = 10;
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
pub(crate) const ALLOW_WEAK_DURABILITY: bool = false;

pub(crate) const SWEEP_EVERY: Duration = Duration::from_secs(10 * MINUTE);
pub(crate) const KEEP_DELIVERIES: Duration = Duration::from_secs(30 * DAY);

/// In lower case, as header names are compared.
pub(crate) const KEY_HEADER: &str = "idempotency-key";
pub(crate) const NO_EFFECT: [u16; 5] = [401, 403, 407, 425, 429];
pub(crate) const WAIT: Duration = Duration::ZERO;
/// Nobody waits longer for another's outcome, whatever is asked for.
pub(crate) use onced::http::prefer::LONGEST_WAIT;
pub(crate) const MAX_ATTEMPTS: u32 = 5;
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// The heartbeat is the lease divided by this; it may be faster, never slower.
pub(crate) const HEARTBEATS_PER_LEASE: u32 = 3;
pub(crate) const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Shorter than any server in use keeps a connection, so that a close seldom crosses a request.
pub(crate) const UPSTREAM_KEEP_ALIVE: Duration = Duration::from_secs(1);
pub(crate) const UPGRADED_TIMEOUT: Duration = Duration::from_secs(HOUR);
pub(crate) const MAX_EXECUTION: Duration = Duration::from_secs(15 * MINUTE);
/// `settle` is at least this, unless the route says less.
pub(crate) const SETTLE_FLOOR: Duration = Duration::from_secs(60);
/// `settle` is never less than the upstream timeout times this.
pub(crate) const SETTLE_TIMEOUTS: u32 = 2;
pub(crate) const RETENTION: Duration = Duration::from_secs(7 * DAY);
pub(crate) const DOWNSTREAM_WINDOW: Duration = Duration::from_secs(24 * HOUR);
pub(crate) const CORS_CREDENTIALS: bool = false;
pub(crate) const CORS_MAX_AGE: Duration = Duration::from_secs(10 * MINUTE);
pub(crate) const RATE_PER: Duration = Duration::from_secs(1);
/// Some thousands of usual answers.
pub(crate) const REPLAY_MEMORY: u64 = 16 << 20;
pub(crate) const MAX_REQUEST_BYTES: u64 = 1 << 20;
pub(crate) const MAX_RESPONSE_BYTES: u64 = 1 << 20;
