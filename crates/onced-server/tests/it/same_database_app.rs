//! An application in the ledger's own database: each call writes one order and completes its record, in one
//! transaction, by the statement that the documentation gives. Orders have no unique column, so that a second effect
//! would be seen.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use onced_harness::{Call, Recorder, RecorderOptions, Reply};
use testkit::process::free_port;
use testkit::{Database, Sql};

const COMPLETE_SQLITE: &str = include_str!("../../../../docs/guides/sql/complete.sqlite.sql");
const COMPLETE_POSTGRES: &str = include_str!("../../../../docs/guides/sql/complete-function.postgres.sql");
const COMPLETE_MARIADB: &str = include_str!("../../../../docs/guides/sql/complete.mariadb.sql");
const HEADERS: &str = r#"[["content-type","application/json"]]"#;

/// What the application does with a call.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// How long it thinks before its transaction.
    pub(crate) before: Duration,
    /// How long it takes from its commit to its answer.
    pub(crate) after: Duration,
    /// The answer, and what it stores.
    pub(crate) status: u16,
    pub(crate) body: String,
    /// What it answers instead, after its commit.
    pub(crate) then_answers: Option<u16>,
    /// Whether it writes and commits at all.
    pub(crate) commits: bool,
}

impl Work {
    pub(crate) fn ok(body: &str) -> Self {
        Self {
            before: Duration::ZERO,
            after: Duration::ZERO,
            status: 200,
            body: body.to_owned(),
            then_answers: None,
            commits: true,
        }
    }

    /// Answers so without writing anything.
    pub(crate) fn fails(status: u16) -> Self {
        Self { status, commits: false, ..Self::ok(r#"{"error":true}"#) }
    }

    pub(crate) fn before(mut self, before: Duration) -> Self {
        self.before = before;
        self
    }

    pub(crate) fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }
}

/// Makes the table of the orders.
pub(crate) async fn create_orders(database: &Database) {
    database
        .sql()
        .execute("CREATE TABLE orders (key TEXT NOT NULL, attempt INTEGER NOT NULL, body TEXT NOT NULL)")
        .await;
}

/// How many orders there are.
pub(crate) async fn orders(database: &Database) -> i64 {
    database.sql().count("SELECT count(*) FROM orders").await
}

/// How many orders a key has.
pub(crate) async fn orders_of(database: &Database, key: &str) -> i64 {
    database.sql().count(&format!("SELECT count(*) FROM orders WHERE key = '{key}'")).await
}

/// Starts the application on that database; `work` says what it does with each call.
pub(crate) async fn start(database: &Database, work: impl Fn(&Call) -> Work + Send + Sync + 'static) -> Recorder {
    create_orders(database).await;
    let (sql, work) = (database.sql().clone(), Arc::new(work));
    // A port that no outgoing connection is given while the application is down.
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let options = RecorderOptions::default().listen(listen).effect_fn(move |call: Call| {
        let (sql, work) = (sql.clone(), work(&call));
        async move { Some(run(&sql, &call, work).await) }
    });
    Recorder::start(options).await.expect("the application can listen")
}

async fn run(sql: &Sql, call: &Call, work: Work) -> Reply {
    tokio::time::sleep(work.before).await;
    if work.commits && !commit(sql, &call.headers, &work).await {
        return Reply::status(409).json(r#"{"lost":"another attempt has taken over"}"#).without_effect();
    }
    let reply = Reply::status(work.then_answers.unwrap_or(work.status)).json(work.body).delay_answer(work.after);
    if work.commits { reply.with_effect() } else { reply.without_effect() }
}

/// Whether the record was completed. A lost claim is no row on SQLite and MariaDB, and an error of its own on PostgreSQL.
fn completed(rows: Result<u64, sqlx::Error>) -> bool {
    match rows {
        Ok(rows) => rows == 1,
        Err(error) => {
            let code = error.as_database_error().and_then(|answer| answer.code()).map(|code| code.into_owned());
            assert_eq!(code.as_deref(), Some("OC001"), "complete: {error}");
            false
        }
    }
}

/// One transaction: the order, and the completion. `false` where another attempt has taken over.
pub(crate) async fn commit(sql: &Sql, headers: &HeaderMap, work: &Work) -> bool {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
    let (scope, key, token) = (header("onced-scope"), header("onced-key"), header("onced-lease-token"));
    let attempt: i32 = header("onced-attempt").parse().unwrap_or(0);
    macro_rules! in_one_transaction {
        ($pool:expr, $begin:expr, $order:expr, $complete:expr, [$($value:expr),+]) => {{
            let mut tx = $pool.begin_with($begin).await.expect("begin");
            sqlx::query($order).bind(&key).bind(attempt).bind(&work.body).execute(&mut *tx).await.expect("order");
            let done = sqlx::query($complete)$(.bind($value))+.execute(&mut *tx).await;
            if completed(done.map(|done| done.rows_affected())) {
                tx.commit().await.expect("commit");
                true
            } else {
                tx.rollback().await.expect("rollback");
                false
            }
        }};
    }
    let (status, body) = (i32::from(work.status), work.body.as_bytes());
    match sql {
        Sql::Sqlite(pool) => in_one_transaction!(
            pool,
            "BEGIN IMMEDIATE",
            "INSERT INTO orders (key, attempt, body) VALUES (?1, ?2, ?3)",
            COMPLETE_SQLITE,
            [&scope, &key, &token, status, HEADERS, body]
        ),
        Sql::Postgres(pool) => in_one_transaction!(
            pool,
            "BEGIN",
            "INSERT INTO orders (key, attempt, body) VALUES ($1, $2, $3)",
            COMPLETE_POSTGRES,
            [&scope, &key, &token, status, HEADERS, body]
        ),
        Sql::MariaDb(pool) => in_one_transaction!(
            pool,
            "BEGIN",
            "INSERT INTO orders (`key`, attempt, body) VALUES (?, ?, ?)",
            COMPLETE_MARIADB,
            [status, HEADERS, body, &scope, &key, &token]
        ),
    }
}
