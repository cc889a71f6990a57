//! A ledger that is sick while the gateway runs, or when it starts: read-only, full, locked, silent, gone, replaced. What takes
//! effect is counted in a database of the upstream's own, which stays well.
//!
//! The same two courses are taken through every illness. At the claim: the client is told to come again, nothing is
//! forwarded, and afterwards the same key works once. Between claim and outcome: the upstream's answer is withheld,
//! the record stays as it is, and nothing takes effect a second time. Meanwhile the gateway says that it is not ready.

mod course;
mod disk;
mod full;
mod locked;
mod read_only;
mod replaced;
mod start;
mod unreachable;

use testkit::Database;

use crate::case_store::LONG_LEASE;

/// For as long the gateway tries to store an outcome that it knows, where its ledger cannot be reached.
const SHORT_LEASE: &str = "lease = \"6s\"\n";

/// A way in which a ledger can be sick.
trait Illness: Sized {
    /// What a client is told at the claim.
    const AT_THE_CLAIM: (u16, &'static str) = (503, "store-unavailable");
    /// Whether a statement can be carried out although its answer is lost: then the record may be ahead of what the
    /// gateway has seen of it.
    const LOSES_ANSWERS: bool = false;

    /// An outcome that is known waits for its ledger for as long as the lease lasts.
    const LEASE: &str = LONG_LEASE;

    /// A ledger that is well, and can be made sick.
    async fn admit() -> (Self, Database);

    /// Where the gateway finds it.
    fn url(&self, database: &Database) -> String {
        database.url().to_owned()
    }

    /// What is done once the gateway has made its tables, and before the first request.
    async fn prepare(&mut self, _: &Database) {}

    async fn strike(&mut self, database: &Database);

    async fn heal(&mut self, database: &Database);
}
