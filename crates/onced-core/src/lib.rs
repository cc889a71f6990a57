//! The pure core of onced: what a key is, when two requests are the same, and what a delivery means.
//!
//! No async, no I/O, no clock, no randomness: time and chance come in as arguments, so that every decision can be
//! replayed from its inputs.
#![warn(clippy::pedantic)]
#![allow(clippy::module_name_repetitions, clippy::must_use_candidate, clippy::missing_errors_doc)]

pub mod backoff;
mod canonical;
pub mod decision;
#[doc(hidden)]
pub mod decision_table;
pub mod derive;
pub mod document;
pub mod failure;
pub mod fingerprint;
pub mod key;
pub mod lease;
pub mod pointer;
pub mod record;
pub mod retention;
pub mod time;
pub mod transition;
