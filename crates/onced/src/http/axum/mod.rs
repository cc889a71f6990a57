//! For axum: a layer that puts a handler's key, rows and answer into one transaction, and the argument by which the handler
//! writes in it.
//!
//! ```no_run
//! use axum::routing::post;
//! use axum::{Router, http::StatusCode};
//! use onced::core::key::Scope;
//! use onced::guard::Guard;
//! use onced::http::axum::{Onced, Tx, TxError};
//! use onced::store::deliveries::LogDeliveries;
//! use onced::store::{StoreOptions, sqlite::SqliteStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = SqliteStore::open("sqlite:shop.db", &StoreOptions::default()).await?;
//! store.migrate().await?;
//! let once = Onced::new(Guard::new(store, LogDeliveries::All));
//! let app: Router = Router::new().route("/orders", post(order).layer(once.atomic(Scope::new("shop.orders")?)));
//!
//! async fn order(mut tx: Tx<SqliteStore>, item: String) -> Result<StatusCode, TxError> {
//!     sqlx::query("INSERT INTO orders (item) VALUES (?1)").bind(item).execute(&mut **tx).await?;
//!     Ok(StatusCode::CREATED)
//! }
//! # Ok(()) }
//! ```

mod atomic;
mod body;
mod extract;
mod held;
mod layer;
mod leased;
mod run;
mod streamed;

pub use self::extract::{NoTransaction, Tx, TxError};
pub use self::held::{Leased, LeasedError};
pub use self::layer::{Onced, OncedLayer, OncedService};
