//! onced: each trigger takes effect once. The library that an application adds.
//!
//! The idempotency key is a row in the *same database* as the business rows, committed or rolled back with them. The
//! [`store`] reports what stands there, [`core`](onced_core) gives it meaning, the [`guard`] acts.
//!
//! One transaction for the key, the caller's rows and the answer:
//!
//! ```
//! use std::time::Duration;
//! use onced::core::{fingerprint::*, key::*, record::StoredResponse};
//! use onced::guard::{Begun, Guard, Request};
//! use onced::store::{StoreOptions, deliveries::LogDeliveries, sqlite::SqliteStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # std::env::set_current_dir(&folder)?;
//! let store = SqliteStore::open("sqlite:shop.db", &StoreOptions::default()).await?;
//! store.migrate().await?;
//! sqlx::query("CREATE TABLE IF NOT EXISTS orders (item text)").execute(store.pool()).await?;
//! let guard = Guard::new(store, LogDeliveries::All);
//!
//! // For each delivery: whose effect, under which key, and what the request says.
//! let parts = RequestParts { body: "{\"item\":\"book\"}".into(), ..RequestParts::default() };
//! let fingerprint = Fingerprint::new(parts, BodyRecipe::All);
//! let request = Request::new(Scope::new("shop.orders")?, Key::new("evt_1")?, fingerprint);
//! match guard.begin_atomic(&request, Duration::ZERO).await? {
//!     Begun::Execute(mut once) => {
//!         sqlx::query("INSERT INTO orders (item) VALUES ('book')").execute(&mut **once.tx()).await?;
//!         once.commit(StoredResponse::bare(201)).await?; // the key, the order and the answer, or none of them
//!     }
//!     Begun::Replay { response, .. } => println!("done before: answer {} again", response.code),
//!     Begun::InProgress { retry_after, .. } => println!("being done: ask again in {retry_after:?}"),
//!     Begun::Mismatch { .. } => println!("this key belongs to another request"),
//!     Begun::Unknown { .. } | Begun::Exhausted { .. } => println!("a person has to look"),
//! }
//! # Ok(()) }
//! ```
//!
//! Where the application has opened its transaction itself: [`Guard::begin_tx`](guard::Guard::begin_tx). Where another
//! system is called meanwhile, so that no transaction may stay open: [`Guard::begin`](guard::Guard::begin), with a lease.
//! In axum the layer of `onced::http::axum` (feature `axum`) does all of this around a handler.
//!
//! Features: `sqlite` (on by default), `postgres`, `mysql` (MariaDB), `axum`, `webhook`; each alone and all together.

pub use onced_core as core;

pub mod guard;
pub mod http;
pub mod store;
#[cfg(feature = "webhook")]
pub mod webhook;
