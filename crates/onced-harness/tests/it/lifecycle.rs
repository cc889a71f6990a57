//! Start, stop, restart and drop.

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Broken, send, try_send};
use tokio::net::TcpStream;

use crate::{LIMIT, keyed, scripted};

#[tokio::test]
async fn a_stopped_recorder_refuses_and_a_restarted_one_goes_on() {
    let recorder = scripted([]).await;
    let addr = recorder.addr();
    assert_eq!(recorder.url(), format!("http://{addr}"));
    assert_eq!(send(addr, &keyed("k")).await.status, 200);
    recorder.stop().await;
    TcpStream::connect(addr).await.expect_err("refused");
    recorder.restart().await.expect("the port is free");
    assert_eq!(send(addr, &keyed("k")).await.status, 200);
    assert_eq!(recorder.calls_for("k")[1].run, 2, "the log goes on");
}

#[tokio::test]
async fn stopping_breaks_running_calls_before_their_effect() {
    let recorder = scripted([Rule::on_run(1, Reply::hang())]).await;
    let addr = recorder.addr();
    let sent = tokio::spawn(async move { try_send(addr, &keyed("k")).await });
    recorder.wait_for_held(1, LIMIT).await.expect("held");
    recorder.stop().await;
    let result: Result<_, Broken> = sent.await.expect("no panic");
    result.expect_err("the connection broke");
    recorder.release();
    recorder.restart().await.expect("the port is free");
    assert_eq!((recorder.effects(), recorder.log().held()), (0, 0));
    assert_eq!(send(addr, &keyed("k")).await.status, 200);
}

#[tokio::test]
async fn a_new_recorder_can_take_the_port_of_an_old_one() {
    let recorder = scripted([]).await;
    let addr = recorder.addr();
    send(addr, &keyed("k")).await;
    recorder.stop().await;
    drop(recorder);
    let recorder = Recorder::start(RecorderOptions::default().listen(addr)).await.expect("the port is free");
    assert_eq!((recorder.addr(), recorder.count()), (addr, 0));
    let taken = Recorder::start(RecorderOptions::default().listen(addr)).await;
    assert_eq!(taken.expect_err("taken").kind(), std::io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn dropping_the_recorder_ends_its_calls() {
    let recorder = scripted([Rule::always(Reply::hang())]).await;
    let addr = recorder.addr();
    let sent = tokio::spawn(async move { try_send(addr, &keyed("k")).await });
    recorder.wait_for_held(1, LIMIT).await.expect("held");
    drop(recorder);
    sent.await.expect("no panic").expect_err("the connection broke");
}
