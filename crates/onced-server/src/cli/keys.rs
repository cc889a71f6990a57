//! `onced keys`: what is in the ledger, why a key stands as it does, and a person's word on an unknown outcome.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use onced::store::AnyStore;
use onced::store::deliveries::Deliveries;
use onced::store::keys::{Keys as _, Seen};
use onced::store::upkeep::{Because, Filter, Resolution, Upkeep};
use onced_core::key::{Key, Scope};
use onced_core::record::{Status, StoredResponse};
use onced_core::time::Timestamp;

use super::ledger::Ledger;
use crate::config;

#[derive(Args)]
#[command(after_help = "\
Examples:
  onced keys list --status pending_external
  onced keys show stripe.charge order-42
  onced keys resolve stripe.charge order-42 --happened --status 201 --body answer.json --reason 'charge ch_1 is there'
  onced keys resolve stripe.charge order-42 --did-not-happen --reason 'nothing in the dashboard for this key'")]
pub(crate) struct Keys {
    #[command(flatten)]
    ledger: Ledger,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List keys, newest change first
    List {
        /// Only this scope
        #[arg(long)]
        scope: Option<String>,
        /// Only this status: queued, in_progress, pending_external, completed or failed
        #[arg(long)]
        status: Option<String>,
        /// At most that many
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// Show one key with its deliveries, and what people decided about it
    Show {
        /// The scope
        scope: String,
        /// The key
        key: String,
    },
    /// Say what became of an outside call whose outcome is unknown
    Resolve(Resolve),
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("word").required(true).args(["happened", "did_not_happen"]))]
struct Resolve {
    /// The scope
    scope: String,
    /// The key
    key: String,
    /// It took effect: the key is completed, and its duplicates are answered from now on
    #[arg(long)]
    happened: bool,
    /// It had no effect: the key may run again. Refused until `settle` has passed since the last caller's lease ended
    #[arg(long)]
    did_not_happen: bool,
    /// With --happened: the status that duplicates are answered with
    #[arg(long, conflicts_with = "did_not_happen", default_value_t = 204, value_parser = clap::value_parser!(u16).range(200..600))]
    status: u16,
    /// With --happened: a file with the body that duplicates are answered with
    #[arg(long, conflicts_with = "did_not_happen", value_name = "FILE")]
    body: Option<PathBuf>,
    /// With --body: its content type
    #[arg(long, requires = "body", default_value = "application/json")]
    content_type: String,
    /// Why; kept for good, with who and when
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who says so [default: the user of this shell]
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// With --did-not-happen: how long an upstream may go on working after its caller's lease
    /// [default: the route's, from --config; 60s for the scope of --upstream alone]
    #[arg(long, value_name = "DURATION", conflicts_with = "happened", value_parser = humantime::parse_duration)]
    settle: Option<Duration>,
}

impl Keys {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let store = self.ledger.open().await?;
        match self.action {
            Action::List { scope, status, limit } => list(store, scope, status, limit).await,
            Action::Show { scope, key } => show(store, &read_scope(&scope)?, &read_key(&key)?).await,
            Action::Resolve(resolve) => resolve.run(store, self.ledger.config()?).await,
        }
    }
}

async fn list(
    mut store: AnyStore,
    scope: Option<String>,
    status: Option<String>,
    limit: u32,
) -> anyhow::Result<ExitCode> {
    let status =
        match status {
            Some(word) => Some(Status::parse(&word).with_context(|| {
                format!("{word:?} is no status: write {}", Status::ALL.map(Status::as_str).join(", "))
            })?),
            None => None,
        };
    let scope = scope.map(|scope| read_scope(&scope)).transpose()?;
    let rows = store.list(&Filter { scope, status, limit }).await?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["SCOPE", "KEY", "STATUS", "ATTEMPT", "RESPONSE", "CREATED", "CHANGED", "NOTE"]);
    for row in &rows {
        let lease_over = row.lease_until.is_some_and(|until| row.now >= until);
        let note = match row.status {
            Status::PendingExternal if lease_over => "outcome unknown: onced keys resolve".to_owned(),
            Status::InProgress if lease_over => "lease over: the next delivery takes over".to_owned(),
            Status::Queued | Status::InProgress | Status::PendingExternal | Status::Completed | Status::Failed => {
                row.error.clone().unwrap_or_default()
            }
        };
        let response = row.response_code.map(|code| code.to_string()).unwrap_or_default();
        table.add_row([
            row.scope.clone(),
            row.key.clone(),
            row.status.to_string(),
            row.attempt.to_string(),
            response,
            shown(row.created_at),
            shown(row.updated_at),
            note,
        ]);
    }
    println!("{table}");
    if rows.len() as u64 == u64::from(limit) {
        println!("(the first {limit}; more with --limit)");
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(mut store: AnyStore, scope: &Scope, key: &Key) -> anyhow::Result<ExitCode> {
    let Some(seen) = store.find(scope, key).await? else {
        println!("There is no key {} in scope {scope}.", key.as_str());
        return Ok(ExitCode::FAILURE);
    };
    print_record(scope, key, &seen);
    let deliveries = store.deliveries_of(scope, key, 1000).await?;
    println!("\nDeliveries ({}):", deliveries.len());
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for delivery in deliveries {
        let answered = delivery.answered_status.map_or("-".to_owned(), |status| status.to_string());
        table.add_row([
            shown(delivery.received_at),
            delivery.decision,
            format!("attempt {}", delivery.attempt),
            answered,
        ]);
    }
    println!("{table}");
    for audited in store.audit_of(scope, key).await? {
        println!("{} by {}: {}, because: {}", shown(audited.at), audited.who, audited.action, audited.reason);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_record(scope: &Scope, key: &Key, seen: &Seen) {
    let record = &seen.record;
    let line = |name: &str, value: String| println!("{name:<16} {value}");
    let time = |name: &str, at: Option<Timestamp>| {
        if let Some(at) = at {
            line(name, shown(at));
        }
    };
    line("scope", scope.to_string());
    line("key", key.as_str().to_owned());
    line("status", record.status.to_string());
    line("attempt", record.attempt.to_string());
    if let Some(stored) = &record.response {
        let bytes = stored.body.as_ref().map_or(0, Bytes::len);
        let omitted = if stored.body_omitted { ", body omitted" } else { "" };
        line("response", format!("{}, {} headers, {bytes} bytes{omitted}", stored.code, stored.headers.len()));
    }
    if let Some(error) = &record.error {
        line("error", error.clone());
    }
    if let Some(downstream) = &record.downstream_key {
        line("downstream key", downstream.clone());
    }
    line("request hash", format!("{} ({})", record.request_hash, record.hash_version));
    time("created", Some(record.created_at));
    time("lease until", record.lease_until);
    time("first call", record.called_at);
    time("completed", record.completed_at);
    time("expires", record.expires_at);
    if record.status == Status::PendingExternal && !record.lease_is_alive(seen.now) {
        println!(
            "\nWhether its outside call took effect is not known. Find out at the downstream, by the downstream key,"
        );
        println!("then say so: onced keys resolve {scope} {} --happened | --did-not-happen --reason …", key.as_str());
    }
}

impl Resolve {
    async fn run(self, mut store: AnyStore, config: Option<config::Config>) -> anyhow::Result<ExitCode> {
        let (scope, key) = (read_scope(&self.scope)?, read_key(&self.key)?);
        let Some(seen) = store.find(&scope, &key).await? else {
            bail!("there is no key {} in scope {scope}", key.as_str());
        };
        refuse_early(&seen, None)?;
        let resolution = if self.happened {
            Resolution::Happened(self.response()?)
        } else {
            let settle = settle_of(&scope, self.settle, config.as_ref())?;
            refuse_early(&seen, Some(settle))?;
            Resolution::DidNotHappen { settle }
        };
        let who = self.who.clone().or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| "unknown".to_owned());
        let because = Because { who, reason: self.reason.clone() };
        let token = seen.record.lease_token.as_ref();
        if !store.resolve(&scope, &key, token, &resolution, &because).await? {
            bail!(
                "the key changed while it was being resolved: look again with onced keys show {scope} {}",
                key.as_str()
            );
        }
        let now = if self.happened { "completed" } else { "failed, and may run again" };
        println!("{scope} {} is {now}.", key.as_str());
        Ok(ExitCode::SUCCESS)
    }

    fn response(&self) -> anyhow::Result<StoredResponse> {
        let Some(file) = &self.body else { return Ok(StoredResponse::bare(self.status)) };
        let body = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(StoredResponse {
            headers: vec![("content-type".to_owned(), self.content_type.clone().into_bytes())],
            body: Some(Bytes::from(body)),
            ..StoredResponse::bare(self.status)
        })
    }
}

/// Says in words what the compare-and-swap would refuse without them.
fn refuse_early(seen: &Seen, settle: Option<Duration>) -> anyhow::Result<()> {
    let record = &seen.record;
    if record.status != Status::PendingExternal {
        bail!(
            "the key is {}: only pending_external keys, whose outside call has no known outcome, can be resolved",
            record.status
        );
    }
    if record.lease_is_alive(seen.now) {
        let until = record.lease_until.map(shown).unwrap_or_default();
        bail!("its owner may still be at work, until {until}: try again then");
    }
    let caller_ended = record.called_until.or(record.lease_until).unwrap_or(seen.now);
    if let Some(settle) = settle.filter(|settle| seen.now < caller_ended.plus(*settle)) {
        bail!(
            "the upstream may still be working: that nothing happened is believed from {} on ({} after the last caller's lease)",
            shown(caller_ended.plus(settle)),
            humantime::format_duration(settle)
        );
    }
    Ok(())
}

/// How long the upstream of a scope may go on working. Guessed for nobody: too short a time licenses a second effect.
fn settle_of(scope: &Scope, given: Option<Duration>, config: Option<&config::Config>) -> anyhow::Result<Duration> {
    let route = config.and_then(|config| {
        let mut routes = config.routes.iter().chain(&config.default_route);
        routes.find(|route| route.is_of(scope))
    });
    match (route.map(|route| route.settle), given) {
        (Some(least), Some(given)) if given < least => bail!(
            "--settle {} is less than the route's settle, {}: an upstream may still be working",
            humantime::format_duration(given),
            humantime::format_duration(least)
        ),
        (_, Some(given)) => Ok(given),
        (Some(settle), None) => Ok(settle),
        // The scope of `onced serve --upstream` alone, whose settings are the defaults.
        (None, None) if scope.as_str() == "http" && config.is_none() => Ok(Duration::from_secs(60)),
        (None, None) => bail!(
            "how long may the upstream of {scope} go on working after its caller's lease? Name the gateway's file with \
             --config, or say it with --settle (at least 60s and twice the upstream's timeout)"
        ),
    }
}

fn read_scope(text: &str) -> anyhow::Result<Scope> {
    Scope::parse_stored(text).with_context(|| format!("{text:?} is no scope"))
}

fn read_key(text: &str) -> anyhow::Result<Key> {
    Key::new(text).with_context(|| format!("{text:?} is no key"))
}

pub(super) fn shown(at: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(at.as_micros()) {
        Ok(time) => format!("{time:.3}"),
        Err(_) => at.as_micros().to_string(),
    }
}
