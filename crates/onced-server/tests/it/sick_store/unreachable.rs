//! A PostgreSQL that cannot be reached: its connections are cut, or stay open and say nothing any more. Between it and
//! the gateway stands a wire of the test's.

use testkit::{Backend, Database};

use super::course::{at_the_claim, before_each_outcome_is_stored};
use super::{Illness, SHORT_LEASE};
use crate::case_store::wire::Wire;

/// The wire in front of the server of a new database.
async fn wired() -> (Wire, Database) {
    let database = Database::create(Backend::Postgres).await;
    let server = testkit::postgres::server_url();
    let (_, server) = server.rsplit_once('@').expect("the URL names a user");
    let (server, _) = server.split_once('/').expect("the URL names a database");
    (Wire::start_to_postgres(server).await, database)
}

/// The URL of the database by way of the wire, which must see what is said.
fn by_wire(wire: &Wire, database: &Database) -> String {
    let (rest, name) = database.url().rsplit_once('/').expect("the URL names a database");
    let (user, _) = rest.rsplit_once('@').expect("the URL names a user");
    format!("{user}@{}/{name}?sslmode=disable", wire.address)
}

struct Cut(Wire);

impl Illness for Cut {
    const LEASE: &str = SHORT_LEASE;

    async fn admit() -> (Self, Database) {
        let (wire, database) = wired().await;
        (Self(wire), database)
    }

    fn url(&self, database: &Database) -> String {
        by_wire(&self.0, database)
    }

    async fn strike(&mut self, _: &Database) {
        self.0.cut();
    }

    async fn heal(&mut self, _: &Database) {
        self.0.mend();
    }
}

/// What is asked arrives, and no answer comes back.
struct Silent(Wire);

impl Illness for Silent {
    const LOSES_ANSWERS: bool = true;
    const LEASE: &str = SHORT_LEASE;

    async fn admit() -> (Self, Database) {
        let (wire, database) = wired().await;
        (Self(wire), database)
    }

    fn url(&self, database: &Database) -> String {
        by_wire(&self.0, database)
    }

    async fn strike(&mut self, _: &Database) {
        self.0.hold_answers();
    }

    async fn heal(&mut self, _: &Database) {
        self.0.mend();
    }
}

#[tokio::test]
async fn gone_at_the_claim_postgres() {
    at_the_claim::<Cut>().await;
}

#[tokio::test]
async fn gone_before_the_outcome_is_stored_postgres() {
    before_each_outcome_is_stored::<Cut>().await;
}

/// Each of these mostly waits, so they are waited for side by side.
#[tokio::test]
async fn silent_postgres() {
    tokio::join!(at_the_claim::<Silent>(), before_each_outcome_is_stored::<Silent>());
}
