//! The gateway with `effect = "same-database"` in front of the Python example: its claim is completed in the application's own
//! transaction, by the printed file. The configuration is the example's, but for the addresses.

use testkit::http_client::{race_same, send, try_send};

use super::*;
use crate::case_crash::{STEADY, is_problem, is_replayed, nothing_is_running, one_ran_at_most, replays};
use crate::fixture::sql::let_leases_run_out;

async fn gateway(database: &Database, app: SocketAddr) -> (SocketAddr, Process, tempfile::TempDir) {
    let text =
        std::fs::read_to_string(examples().join("python/behind_gateway/onced.toml")).expect("the example's file");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let puts = [
        ("127.0.0.1:8080".to_owned(), address.to_string()),
        ("postgres://app@127.0.0.1/shop".to_owned(), database.url().to_owned()),
        ("127.0.0.1:3000".to_owned(), app.to_string()),
    ];
    let text = puts.iter().fold(text, |text, (old, new)| {
        assert_eq!(text.matches(old).count(), 1, "the example has {old} once");
        text.replace(old, new)
    });
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("onced.toml");
    std::fs::write(&file, text).expect("the file can be written");
    let process = Process::spawn(ONCED, ["serve", "--config", file.to_str().expect("plain")], [("ONCED_LOG", "info")]);
    process.wait_for_line(|line| line.contains("listening"), LIMIT).await;
    (address, process, folder)
}

#[tokio::test]
async fn twenty_at_once_and_a_kill_behind_the_gateway() {
    let database = database().await;
    let mut app = App::start(Example::BehindGateway, database.url(), "http://127.0.0.1:9").await;
    let (address, _process, _folder) = gateway(&database, app.address).await;
    let answers = race_same(20, &[address], &order("o01")).await;
    let first = answers.iter().find(|answer| answer.status == 201 && !is_replayed(answer)).expect("one has run");
    assert_eq!(one_ran_at_most(&answers, 201, &first.text(), STEADY * 6), 1);
    replays(&send(address, &order("o01")).await, first);
    is_problem(&send(address, &post("/api/order", "o01", r#"{"sku":"B"}"#)).await, 422, "key-reused");
    assert_eq!((runs(&database).await, orders(&database).await), (1, 1));

    // Killed in its transaction: nothing of it is there, and the next application completes the next attempt.
    let mut gate = Gate::close(&database).await;
    let sent = tokio::spawn(async move { try_send(address, &order("killed")).await });
    gate.holds(1).await;
    app.process.kill().await;
    gate.open().await;
    let lost = sent.await.expect("no panic").expect("the gateway answers");
    is_problem(&lost, 504, "outcome-unknown");
    assert_eq!(orders(&database).await, 1);
    let app = App::start(Example::BehindGateway, database.url(), "http://127.0.0.1:9").await;
    let (address, _process, _folder) = gateway(&database, app.address).await;
    let_leases_run_out(database.sql(), Backend::Postgres).await;
    let retry = send(address, &order("killed")).await;
    assert_eq!((retry.status, is_replayed(&retry)), (201, false), "{retry:?}");
    replays(&send(address, &order("killed")).await, &retry);
    assert_eq!(orders(&database).await, 2);
    nothing_is_running(&database).await;
}
