//! A PostgreSQL or MariaDB that cannot be reached: its connections are cut, or stay open and say nothing any more. Between it and
//! the gateway stands a wire of the test's.

use std::marker::PhantomData;

use testkit::{Backend, Database};

use super::course::{at_the_claim, before_each_outcome_is_stored};
use super::{Illness, SHORT_LEASE};
use crate::case_store::wire::Wire;

/// A server, behind a wire.
trait Server {
    const BACKEND: Backend;
}

struct Postgres;

impl Server for Postgres {
    const BACKEND: Backend = Backend::Postgres;
}

struct MariaDb;

impl Server for MariaDb {
    const BACKEND: Backend = Backend::MariaDb;
}

struct Wired<S> {
    wire: Wire,
    url: String,
    server: PhantomData<S>,
}

impl<S: Server> Wired<S> {
    async fn admit() -> (Self, Database) {
        let database = Database::create(S::BACKEND).await;
        let (wire, url) = Wire::before(&database).await;
        (Self { wire, url, server: PhantomData }, database)
    }
}

struct Cut<S>(Wired<S>);

impl<S: Server> Illness for Cut<S> {
    const LEASE: &str = SHORT_LEASE;

    async fn admit() -> (Self, Database) {
        let (wired, database) = Wired::admit().await;
        (Self(wired), database)
    }

    fn url(&self, _: &Database) -> String {
        self.0.url.clone()
    }

    async fn strike(&mut self, _: &Database) {
        self.0.wire.cut();
    }

    async fn heal(&mut self, _: &Database) {
        self.0.wire.mend();
    }
}

/// What is asked arrives, and no answer comes back.
struct Silent<S>(Wired<S>);

impl<S: Server> Illness for Silent<S> {
    const LOSES_ANSWERS: bool = true;
    const LEASE: &str = SHORT_LEASE;

    async fn admit() -> (Self, Database) {
        let (wired, database) = Wired::admit().await;
        (Self(wired), database)
    }

    fn url(&self, _: &Database) -> String {
        self.0.url.clone()
    }

    async fn strike(&mut self, _: &Database) {
        self.0.wire.hold_answers();
    }

    async fn heal(&mut self, _: &Database) {
        self.0.wire.mend();
    }
}

#[tokio::test]
async fn gone_at_the_claim_postgres() {
    at_the_claim::<Cut<Postgres>>().await;
}

#[tokio::test]
async fn gone_before_the_outcome_is_stored_postgres() {
    before_each_outcome_is_stored::<Cut<Postgres>>().await;
}

/// Each of these mostly waits, so they are waited for side by side.
#[tokio::test]
async fn silent_postgres() {
    tokio::join!(at_the_claim::<Silent<Postgres>>(), before_each_outcome_is_stored::<Silent<Postgres>>());
}

#[tokio::test]
async fn gone_at_the_claim_mariadb() {
    at_the_claim::<Cut<MariaDb>>().await;
}

#[tokio::test]
async fn gone_before_the_outcome_is_stored_mariadb() {
    before_each_outcome_is_stored::<Cut<MariaDb>>().await;
}

/// Each of these mostly waits, so they are waited for side by side.
#[tokio::test]
async fn silent_mariadb() {
    tokio::join!(at_the_claim::<Silent<MariaDb>>(), before_each_outcome_is_stored::<Silent<MariaDb>>());
}
