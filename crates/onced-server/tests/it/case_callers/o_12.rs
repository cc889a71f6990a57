//! O-12: two tenants and two scopes use the same key. Each has a record of its own; nobody sees another's answer, nor
//! learns that another's key exists; and a key stays bound to its method, path and query.

use onced_harness::{Call, Recorder, RecorderOptions, Reply};
use testkit::http_client::{Answer, Request, send};
use testkit::{Backend, Database, SqlText};

use crate::case_crash::{is_problem, is_replayed, replays};
use crate::fixture::{Gateway, route, sql};

/// The upstream names the tenant in its answer, as it is told by the scope.
async fn upstream() -> Recorder {
    let options = RecorderOptions::default().effect_fn(async |call: Call| {
        let scope = call.headers.get("onced-scope").and_then(|scope| scope.to_str().ok()).unwrap_or_default();
        let tenant = scope.split_once(':').map_or("nobody", |(tenant, _)| tenant);
        Some(Reply::status(201).json(format!(r#"{{"for":"{tenant}"}}"#)))
    });
    Recorder::start(options).await.expect("the upstream can listen")
}

fn sent(method: &str, path: &str, token: &str, key: &str) -> Request {
    let request = Request::new(method, path).body(r#"{"amount":5}"#).key(key);
    request.header("content-type", "application/json").header("authorization", format!("Bearer {token}"))
}

fn is_for(answer: &Answer, tenant: &str) {
    assert_eq!((answer.status, answer.text()), (201, format!(r#"{{"for":"{tenant}"}}"#)), "{answer:?}");
    assert!(!is_replayed(answer), "{answer:?}");
}

async fn whose_key_it_is(backend: Backend) {
    let (database, upstream) = (Database::create(backend).await, upstream().await);
    let folder = tempfile::tempdir().unwrap();
    let token = |tenant: &str| {
        let path = folder.path().join(tenant);
        std::fs::write(&path, format!("secret-of-{tenant}\n")).unwrap();
        format!("{{ tenant = \"{tenant}\", file = \"{}\" }}", path.display())
    };
    let more = format!("tenant = {{ from = \"bearer\", tokens = [{}, {}] }}", token("t1"), token("t2"));
    let order = route("api.order", "/api/*", &upstream.url(), "external", &more);
    let refund = route("api.refund", "/api/refund", &upstream.url(), "external", &more);
    let gateway = Gateway::start(&database, &format!("{order}\n{refund}")).await;
    let to = async |method: &str, path: &str, tenant: &str, key: &str| {
        send(gateway.address, &sent(method, path, &format!("secret-of-{tenant}"), key)).await
    };

    let first = to("POST", "/api/order", "t1", "1").await;
    is_for(&first, "t1");
    is_for(&to("POST", "/api/order", "t2", "1").await, "t2");
    is_for(&to("POST", "/api/refund", "t1", "1").await, "t1");
    for (method, path) in [("POST", "/api/order?dry=1"), ("POST", "/api/order/77"), ("PUT", "/api/order")] {
        is_problem(&to(method, path, "t1", "1").await, 422, "key-reused");
    }
    is_for(&to("POST", "/api/order/77", "t1", "fresh").await, "t1");
    is_problem(&to("POST", "/api/order/78", "t1", "fresh").await, 422, "key-reused");
    replays(&to("POST", "/api/order", "t1", "1").await, &first);
    // The query counts as it is written: members in another order are another request.
    is_for(&to("POST", "/api/order?x=1&y=2", "t1", "query").await, "t1");
    is_problem(&to("POST", "/api/order?y=2&x=1", "t1", "query").await, 422, "key-reused");
    assert_eq!(upstream.count(), 5);

    // A stranger is told the same about a key that exists and about one that does not.
    let before = database.sql().count(&format!("SELECT count(*) FROM {}", sql::table(backend))).await;
    let mut bodies = Vec::new();
    for key in ["1", "unheard-of"] {
        let stranger = send(gateway.address, &sent("POST", "/api/order", "guessed", key)).await;
        is_problem(&stranger, 401, "caller-unknown");
        assert_eq!(stranger.header("www-authenticate"), Some("Bearer realm=\"onced\""));
        assert_eq!(stranger.header("onced-key-expires"), None);
        bodies.push(stranger.text());
    }
    assert_eq!(bodies[0], bodies[1]);
    let bare = Request::post("/api/order", r#"{"amount":5}"#).key("1");
    is_problem(&send(gateway.address, &bare).await, 401, "caller-unknown");
    assert_eq!(upstream.count(), 5);

    let scopes = SqlText::each(
        "SELECT scope FROM onced_idempotency_keys ORDER BY scope, key",
        "SELECT scope FROM onced.idempotency_keys ORDER BY scope, key",
        "SELECT scope FROM onced_idempotency_keys ORDER BY scope, key",
    );
    let scopes: Vec<String> = database.sql().text(scopes).await.into_iter().flatten().collect();
    assert!(!gateway.process.stderr().all().iter().any(|line| line.contains("secret-of-")), "a token is in the log");
    assert_eq!(scopes, ["t1:api.order", "t1:api.order", "t1:api.order", "t1:api.refund", "t2:api.order"]);
    assert_eq!(before, 5);
}

#[tokio::test]
async fn o_12_whose_key_it_is_sqlite() {
    whose_key_it_is(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_12_whose_key_it_is_postgres() {
    whose_key_it_is(Backend::Postgres).await;
}

#[tokio::test]
async fn o_12_whose_key_it_is_mariadb() {
    whose_key_it_is(Backend::MariaDb).await;
}

async fn other_tenants(backend: Backend) {
    let (database, upstream) = (Database::create(backend).await, upstream().await);
    let hashed = route("hashed", "/hashed", &upstream.url(), "external", "tenant = { from = \"bearer\" }");
    let header = "tenant = { from = \"header\", header = \"X-Tenant\" }";
    let header = route("header", "/header", &upstream.url(), "external", header);
    let shared = route("shared", "/shared", &upstream.url(), "external", "");
    let jwt = route("jwt", "/jwt", &upstream.url(), "external", "tenant = { from = \"jwt\", claim = \"org\" }");
    let gateway = Gateway::start(&database, &format!("{hashed}\n{header}\n{jwt}\n{shared}")).await;
    let address = gateway.address;

    // Two credentials, two tenants; neither is in the scope.
    for credential in ["first", "second"] {
        let answer = send(address, &sent("POST", "/hashed", credential, "k")).await;
        assert!(answer.status == 201 && !is_replayed(&answer), "{answer:?}");
        assert!(!answer.text().contains(credential), "{answer:?}");
    }
    assert!(is_replayed(&send(address, &sent("POST", "/hashed", "first", "k")).await));

    let named = |tenant: &str| Request::post("/header", "{}").key("k").header("x-tenant", tenant);
    is_for(&send(address, &named("acme")).await, "acme");
    is_for(&send(address, &named("other")).await, "other");
    is_problem(&send(address, &named("acme").header("x-tenant", "other")).await, 401, "caller-unknown");
    is_problem(&send(address, &named(" ")).await, 401, "caller-unknown");
    let accented = send(address, &named("Müller")).await;
    assert!(accented.status == 201 && accented.text().contains("h_"), "{accented:?}");
    // No tenant can stand in another's scope by a colon in its name.
    let odd = send(address, &named("acme:header")).await;
    assert!(odd.status == 201 && odd.text().contains("h_"), "{odd:?}");

    // A route without tenants says so in the log, once.
    for credential in ["first", "second"] {
        send(address, &sent("POST", "/shared", credential, credential)).await;
    }
    let said = |line: &String| line.contains("all callers share its keys") && line.contains("\"scope\":\"shared\"");
    assert_eq!(gateway.process.stderr().all().iter().filter(|line| said(line)).count(), 1);
    let told = |line: &String| line.contains("Bearer") || line.contains("first") || line.contains("second");
    let lines = gateway.process.stderr().all();
    // The keys of the shared route are these words, too.
    assert_eq!(lines.iter().find(|line| told(line) && !line.contains("shared")), None);

    // {"org":"acme"}
    is_for(&send(address, &sent("POST", "/jwt", "e30.eyJvcmciOiJhY21lIn0.sig", "k")).await, "acme");
    is_problem(&send(address, &sent("POST", "/jwt", "e30.e30.sig", "k")).await, 401, "caller-unknown");
}

#[tokio::test]
async fn o_12_tenants_by_other_means_sqlite() {
    other_tenants(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_12_tenants_by_other_means_postgres() {
    other_tenants(Backend::Postgres).await;
}

#[tokio::test]
async fn o_12_tenants_by_other_means_mariadb() {
    other_tenants(Backend::MariaDb).await;
}
