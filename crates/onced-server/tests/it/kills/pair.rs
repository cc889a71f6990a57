//! Two gateway processes on one database behave as one: whichever a delivery reaches, and though each is killed now and
//! then.

use testkit::{Backend, Database};

use super::load::{Apps, Load, verify};
use crate::fixture::{Gateway, LIMIT};
use testkit::random::{self, Random};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_gateways_on_one_postgres_behave_as_one() {
    two_gateways_behave_as_one(Backend::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_gateways_on_one_mariadb_behave_as_one() {
    two_gateways_behave_as_one(Backend::MariaDb).await;
}

async fn two_gateways_behave_as_one(backend: Backend) {
    let seed = random::seed("two gateways");
    let database = Database::create(backend).await;
    let apps = Apps::start(&database, seed).await;
    let mut random = Random::new(seed);
    let first = Gateway::start(&database, &apps.routes()).await;
    let second = Gateway::start(&database, &apps.routes()).await;
    let mut gateways = [first, second];
    let load = Load::start(&gateways.each_ref().map(|gateway| gateway.address), 8, &random);
    let kills = if testkit::soaking() { 40 } else { 12 };
    for _ in 0..kills {
        load.some_finals(20 + random.below(20)).await;
        load.wait_for_flight(5, LIMIT).await;
        let gateway = &mut gateways[random.index(2)];
        gateway.process.kill().await;
        // Meanwhile the other one serves alone, and takes over what this one left behind.
        load.some_finals(20).await;
        gateway.restart().await;
    }
    load.some_finals(40).await;
    let finals = load.end().await;
    let counts = verify(&database, &apps, &finals).await;
    println!("SOAK: two gateways on {backend:?}, {kills} kills: {counts}");
}
