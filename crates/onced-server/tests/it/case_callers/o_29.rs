//! O-29: fifty requests under one key come within 100 ms, and the gateway has five connections to its database. The one
//! that runs takes long; the others must not queue up behind it, nor anybody else behind them: other keys, the health
//! check and the command line answer as always. While the upstream, or a provider behind it, is waited for, no
//! connection is held. PostgreSQL only: that is where the connections are few.

use std::future::ready;
use std::time::Duration;

use futures_util::StreamExt;
use onced_harness::{Call, Recorder, RecorderOptions, Reply, Rule, When};
use sqlx::{Connection, PgConnection};
use testkit::http_client::{Answer, Request, race_same, send};
use testkit::{Backend, Database, Process};
use tokio::time::Instant;

use crate::case_crash::{is_in_progress, is_replayed, key_of, lease, nothing_is_running, post, replays, runs};
use crate::fixture::{Gateway, LIMIT, repeats, route};
use crate::same_database_app::{self, Work, create_orders, orders_of};

const ANSWER: &str = r#"{"ok":true}"#;
/// Long enough for no heartbeat to come while connections are counted.
const LEASE: Duration = Duration::from_secs(60);

/// The upstream, and whoever holds its slow route: itself, or the provider that it calls there.
struct Upstream {
    app: Recorder,
    provider: Option<Recorder>,
    effect: &'static str,
    status: &'static str,
}

impl Upstream {
    /// It writes into the gateway's database; its slow route is long at work before its transaction.
    async fn at_work_itself(database: &Database) -> Self {
        let app = same_database_app::start(database, |_| Work::ok(ANSWER)).await;
        app.script([slow_hangs()]);
        Self { app, provider: None, effect: "same-database", status: "in_progress" }
    }

    /// Its slow route calls a provider, which takes long, and writes its order then.
    async fn calling_a_provider(database: &Database) -> Self {
        create_orders(database).await;
        let provider = Recorder::start(RecorderOptions::default()).await.expect("the provider can listen");
        provider.script([slow_hangs()]);
        let (sql, address) = (database.sql().clone(), provider.addr());
        let options = RecorderOptions::default().effect_fn(move |call: Call| {
            let sql = sql.clone();
            async move {
                let key = key_of(&call);
                if call.path == "/slow" {
                    send(address, &post("/slow", key, "{}")).await;
                }
                sql.execute(&format!("INSERT INTO orders (key, attempt, body) VALUES ('{key}', 1, '')")).await;
                None
            }
        });
        let app = Recorder::start(options).await.expect("the upstream can listen");
        Self { app, provider: Some(provider), effect: "external", status: "pending_external" }
    }

    fn holder(&self) -> &Recorder {
        self.provider.as_ref().unwrap_or(&self.app)
    }
}

fn slow_hangs() -> Rule {
    Rule::new(When::Always, Reply::hang()).at("/slow")
}

async fn a_hot_key(database: &Database, upstream: &Upstream) {
    let url = upstream.app.url();
    let slow = route("api.slow", "/slow", &url, upstream.effect, &lease(LEASE));
    let fast = route("api.fast", "/fast", &url, upstream.effect, &lease(LEASE));
    let gateway = Gateway::start_with(database, "", "max_connections = 5", &format!("{slow}\n{fast}")).await;
    let address = gateway.address;

    for repeat in 1..=repeats() {
        let (hot, other) = (format!("o29-{repeat}"), format!("other-{repeat}"));
        let request = post("/slow", &hot, r#"{"amount":1}"#);
        let fifty = tokio::spawn({
            let request = request.clone();
            async move { race_same(50, &[address], &request).await }
        });
        upstream.holder().wait_for_held(1, LIMIT).await.unwrap();
        let meanwhile = send(address, &post("/fast", &other, r#"{"amount":2}"#)).await;
        assert_eq!((meanwhile.status, meanwhile.text().as_str()), (200, ANSWER));
        came_soon(&meanwhile);
        let health = send(address, &Request::new("GET", "/_onced/healthz")).await;
        assert_eq!(health.status, 200);
        came_soon(&health);
        assert_eq!(shown_status(database, &hot).await, upstream.status);
        refused(&gateway, &hot, 49).await;
        no_connection_is_held(database).await;
        upstream.holder().release();

        let (ran, others): (Vec<_>, Vec<_>) = fifty.await.unwrap().into_iter().partition(|answer| answer.status != 409);
        assert_eq!((ran.len(), others.len()), (1, 49), "{ran:?}");
        assert_eq!((ran[0].status, ran[0].text().as_str(), is_replayed(&ran[0])), (200, ANSWER, false));
        for answer in &others {
            is_in_progress(answer, LEASE);
            came_soon(answer);
        }
        replays(&send(address, &request).await, &ran[0]);
        assert_eq!((runs(&upstream.app, &hot), orders_of(database, &hot).await), (1, 1));
        if let Some(provider) = &upstream.provider {
            assert_eq!(provider.effects_by_key().get(&hot), Some(&1));
        }
    }
    nothing_is_running(database).await;
    let lines = gateway.process.stderr().all();
    assert!(!lines.iter().any(|line| line.contains("\"ERROR\"") || line.contains("not found")), "{}", lines.join("\n"));
}

/// Within 1 s. In a short run the machine may be busy with other tests; what is to be told apart then is an answer that
/// waited for the upstream, or until the wait for a free connection was given up after 5 s.
fn came_soon(answer: &Answer) {
    let limit = if testkit::soaking() { Duration::from_secs(1) } else { Duration::from_secs(3) };
    assert!(answer.took < limit, "answered after {:?}", answer.took);
}

/// Waits until the gateway has told so many that the key is in progress: nobody is kept waiting for the one that runs.
async fn refused(gateway: &Gateway, key: &str, count: usize) {
    let key = format!("\"key\":\"{key}\"");
    let of_key = |line: &String| ready(line.contains("\"decision\":\"in-progress\"") && line.contains(&key));
    let lines = gateway.process.stderr().stream().filter(of_key).take(count).collect::<Vec<_>>();
    let came = tokio::time::timeout(LIMIT, lines).await.map(|lines| lines.len());
    assert_eq!(came, Ok(count), "answers while the upstream was waited for");
}

/// What `onced keys show` says of a key's status.
async fn shown_status(database: &Database, key: &str) -> String {
    let args = ["keys", "--store", database.url(), "show", "api.slow", key];
    let mut shown = Process::spawn(env!("CARGO_BIN_EXE_onced"), args, [("ONCED_LOG", "warn")]);
    assert!(shown.wait(LIMIT).await.success(), "{:?}", shown.stderr().all());
    let lines = shown.stdout().all();
    let status = lines.iter().find_map(|line| line.strip_prefix("status")).map(|rest| rest.trim().to_owned());
    status.unwrap_or_else(|| panic!("no status in {lines:?}"))
}

/// All of the gateway's connections, five at most, become idle while the upstream is still waited for. What they may have
/// to do until then is the log of the deliveries that were refused; and sessions of the command line may still be ending.
async fn no_connection_is_held(database: &Database) {
    if database.backend() == Backend::MariaDb {
        return nothing_is_done_in_mariadb(database).await;
    }
    let of_ours = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'onced'";
    let held = format!("SELECT count(*) {of_ours} AND state IS DISTINCT FROM 'idle'");
    let all = format!("SELECT count(*) {of_ours}");
    let deadline = Instant::now() + LIMIT;
    loop {
        let (held, all) = (database.sql().count(&held).await, database.sql().count(&all).await);
        if held == 0 && (1..=5).contains(&all) {
            break;
        }
        assert!(Instant::now() < deadline, "of {all} connections {held} are held while nothing is to be done");
    }
}

/// MariaDB does not say whose a session is. While the upstream is waited for none has anything to do, nor a transaction.
async fn nothing_is_done_in_mariadb(database: &Database) {
    let of_this = "FROM information_schema.processlist p WHERE db = DATABASE() AND id <> CONNECTION_ID()";
    let busy = format!(
        "SELECT count(*) {of_this} AND (command <> 'Sleep' \
             OR EXISTS (SELECT 1 FROM information_schema.innodb_trx t WHERE t.trx_mysql_thread_id = p.id))"
    );
    let deadline = Instant::now() + LIMIT;
    loop {
        let busy = database.sql().count(&busy).await;
        if busy == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{busy} connections are held while nothing is to be done");
        // The table of transactions is not made anew for whoever asks more often than ten times a second.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

/// A database whose sessions are REPEATABLE READ unless they say otherwise: a statement then may not see a record that
/// was committed after it began.
async fn repeatable_read() -> Database {
    let database = Database::create(Backend::Postgres).await;
    let name = database.sql().text("SELECT current_database()").await.remove(0).remove(0);
    let alter = format!("ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'");
    database.sql().execute(&alter).await;
    let mut session = PgConnection::connect(database.url()).await.expect("the database can be reached");
    let level: String = sqlx::query_scalar("SHOW transaction_isolation").fetch_one(&mut session).await.unwrap();
    assert_eq!(level, "repeatable read");
    database
}

#[tokio::test]
async fn o_29_a_hot_key_postgres() {
    let database = Database::create(Backend::Postgres).await;
    a_hot_key(&database, &Upstream::at_work_itself(&database).await).await;
}

#[tokio::test]
async fn o_29_a_hot_key_mariadb() {
    let database = Database::create(Backend::MariaDb).await;
    a_hot_key(&database, &Upstream::at_work_itself(&database).await).await;
}

#[tokio::test]
async fn o_29_a_hot_key_behind_which_a_provider_is_called_mariadb() {
    let database = Database::create(Backend::MariaDb).await;
    a_hot_key(&database, &Upstream::calling_a_provider(&database).await).await;
}

#[tokio::test]
async fn o_29_a_hot_key_behind_which_a_provider_is_called_postgres() {
    let database = Database::create(Backend::Postgres).await;
    a_hot_key(&database, &Upstream::calling_a_provider(&database).await).await;
}

#[tokio::test]
async fn o_29_a_hot_key_under_repeatable_read_postgres() {
    let database = repeatable_read().await;
    a_hot_key(&database, &Upstream::at_work_itself(&database).await).await;
}

#[tokio::test]
async fn o_29_a_hot_key_behind_which_a_provider_is_called_under_repeatable_read_postgres() {
    let database = repeatable_read().await;
    a_hot_key(&database, &Upstream::calling_a_provider(&database).await).await;
}
