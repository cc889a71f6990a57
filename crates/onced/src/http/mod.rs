//! The HTTP contract: what a decision looks like as status, headers and problem, and which headers are kept.

pub mod headers;
pub mod respond;
