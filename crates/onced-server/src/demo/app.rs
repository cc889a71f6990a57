//! The small payment app of the demo: it charges at the provider, then writes its order and completes the gateway's
//! record in one transaction of its own database. Nothing of onced's code is used in it: three headers and one
//! documented statement are the whole agreement.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::Ledger;
use super::client::Post;

/// The statement that the documentation gives.
const COMPLETE: &str = include_str!("complete.sql");
// No column is unique: a second effect shall be seen, not refused.
const ORDERS: &str =
    "CREATE TABLE IF NOT EXISTS orders (reference TEXT NOT NULL, amount INTEGER NOT NULL, charge TEXT NOT NULL)";
const INSERT: &str = "INSERT INTO orders (reference, amount, charge) VALUES (?1, ?2, ?3)";
/// The line on standard output that says where it listens begins so.
pub(super) const LISTENING: &str = "listening on ";

struct App {
    database: SqlitePool,
    provider: SocketAddr,
    ledger: Ledger,
    working: TaskTracker,
    taken_over: AtomicU64,
}

/// What is asked for.
struct Wanted {
    reference: String,
    amount: i64,
}

/// What the transaction came to.
enum Ended {
    Committed,
    /// The record is another attempt's by now: everything was rolled back.
    TakenOver,
}

/// Serves until standard input is closed, which is when the demo has ended, whichever way.
pub(crate) async fn serve(file: &Path, provider: SocketAddr, ledger: Ledger) -> anyhow::Result<()> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(10));
    let database = SqlitePoolOptions::new().acquire_timeout(Duration::from_secs(20)).connect_with(options).await?;
    sqlx::query(ORDERS).execute(&database).await?;
    let app = App { database, provider, ledger, working: TaskTracker::new(), taken_over: AtomicU64::new(0) };
    let router = Router::new()
        .route("/charges", post(charge))
        .route("/tools/buy", post(charge))
        .route("/settled", get(settled))
        .with_state(Arc::new(app));
    let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
    let mut output = io::stdout().lock();
    writeln!(output, "{LISTENING}{}", listener.local_addr()?)?;
    output.flush()?;
    drop(output);
    tokio::select! {
        served = async { axum::serve(listener, router).await } => served.context("the app failed"),
        () = input_closed() => Ok(()),
    }
}

/// A thread that nobody waits for: a read of standard input cannot be called off.
async fn input_closed() {
    let (closed, wait) = oneshot::channel();
    std::thread::spawn(move || {
        drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
        // Nobody listens where the app has ended first.
        let _ = closed.send(());
    });
    drop(wait.await);
}

async fn charge(State(app): State<Arc<App>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return StatusCode::BAD_REQUEST.into_response() };
    let Some(wanted) = Wanted::read(&body.to_bytes()) else {
        let words = json!({ "error": "a charge is {\"reference\": \"…\", \"amount\": 1200}" });
        return answer(StatusCode::BAD_REQUEST, &words.to_string());
    };
    // Begun work goes on when its caller hangs up, as it does in most frameworks.
    let work = app.working.clone().spawn(async move { app.work(&head.headers, &wanted).await });
    match work.await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            eprintln!("the charge failed: {error:#}");
            answer(StatusCode::BAD_GATEWAY, &json!({ "error": "the charge failed" }).to_string())
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Answers once nothing is being worked on: how many attempts have found themselves taken over.
async fn settled(State(app): State<Arc<App>>) -> Response {
    app.working.close();
    app.working.wait().await;
    app.working.reopen();
    app.taken_over.load(Ordering::SeqCst).to_string().into_response()
}

impl Wanted {
    /// A charge's body is what is wanted; a tool call has it in its arguments.
    fn read(body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        let wanted = body.get("arguments").unwrap_or(&body);
        let (reference, amount) = (wanted.get("reference")?.as_str()?, wanted.get("amount")?.as_i64()?);
        Some(Self { reference: reference.to_owned(), amount })
    }
}

impl App {
    async fn work(&self, headers: &HeaderMap, wanted: &Wanted) -> anyhow::Result<Response> {
        let charge = self.charge(headers.get("idempotency-key"), wanted).await?;
        let body = json!({ "order": wanted.reference, "amount": wanted.amount, "charge": charge }).to_string();
        match self.commit(headers, wanted, &charge, &body).await? {
            Ended::Committed => Ok(answer(StatusCode::CREATED, &body)),
            Ended::TakenOver => {
                eprintln!("order {}: another attempt has taken over, rolled back", wanted.reference);
                Ok(answer(StatusCode::CONFLICT, &json!({ "error": "another attempt has taken over" }).to_string()))
            }
        }
    }

    /// Takes the money. No transaction is open meanwhile.
    async fn charge(&self, forwarded: Option<&HeaderValue>, wanted: &Wanted) -> anyhow::Result<String> {
        let key = match (self.ledger, forwarded) {
            // The same for every attempt: the provider knows it again.
            (Ledger::With, Some(key)) => key.clone(),
            (Ledger::With, None) => bail!("there is no Idempotency-Key to pass on"),
            // The usual mistake: a new key for every try.
            (Ledger::Without, _) => HeaderValue::try_from(uuid::Uuid::new_v4().to_string())?,
        };
        let body = json!({ "reference": wanted.reference, "amount": wanted.amount });
        let got = Post::new("/charges", &body).header("idempotency-key", key).send(self.provider).await?;
        let id = serde_json::from_slice::<Value>(&got.body)?.get("id").and_then(Value::as_str).map(str::to_owned);
        match (got.status, id) {
            (201, Some(id)) => Ok(id),
            (status, _) => bail!("the provider answered {status}"),
        }
    }

    /// One transaction: the order, and the end of the record.
    async fn commit(&self, headers: &HeaderMap, wanted: &Wanted, charge: &str, body: &str) -> anyhow::Result<Ended> {
        let mut tx = self.database.begin_with("BEGIN IMMEDIATE").await?;
        let order = sqlx::query(INSERT).bind(&wanted.reference).bind(wanted.amount).bind(charge);
        order.execute(&mut *tx).await?;
        if self.ledger == Ledger::With {
            let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let completed = sqlx::query(COMPLETE)
                .bind(header("onced-scope"))
                .bind(header("onced-key"))
                .bind(header("onced-lease-token"))
                .bind(i32::from(StatusCode::CREATED.as_u16()))
                .bind(r#"[["content-type","application/json"]]"#)
                .bind(body.as_bytes())
                .execute(&mut *tx)
                .await?;
            if completed.rows_affected() == 0 {
                tx.rollback().await?;
                self.taken_over.fetch_add(1, Ordering::SeqCst);
                return Ok(Ended::TakenOver);
            }
        }
        tx.commit().await?;
        Ok(Ended::Committed)
    }
}

fn answer(status: StatusCode, body: &str) -> Response {
    (status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body.to_owned()).into_response()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_statement_is_the_documented_one() {
        let documented = include_str!("../../../../docs/guides/sql/complete.sqlite.sql");
        assert_eq!(super::COMPLETE, documented);
    }
}
