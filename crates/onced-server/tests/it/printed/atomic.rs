//! Key, rows and answer in one transaction: O-01, O-02, O-06, O-12, a kill in mid-handler, and a role that may do little.

use std::time::Duration;

use onced_harness::{Recorder, RecorderOptions};
use serde_json::Value;
use testkit::http_client::{Answer, Request, race, race_same, send, try_send};

use super::*;
use crate::case_crash::{
    STEADY, is_in_progress, is_problem, is_replayed, nothing_is_running, one_ran_at_most, replays,
};

const NO_PROVIDER: &str = "http://127.0.0.1:9";

fn event(body: &str) -> Request {
    Request::post("/hooks/stripe", body.to_owned()).header("content-type", "application/json")
}

fn json(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("no JSON: {answer:?}"))
}

/// Two processes; twenty equal deliveries within ten milliseconds.
async fn o_01(example: Example) {
    let database = database().await;
    runs_also(&database, "PERFORM pg_sleep(0.3);").await;
    let apps = [
        App::start(example, database.url(), NO_PROVIDER).await,
        App::start(example, database.url(), NO_PROVIDER).await,
    ];
    let addresses = apps.each_ref().map(|app| app.address);
    let delivery = event(
        r#"{"id":"evt_o01","type":"charge.succeeded","data":{"object":{"id":"ch_1","subscription":null,"amount":4200}}}"#,
    );

    let answers = race_same(20, &addresses, &delivery).await;
    let first = answers.iter().find(|answer| answer.status == 200 && !is_replayed(answer)).expect("one has run");
    assert_eq!(one_ran_at_most(&answers, 200, &first.text(), Duration::from_secs(30)), 1);
    assert!(answers.iter().all(|answer| answer.took < Duration::from_secs(5)), "{answers:?}");
    for address in addresses {
        replays(&send(address, &delivery).await, first);
    }
    assert_eq!((runs(&database).await, orders(&database).await), (1, 1));
    nothing_is_running(&database).await;
}

/// Two events about one subscription: two keys, one order, and one mail, which the queue sends.
async fn o_02(example: Example) {
    let database = database().await;
    let provider = Recorder::start(RecorderOptions::default().deduplicate()).await.expect("the provider can listen");
    let app = App::start(example, database.url(), &provider.url()).await;
    let events = [
        r#"{"id":"evt_o02_a","type":"checkout.session.completed","data":{"object":{"subscription":"sub_9"}}}"#,
        r#"{"id":"evt_o02_b","type":"customer.subscription.created","data":{"object":{"id":"sub_9"}}}"#,
    ]
    .map(event);

    let answers = race(&events.clone().map(|event| (app.address, event))).await;
    assert!(answers.iter().all(|answer| answer.status == 200 && !is_replayed(answer)), "{answers:?}");
    for (event, first) in events.iter().zip(&answers) {
        replays(&send(app.address, event).await, first);
    }
    assert_eq!(orders(&database).await, 1);
    assert_eq!(database.sql().count("SELECT count(*) FROM onced.idempotency_keys WHERE status = 'completed'").await, 2);
    queue::work(&database, &provider.url()).await;
    assert_eq!((provider.effects(), provider.calls()[0].path.as_str()), (1, "/mails"));
    nothing_is_running(&database).await;
}

/// The first run fails; of ten retries one runs.
async fn o_06(example: Example) {
    let database = database().await;
    runs_also(&database, "IF run = 1 THEN RAISE EXCEPTION 'out of stock'; END IF; PERFORM pg_sleep(0.3);").await;
    let app = App::start(example, database.url(), NO_PROVIDER).await;
    assert_eq!(send(app.address, &order("o06")).await.status, 500);
    assert_eq!((runs(&database).await, orders(&database).await), (1, 0));

    let answers = race_same(10, &[app.address], &order("o06")).await;
    let first = answers.iter().find(|answer| answer.status == 201 && !is_replayed(answer)).expect("one has run");
    assert_eq!(one_ran_at_most(&answers, 201, &first.text(), Duration::from_secs(30)), 1);
    replays(&send(app.address, &order("o06")).await, first);
    assert_eq!((runs(&database).await, orders(&database).await), (2, 1));
    nothing_is_running(&database).await;
}

/// Whose key it is.
async fn o_12(example: Example) {
    let database = database().await;
    let app = App::start(example, database.url(), NO_PROVIDER).await;
    let amount = r#"{"amount":5}"#;
    let sent = async |tenant, method: &str, path: &str, key: &str| {
        send(app.address, &of_tenant(tenant, method, path, key, amount)).await
    };
    let a = sent(1, "POST", "/api/order", "1").await;
    let b = sent(2, "POST", "/api/order", "1").await;
    let c = sent(1, "POST", "/api/refund", "1").await;
    for (answer, status, tenant) in [(&a, 201, "t1"), (&b, 201, "t2"), (&c, 202, "t1")] {
        assert_eq!((answer.status, is_replayed(answer)), (status, false), "{answer:?}");
        assert_eq!(json(answer)["tenant"], tenant);
    }
    for (method, path) in [("POST", "/api/order?dry=1"), ("POST", "/api/order/77"), ("PUT", "/api/order")] {
        let other = sent(1, method, path, "1").await;
        is_problem(&other, 422, "key-reused");
        assert!(!other.text().contains("t2"), "{other:?}");
    }
    assert_eq!(sent(1, "POST", "/api/order/77", "fresh").await.status, 201);
    is_problem(&sent(1, "POST", "/api/order/78", "fresh").await, 422, "key-reused");
    assert_eq!(sent(1, "POST", "/api/order?x=1&y=2", "query").await.status, 201);
    is_problem(&sent(1, "POST", "/api/order?y=2&x=1", "query").await, 422, "key-reused");
    replays(&sent(1, "POST", "/api/order", "1").await, &a);
    // a, b, 77 and the query are orders; c is a job.
    assert_eq!((runs(&database).await, orders(&database).await), (4, 4));
    assert_eq!(database.sql().count("SELECT count(*) FROM jobs").await, 1);

    // A stranger is told the same whether the key exists or not; the quoted form is the same key; no key is no key.
    for key in ["1", "2"] {
        assert_eq!(sent(3, "POST", "/api/order", key).await.status, 401);
    }
    replays(&sent(1, "POST", "/api/order", "\"1\"").await, &a);
    is_problem(&sent(1, "POST", "/api/order", "\"1").await, 400, "key-invalid");
    let twice = of_tenant(1, "POST", "/api/order", "1", amount).header("idempotency-key", "1");
    is_problem(&send(app.address, &twice).await, 400, "key-invalid");
    let without = Request::post("/api/order", amount).header("authorization", "Bearer secret-1");
    is_problem(&send(app.address, &without).await, 400, "key-missing");
    assert_eq!(orders(&database).await, 4);
}

/// SIGKILL while the handler is at work: what it wrote is rolled back, and the next delivery executes.
async fn killed_in_mid_handler(example: Example) {
    let database = database().await;
    let mut app = App::start(example, database.url(), NO_PROVIDER).await;
    let mut gate = Gate::close(&database).await;
    let address = app.address;
    let sent = tokio::spawn(async move { try_send(address, &order("killed")).await });
    gate.holds(1).await;
    app.process.kill().await;
    sent.await.expect("no panic").expect_err("the application is gone");

    // The server has not noticed yet: the dead attempt still has the key.
    let app = App::start(example, database.url(), NO_PROVIDER).await;
    is_in_progress(&send(app.address, &order("killed")).await, STEADY);
    gate.open().await;
    let retry = loop {
        let answer = send(app.address, &order("killed")).await;
        if answer.status != 409 {
            break answer;
        }
    };
    assert_eq!((retry.status, is_replayed(&retry)), (201, false), "{retry:?}");
    replays(&send(app.address, &order("killed")).await, &retry);
    assert_eq!(orders(&database).await, 1);
    nothing_is_running(&database).await;
}

/// The application's role may call the functions, and has no right to any table of the ledger.
async fn as_a_role_with_few_rights(example: Example) {
    let database = database().await;
    let role = format!("printed_{}_{}", std::process::id(), example as u8);
    database
        .sql()
        .execute(&format!(
            "CREATE ROLE {role}; GRANT INSERT, SELECT ON orders, jobs TO {role}; GRANT USAGE ON SEQUENCE runs TO {role}"
        ))
        .await;
    let mut grant =
        Process::spawn(ONCED, ["migrate", "--store", database.url(), "--grant", &role], [("ONCED_LOG", "warn")]);
    assert!(grant.wait(LIMIT).await.success(), "{:?}", grant.stderr().all());
    let url = format!("{}?options=-c%20role%3D{role}", database.url());
    let app = App::start(example, &url, NO_PROVIDER).await;
    let first = send(app.address, &order("k")).await;
    assert_eq!(first.status, 201, "{first:?} {:?}", app.process.stderr().all());
    replays(&send(app.address, &order("k")).await, &first);
    drop(app);
    database.sql().execute(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await;
}

on_each! {
    o_01: o_01_twenty_equal_deliveries_fastapi, o_01_twenty_equal_deliveries_express;
    o_02: o_02_two_events_one_fact_fastapi, o_02_two_events_one_fact_express;
    o_06: o_06_ten_retries_fastapi, o_06_ten_retries_express;
    o_12: o_12_whose_key_fastapi, o_12_whose_key_express;
    killed_in_mid_handler: killed_in_mid_handler_fastapi, killed_in_mid_handler_express;
    as_a_role_with_few_rights: as_a_role_with_few_rights_fastapi, as_a_role_with_few_rights_express;
}

/// The session that SQLAlchemy opened is the transaction of the key, too.
#[tokio::test]
async fn o_01_and_o_06_sqlalchemy() {
    o_01_of_orders(Example::SqlAlchemy).await;
    o_06(Example::SqlAlchemy).await;
}

/// Twenty equal orders, for an example that takes no events.
async fn o_01_of_orders(example: Example) {
    let database = database().await;
    runs_also(&database, "PERFORM pg_sleep(0.3);").await;
    let app = App::start(example, database.url(), NO_PROVIDER).await;
    let answers = race_same(20, &[app.address], &order("o01")).await;
    let first = answers.iter().find(|answer| answer.status == 201 && !is_replayed(answer)).expect("one has run");
    assert_eq!(one_ran_at_most(&answers, 201, &first.text(), Duration::from_secs(30)), 1);
    replays(&send(app.address, &order("o01")).await, first);
    is_problem(&send(app.address, &post("/api/order", "o01", "{}")).await, 422, "key-reused");
    assert_eq!((runs(&database).await, orders(&database).await), (1, 1));
}
