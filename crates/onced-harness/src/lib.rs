//! Proves from outside that a service takes effect once.
//!
//! So far the crate holds one thing, the [`Recorder`]: a scripted downstream that counts what really reached it.

mod recorder;

pub use recorder::{
    Call, Delivery, Effect, Entry, Log, Lookup, Moment, Recorder, RecorderOptions, Reply, Rule, TimedOut, When,
};
