//! SIGKILL of the gateway at random moments under load, on both databases: whatever it was doing, each key takes effect
//! once and gets one answer. Two gateways on one database, and the orderly end, are beside it.

mod aim;
mod load;
mod orderly;
mod pair;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use testkit::{Backend, Database, Signal};

use self::aim::{Phase, Watched};
use self::load::{Apps, Load, verify};
use crate::fixture::{Gateway, LIMIT};
use testkit::random::{self, Random};

/// How many requests must be in flight at a kill.
const IN_FLIGHT: usize = 8;
const CLIENTS: usize = 12;
/// In how many kills each phase must have been caught.
const EACH_PHASE: usize = 3;

/// What the kills of a run came to.
#[derive(Default)]
struct Tally {
    kills: usize,
    /// In how many kills at least one request was in that phase.
    caught: BTreeMap<Phase, usize>,
    requests: usize,
}

impl Tally {
    fn lacking(&self) -> Vec<Phase> {
        let caught = |phase: &Phase| self.caught.get(phase).copied().unwrap_or(0);
        Phase::AIMS.into_iter().filter(|phase| caught(phase) < EACH_PHASE).collect()
    }

    fn add(&mut self, name: &str, phases: &BTreeMap<Phase, usize>) {
        self.kills += 1;
        let flying: usize = phases.values().sum();
        self.requests += flying;
        for phase in phases.keys() {
            *self.caught.entry(*phase).or_default() += 1;
        }
        println!("kill {:03} ({name}): {flying} in flight: {}", self.kills, listed(phases));
    }
}

fn listed(by_phase: &BTreeMap<Phase, usize>) -> String {
    let count = |phase: &Phase| by_phase.get(phase).copied().unwrap_or(0);
    let parts: Vec<String> = Phase::ALL.iter().map(|phase| format!("{} {}", phase.name(), count(phase))).collect();
    parts.join(", ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn killed_at_random_moments_sqlite() {
    killed_at_random_moments(Backend::Sqlite, "sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn killed_at_random_moments_postgres() {
    killed_at_random_moments(Backend::Postgres, "postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn killed_at_random_moments_mariadb() {
    killed_at_random_moments(Backend::MariaDb, "mariadb").await;
}

async fn killed_at_random_moments(backend: Backend, name: &str) {
    let kills = if testkit::soaking() { 150 } else { 50 };
    let seed = random::seed(name);
    let started = Instant::now();
    let database = Database::create(backend).await;
    let apps = Apps::start(&database, seed).await;
    let mut gateway = Gateway::start(&database, &apps.routes()).await;
    let mut random = Random::new(seed);
    let load = Load::start(&[gateway.address], CLIENTS, &random);

    let mut tally = Tally::default();
    loop {
        // What has been caught too seldom by half-time is aimed at alone, also past the wanted number.
        let lacking = tally.lacking();
        let aims = match lacking.is_empty() {
            true if tally.kills >= kills => break,
            false if tally.kills >= kills + 50 => break,
            false if tally.kills >= kills / 2 => lacking,
            true | false => Phase::AIMS.to_vec(),
        };
        load.some_finals(random.below(2 * CLIENTS as u64)).await;
        let aim = aims[random.index(aims.len())];
        tally.add(name, &kill(&mut gateway, &load, aim, &mut random).await);
        gateway.restart().await;
    }
    let finals = load.end().await;
    println!(
        "SOAK: kills on {name}: {}, {} requests in flight; kills by phase: {}",
        tally.kills,
        tally.requests,
        listed(&tally.caught)
    );
    let counts = verify(&database, &apps, &finals).await;
    println!("SOAK: after the kills on {name}: {counts}; {:.0?}", started.elapsed());
    assert!(tally.lacking().is_empty(), "never caught often enough: {:?}", tally.lacking());
    assert!(counts.deduplicated > 0, "no kill made the upstream deduplicate: {counts}");
    assert!(counts.resumed > 0, "no kill made an attempt be taken over: {counts}");
}

/// Kills the gateway once, and says in which phase each request in flight was.
async fn kill(gateway: &mut Gateway, load: &Load, aim: Phase, random: &mut Random) -> BTreeMap<Phase, usize> {
    let watched = Watched::follow(&gateway.process);
    let flying = if random.below(3) == 0 {
        // A moment after somebody was seen in that phase, where it falls.
        watched.wait_for_line(aim, LIMIT).await;
        load.wait_for_flight(IN_FLIGHT, LIMIT).await;
        tokio::time::sleep(Duration::from_micros(random.below(3000))).await;
        load.wait_for_flight(IN_FLIGHT, LIMIT).await
    } else {
        caught_in(gateway, load, &watched, aim, random).await
    };
    gateway.process.kill().await;
    watched.phases_of(&flying).await
}

/// Freezes the gateway at random moments until one catches a request in that phase, and leaves it frozen. Most phases
/// are over before a line about them could be acted on.
async fn caught_in(gateway: &Gateway, load: &Load, watched: &Watched, aim: Phase, random: &mut Random) -> Vec<String> {
    for _ in 0..200 {
        load.wait_for_flight(IN_FLIGHT, LIMIT).await;
        // By its own progress: on a busy machine it may get no turn in whatever time is given to it.
        watched.some_lines(random.below(24), LIMIT).await;
        tokio::time::sleep(Duration::from_micros(random.below(2000))).await;
        gateway.process.signal(Signal::Stop);
        // What is read here only aims; what counts is read after its end.
        watched.quiet(Duration::from_millis(2)).await;
        let flying = load.flight();
        if flying.len() >= IN_FLIGHT && watched.has_any_in(&flying, aim) {
            return flying;
        }
        gateway.process.signal(Signal::Continue);
    }
    load.wait_for_flight(IN_FLIGHT, LIMIT).await
}
