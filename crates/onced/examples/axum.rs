//! axum: a handler whose key, rows and answer are one transaction of the application's own database.
//!
//! ```sh
//! DATABASE_URL=postgres://… LISTEN=127.0.0.1:3000 cargo run -p onced --example axum    # with the tables of examples/schema.sql
//! curl -i http://127.0.0.1:3000/api/order -H 'Idempotency-Key: order-1' -H 'Content-Type: application/json' -d '{"item":"tea"}'
//! ```

use std::error::Error;

use axum::Router;
use axum::http::{StatusCode, header::CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::post;
use bytes::Bytes;
use onced::core::key::Scope;
use onced::guard::Guard;
use onced::http::axum::{Onced, Tx, TxError};
use onced::store::{StoreOptions, deliveries::LogDeliveries, postgres::PgStore};

async fn order(mut tx: Tx<PgStore>, body: Bytes) -> Result<impl IntoResponse, TxError> {
    let insert = sqlx::query_scalar("INSERT INTO orders (tenant, body) VALUES ('shop', $1) RETURNING id");
    let id: i64 = insert.bind(&body[..]).fetch_one(&mut **tx).await?;
    Ok((StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], format!(r#"{{"order":{id}}}"#)))
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    // The glue: a guard on the ledger, which is in the application's own database, and a layer for each kind of effect.
    let store = PgStore::open(&std::env::var("DATABASE_URL")?, &StoreOptions::default()).await?;
    store.migrate().await?;
    let once = Onced::new(Guard::new(store, LogDeliveries::All));
    let app: Router = Router::new().route("/api/order", post(order).layer(once.atomic(Scope::new("shop.order")?)));

    let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    eprintln!("running on {}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
