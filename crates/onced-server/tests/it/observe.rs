//! `observe = true`: everything is decided and recorded, and nothing is withheld.

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Request, open, send};
use testkit::{Backend, Database};

use crate::case_crash::is_replayed;
use crate::fixture::{Gateway, LIMIT, on_all, route, sql};

const OBSERVE: &str = "observe = true\nlease = \"60s\"\n";

async fn start(backend: Backend, settings: &str) -> (Database, Recorder, Gateway) {
    let database = Database::create(backend).await;
    let upstream = Recorder::start(RecorderOptions::default()).await.unwrap();
    let routes = route("watched", "/w", &upstream.url(), "external", &format!("{OBSERVE}{settings}"));
    let gateway = Gateway::start(&database, &routes).await;
    (database, upstream, gateway)
}

fn request(key: &str, body: &str) -> Request {
    Request::post("/w", body.to_owned()).key(key).header("content-type", "application/json")
}

/// What the log of deliveries says; sorted, for lines that are written in batches say only roughly when.
async fn decisions(database: &Database, gateway: &mut Gateway) -> Vec<String> {
    // It is written in batches; what is left of it when the gateway is told to stop.
    gateway.process.signal(testkit::process::Signal::Terminate);
    gateway.process.wait(LIMIT).await;
    let table = match database.backend() {
        Backend::Sqlite | Backend::MariaDb => "onced_deliveries",
        Backend::Postgres => "onced.deliveries",
    };
    let lines = database.sql().text(&format!("SELECT decision, answered_status FROM {table} ORDER BY decision")).await;
    lines.into_iter().map(|line| line.join(" ")).collect()
}

async fn nothing_is_withheld(backend: Backend) {
    let (database, upstream, mut gateway) = start(backend, "").await;
    let answers = (1..).take(3).map(|n| Rule::on_run(n, Reply::ok().json(format!("{{\"run\":{n}}}"))));
    upstream.script(answers);
    for run in 1..=2 {
        let answer = send(gateway.address, &request("k", "{\"n\":1}")).await;
        // The answer does not wait for its record.
        gateway.ended("k").await;
        assert!(!is_replayed(&answer) && answer.text() == format!("{{\"run\":{run}}}"), "{answer:?}");
    }
    let other = send(gateway.address, &request("k", "{\"n\":2}")).await;
    assert_eq!((other.status, other.text().as_str()), (200, "{\"run\":3}"));

    // While one is running.
    upstream.script([Rule::always(Reply::hang())]);
    let (slow, twice) = (request("slow", "{}"), request("slow", "{}"));
    let (first, second) = (send(gateway.address, &slow), async {
        upstream.wait_for_calls(4, LIMIT).await.unwrap();
        let second = send(gateway.address, &twice);
        let (second, ()) = tokio::join!(second, async {
            upstream.wait_for_held(2, LIMIT).await.unwrap();
            upstream.release();
        });
        second
    });
    let (first, second) = tokio::join!(first, second);
    assert_eq!((first.status, second.status), (200, 200));
    assert_eq!(upstream.count(), 5);
    gateway.ended("slow").await;
    assert_eq!(sql::keys_at(database.sql(), backend, "completed").await, 2);
    let lines = decisions(&database, &mut gateway).await;
    let expected =
        ["execute 200", "execute 200", "observed: in-progress 200", "observed: mismatch 200", "observed: replay 200"];
    assert_eq!(lines, expected);
}

/// What would have been refused before any record: no key, a bad one, a stranger, too much, too often, no JSON.
async fn nothing_is_refused(backend: Backend) {
    let settings = "max_request_bytes = 8\nbody_syntax = \"json\"\ntenant = { from = \"header\", header = \"X-Tenant\" }\n\
         rate_limit = { requests = 1, per = \"1h\", burst = 7 }\n";
    let (database, upstream, gateway) = start(backend, settings).await;
    let known = |request: Request| request.header("x-tenant", "acme");
    let large = "x".repeat(300_000);
    let requests = [
        known(Request::post("/w", "{}")),
        known(Request::post("/w", "{}").header("idempotency-key", "\"broken")),
        request("stranger", "{}"),
        known(request("large", &large)),
        known(request("text", "text")),
        known(Request::post("/w", "{}").key("packed").header("content-encoding", "gzip")),
    ];
    for request in &requests {
        let answer = send(gateway.address, request).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(upstream.calls()[3].body.len(), large.len(), "as it came");
    assert_eq!(sql::keys_at(database.sql(), backend, "completed").await, 0);
    for n in 0..5 {
        assert_eq!(send(gateway.address, &known(request(&format!("often {n}"), "{}"))).await.status, 200);
    }
    assert_eq!(upstream.count(), requests.len() + 5);
    gateway
        .process
        .wait_for_line(|line| line.contains("would have been refused") && line.contains("rate-limited"), LIMIT)
        .await;
}

/// As it came: no key of ours instead of the client's, none of our names.
async fn the_request_goes_on_as_it_came(backend: Backend) {
    let (_database, upstream, gateway) = start(backend, "").await;
    for _ in 0..2 {
        send(gateway.address, &request("theirs", "{\"n\":1}")).await;
    }
    for call in upstream.calls() {
        assert_eq!(call.headers["idempotency-key"].as_bytes(), b"theirs");
        let ours: Vec<_> = call.headers.keys().filter(|name| name.as_str().starts_with("onced-")).collect();
        assert!(ours.is_empty(), "{ours:?}");
        assert_eq!(call.body, "{\"n\":1}");
    }
}

/// The ledger is gone: what is only watched goes on.
async fn a_dead_ledger_stops_nothing(backend: Backend) {
    let (database, upstream, gateway) = start(backend, "").await;
    let table = sql::table(backend);
    database.sql().execute(&format!("ALTER TABLE {table} RENAME TO gone")).await;
    for _ in 0..2 {
        assert_eq!(send(gateway.address, &request("k", "{}")).await.status, 200);
    }
    assert_eq!(upstream.count(), 2);
    // An outcome that cannot be stored is not the client's concern here.
    database
        .sql()
        .execute(&match backend {
            Backend::Sqlite | Backend::MariaDb => format!("ALTER TABLE gone RENAME TO {table}"),
            Backend::Postgres => "ALTER TABLE onced.gone RENAME TO idempotency_keys".to_owned(),
        })
        .await;
    crate::settlement::refuse_completions(&database).await;
    assert_eq!(send(gateway.address, &request("not stored", "{}")).await.status, 200);
    upstream.script([Rule::always(Reply::stream(["a", "b"], std::time::Duration::from_millis(200)))]);
    let mut stream = open(gateway.address, &request("stream", "{}")).await.unwrap();
    let mut body = Vec::new();
    while let Some(piece) = stream.next().await {
        body.extend_from_slice(&piece.expect("it does not break off"));
    }
    assert_eq!(body, b"ab");
}

on_all! {
    nothing_is_withheld: nothing_is_withheld_sqlite, nothing_is_withheld_postgres, nothing_is_withheld_mariadb;
    nothing_is_refused: nothing_is_refused_sqlite, nothing_is_refused_postgres, nothing_is_refused_mariadb;
    the_request_goes_on_as_it_came: the_request_goes_on_as_it_came_sqlite, the_request_goes_on_as_it_came_postgres, the_request_goes_on_as_it_came_mariadb;
    a_dead_ledger_stops_nothing: a_dead_ledger_stops_nothing_sqlite, a_dead_ledger_stops_nothing_postgres, a_dead_ledger_stops_nothing_mariadb;
}
