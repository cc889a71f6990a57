//! What of an answer goes out when: without a length as it comes, with one only once it is whole; and where its outcome
//! cannot be stored, never its end.

use onced_harness::{Reply, Rule};
use testkit::http_client::{Request, open, send, try_send};
use testkit::http_raw::raw;
use testkit::{Backend, Database};

use super::stepwise::Stepwise;
use crate::case_crash::{is_problem, is_replayed, outside_app};
use crate::fixture::{Gateway, LIMIT, on_all, route, sql};
use crate::settlement::refuse_completions;

const SETTINGS: &str = "lease = \"60s\"\nupstream_timeout = \"20s\"\n";

fn request(key: &str) -> Request {
    Request::post("/s", "{\"n\":1}").key(key)
}

async fn start(backend: Backend, settings: &str) -> (Database, Stepwise, Gateway) {
    let database = Database::create(backend).await;
    let upstream = Stepwise::start(&database).await;
    let routes = route("s", "/s", &upstream.url(), "external", settings);
    let gateway = Gateway::start(&database, &routes).await;
    (database, upstream, gateway)
}

/// Chunks of whatever kind go out although the answer has not ended.
async fn chunks_go_out(backend: Backend) {
    let (database, mut upstream, gateway) = start(backend, SETTINGS).await;
    let sent = request("chunks");
    let (first, mut answering) = tokio::join!(open(gateway.address, &sent), async {
        let mut answering = upstream.next().await;
        answering.write("HTTP/1.1 201 Created\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        answering.chunk("one, ").await;
        answering
    });
    let mut first = first.unwrap();
    assert_eq!(first.next().await.unwrap().unwrap(), "one, ");
    answering.chunk("two").await;
    assert_eq!(first.next().await.unwrap().unwrap(), "two");

    // The end is what says that the outcome is stored.
    refuse_completions(&database).await;
    answering.end().await;
    assert!(first.next().await.unwrap().is_err(), "an end that nothing stands behind");
    assert_eq!(sql::keys_at(database.sql(), backend, "pending_external").await, 1);
}

/// An answer that says how long it is goes out only once it is whole and stored.
async fn sized_answers_wait(backend: Backend) {
    let (database, mut upstream, gateway) = start(backend, "lease = \"60s\"\nupstream_timeout = \"600ms\"\n").await;
    let sent = request("sized");
    let (answer, ()) = tokio::join!(send(gateway.address, &sent), async {
        let mut answering = upstream.next().await;
        answering.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ").await;
        // Its other half does not come: had the first one gone out, the client could not be told so any more.
        gateway.process.wait_for_line(|line| line.contains("not complete within"), LIMIT).await;
    });
    is_problem(&answer, 504, "outcome-unknown");
    assert_eq!(sql::keys_at(database.sql(), backend, "pending_external").await, 1);
}

/// HTTP/1.0 has no chunks, so its client would take what there is for all of it.
async fn an_old_client_gets_all_or_an_error(backend: Backend) {
    let (_database, mut upstream, gateway) = start(backend, "lease = \"60s\"\nupstream_timeout = \"600ms\"\n").await;
    let sent = "POST /s HTTP/1.0\r\nHost: x\r\nIdempotency-Key: old\r\nContent-Length: 7\r\n\r\n{\"n\":1}";
    let (answer, ()) = tokio::join!(raw(gateway.address, sent), async {
        let mut answering = upstream.next().await;
        answering.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        answering.chunk("a part").await;
        gateway.process.wait_for_line(|line| line.contains("not complete within"), LIMIT).await;
    });
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.0 504") && answer.contains("outcome-unknown"), "{answer}");
}

/// An upstream that never ends is given up after `max_execution`, however lively it is.
async fn a_stream_without_end_is_given_up(backend: Backend) {
    let settings = "upstream_timeout = \"400ms\"\nmax_execution = \"600ms\"\n";
    let (database, mut upstream, gateway) = start(backend, settings).await;
    let sent = request("endless");
    let (broken, ()) = tokio::join!(try_send(gateway.address, &sent), async {
        let mut answering = upstream.next_with_events().await;
        let given_up = gateway.process.wait_for_line(|line| line.contains("took longer than max_execution"), LIMIT);
        let writing = async {
            let mut ticks = tokio::time::interval(std::time::Duration::from_millis(50));
            loop {
                ticks.tick().await;
                answering.chunk("data: 1\n\n").await;
            }
        };
        tokio::select! {
            _ = given_up => {}
            () = writing => {}
        }
    });
    assert_eq!(broken.expect_err("it broke off").status, Some(200));
    sql::let_leases_run_out(database.sql(), backend).await;
    is_problem(&send(gateway.address, &request("endless")).await, 409, "outcome-unknown");
}

/// A client that hangs up in the middle of a stream does not end it: its record gets all of it.
async fn nobody_listens_any_more(backend: Backend) {
    let (_database, mut upstream, gateway) = start(backend, SETTINGS).await;
    let sent = request("gone");
    let (first, mut answering) = tokio::join!(open(gateway.address, &sent), async {
        let mut answering = upstream.next_with_events().await;
        answering.chunk("data: 1\n\n").await;
        answering
    });
    let mut first = first.unwrap();
    first.next().await.unwrap().unwrap();
    drop(first);
    answering.chunk("data: 2\n\n").await;
    answering.end().await;
    gateway.process.wait_for_line(|line| line.contains("\"phase\":\"ended\""), LIMIT).await;
    let replay = send(gateway.address, &request("gone")).await;
    assert!(is_replayed(&replay) && replay.text() == "data: 1\n\ndata: 2\n\n", "{replay:?}");
}

/// A client that has been given up, for it read nothing for too long, and then reads on: it is not told that what it has
/// got is all of it.
async fn a_part_is_not_told_for_the_whole(backend: Backend) {
    // More than all buffers on the way hold.
    const LARGE: usize = 40_000_000;
    let database = Database::create(backend).await;
    let upstream = outside_app(&database).await;
    upstream.script([Rule::always(Reply::ok().body(vec![b'x'; LARGE]).chunked())]);
    let settings = "lease = \"60s\"\nupstream_timeout = \"1s\"\nconnect_timeout = \"500ms\"\n";
    let gateway = Gateway::start(&database, &route("s", "/s", &upstream.url(), "external", settings)).await;
    let mut first = open(gateway.address, &request("late")).await.unwrap();
    gateway.process.wait_for_line(|line| line.contains("\"phase\":\"ended\""), LIMIT).await;
    let (mut got, mut is_broken) = (0, false);
    while let Some(piece) = first.next().await {
        match piece {
            Ok(piece) => got += piece.len(),
            Err(_) => {
                is_broken = true;
                break;
            }
        }
    }
    assert!(is_broken && got < LARGE, "{got} of {LARGE} bytes, and an orderly end");
    let replay = send(gateway.address, &request("late")).await;
    assert_eq!((replay.status, replay.header("onced-body")), (200, Some("omitted")), "the answer was read to its end");
}

on_all! {
    chunks_go_out: chunks_go_out_as_they_come_sqlite, chunks_go_out_as_they_come_postgres, chunks_go_out_as_they_come_mariadb;
    sized_answers_wait: an_answer_with_a_length_waits_sqlite, an_answer_with_a_length_waits_postgres, an_answer_with_a_length_waits_mariadb;
    an_old_client_gets_all_or_an_error: an_old_client_gets_all_or_an_error_sqlite, an_old_client_gets_all_or_an_error_postgres, an_old_client_gets_all_or_an_error_mariadb;
    a_stream_without_end_is_given_up: a_stream_without_end_is_given_up_sqlite, a_stream_without_end_is_given_up_postgres, a_stream_without_end_is_given_up_mariadb;
    a_part_is_not_told_for_the_whole: a_part_is_not_told_for_the_whole_sqlite, a_part_is_not_told_for_the_whole_postgres, a_part_is_not_told_for_the_whole_mariadb;
    nobody_listens_any_more: a_stream_goes_on_without_its_client_sqlite, a_stream_goes_on_without_its_client_postgres, a_stream_goes_on_without_its_client_mariadb;
}
