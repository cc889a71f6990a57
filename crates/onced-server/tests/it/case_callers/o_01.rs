//! O-01: twenty equal deliveries of one event arrive within ten milliseconds, at two gateways on one database in turn.
//! One runs; the others are told that it is running, or get its answer.

use std::time::Duration;

use testkit::http_client::{Request, race_same, send};
use testkit::{Backend, Database};

use crate::case_crash::{STEADY, is_replayed, lease, nothing_is_running, one_ran_at_most, replays, runs};
use crate::fixture::{Gateway, repeats, route, secs};
use crate::same_database_app::{self, Work, orders_of};

const ANSWER: &str = r#"{"ok":true,"n":1}"#;

/// The key is the event's id, a member of the body.
fn delivery(key: &str) -> Request {
    let body =
        format!(r#"{{"id":"{key}","type":"charge.succeeded","data":{{"object":{{"id":"ch_1","amount":4200}}}}}}"#);
    Request::post("/hooks/stripe", body).header("content-type", "application/json")
}

async fn twenty_at_once(backend: Backend) {
    let database = Database::create(backend).await;
    let app = same_database_app::start(&database, |_| Work::ok(ANSWER).before(secs(0.3))).await;
    let more = format!("key = {{ from = \"pointer\", pointer = \"/id\" }}\n{}", lease(STEADY));
    let routes = route("stripe.events", "/hooks/stripe", &app.url(), "same-database", &more);
    let gateways = [Gateway::start(&database, &routes).await, Gateway::start(&database, &routes).await];
    let addresses = gateways.each_ref().map(|gateway| gateway.address);

    for repeat in 1..=repeats() {
        let key = format!("evt_o01_{repeat}");
        let answers = race_same(20, &addresses, &delivery(&key)).await;
        assert_eq!(one_ran_at_most(&answers, 200, ANSWER, STEADY), 1, "one of them must have run");
        for answer in &answers {
            assert!(answer.took < Duration::from_secs(2), "answered after {:?}", answer.took);
        }
        let first = answers.iter().find(|answer| answer.status == 200 && !is_replayed(answer)).unwrap();
        for address in addresses {
            replays(&send(address, &delivery(&key)).await, first);
        }
        assert_eq!((runs(&app, &key), orders_of(&database, &key).await), (1, 1));
    }
    nothing_is_running(&database).await;
}

#[tokio::test]
async fn o_01_twenty_equal_deliveries_at_once_sqlite() {
    twenty_at_once(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_01_twenty_equal_deliveries_at_once_postgres() {
    twenty_at_once(Backend::Postgres).await;
}

#[tokio::test]
async fn o_01_twenty_equal_deliveries_at_once_mariadb() {
    twenty_at_once(Backend::MariaDb).await;
}
