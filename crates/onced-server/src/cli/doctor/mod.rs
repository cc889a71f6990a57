//! `onced doctor`: looks at a ledger, and says in plain words what is right, doubtful and wrong.

mod finding;
mod mariadb;
mod rows;
mod server;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use onced::store::health::{Health as _, Settings};
use onced::store::{AnyStore, Pooler, StoreError};
use serde_json::json;

use self::finding::{Finding, Verdict};
use super::ledger::{Ledger, missing_file};
use crate::app;
use crate::config::{StoreConfig, SweepConfig};

#[derive(Args)]
#[command(after_help = "\
Examples:
  onced doctor                                        the embedded ledger, onced.db
  onced doctor --config onced.toml                    the ledger of a gateway
  onced doctor --store postgres://app@localhost/shop --json | jq '.findings[] | select(.verdict != \"ok\")'

Nothing is written. Exit code 1 if something is wrong, else 0: what is only doubtful (warn) may be meant so.")]
pub(crate) struct Doctor {
    #[command(flatten)]
    ledger: Ledger,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let (store, sweep) = match self.ledger.config()? {
            Some(config) => (config.store, config.sweep),
            None => (self.ledger.settings()?, SweepConfig::default()),
        };
        let findings = examine(&store, sweep).await;
        let worst = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok);
        if self.json {
            let report = json!({ "ledger": store.url.to_string(), "verdict": worst, "findings": findings });
            println!("{report:#}");
        } else {
            print(&store, &findings, worst);
        }
        Ok(if worst == Verdict::Wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn print(store: &StoreConfig, findings: &[Finding], worst: Verdict) {
    println!("The ledger {}:\n", store.url);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(120);
    }
    for finding in findings {
        let Finding { name, verdict, seen, means, to_do } = finding;
        let to_do = if to_do.is_empty() { String::new() } else { format!("\nDo: {to_do}.") };
        table.add_row([verdict.word().to_owned(), (*name).to_owned(), format!("{seen}\n{means}.{to_do}")]);
    }
    println!("{table}\n");
    println!(
        "{}",
        match worst {
            Verdict::Ok => "All is well.",
            Verdict::Warn => "Nothing is wrong; what says warn is worth a look.",
            Verdict::Wrong => "Something is wrong.",
        }
    );
}

/// Everything that can be looked at; what cannot is a finding, too.
async fn examine(config: &StoreConfig, sweep: SweepConfig) -> Vec<Finding> {
    if let Some(file) = missing_file(&config.url) {
        return vec![Finding::wrong(
            "reach",
            format!("there is no file {}", file.display()),
            "no gateway has used it yet, or it is somewhere else: a relative path counts from the working directory",
            "run onced migrate, or name the right file",
        )];
    }
    // Two connections for the test for poolers; and what is wrong must not keep it from being looked at.
    let lenient = StoreConfig { max_connections: config.max_connections.max(4), ..config.clone() };
    match app::open_store_to_look_at(&lenient).await {
        Ok(store) => {
            let mut findings = look(store, config.max_connections, sweep.keep_deliveries).await;
            if config.pooler == Pooler::Transaction {
                findings.push(server::pooler_by_transaction());
            }
            findings
        }
        Err(error) => vec![unreachable(&error)],
    }
}

fn unreachable(error: &anyhow::Error) -> Finding {
    // Whatever is said of a pooler says what to do about it.
    let is_pooler = format!("{error:#}").contains("pool_mode = ");
    // The outermost only says that the ledger cannot be opened; the inner ones repeat each other.
    let why = error.chain().nth(1).map_or_else(|| error.to_string(), ToString::to_string);
    let to_do = if is_pooler {
        "there is a pooler in between: name PostgreSQL itself in the store's URL; or, where it lends by transaction, say pooler = \"transaction\" \
         in [store] and name the file with --config"
    } else {
        "see that the database runs, that the URL is right and its user may connect"
    };
    Finding::wrong("reach", why, "every request with a key gets 503, or the gateway does not start", to_do)
}

async fn look(mut store: AnyStore, wanted_connections: u32, keep_deliveries: Duration) -> Vec<Finding> {
    let mut findings = vec![];
    match store.settings().await {
        Ok(settings) => {
            let free = match &settings {
                Settings::Sqlite(sqlite) => free_disk(&sqlite.file),
                Settings::Postgres(_) | Settings::MariaDb(_) => None,
            };
            findings.extend(server::settings(&settings, wanted_connections, free));
        }
        Err(error) => findings.push(not_seen("settings", &error)),
    }
    findings.push(match clock(&mut store).await {
        Ok((ahead, round_trip)) => server::clock(ahead, round_trip),
        Err(error) => not_seen("clock", &error),
    });
    match store.backends().await {
        Ok(backends) => findings.extend(server::pooler(backends)),
        Err(error) => findings.push(not_seen("pooler", &error)),
    }
    let schema = match store.schema_version().await {
        Ok(version) => server::schema(version),
        Err(error) => not_seen("schema", &error),
    };
    let is_known = schema.verdict == Verdict::Ok;
    findings.push(schema);
    if is_known {
        findings.push(match store.unfinished().await {
            Ok(unfinished) => rows::unfinished(&unfinished),
            Err(error) => not_seen("unfinished", &error),
        });
        findings.push(match store.overdue().await {
            Ok(overdue) => rows::expired(overdue),
            Err(error) => not_seen("expired", &error),
        });
        findings.push(match store.growth().await {
            Ok(growth) => rows::growth(growth, keep_deliveries),
            Err(error) => not_seen("growth", &error),
        });
    }
    findings
}

fn not_seen(name: &'static str, error: &StoreError) -> Finding {
    let to_do = "see to what is wrong, if anything is, then try again";
    Finding::warn(name, format!("could not be looked at: {error}"), "nothing is known about it", to_do)
}

/// How far the database's clock is ahead of this machine's, in microseconds, and how long it took to ask.
async fn clock(store: &mut AnyStore) -> Result<(i64, Duration), StoreError> {
    // The first question may have to open a connection, which takes time.
    store.database_time().await?;
    let (before, started) = (SystemTime::now(), Instant::now());
    let theirs = store.database_time().await?;
    let round_trip = started.elapsed();
    let middle = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + round_trip / 2;
    let ours = i64::try_from(middle.as_micros()).unwrap_or(i64::MAX);
    Ok((theirs.as_micros().saturating_sub(ours), round_trip))
}

fn free_disk(file: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(file).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}
