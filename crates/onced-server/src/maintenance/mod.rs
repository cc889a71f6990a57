//! What runs beside the requests to keep the ledger in order. Each service is a struct with `run_once`.

pub(crate) mod sweeper;
