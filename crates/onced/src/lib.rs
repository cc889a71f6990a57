//! onced: each trigger takes effect once. The library that an application adds.
//!
//! The idempotency key is a row in the *same database* as the business rows, committed or rolled back with them. The
//! [`store`] reports what stands there, [`core`](onced_core) gives it meaning, the [`guard`] acts.

pub use onced_core as core;

pub mod guard;
pub mod http;
pub mod store;
