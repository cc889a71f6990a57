//! The HTTP contract: what a decision looks like as status, headers and problem, which headers are kept, and how a body is
//! decoded.

#[cfg(feature = "axum")]
pub mod axum;
pub mod encoding;
pub mod headers;
pub mod outcome;
pub mod prefer;
pub mod request;
pub mod respond;
