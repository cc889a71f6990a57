//! The core from outside, against rules and oracles that share no code with it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod json_oracle;
mod structured_strings;
