//! The test tools themselves: a tool that lies would hide what it should show.

#![allow(clippy::expect_used)]

mod databases;
mod http;
mod poolers;
mod processes;

use std::time::Duration;

/// Far longer than anything here takes; only a failure waits for it.
const LIMIT: Duration = Duration::from_secs(20);
