//! The library beside plain SQL: the same business row, in the same driver, over the same pool.

pub(crate) mod layer;
mod sides;
mod sql;

use onced::guard::Guard;
use onced::store::StoreOptions;
use onced::store::deliveries::LogDeliveries;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use std::time::Duration;

use self::sides::{Atomic, Bare, Common, Leased, Sketch};
use self::sql::Ledger;
pub(crate) use self::sql::fresh_database;
use crate::pairs::{Plan, Side, take_turns};
use crate::report::Report;
use crate::work::{Work, Workers};

const CONNECTIONS: [u32; 2] = [1, 16];
const WHAT_EACH_DOES: &str = "
One business row each, under a key that is new each time (a random UUID). All four open their transactions by the same
function of onced, from one and the same sqlx pool with as many connections as there are workers, and write into the
same table of orders; every statement is prepared. Durable: PostgreSQL with `fsync` and `synchronous_commit` on; SQLite
in WAL mode with `synchronous = FULL`. Ratios are of the rates within each turn.

- **bare**: begin, insert the order, commit.
- **sketch**: begin, insert the key as `in_progress` with `ON CONFLICT DO NOTHING`, insert the order, update the key to
  `completed` with status, headers and body, commit. No fingerprint, no lease, no token, no log of deliveries.
- **atomic**: the fingerprint, `Guard::begin_tx`, insert the order, `TxPermit::complete`, commit. The log of deliveries
  is on (`all`).
- **leased**: the fingerprint, `Guard::begin` (committed on its own, renewed by a heartbeat), then in a second
  transaction insert the order and `Permit::complete_tx`, commit. Two durable commits, where the sketch has one.
";

pub(crate) async fn run(postgres: &str, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.part("The library", WHAT_EACH_DOES);
    let folder = tempfile::tempdir()?;
    for connections in CONNECTIONS {
        let url = format!("sqlite:{}", folder.path().join(format!("bench{connections}.db")).display());
        let store = SqliteStore::open(&url, &options(connections)).await?;
        compare(store, connections, plan, report).await?;
    }
    for connections in CONNECTIONS {
        let url = fresh_database(postgres).await?;
        let store = PgStore::open(&url, &options(connections)).await?;
        compare(store, connections, plan, report).await?;
    }
    Ok(())
}

fn options(connections: u32) -> StoreOptions {
    // Sixteen that wait for the one write lock of SQLite may wait long, whoever they are.
    let patience = Duration::from_secs(30);
    StoreOptions {
        max_connections: connections,
        acquire_timeout: patience,
        busy_timeout: patience,
        ..StoreOptions::default()
    }
}

async fn compare<S: Ledger>(store: S, connections: u32, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    store.migrate_ledger().await?;
    store.make_tables().await?;
    let guard = Guard::new(store.clone(), LogDeliveries::All);
    let common = Common { store, guard };
    let count = connections as usize;
    let sides = vec![
        Side::new("bare", crowd(count, || Bare(common.clone()))),
        Side::new("sketch", crowd(count, || Sketch(common.clone()))),
        Side::new("atomic", crowd(count, || Atomic(common.clone()))),
        Side::new("leased", crowd(count, || Leased(common.clone()))),
    ];
    let title = title(S::NAME, connections);
    let outcome = take_turns(&title, sides, plan).await?;
    report.comparison(&title, &outcome, &["bare", "sketch"]);
    if S::NAME == "PostgreSQL" {
        report.goal(format!("{title}: atomic × sketch"), 1.2, outcome.ratio("atomic", "sketch"));
        report.goal(format!("{title}: atomic × bare"), 0.65, outcome.ratio("atomic", "bare"));
    }
    Ok(())
}

fn title(what: &str, connections: u32) -> String {
    format!("{what}, {connections} connection{}", if connections == 1 { "" } else { "s" })
}

fn crowd<W: Work + 'static>(count: usize, mut worker: impl FnMut() -> W) -> Workers {
    (0..count).map(|_| Box::new(worker()) as Box<dyn Work>).collect()
}
