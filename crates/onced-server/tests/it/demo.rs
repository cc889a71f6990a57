//! `onced demo`: the story with the ledger is right, the one without shows the double charges, and what stays up can
//! be tried and ends without a trace.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use testkit::http_client::{Request, send};
use testkit::process::{Process, Signal};

use crate::fixture::LIMIT;

fn start(args: &[&str]) -> Process {
    let none: [(&str, &str); 0] = [];
    Process::spawn(env!("CARGO_BIN_EXE_onced"), [&["demo"], args].concat(), none)
}

/// Runs it to its end: the exit code, and the table's rows as orders, charges and verdict.
async fn play(args: &[&str]) -> (Option<i32>, Vec<[String; 3]>) {
    let mut demo = start(args);
    let ended = demo.wait(LIMIT).await;
    let output = demo.stdout().all();
    let rows = output.iter().filter(|line| line.starts_with('│')).skip(1).map(|line| {
        let cells: Vec<&str> = line.trim_matches('│').split('┆').map(str::trim).collect();
        let [_, _, _, orders, charges, verdict] = cells[..] else { panic!("no row of the table: {line}") };
        [orders, charges, verdict].map(str::to_owned)
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        panic!("no table; standard error was:\n{}", demo.stderr().all().join("\n"));
    }
    (ended.code(), rows)
}

/// What the rows are, with the lost answer, which has no order, in the sixth.
fn rows(all: [[&str; 3]; 8]) -> Vec<[String; 3]> {
    all.map(|row| row.map(str::to_owned)).to_vec()
}

#[tokio::test]
async fn every_count_is_right() {
    let once = ["1", "1", "ok"];
    let payout = ["0", "1", "ok"];
    let wanted = rows([once, once, once, once, once, payout, once, once]);
    assert_eq!(play(&["--exit"]).await, (Some(0), wanted));
}

#[tokio::test]
async fn without_the_ledger_the_double_charges_are_shown() {
    let burst = ["50", "50", "charged 50 times, not once"];
    let twice = ["2", "2", "charged 2 times, not once"];
    let payout = ["0", "2", "paid out 2 times, not once"];
    let killed = ["1", "2", "2 charges for 1 order"];
    let wanted = rows([burst, twice, twice, twice, twice, payout, twice, killed]);
    assert_eq!(play(&["--exit", "--break-it"]).await, (Some(1), wanted));
}

#[tokio::test]
async fn the_gateway_stays_up_until_it_is_told_to_stop() {
    let mut demo = start(&[]);
    let line = demo.stdout().wait_for(|line| line.starts_with("Ctrl-C ends it"), LIMIT).await.unwrap();
    let folder = line.trim_end_matches('.').rsplit(' ').next().unwrap().to_owned();
    let curl = demo.stdout().all().into_iter().find(|line| line.contains("curl -i http://")).unwrap();
    let address = curl.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    let address: SocketAddr = address.parse().unwrap();

    let charge = |amount: u32| {
        let body = format!(r#"{{"reference":"try-1","amount":{amount}}}"#);
        Request::post("/charges", body).key("try-1").header("content-type", "application/json")
    };
    let first = send(address, &charge(500)).await;
    let again = send(address, &charge(500)).await;
    let other = send(address, &charge(900)).await;
    assert_eq!((first.status, again.status, other.status), (201, 201, 422));
    assert_eq!((again.header("idempotent-replayed"), &again.body), (Some("true"), &first.body));

    assert!(Path::new(&folder).join("demo.db").exists());
    demo.signal(Signal::Terminate);
    assert_eq!(demo.wait(LIMIT).await.code(), Some(0));
    assert!(!Path::new(&folder).exists(), "{folder} is left");
    assert!(TcpStream::connect(address).is_err(), "the gateway is left");
}
