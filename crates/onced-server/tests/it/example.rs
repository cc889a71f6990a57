//! `onced.example.toml` does what it says: the real gateway is started with it, and each of its routes gets deliveries by
//! what stands in the file. Only addresses and the ledger's URL are replaced.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use onced_harness::{Call, Recorder, RecorderOptions, Reply};
use serde_json::{Value, json};
use testkit::http_client::{Answer, Request, send};
use testkit::process::{Process, free_port};
use testkit::{Backend, Database};

use crate::fixture::{LIMIT, sql};
use crate::same_database_app::{self, Work};

const EXAMPLE: &str = include_str!("../../../../onced.example.toml");
const ONCED: &str = env!("CARGO_BIN_EXE_onced");
const NOTHING: [(&str, &str); 0] = [];
/// Who calls, where a route has tenants.
const TENANT: &str = "acme";
const UPSTREAM: &str = "\nupstream = \"http://127.0.0.1:3000\"\n";

/// A route as the file describes it.
#[derive(Debug)]
struct Told {
    name: String,
    method: String,
    path: String,
    same_database: bool,
    key: KeyTold,
    /// Pointers that do not count.
    ignored: Vec<String>,
    /// A known key with another request is only noted.
    notes_mismatch: bool,
    stored_headers: Vec<String>,
    /// The header that names the tenant, where there are tenants.
    tenant: Option<String>,
}

#[derive(Debug)]
enum KeyTold {
    Off,
    At { places: Vec<Place>, missing: Missing },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Refused,
    Passed,
}

/// Where (a part of) a key goes.
#[derive(Clone, Debug)]
enum Place {
    Header(String),
    Pointer(String),
}

fn text(value: &toml::Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

fn texts(value: Option<&toml::Value>) -> Vec<String> {
    let elements = value.and_then(toml::Value::as_array).cloned().unwrap_or_default();
    elements.iter().map(text).collect()
}

fn place(value: &toml::Value) -> Option<Place> {
    let header = value.get("header").map(|name| Place::Header(text(name)));
    header.or_else(|| value.get("pointer").map(|pointer| Place::Pointer(text(pointer))))
}

fn key_told(value: Option<&toml::Value>) -> KeyTold {
    let standard = |missing| KeyTold::At { places: vec![Place::Header("Idempotency-Key".to_owned())], missing };
    let Some(value) = value else { return standard(Missing::Refused) };
    match value.as_str() {
        Some("required") => return standard(Missing::Refused),
        Some("optional") => return standard(Missing::Passed),
        Some("off") => return KeyTold::Off,
        Some(other) => panic!("key = {other:?} is not known to this test"),
        None => {}
    }
    let missing = match value.get("missing").map(text).as_deref() {
        Some("pass") => Missing::Passed,
        Some("refuse") | None => Missing::Refused,
        Some(other) => panic!("missing = {other:?} is not known to this test"),
    };
    let places: Vec<Place> = match text(&value["from"]).as_str() {
        "header" | "pointer" => place(value).into_iter().collect(),
        "agent" => ["conversation", "step", "tool"].iter().filter_map(|part| place(&value[*part])).collect(),
        other => panic!("from = {other:?} is not known to this test"),
    };
    assert!(!places.is_empty(), "{value} names no place");
    KeyTold::At { places, missing }
}

fn told(route: &toml::Value) -> Told {
    let field = |name: &str| route.get(name);
    Told {
        name: text(&route["name"]),
        method: texts(field("methods")).first().cloned().unwrap_or_else(|| "POST".to_owned()),
        path: text(&route["path"]).replace('*', "anything"),
        same_database: field("effect").is_some_and(|effect| text(effect) == "same-database"),
        key: key_told(field("key")),
        ignored: texts(field("fingerprint").and_then(|fingerprint| fingerprint.get("ignore"))),
        notes_mismatch: field("mismatch").is_some_and(|mismatch| text(mismatch) == "note"),
        stored_headers: texts(field("store_headers")),
        tenant: field("tenant").map(|tenant| text(&tenant["header"])),
    }
}

/// Sets a member of the body; a pointer of the example has one step.
fn set(body: &mut Value, pointer: &str, value: &str) {
    body[pointer.strip_prefix('/').expect("a JSON pointer")] = json!(value);
}

impl Told {
    fn scope(&self) -> String {
        let tenant = self.tenant.iter().map(|_| format!("{TENANT}:"));
        tenant.chain([self.name.clone()]).collect()
    }

    /// A request of that content, with its key or without; `ignored` goes where nothing counts.
    fn request(&self, content: u32, places: &[Place], ignored: &str) -> Request {
        let mut body = json!({ "content": content, "arguments": { "content": content } });
        let mut headers = vec![("Content-Type".to_owned(), "application/json".to_owned())];
        headers.extend(self.tenant.clone().map(|header| (header, TENANT.to_owned())));
        for pointer in &self.ignored {
            set(&mut body, pointer, ignored);
        }
        for (number, place) in places.iter().enumerate() {
            let part = format!("{}-{number}", self.name);
            match place {
                Place::Header(name) => headers.push((name.clone(), part)),
                Place::Pointer(pointer) => set(&mut body, pointer, &part),
            }
        }
        let request = Request::new(&self.method, &self.path).body(body.to_string());
        headers.iter().fold(request, |request, (name, value)| request.header(name, value))
    }
}

/// What stands between a test and the file's routes.
struct Served {
    address: SocketAddr,
    app: Recorder,
    others: Recorder,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Served {
    async fn start(database: &Database) -> Self {
        // A request that is passed on without a key has nothing to complete.
        let app = same_database_app::start(database, |call| {
            let body = format!("{{\"order\":{}}}", call.seq);
            Work { commits: call.headers.contains_key("onced-key"), ..Work::ok(&body) }
        });
        let app = app.await;
        let options = RecorderOptions::default().effect_fn(async |call: Call| {
            let number = call.seq.to_string();
            Some(Reply::status(201).json(format!("{{\"call\":{number}}}")).header("X-Payment-Id", number))
        });
        let others = Recorder::start(options).await.expect("the upstream can listen");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let folder = tempfile::tempdir().expect("a folder for the configuration");
        let config = folder.path().join("onced.toml");
        std::fs::write(&config, rewritten(address, database.url(), &app, &others)).expect("the file can be written");
        let args = ["serve", "--config", config.to_str().expect("a path of plain characters")];
        let process = Process::spawn(ONCED, args, NOTHING);
        process.wait_for_line(|line| line.contains("listening"), LIMIT).await;
        Self { address, app, others, _process: process, _folder: folder }
    }

    async fn send(&self, request: &Request) -> Answer {
        send(self.address, request).await
    }

    fn calls(&self, route: &Told) -> usize {
        let upstream = if route.same_database { &self.app } else { &self.others };
        upstream.calls().iter().filter(|call| call.path == route.path).count()
    }
}

/// The file with the test's addresses and ledger.
fn rewritten(address: SocketAddr, store: &str, app: &Recorder, others: &Recorder) -> String {
    let put = |text: &str, old: &str, new: &str| {
        assert_eq!(text.matches(old).count(), 1, "the example has {old:?} once");
        text.replace(old, new)
    };
    let top = put(EXAMPLE, "\n#listen = \"127.0.0.1:8080\"\n", &format!("\nlisten = \"{address}\"\n"));
    let top = put(&top, "\n#url = \"sqlite:onced.db\"\n", &format!("\nurl = \"{store}\"\n"));
    let mut blocks = top.split("\n[[route]]\n");
    let mut text = blocks.next().unwrap_or_default().to_owned();
    for block in blocks {
        let upstream = if block.contains("\neffect = \"same-database\"\n") { app } else { others };
        text += "\n[[route]]\n";
        text += &put(block, UPSTREAM, &format!("\nupstream = \"{}\"\n", upstream.url()));
    }
    text
}

/// Twice the same, then what the route says about another content and about no key. Says how many effects it has.
async fn deliver(served: &Served, route: &Told) -> usize {
    let KeyTold::At { places, missing } = &route.key else {
        passes_through(served, route, &route.request(1, &[Place::Header("Idempotency-Key".to_owned())], "x")).await;
        return 2;
    };
    let first = served.send(&route.request(1, places, "first time")).await;
    assert!((200..300).contains(&first.status), "{}: {first:?}", route.name);
    assert_eq!((first.header("idempotent-replayed"), served.calls(route)), (None, 1), "{}", route.name);

    let again = served.send(&route.request(1, places, "second time")).await;
    assert_eq!((again.status, &again.body), (first.status, &first.body), "{}", route.name);
    assert_eq!((again.header("idempotent-replayed"), served.calls(route)), (Some("true"), 1), "{}", route.name);
    let is_stored = |name: &str| route.stored_headers.iter().any(|stored| stored.eq_ignore_ascii_case(name));
    let expected = first.header("x-payment-id").filter(|_| is_stored("x-payment-id"));
    assert_eq!(again.header("x-payment-id"), expected, "{}", route.name);

    let other = served.send(&route.request(2, places, "third time")).await;
    match route.notes_mismatch {
        true => assert_eq!((other.status, &other.body), (first.status, &first.body), "{}", route.name),
        false => assert_eq!((other.status, code(&other)), (422, json!("key-reused")), "{}", route.name),
    }
    assert_eq!(served.calls(route), 1, "{}", route.name);

    if route.tenant.is_some() {
        let stranger = Request::new(&route.method, &route.path).body("{}").key("k");
        let refused = served.send(&stranger.header("content-type", "application/json")).await;
        assert_eq!((refused.status, code(&refused)), (401, json!("caller-unknown")), "{}", route.name);
    }
    // Each part of a key is needed.
    for absent in 0..places.len() {
        let mut rest = places.clone();
        rest.remove(absent);
        let request = route.request(1, &rest, "x");
        match missing {
            Missing::Passed => passes_through(served, route, &request).await,
            Missing::Refused => {
                let refused = served.send(&request).await;
                assert_eq!((refused.status, code(&refused)), (400, json!("key-missing")), "{}", route.name);
                assert_eq!(served.calls(route), 1, "{}", route.name);
            }
        }
    }
    served.calls(route)
}

async fn passes_through(served: &Served, route: &Told, request: &Request) {
    let before = served.calls(route);
    let (first, second) = (served.send(request).await, served.send(request).await);
    assert!(first.status < 300 && second.status < 300, "{}: {first:?} {second:?}", route.name);
    assert_ne!(first.body, second.body, "{}: executed twice", route.name);
    assert_eq!(served.calls(route) - before, 2, "{}", route.name);
}

fn code(answer: &Answer) -> Value {
    serde_json::from_slice::<Value>(&answer.body).unwrap_or_default()["code"].clone()
}

async fn each_route(backend: Backend) {
    let database = Database::create(backend).await;
    let served = Served::start(&database).await;
    let file: toml::Value = toml::from_str(EXAMPLE).expect("the example is TOML");
    let routes: Vec<Told> = file["route"].as_array().expect("the example has routes").iter().map(told).collect();
    let mut executed = 0;
    for route in &routes {
        executed += deliver(&served, route).await;
    }
    assert_eq!(executed, served.app.count() + served.others.count(), "every call belongs to a route");
    let missed: Vec<&Told> = routes.iter().filter(|route| served.calls(route) == 0).collect();
    assert!(missed.is_empty() && routes.len() >= 8, "{missed:?}");

    // The ledger knows each route that has keys, once each.
    let table = sql::table(backend);
    let rows = database.sql().text(&format!("SELECT scope, count(*) FROM {table} GROUP BY scope")).await;
    let known: BTreeSet<(String, String)> = rows.iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    let keyed = routes.iter().filter(|route| !matches!(route.key, KeyTold::Off));
    assert_eq!(known, keyed.map(|route| (route.scope(), "1".to_owned())).collect());
    let of_the_app = routes.iter().filter(|route| route.same_database).count();
    assert_eq!(same_database_app::orders(&database).await, i64::try_from(of_the_app).unwrap());

    let elsewhere = served.send(&Request::post("/no/route", "{}").key("k")).await;
    assert_eq!(elsewhere.status, 404, "what matches no route has no upstream in the example");
}

#[tokio::test]
async fn each_route_of_the_example_does_what_it_says_sqlite() {
    each_route(Backend::Sqlite).await;
}

#[tokio::test]
async fn each_route_of_the_example_does_what_it_says_postgres() {
    each_route(Backend::Postgres).await;
}

#[tokio::test]
async fn each_route_of_the_example_does_what_it_says_mariadb() {
    each_route(Backend::MariaDb).await;
}

#[tokio::test]
async fn the_example_is_sound_and_shows_every_setting() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("onced.toml");
    std::fs::write(&file, EXAMPLE).expect("the file can be written");
    let file = file.to_str().expect("a path of plain characters");
    let mut check = Process::spawn(ONCED, ["config", "check", file], NOTHING);
    assert!(check.wait(LIMIT).await.success(), "{:?}", check.stderr().all());
    assert!(check.stdout().all().iter().any(|line| line.contains("is sound: 9 routes")), "{:?}", check.stdout().all());

    let mut reference = Process::spawn(ONCED, ["config", "reference"], NOTHING);
    assert!(reference.wait(LIMIT).await.success());
    let lines = reference.stdout().all();
    let settings: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(settings.len() > 40, "{settings:?}");
    for setting in settings {
        let ways = ["\n", "\n#", "\n#   ", "{ ", ", "].map(|before| format!("{before}{setting} = "));
        assert!(ways.iter().any(|way| EXAMPLE.contains(way)), "the example does not show {setting}");
    }
}
