//! O-15: methods and preflight. A page of another origin calls through a browser: its preflight is answered before anybody
//! asks who calls, nothing but a keyed request makes a record, and every answer, a replay and a refusal too, carries the CORS
//! headers of the present request.

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Answer, Request, send};
use testkit::{Backend, Database};

use crate::case_crash::{STEADY, is_in_progress, is_problem, is_replayed, lease, post, replays, runs};
use crate::fixture::{Gateway, LIMIT, route, sql};

const SHOP: &str = "https://shop.example";
const BACK_OFFICE: &str = "http://office.example:8080";
const STRANGER: &str = "https://evil.example";
const BODY: &str = r#"{"amount":5}"#;
const ACCESS: &str = "access-control-allow-";
const EXPOSED: &str = "access-control-expose-headers";

/// The upstream says other things about CORS.
async fn upstream() -> Recorder {
    let reply = Reply::status(201)
        .header("access-control-allow-origin", "*")
        .header("access-control-expose-headers", "x-internal")
        .header("access-control-max-age", "5")
        .header("vary", "Accept")
        .header("x-cart", "c1")
        .json(r#"{"ok":true}"#);
    Recorder::start(RecorderOptions::default().script([Rule::always(reply)])).await.expect("the upstream can listen")
}

fn preflight(path: &str, origin: &str, method: &str) -> Request {
    let request = Request::new("OPTIONS", path).header("origin", origin);
    let request = request.header("access-control-request-method", method);
    request.header("access-control-request-headers", "content-type, idempotency-key")
}

fn from(origin: &str, request: Request) -> Request {
    request.header("origin", origin)
}

/// The names of a header that is a list, sorted.
fn names(answer: &Answer, header: &str) -> Vec<String> {
    let lines = answer.header_all(header).into_iter().map(|line| String::from_utf8_lossy(line).into_owned());
    let mut names: Vec<String> = lines
        .flat_map(|line| line.split(',').map(|name| name.trim().to_ascii_lowercase()).collect::<Vec<_>>())
        .collect();
    names.sort();
    names
}

/// The browser lets a page of that origin read the answer, and what of it.
fn is_for(answer: &Answer, origin: &str) {
    assert_eq!(answer.header_all("access-control-allow-origin"), [origin.as_bytes()], "{answer:?}");
    for name in ["idempotent-replayed", "retry-after", "onced-key-expires", "onced-body", "location", "etag"] {
        assert!(names(answer, EXPOSED).iter().any(|exposed| exposed == name), "{name}: {answer:?}");
    }
    assert!(!names(answer, EXPOSED).iter().any(|exposed| exposed == "x-internal"), "{answer:?}");
    assert_eq!(answer.header("access-control-max-age"), None, "{answer:?}");
    assert_eq!(names(answer, "vary").iter().filter(|name| *name == "origin").count(), 1, "{answer:?}");
}

/// No page of another origin may read it.
fn is_for_nobody(answer: &Answer) {
    let said: Vec<_> = answer.headers.keys().filter(|name| name.as_str().starts_with("access-control-")).collect();
    assert!(said.is_empty(), "{answer:?}");
    assert!(names(answer, "vary").iter().any(|name| name == "origin"), "{answer:?}");
}

async fn methods_and_preflight(backend: Backend) {
    let (database, upstream) = (Database::create(backend).await, upstream().await);
    let cors = format!("cors = {{ origins = [\"{SHOP}\", \"{BACK_OFFICE}\"], headers = [\"X-Cart-Id\"] }}\n");
    let keyed = format!("{cors}{}store_headers = [\"X-Cart\"]", lease(STEADY));
    let routes = [
        route("api.order", "/api/*", &upstream.url(), "external", &keyed),
        route("plain", "/plain/*", &upstream.url(), "external", &format!("{cors}key = \"off\"")),
    ];
    let gateway = Gateway::start(&database, &routes.join("\n")).await;
    let to = async |request: Request| send(gateway.address, &request).await;
    let keys = async || database.sql().count(&format!("SELECT count(*) FROM {}", sql::table(backend))).await;

    for path in ["/api/order", "/plain/order"] {
        let answer = to(preflight(path, SHOP, "POST")).await;
        assert!((200..300).contains(&answer.status) && answer.body.is_empty(), "{answer:?}");
        assert_eq!(answer.header("access-control-allow-origin"), Some(SHOP));
        assert_eq!(names(&answer, "access-control-allow-methods"), ["post"]);
        let headers = names(&answer, "access-control-allow-headers");
        assert_eq!(headers, ["authorization", "content-type", "idempotency-key", "prefer", "x-cart-id"]);
        assert_eq!(answer.header("access-control-max-age"), Some("600"));
        assert_eq!(answer.header("access-control-allow-credentials"), None);
    }
    let refused = to(preflight("/api/order", STRANGER, "POST")).await;
    is_for_nobody(&refused);
    assert_eq!(upstream.count(), 0, "a preflight is answered by the gateway");
    // These are no preflights.
    let plain = [
        Request::new("OPTIONS", "/api/order"),
        from(SHOP, Request::new("OPTIONS", "/api/order")),
        Request::new("OPTIONS", "/api/order").header("access-control-request-method", "POST"),
        from(SHOP, Request::new("OPTIONS", "/api/order")).header("access-control-request-method", "no method"),
    ];
    for (number, request) in plain.into_iter().enumerate() {
        let answer = to(request).await;
        assert_eq!((answer.status, upstream.count()), (201, number + 1), "{answer:?}");
        if number % 2 == 1 { is_for(&answer, SHOP) } else { is_for_nobody(&answer) }
    }

    let get = to(from(SHOP, Request::new("GET", "/api/order/1").key("o15"))).await;
    assert_eq!((get.status, get.text().as_str(), get.header("x-cart")), (201, r#"{"ok":true}"#, Some("c1")));
    let head = to(from(SHOP, Request::new("HEAD", "/api/order/1").key("o15"))).await;
    assert_eq!((head.status, head.body.len(), head.header("x-cart")), (201, 0, Some("c1")));
    let delete = to(from(SHOP, Request::new("DELETE", "/plain/1").key("o15"))).await;
    for answer in [&get, &head, &delete] {
        is_for(answer, SHOP);
        assert!(names(answer, "vary").iter().any(|name| name == "accept"), "{answer:?}");
    }
    assert_eq!(keys().await, 0);

    let first = to(from(SHOP, post("/api/order", "o15", BODY))).await;
    assert_eq!((first.status, is_replayed(&first), runs(&upstream, "o15")), (201, false, 1), "{first:?}");
    is_for(&first, SHOP);
    assert!(names(&first, EXPOSED).iter().any(|name| name == "x-cart"), "{first:?}");
    // The stored answer is told as the present request needs it, not as the first did.
    let replay = to(from(BACK_OFFICE, post("/api/order", "o15", BODY))).await;
    replays(&replay, &first);
    is_for(&replay, BACK_OFFICE);
    assert_eq!(names(&replay, "vary"), ["accept", "origin"]);
    for request in [post("/api/order", "o15", BODY), from(STRANGER, post("/api/order", "o15", BODY))] {
        let replay = to(request).await;
        replays(&replay, &first);
        is_for_nobody(&replay);
    }
    assert_eq!((keys().await, runs(&upstream, "o15")), (1, 1));
}

#[tokio::test]
async fn o_15_methods_and_preflight_sqlite() {
    methods_and_preflight(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_15_methods_and_preflight_postgres() {
    methods_and_preflight(Backend::Postgres).await;
}

#[tokio::test]
async fn o_15_methods_and_preflight_mariadb() {
    methods_and_preflight(Backend::MariaDb).await;
}

async fn refusals(backend: Backend) {
    let (database, upstream) = (Database::create(backend).await, upstream().await);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "good").unwrap();
    let tokens = format!("tokens = [{{ tenant = \"t\", file = \"{}\" }}]", folder.path().join("token").display());
    let more = format!(
        "cors = {{ origins = [\"{SHOP}\"], credentials = true }}\n{}tenant = {{ from = \"bearer\", {tokens} }}\n\
         rate_limit = {{ requests = 1, per = \"1day\", burst = 7 }}\nmax_request_bytes = 64",
        lease(STEADY)
    );
    let gateway = Gateway::start(&database, &route("orders", "/orders", &upstream.url(), "external", &more)).await;
    let known = |request: Request| from(SHOP, request.header("authorization", "Bearer good")).limit(LIMIT / 2);
    let refused = async |request: Request, status: u16, code: &str| {
        let answer = send(gateway.address, &request).await;
        is_problem(&answer, status, code);
        is_for(&answer, SHOP);
        assert_eq!(answer.header("access-control-allow-credentials"), Some("true"));
        answer
    };

    // A browser sends no credentials with a preflight, and it counts for no caller.
    for _ in 0..10 {
        let answer = send(gateway.address, &preflight("/orders", SHOP, "POST")).await;
        assert_eq!((answer.status, answer.header("access-control-allow-credentials")), (200, Some("true")));
    }
    refused(from(SHOP, post("/orders", "k", BODY)), 401, "caller-unknown").await;
    refused(known(Request::post("/orders", BODY)), 400, "key-missing").await;
    refused(known(post("/orders", "k", &"x".repeat(65))), 413, "body-too-large").await;
    upstream.hold();
    let (address, first) = (gateway.address, known(post("/orders", "k", BODY)));
    let first = tokio::spawn(async move { send(address, &first).await });
    upstream.wait_for_held(1, LIMIT).await.unwrap();
    is_in_progress(&refused(known(post("/orders", "k", BODY)), 409, "in-progress").await, STEADY);
    upstream.release();
    is_for(&first.await.unwrap(), SHOP);
    refused(known(post("/orders", "k", r#"{"amount":6}"#)), 422, "key-reused").await;
    upstream.stop().await;
    refused(known(post("/orders", "unreached", BODY)), 502, "upstream-unreachable").await;
    send(gateway.address, &known(post("/orders", "k", BODY))).await;
    refused(known(post("/orders", "k", BODY)), 429, "rate-limited").await;
}

#[tokio::test]
async fn o_15_refusals_can_be_read_sqlite() {
    refusals(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_15_refusals_can_be_read_postgres() {
    refusals(Backend::Postgres).await;
}

#[tokio::test]
async fn o_15_refusals_can_be_read_mariadb() {
    refusals(Backend::MariaDb).await;
}

async fn whose_preflight_it_is(backend: Backend) {
    let (database, upstream) = (Database::create(backend).await, upstream().await);
    let defaults = "[defaults]\ncors = { origins = [\"*\"], max_age = \"1h\" }\n";
    let agent = "key = { from = \"agent\", conversation = { header = \"X-Run\" }, step = { pointer = \"/step\" }, \
                 tool = { header = \"X-Tool\" } }";
    let routes = [
        route("created", "/orders", &upstream.url(), "external", "methods = [\"POST\", \"PATCH\"]"),
        route("replaced", "/orders", &upstream.url(), "external", "methods = [\"PUT\"]\ncors = \"none\""),
        route("hook", "/hook", &upstream.url(), "external", "key = { from = \"header\", header = \"X-Event-Id\" }"),
        route("tool", "/tool", &upstream.url(), "external", agent),
    ];
    let gateway = Gateway::start(&database, &format!("{defaults}{}", routes.join("\n"))).await;
    let to = async |request: Request| send(gateway.address, &request).await;
    let allowed_headers =
        async |path: &str| names(&to(preflight(path, SHOP, "POST")).await, &format!("{ACCESS}headers"));

    let created = to(preflight("/orders", SHOP, "PATCH")).await;
    assert_eq!(created.header("access-control-allow-origin"), Some("*"));
    assert_eq!(names(&created, "access-control-allow-methods"), ["patch", "post"]);
    assert_eq!((created.header("access-control-max-age"), created.header("vary")), (Some("3600"), None));
    let usual = ["authorization", "content-type", "idempotency-key", "prefer"];
    assert_eq!(allowed_headers("/orders").await, usual);
    assert_eq!(allowed_headers("/hook").await, [&usual[..], &["x-event-id"]].concat());
    assert_eq!(allowed_headers("/tool").await, [&usual[..], &["x-run", "x-tool"]].concat());
    assert_eq!(upstream.count(), 0);

    let first = to(from(SHOP, post("/orders", "any", BODY))).await;
    assert_eq!((first.status, first.header("access-control-allow-origin")), (201, Some("*")));
    assert_eq!(names(&first, "vary"), ["accept"], "the answer is the same for everybody");
    // Where a route has none, CORS is the upstream's business; no route takes OPTIONS here.
    let replaced = to(from(SHOP, Request::new("PUT", "/orders").body(BODY).key("put"))).await;
    assert_eq!((replaced.status, replaced.header("access-control-max-age")), (201, Some("5")));
    assert_eq!(names(&replaced, EXPOSED), ["x-internal"]);
    is_problem(&to(preflight("/orders", SHOP, "PUT")).await, 404, "no-route");
    is_problem(&to(preflight("/nowhere", SHOP, "POST")).await, 404, "no-route");
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn o_15_a_preflight_belongs_to_the_method_it_asks_for_sqlite() {
    whose_preflight_it_is(Backend::Sqlite).await;
}

#[tokio::test]
async fn o_15_a_preflight_belongs_to_the_method_it_asks_for_postgres() {
    whose_preflight_it_is(Backend::Postgres).await;
}

#[tokio::test]
async fn o_15_a_preflight_belongs_to_the_method_it_asks_for_mariadb() {
    whose_preflight_it_is(Backend::MariaDb).await;
}
