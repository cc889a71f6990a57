//! Spellings that an upstream may fold must not pass the gateway as something else.

use onced_harness::{Recorder, RecorderOptions};
use testkit::http_client::{Request, send};
use testkit::{Backend, Database};

use crate::fixture::{Gateway, route};

async fn other_spellings(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.unwrap();
    let rest = format!("upstream = \"{}\"", upstream.url());
    let routes = route("charges", "/charges", &upstream.url(), "external", "");
    let gateway = Gateway::start_with(&database, &rest, "", &routes).await;
    for path in ["//charges", "/charges/", "/charges;v=1", "/./charges", "/x/../charges", "/%63harges", "///charges//"]
    {
        let answer = send(gateway.address, &Request::post(path, "{}")).await;
        assert_eq!((path, answer.status), (path, 400), "unkeyed, past its route");
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(send(gateway.address, &Request::post("/charges", "{}").key("k")).await.status, 200);
    let other = send(gateway.address, &Request::post("//charges", "{}").key("k")).await;
    assert_eq!(other.status, 422, "the same key on another spelling is not another effect");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_folded_path_does_not_pass_its_route_sqlite() {
    other_spellings(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_folded_path_does_not_pass_its_route_postgres() {
    other_spellings(Backend::Postgres).await;
}

#[tokio::test]
async fn a_folded_path_does_not_pass_its_route_mariadb() {
    other_spellings(Backend::MariaDb).await;
}

async fn other_headers(backend: Backend) {
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.unwrap();
    let gateway = Gateway::start(&database, &route("a", "/a", &upstream.url(), "external", "")).await;
    let request = Request::post("/a", "{}")
        .key("mine")
        .header("onced-lease-token", "forged")
        .header("onced_lease_token", "forged")
        .header("onced_key", "other")
        .header("idempotency_key", "mine");
    assert_eq!(send(gateway.address, &request).await.status, 200);
    let call = &upstream.calls()[0];
    let folded: Vec<String> = call.headers.keys().map(|name| name.as_str().replace('_', "-")).collect();
    for name in ["onced-lease-token", "onced-key", "idempotency-key"] {
        assert_eq!(folded.iter().filter(|folded| *folded == name).count(), 1, "{name}");
    }
    assert_ne!(call.headers["onced-lease-token"], "forged");
    assert!(call.key.as_deref().is_some_and(|key| key.starts_with("onced1_")), "{:?}", call.key);
}

#[tokio::test]
async fn a_client_does_not_speak_in_the_gateways_name_sqlite() {
    other_headers(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_client_does_not_speak_in_the_gateways_name_postgres() {
    other_headers(Backend::Postgres).await;
}

#[tokio::test]
async fn a_client_does_not_speak_in_the_gateways_name_mariadb() {
    other_headers(Backend::MariaDb).await;
}
