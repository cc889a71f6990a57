//! An upstream behind a Unix socket.

use testkit::http_client::{Request, send};
use testkit::{Backend, Database};

use super::app::App;
use super::{outcome, post, records_at, said};
use crate::fixture::{Gateway, route};

async fn behind_a_socket(backend: Backend) {
    let (database, folder) = (Database::create(backend).await, tempfile::tempdir().unwrap());
    let path = folder.path().join("app.sock");
    let url = format!("unix:{}", path.display());
    let gateway = Gateway::start(&database, &route("pay", "/pay", &url, "external", "")).await;
    let address = gateway.address;

    let absent = send(address, &post("/pay", "k")).await;
    assert_eq!(outcome(&absent), said(502, "upstream-unreachable"), "nobody listens there yet");
    assert_eq!(outcome(&send(address, &Request::new("GET", "/pay")).await), said(502, "upstream-unreachable"));
    assert_eq!(records_at(&database, "failed").await, 1);

    let app = App::on_unix(&path);
    let first = send(address, &post("/pay", "k")).await;
    assert_eq!((first.status, first.text().as_str()), (200, r#"{"ok":true}"#));
    assert_eq!(send(address, &post("/pay", "k")).await.header("idempotent-replayed"), Some("true"));
    assert_eq!(send(address, &Request::new("GET", "/pay?id=1")).await.status, 200);
    let seen = app.seen();
    let targets: Vec<_> = seen.iter().map(|seen| format!("{} {}", seen.parts.method, seen.parts.uri)).collect();
    assert_eq!(targets, ["POST /pay", "GET /pay?id=1"]);
    assert_eq!(seen[0].header("onced-attempt"), ["2"]);
    assert_eq!(&seen[0].body[..], b"{}");
    assert_eq!(seen[1].header("host"), [address.to_string()], "the client's own");
}

#[tokio::test]
async fn an_upstream_behind_a_socket_is_reached_sqlite() {
    behind_a_socket(Backend::Sqlite).await;
}

#[tokio::test]
async fn an_upstream_behind_a_socket_is_reached_postgres() {
    behind_a_socket(Backend::Postgres).await;
}

#[tokio::test]
async fn an_upstream_behind_a_socket_is_reached_mariadb() {
    behind_a_socket(Backend::MariaDb).await;
}
