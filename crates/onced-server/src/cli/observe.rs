//! `onced observe report`: what onced would have withheld on routes where it only observes.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use onced::store::deliveries::{Deliveries as _, Repeats};
use onced_core::key::Key;
use serde::Serialize;

use super::keys::shown;
use super::ledger::Ledger;

#[derive(Args)]
#[command(after_help = "\
Examples:
  onced observe report --config onced.toml                 everything that the log of deliveries still has
  onced observe report --since 24h                         the last day
  onced observe report --store postgres://app@localhost/shop --json

A route with observe = true decides and records, but forwards every request all the same. The report counts the
forwarded ones that onced would have withheld: each is an effect that happened again. It needs log_deliveries = \"all\".")]
pub(crate) struct Observe {
    #[command(flatten)]
    ledger: Ledger,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Count, by scope, what would have been withheld
    Report {
        /// Only deliveries of that long [default: all that are kept]
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        since: Option<Duration>,
        /// Print the counts as JSON
        #[arg(long)]
        json: bool,
    },
}

impl Observe {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut store = self.ledger.open().await?;
        let Action::Report { since, json } = self.action;
        let scopes: Vec<Scope> = store.repeats(since).await?.iter().map(Scope::of).collect();
        if json {
            println!("{:#}", serde_json::to_value(&scopes)?);
        } else {
            print(&scopes);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// How the decisions begin that had no consequence.
const OBSERVED: &str = "observed: ";

/// The counts of one scope.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Scope {
    scope: String,
    deliveries: u64,
    /// Executed as first of their key, or as its next attempt.
    executed: u64,
    /// Forwarded, though a finished record was there: what it did, it did again.
    replay: u64,
    /// Forwarded while an earlier one was running.
    in_progress: u64,
    /// Forwarded with another request under a known key.
    mismatch: u64,
    /// Forwarded, though the outcome was unknown or attempts were used up.
    others: u64,
    /// Withheld: the scope was not only observed then.
    withheld: u64,
    /// What was only observed, by the words of the log.
    observed: BTreeMap<String, u64>,
    first: String,
    last: String,
    most_repeated: Vec<Repeated>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Repeated {
    /// Shortened.
    key: String,
    repeats: u64,
}

impl Scope {
    fn of(repeats: &Repeats) -> Self {
        let mut counts = Self {
            scope: repeats.scope.clone(),
            first: shown(repeats.first),
            last: shown(repeats.last),
            ..Self::default()
        };
        for (decision, count) in &repeats.decisions {
            counts.deliveries += count;
            *counts.column(decision) += count;
            if let Some(observed) = decision.strip_prefix(OBSERVED) {
                counts.observed.insert(observed.to_owned(), *count);
            }
        }
        let repeated = |(key, repeats): &(String, u64)| Repeated {
            // What the database holds is a key; if not, no more of it is shown than of one.
            key: Key::new(key).map_or_else(|_| "…".to_owned(), |key| key.shortened()),
            repeats: *repeats,
        };
        counts.most_repeated = repeats.keys.iter().map(repeated).collect();
        counts
    }

    fn column(&mut self, decision: &str) -> &mut u64 {
        let (is_observed, decision) = match decision.strip_prefix(OBSERVED) {
            Some(observed) => (true, observed),
            None => (false, decision),
        };
        // Behind a comma stands what was only noted: `replay, payload differs`.
        match (is_observed, decision.split(',').next().unwrap_or(decision)) {
            (_, "execute") => &mut self.executed,
            (false, _) => &mut self.withheld,
            (true, "replay") => &mut self.replay,
            (true, "in-progress") => &mut self.in_progress,
            (true, "mismatch") => &mut self.mismatch,
            (true, _) => &mut self.others,
        }
    }

    /// What it means, in a sentence.
    fn sentence(&self) -> String {
        let Self { scope, replay, in_progress, mismatch, others, withheld, .. } = self;
        let observed = replay + in_progress + mismatch + others;
        if observed == 0 && *withheld > 0 {
            return format!("{scope}: nothing was only observed; {withheld} duplicates were withheld.");
        }
        if observed == 0 {
            return format!("{scope}: no delivery came twice; nothing would have been withheld.");
        }
        let mut text = format!("{scope}: {} again that onced would have answered from the record", happened(*replay));
        if *in_progress > 0 {
            text += &format!("; {in_progress} came while the first was still running, and ran beside it");
        }
        if *mismatch > 0 {
            text += &format!("; {mismatch} used a known key for another request, and would have got 422");
        }
        if *others > 0 {
            text += &format!("; {others} would have been held or refused");
        }
        text + "."
    }
}

fn happened(replay: u64) -> String {
    match replay {
        0 => "no effect happened".to_owned(),
        1 => "1 effect happened".to_owned(),
        many => format!("{many} effects happened"),
    }
}

fn print(scopes: &[Scope]) {
    if scopes.is_empty() {
        println!("There are no deliveries in that time. The log is written where log_deliveries = \"all\".");
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "SCOPE",
        "DELIVERIES",
        "EXECUTED",
        "REPLAY",
        "IN-PROGRESS",
        "MISMATCH",
        "OTHERS",
        "WITHHELD",
        "FIRST",
        "LAST",
    ]);
    for counts in scopes {
        table.add_row([
            counts.scope.clone(),
            counts.deliveries.to_string(),
            counts.executed.to_string(),
            counts.replay.to_string(),
            counts.in_progress.to_string(),
            counts.mismatch.to_string(),
            counts.others.to_string(),
            counts.withheld.to_string(),
            counts.first.clone(),
            counts.last.clone(),
        ]);
    }
    println!("{table}\n");
    for counts in scopes {
        println!("{}", counts.sentence());
        if !counts.most_repeated.is_empty() {
            let keys: Vec<String> =
                counts.most_repeated.iter().map(|Repeated { key, repeats }| format!("{key} ({repeats})")).collect();
            println!("  repeated most: {}", keys.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use onced_core::time::Timestamp;

    use super::*;

    #[test]
    fn each_decision_is_counted_in_one_column() {
        let decisions = [
            ("execute", 1),
            ("execute, payload differs", 2),
            ("observed: execute", 1024),
            ("observed: replay", 4),
            ("observed: replay, payload differs", 8),
            ("observed: in-progress", 16),
            ("observed: mismatch", 32),
            ("observed: unknown", 64),
            ("observed: exhausted", 128),
            ("replay", 256),
            ("in-progress", 512),
        ];
        let counts = Scope::of(&Repeats {
            scope: "pay".to_owned(),
            decisions: decisions.map(|(decision, count)| (decision.to_owned(), count)).to_vec(),
            first: Timestamp::from_micros(0),
            last: Timestamp::from_micros(1_000_000),
            keys: vec![("order-4711-of-today".to_owned(), 12)],
        });
        let Scope { deliveries, executed, replay, in_progress, mismatch, others, withheld, .. } = counts;
        assert_eq!([executed, replay, in_progress, mismatch, others, withheld], [1027, 12, 16, 32, 192, 768]);
        assert_eq!(deliveries, 2047);
        assert_eq!(counts.observed.get("replay, payload differs"), Some(&8));
        assert_eq!(counts.observed.len(), 7);
        assert_eq!(counts.most_repeated, [Repeated { key: "order-…day".to_owned(), repeats: 12 }]);
        assert_eq!(
            counts.sentence(),
            "pay: 12 effects happened again that onced would have answered from the record; 16 came while the first was \
             still running, and ran beside it; 32 used a known key for another request, and would have got 422; 192 \
             would have been held or refused."
        );
    }

    #[test]
    fn a_scope_without_repeats_says_so() {
        let quiet = Scope { scope: "pay".to_owned(), ..Scope::default() };
        assert!(quiet.sentence().ends_with("nothing would have been withheld."));
        assert!(Scope { withheld: 2, ..quiet }.sentence().ends_with("2 duplicates were withheld."));
    }
}
