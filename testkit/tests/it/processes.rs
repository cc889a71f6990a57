//! Child processes, their lines and signals.

use std::os::unix::process::ExitStatusExt;
use std::pin::pin;

use futures_util::StreamExt;
use testkit::{Process, Signal, free_port};

use crate::LIMIT;

fn shell(script: &str) -> Process {
    Process::spawn("sh", ["-c", script], [("WORD", "passed")])
}

#[tokio::test]
async fn lines_are_kept_and_can_be_waited_for() {
    let mut process = shell("echo one >&2; echo $WORD >&2; echo out; printf last >&2");
    assert_eq!(process.wait_for_line(|line| line.starts_with("pas"), LIMIT).await, "passed");
    assert!(process.wait(LIMIT).await.success());
    assert_eq!(process.stderr().all(), ["one", "passed", "last"]);
    assert_eq!(process.stderr().stream().collect::<Vec<_>>().await, ["one", "passed", "last"]);
    assert_eq!(process.stdout().all(), ["out"]);
    assert_eq!(process.wait_for_line(|line| line == "one", LIMIT).await, "one", "also after the end");
    process.signal(Signal::Kill);
}

#[tokio::test]
#[should_panic(expected = "the output ended without that line; standard error was:\nonly this")]
async fn a_program_that_ends_without_the_line_fails_at_once() {
    shell("echo only this >&2").wait_for_line(|line| line == "never", LIMIT).await;
}

#[tokio::test]
async fn signals_arrive() {
    let mut process = shell("trap 'echo asked >&2; exit 7' TERM; echo up >&2; while :; do sleep 0.01; done");
    process.wait_for_line(|line| line == "up", LIMIT).await;
    process.signal(Signal::Terminate);
    assert_eq!(process.wait(LIMIT).await.code(), Some(7));
    assert_eq!(process.id(), None);

    let mut process = shell("exec sleep 1000");
    assert_eq!(process.kill().await.signal(), Some(9));
}

#[tokio::test]
async fn a_frozen_program_says_nothing_until_it_is_thawed() {
    let mut process = shell("while :; do echo tick; done");
    let output = process.stdout().clone();
    let mut lines = pin!(output.stream());
    assert_eq!(lines.next().await.as_deref(), Some("tick"));
    process.signal(Signal::Stop);
    process.signal(Signal::Terminate);
    // A frozen program gets the signal only when it is thawed.
    process.signal(Signal::Continue);
    assert_eq!(process.wait(LIMIT).await.signal(), Some(15));
}

#[tokio::test]
async fn a_dropped_process_is_killed() {
    let process = shell("echo up >&2; exec sleep 1000");
    process.wait_for_line(|line| line == "up", LIMIT).await;
    let lines = process.stderr().clone();
    drop(process);
    // Its end of the pipe closes only with it.
    lines.wait_for(|line| line == "never", LIMIT).await.expect_err("the output ended");
}

#[test]
fn a_free_port_is_free_and_outside_of_the_outgoing_range() {
    let port = free_port();
    assert!((12_000..32_000).contains(&port));
    std::net::TcpListener::bind(("127.0.0.1", port)).expect("free");
}
