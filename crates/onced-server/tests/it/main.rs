//! End to end: the real `onced` binary, real databases, real clients. Effects are counted by SQL that does not go
//! through our code, and by the recorder's own log.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod behind_pooler;
mod case_callers;
mod case_cleanup;
mod case_content;
mod case_crash;
mod case_store;
mod case_streams;
mod cli;
mod contracts;
mod demo;
mod example;
mod fixture;
mod hostile;
mod kills;
mod load;
mod observe;
mod printed;
mod real_input;
mod replay_memory;
mod same_database_app;
mod settlement;
mod sick_store;
mod transport;
mod waiting;
