//! An upstream behind TLS: spoken to over HTTP/1.1 and HTTP/2, and only where its certificate can be trusted.

use std::path::Path;
use std::sync::Arc;

use http::Version;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use testkit::http_client::{Request, send};
use testkit::{Backend, Database, Process};
use tokio::sync::watch;

use super::app::App;
use super::{any_database, outcome, post, records_at, said};
use crate::fixture::{Gateway, LIMIT, route};

const HTTP_1: &str = "http/1.1";
const HTTP_2: &str = "h2";

type Ca = CertifiedIssuer<'static, KeyPair>;

fn ca() -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn certificate(name: &str) -> CertificateParams {
    CertificateParams::new(vec![name.to_owned()]).unwrap()
}

/// What a server shows that has such a certificate of that CA, and which protocols it offers.
fn shown(ca: &Ca, certificate: &CertificateParams, offers: &[&str]) -> Arc<ServerConfig> {
    let key = KeyPair::generate().unwrap();
    let chain = vec![certificate.signed_by(&key, ca).unwrap().der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = offers.iter().map(|offer| offer.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// Writes the CA's certificate, and says where as a setting of a route.
fn trusted(folder: &Path, ca: &Ca) -> String {
    let file = folder.join("ca.pem");
    std::fs::write(&file, ca.pem()).unwrap();
    format!("upstream_ca = \"{}\"\n", file.display())
}

async fn trusted_upstream(backend: Backend) {
    let (database, folder, ca) = (Database::create(backend).await, tempfile::tempdir().unwrap(), ca());
    let upstream_ca = trusted(folder.path(), &ca);
    let rows = [
        ("auto", &[HTTP_2, HTTP_1][..], Version::HTTP_2),
        ("auto", &[HTTP_1], Version::HTTP_11),
        ("auto", &[], Version::HTTP_11),
        ("1.1", &[HTTP_2, HTTP_1], Version::HTTP_11),
        ("2", &[HTTP_2, HTTP_1], Version::HTTP_2),
    ];
    let mut apps = Vec::new();
    let mut routes = String::new();
    for (index, (http, offers, version)) in rows.into_iter().enumerate() {
        let app = App::on_tls(watch::channel(shown(&ca, &certificate("127.0.0.1"), offers)).1).await;
        let (url, more) = (format!("https://127.0.0.1:{}", app.port()), format!("upstream_http = \"{http}\"\n"));
        routes += &route(&format!("r{index}"), &format!("/{index}"), &url, "external", &format!("{upstream_ca}{more}"));
        apps.push((app, version, format!("{http}, offered {offers:?}")));
    }
    let gateway = Gateway::start(&database, &routes).await;
    for (index, (app, version, row)) in apps.iter().enumerate() {
        let path = format!("/{index}");
        assert_eq!(send(gateway.address, &post(&path, "k")).await.text(), r#"{"ok":true}"#, "{row}");
        assert_eq!(send(gateway.address, &post(&path, "k")).await.header("idempotent-replayed"), Some("true"));
        assert_eq!(send(gateway.address, &Request::new("GET", &path)).await.status, 200, "{row}");
        let versions: Vec<_> = app.seen().iter().map(|seen| seen.parts.version).collect();
        assert_eq!(versions, [*version, *version], "{row}");
    }
}

#[tokio::test]
async fn a_trusted_upstream_is_spoken_to_in_what_it_offers_sqlite() {
    trusted_upstream(Backend::Sqlite).await;
}

#[tokio::test]
async fn a_trusted_upstream_is_spoken_to_in_what_it_offers_postgres() {
    trusted_upstream(Backend::Postgres).await;
}

#[tokio::test]
async fn a_trusted_upstream_is_spoken_to_in_what_it_offers_mariadb() {
    trusted_upstream(Backend::MariaDb).await;
}

async fn stranger(backend: Backend) {
    let (database, folder, ca) = (Database::create(backend).await, tempfile::tempdir().unwrap(), ca());
    let sound = certificate("127.0.0.1");
    let mut expired = certificate("127.0.0.1");
    (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let (show, shows) = watch::channel(shown(&ca, &sound, &[HTTP_1]));
    let app = App::on_tls(shows).await;
    let url = format!("https://127.0.0.1:{}", app.port());
    // Each request meets the certificate of its moment.
    let more = format!("{}upstream_keep_alive = \"0s\"\n", trusted(folder.path(), &ca));
    let gateway = Gateway::start(&database, &route("pay", "/pay", &url, "external", &more)).await;
    let strangers = [
        ("of another CA", shown(&self::ca(), &sound, &[HTTP_1])),
        ("of another host", shown(&ca, &certificate("other.example"), &[HTTP_1])),
        ("that has expired", shown(&ca, &expired, &[HTTP_1])),
    ];
    for (what, stranger) in strangers {
        show.send_replace(stranger);
        let before = app.count();
        let refused = send(gateway.address, &post("/pay", what)).await;
        assert_eq!(outcome(&refused), said(502, "upstream-unreachable"), "a certificate {what}");
        let passed = send(gateway.address, &Request::new("GET", "/pay")).await;
        assert_eq!(outcome(&passed), said(502, "upstream-unreachable"), "a certificate {what}");
        assert_eq!(app.count(), before, "something was sent to one with a certificate {what}");
        assert_eq!(records_at(&database, "failed").await, 1, "{what}");
        show.send_replace(shown(&ca, &sound, &[HTTP_1]));
        assert_eq!(send(gateway.address, &post("/pay", &format!("after {what}"))).await.status, 200);
        let again = send(gateway.address, &post("/pay", what)).await;
        assert_eq!((again.status, again.header("idempotent-replayed")), (200, None), "{what}");
    }
}

#[tokio::test]
async fn nothing_is_sent_to_a_stranger_sqlite() {
    stranger(Backend::Sqlite).await;
}

#[tokio::test]
async fn nothing_is_sent_to_a_stranger_postgres() {
    stranger(Backend::Postgres).await;
}

#[tokio::test]
async fn nothing_is_sent_to_a_stranger_mariadb() {
    stranger(Backend::MariaDb).await;
}

#[tokio::test]
async fn an_upstream_that_does_not_offer_http_2_is_not_reached_over_it() {
    let (database, folder, ca) = (any_database().await, tempfile::tempdir().unwrap(), ca());
    let more = format!("{}upstream_http = \"2\"\n", trusted(folder.path(), &ca));
    for offers in [&[HTTP_1][..], &[]] {
        let app = App::on_tls(watch::channel(shown(&ca, &certificate("127.0.0.1"), offers)).1).await;
        let url = format!("https://127.0.0.1:{}", app.port());
        let gateway = Gateway::start(&database, &route("pay", "/pay", &url, "external", &more)).await;
        let answer = send(gateway.address, &post("/pay", "k")).await;
        assert_eq!(outcome(&answer), said(502, "upstream-unreachable"), "offered {offers:?}");
        assert_eq!(app.count(), 0);
    }
}

#[tokio::test]
async fn a_file_without_certificates_is_refused_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("key.pem", &KeyPair::generate().unwrap().serialize_pem());
    write("words.pem", "no certificate at all\n");
    write("empty.pem", "");
    write("broken.pem", "-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n");
    for (name, words) in [
        ("key.pem", "holds no certificates that can be trusted"),
        ("words.pem", "holds no certificates that can be trusted"),
        ("empty.pem", "holds no certificates that can be trusted"),
        ("broken.pem", "holds no certificates that can be trusted"),
        ("absent.pem", "cannot be read"),
    ] {
        let file = folder.path().join(name);
        let more = format!("upstream_ca = \"{}\"", file.display());
        write("onced.toml", &route("pay", "/pay", "https://127.0.0.1:1", "external", &more).replace("500ms", "5s"));
        let config = folder.path().join("onced.toml");
        let args = ["serve", "--config", config.to_str().unwrap()];
        let mut process = Process::spawn(env!("CARGO_BIN_EXE_onced"), args, [("ONCED_TEST_TENTHS", "1")]);
        assert_eq!(process.wait(LIMIT).await.code(), Some(1), "{name}");
        let said = process.stderr().all().join("\n");
        assert!(said.contains(words) && said.contains("upstream_ca"), "{name}: {said}");
    }
}
