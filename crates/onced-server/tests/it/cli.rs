//! The command line: what a person types, and what is said back, in words and exit codes.

mod agent;
mod check;
mod doctor;
mod health;
mod keys;
mod migrate;
mod observe;
mod secrets;
mod serve;
mod sweep;

use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;
use testkit::http_client::Answer;
use testkit::process::{Process, free_port};

use crate::fixture::LIMIT;

const ONCED: &str = env!("CARGO_BIN_EXE_onced");

/// What a command said.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs a command to its end.
async fn onced(args: &[&str]) -> Ran {
    ended(Process::spawn(ONCED, args, [("USER", "the-shell-user")])).await
}

/// As [`onced`], in a folder.
async fn onced_in(folder: &Path, args: &[&str]) -> Ran {
    ended(start_in(folder, args)).await
}

/// Starts a command in a folder.
fn start_in(folder: &Path, args: &[&str]) -> Process {
    let mut command = tokio::process::Command::new(ONCED);
    command.args(args).current_dir(folder).env_remove("ONCED_STORE");
    Process::start(command)
}

async fn ended(mut process: Process) -> Ran {
    let status = process.wait(LIMIT).await;
    Ran { code: status.code(), out: process.stdout().all().join("\n"), err: process.stderr().all().join("\n") }
}

/// Starts `onced serve` in a folder, at an address of its own, and waits until it listens.
async fn serve_in(folder: &Path, args: &[&str]) -> (SocketAddr, Process) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let listen = address.to_string();
    let process = start_in(folder, &[&["serve", "--listen", &listen], args].concat());
    process.wait_for_line(|line| line.contains("listening"), LIMIT).await;
    (address, process)
}

/// The code of the problem that was answered.
fn code(answer: &Answer) -> String {
    let problem: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    problem["code"].as_str().unwrap_or_default().to_owned()
}
