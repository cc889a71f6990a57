//! Calls that wait for the test: the gate, scripted holds, hanging, clients that hang up.

use std::time::Duration;

use onced_harness::{Moment, Reply, Rule};
use testkit::http_client::{race_same, send, send_and_hang_up};

use crate::{LIMIT, keyed, scripted};

#[tokio::test]
async fn a_held_call_takes_effect_only_when_released() {
    let recorder = scripted([]).await;
    recorder.hold();
    let addr = recorder.addr();
    let sent = tokio::spawn(async move { send(addr, &keyed("k")).await.status });
    recorder.wait_for_held(1, LIMIT).await.expect("held");
    assert_eq!((recorder.count(), recorder.effects(), recorder.log().answered()), (1, 0, 0));
    recorder.release();
    assert_eq!(sent.await.expect("no panic"), 200);
    assert_eq!((recorder.effects(), recorder.log().held()), (1, 0));
    assert_eq!(send(addr, &keyed("k")).await.status, 200, "the gate is open again");
}

#[tokio::test]
async fn a_release_right_after_the_arrival_is_not_missed() {
    let recorder = scripted([Rule::always(Reply::hang())]).await;
    for round in 1..=50 {
        let addr = recorder.addr();
        let sent = tokio::spawn(async move { send(addr, &keyed("k")).await.status });
        recorder.wait_for_calls(round, LIMIT).await.expect("it arrives");
        recorder.release();
        assert_eq!(sent.await.expect("no panic"), 200);
    }
}

#[tokio::test]
async fn one_call_can_be_released_alone() {
    let recorder = scripted([]).await;
    recorder.hold();
    let addr = recorder.addr();
    let first = tokio::spawn(async move { send(addr, &keyed("first")).await.status });
    recorder.wait_for_held(1, LIMIT).await.expect("held");
    let second = tokio::spawn(async move { send(addr, &keyed("second")).await.status });
    recorder.wait_for_held(2, LIMIT).await.expect("both held");
    recorder.release_call(2);
    assert_eq!(second.await.expect("no panic"), 200);
    assert_eq!((recorder.effects_by_key()["first"], recorder.effects_by_key()["second"]), (0, 1));
    recorder.release();
    assert_eq!(first.await.expect("no panic"), 200);
}

#[tokio::test]
async fn a_call_can_wait_between_effect_and_answer() {
    let both = Reply::ok().hold(Moment::BeforeEffect).hold(Moment::BeforeAnswer);
    let recorder = scripted([Rule::always(both)]).await;
    let addr = recorder.addr();
    let sent = tokio::spawn(async move { send(addr, &keyed("k")).await.status });
    recorder.wait_for_held(1, LIMIT).await.expect("held before the effect");
    assert_eq!(recorder.effects(), 0);
    recorder.release();
    recorder.wait_until(|log| log.effects() == 1 && log.held() == 1, LIMIT).await.expect("held before the answer");
    assert_eq!(recorder.log().answered(), 0);
    recorder.release();
    assert_eq!(sent.await.expect("no panic"), 200);
}

#[tokio::test]
async fn one_release_frees_a_crowd() {
    let recorder = scripted([]).await;
    recorder.hold();
    let addrs = [recorder.addr()];
    let crowd = tokio::spawn(async move { race_same(30, &addrs, &keyed("k")).await.len() });
    recorder.wait_for_held(30, LIMIT).await.expect("all held");
    recorder.release();
    assert_eq!((crowd.await.expect("no panic"), recorder.effects()), (30, 30));
}

#[tokio::test]
async fn a_call_goes_on_when_its_client_hangs_up() {
    let recorder = scripted([]).await;
    recorder.hold();
    send_and_hang_up(recorder.addr(), &keyed("k"), recorder.wait_for_held(1, LIMIT)).await;
    assert_eq!(recorder.effects(), 0);
    recorder.release();
    recorder.wait_until(|log| log.effects() == 1, LIMIT).await.expect("it takes effect");
    assert_eq!(recorder.log().answered(), 0);
}

#[tokio::test]
async fn waiting_in_vain_tells_what_there_was() {
    let recorder = scripted([]).await;
    send(recorder.addr(), &keyed("k")).await;
    let error = recorder.wait_for_calls(2, Duration::from_millis(10)).await.expect_err("there is one");
    assert_eq!(error.to_string().split(", ").next(), Some("not reached within 10ms: 1 calls"));
    assert_eq!(error.log.count(), 1);
}
