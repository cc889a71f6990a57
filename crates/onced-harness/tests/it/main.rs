//! The recorder, seen over TCP. One binary, one file for each side of it.

#![allow(clippy::expect_used)]

mod counting;
mod delivery;
mod holding;
mod lifecycle;
mod scripting;

use std::time::Duration;

use onced_harness::{Recorder, RecorderOptions, Rule};
use testkit::http_client::Request;

/// Far longer than anything here takes; only a failure waits for it.
const LIMIT: Duration = Duration::from_secs(20);

async fn start(options: RecorderOptions) -> Recorder {
    Recorder::start(options).await.expect("a free port can be bound")
}

async fn scripted(rules: impl IntoIterator<Item = Rule>) -> Recorder {
    start(RecorderOptions::default().script(rules)).await
}

fn keyed(key: &str) -> Request {
    Request::post("/charge", r#"{"amount":1}"#).key(key)
}
