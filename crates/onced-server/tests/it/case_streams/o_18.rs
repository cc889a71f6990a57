//! O-18, too large or endless: (a) 20 answers of 5 MiB at once, with 256 KiB to be kept of each; (b) an event stream;
//! (c) an answer that breaks off after its upstream's commit.

use onced_harness::{Delivery, Recorder, Reply, Rule};
use testkit::http_client::{Request, open, race_same, send, try_send};
use testkit::{Backend, Database};

use super::stepwise::Stepwise;
use crate::case_crash::{is_problem, is_replayed, nothing_is_running, outside_app, runs};
use crate::fixture::{Gateway, LIMIT, on_all, route, sql};
use crate::same_database_app::orders;

const LARGE: usize = 5 << 20;
const PARALLEL: usize = 20;
/// What the gateway may take for all of them together. Kept whole, they would take 100 MiB.
const BOUND_KIB: u64 = 40 << 10;
const SETTINGS: &str = "max_response_bytes = \"256KiB\"\nlease = \"60s\"\n";

fn large() -> Vec<u8> {
    (0..LARGE).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// The most memory that the process has had so far, in KiB, by the system's count.
fn peak_kib(gateway: &Gateway) -> u64 {
    let id = gateway.process.id().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("a Linux process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

async fn too_large(backend: Backend) {
    for delivery in [Delivery::Sized, Delivery::Chunked] {
        let database = Database::create(backend).await;
        let upstream = outside_app(&database).await;
        upstream.script([Rule::always(Reply::ok().body(large()).delivery(delivery.clone()))]);
        let gateway = Gateway::start(&database, &route("o18", "/o18", &upstream.url(), "external", SETTINGS)).await;
        let before = peak_kib(&gateway);
        let requests: Vec<_> =
            (0..PARALLEL).map(|n| (gateway.address, Request::post("/o18", "{}").key(&format!("a{n}")))).collect();
        let answers = testkit::http_client::race(&requests).await;
        let grown = peak_kib(&gateway) - before;
        assert!(grown < BOUND_KIB, "{PARALLEL} answers of {LARGE} bytes took {grown} KiB ({delivery:?})");
        let expected = large();
        for (answer, (address, request)) in answers.iter().zip(&requests) {
            assert!(answer.status == 200 && answer.body == expected && !is_replayed(answer), "{delivery:?}");
            let replay = send(*address, request).await;
            assert!(replay.status == 200 && replay.body.is_empty() && is_replayed(&replay), "{replay:?}");
            assert_eq!(replay.header("onced-body"), Some("omitted"));
        }
        assert_eq!((upstream.count(), orders(&database).await), (PARALLEL, PARALLEL as i64));
        nothing_is_running(&database).await;
    }
}

async fn event_stream(backend: Backend) {
    let database = Database::create(backend).await;
    let mut upstream = Stepwise::start(&database).await;
    let gateway = Gateway::start(&database, &route("o18", "/o18", &upstream.url(), "external", SETTINGS)).await;
    let request = Request::post("/o18", "{\"n\":1}").key("b");
    let (first, mut answering) = tokio::join!(open(gateway.address, &request), upstream.next_with_events());
    let mut first = first.expect("the head comes before any event");
    assert_eq!((first.status, first.headers["content-type"].as_bytes()), (200, &b"text/event-stream"[..]));
    let mut all = String::new();
    for n in 0..20 {
        let event = format!("id: {n}\ndata: {{\"n\":{n}}}\n\n");
        answering.chunk(&event).await;
        // Nothing more is written before this has come: it cannot have been kept back.
        let mut seen = String::new();
        while seen.len() < event.len() {
            let piece = first.next().await.expect("it goes on").expect("it is whole");
            seen.push_str(std::str::from_utf8(&piece).unwrap());
        }
        assert_eq!(seen, event);
        all.push_str(&event);
        if n == 10 {
            is_problem(&send(gateway.address, &request).await, 409, "in-progress");
        }
    }
    answering.end().await;
    assert_eq!(first.next().await, None, "an orderly end");
    let replay = send(gateway.address, &request).await;
    assert!(is_replayed(&replay) && replay.text() == all, "{replay:?}");
    assert_eq!(replay.header("content-type"), Some("text/event-stream"));
    assert!(!upstream.has_more());
    assert_eq!(orders(&database).await, 1);
    nothing_is_running(&database).await;
}

/// An unknown outcome: nobody is told a part for the whole, and nothing runs again.
async fn breaks_off(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = outside_app(&database).await;
    let gateway = Gateway::start(&database, &route("o18", "/o18", &upstream.url(), "external", SETTINGS)).await;
    let whole = |key: &str| Request::post("/o18", "{}").key(key);

    // 100 of 1000 bytes: little enough to be kept back, so that its client is told what is known.
    upstream.script([Rule::always(Reply::cut_off(1000, 100).with_effect())]);
    is_problem(&send(gateway.address, &whole("c small")).await, 504, "outcome-unknown");
    // Too much to be kept back: the head has gone out, and the client sees it break off.
    upstream.script([Rule::always(Reply::cut_off(1 << 20, 1 << 19).with_effect())]);
    let broken = try_send(gateway.address, &whole("c large")).await.expect_err("it broke off");
    assert_eq!(broken.status, Some(200));
    for key in ["c small", "c large"] {
        is_problem(&send(gateway.address, &whole(key)).await, 409, "in-progress");
    }
    sql::let_leases_run_out(database.sql(), backend).await;
    for key in ["c small", "c large"] {
        is_problem(&send(gateway.address, &whole(key)).await, 409, "outcome-unknown");
        assert_eq!(runs(&upstream, key), 1);
    }
    assert_eq!(orders(&database).await, 2);
    assert_eq!(sql::keys_at(database.sql(), backend, "pending_external").await, 2);
}

/// The same of an event stream: its client has seen the events that came.
async fn event_stream_breaks_off(backend: Backend) {
    let database = Database::create(backend).await;
    let mut upstream = Stepwise::start(&database).await;
    let gateway = Gateway::start(&database, &route("o18", "/o18", &upstream.url(), "external", SETTINGS)).await;
    let request = Request::post("/o18", "{\"n\":1}").key("c stream");
    let (first, mut answering) = tokio::join!(open(gateway.address, &request), upstream.next_with_events());
    let mut first = first.expect("the head comes before any event");
    answering.chunk("data: 1\n\n").await;
    assert_eq!(first.next().await.unwrap().unwrap(), "data: 1\n\n");
    drop(answering);
    assert!(first.next().await.expect("no orderly end").is_err());
    gateway.process.wait_for_line(|line| line.contains("\"phase\":\"ended\""), LIMIT).await;
    sql::let_leases_run_out(database.sql(), backend).await;
    is_problem(&send(gateway.address, &request).await, 409, "outcome-unknown");
    assert!(!upstream.has_more());
    assert_eq!(orders(&database).await, 1);
}

/// A hundred duplicates of a stream that has ended: all of them get all of it.
async fn duplicates_of_a_stream(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream: Recorder = outside_app(&database).await;
    let events: Vec<String> = (0..50).map(|n| format!("data: {n}\n\n")).collect();
    let reply = Reply::stream(events.clone(), std::time::Duration::from_millis(1));
    upstream.script([Rule::always(reply.header("content-type", "text/event-stream"))]);
    let gateway = Gateway::start(&database, &route("o18", "/o18", &upstream.url(), "external", SETTINGS)).await;
    let request = Request::post("/o18", "{}").key("d");
    assert_eq!(send(gateway.address, &request).await.text(), events.concat());
    for answer in race_same(100, &[gateway.address], &request).await {
        assert!(is_replayed(&answer) && answer.text() == events.concat(), "{answer:?}");
    }
    assert_eq!((upstream.count(), orders(&database).await), (1, 1));
}

on_all! {
    too_large: o_18_too_large_to_keep_sqlite, o_18_too_large_to_keep_postgres, o_18_too_large_to_keep_mariadb;
    event_stream: o_18_events_come_as_they_are_written_sqlite, o_18_events_come_as_they_are_written_postgres, o_18_events_come_as_they_are_written_mariadb;
    breaks_off: o_18_an_answer_breaks_off_sqlite, o_18_an_answer_breaks_off_postgres, o_18_an_answer_breaks_off_mariadb;
    event_stream_breaks_off: o_18_an_event_stream_breaks_off_sqlite, o_18_an_event_stream_breaks_off_postgres, o_18_an_event_stream_breaks_off_mariadb;
    duplicates_of_a_stream: o_18_a_stream_is_told_again_whole_sqlite, o_18_a_stream_is_told_again_whole_postgres, o_18_a_stream_is_told_again_whole_mariadb;
}
