//! What the demo shows: the acts as they are played, the table, and what to try next.

use std::io::IsTerminal;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};

use super::Ledger;
use super::act::Act;
use super::load::Tally;
use super::stage::Stage;

/// One act as it ended.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) act: Act,
    pub(super) tally: Tally,
    pub(super) orders: usize,
    pub(super) charges: usize,
}

impl Row {
    /// What is wrong with it, in words.
    pub(super) fn wrong(&self, ledger: Ledger) -> Option<String> {
        let (orders, charges) = (self.orders, self.charges);
        let wanted = self.act.wanted();
        let some = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        if (orders, charges) != wanted {
            return Some(match wanted {
                (0, _) => format!("paid out {charges} times, not once"),
                _ if orders == charges => format!("charged {charges} times, not once"),
                _ => format!("{} for {}", some(charges, "charge"), some(orders, "order")),
            });
        }
        let well = ledger == Ledger::Without || self.act.answered_well(&self.tally);
        (!well).then(|| "answered otherwise than promised".to_owned())
    }
}

/// Standard output for the story, standard error for the progress line.
pub(super) struct Screen {
    progress: Option<ProgressBar>,
}

impl Screen {
    pub(super) fn new() -> Self {
        let progress = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(Act::ALL.len() as u64);
            if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:16} {pos}/{len} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self { progress }
    }

    pub(super) fn introduce(&self, stage: &Stage) {
        self.print(&match stage.ledger {
            Ledger::With => format!(
                "onced demo: one payment app, and everything that makes a payment happen twice. Behind onced it happens once.\n\
                 Three processes: this one (the clients, the payment provider and the bank, which count), the gateway on {}, the app.",
                stage.entrance()
            ),
            Ledger::Without => "onced demo --break-it: the same payment app and the same clients, without onced in between.\n\
                 Two processes: this one (the clients, the payment provider and the bank, which count) and the app."
                .to_owned(),
        });
        self.print(&format!("Orders{} are in {}\n", and_ledger(stage), stage.folder().join("demo.db").display()));
    }

    pub(super) fn begins(&self, number: usize, title: &str) {
        let line = format!("{number}/{} {title}", Act::ALL.len());
        match &self.progress {
            Some(bar) => {
                bar.set_position(number as u64 - 1);
                bar.set_message(title.to_owned());
            }
            None => eprintln!("… {line}"),
        }
        self.print(&line);
    }

    pub(super) fn ends(&self, shown: &str, tally: &Tally) {
        self.print(&format!("     {tally}\n     {shown}"));
    }

    /// A command that is run just now.
    pub(super) fn runs(&self, command: &str) {
        self.print(&format!("     $ {command}"));
    }

    pub(super) fn says(&self, words: &str) {
        self.print(&format!("       {words}"));
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.progress {
            bar.finish_and_clear();
        }
    }

    fn print(&self, line: &str) {
        match &self.progress {
            Some(bar) => bar.suspend(|| println!("{line}")),
            None => println!("{line}"),
        }
    }
}

fn and_ledger(stage: &Stage) -> &'static str {
    match stage.ledger {
        Ledger::With => " and ledger",
        Ledger::Without => "",
    }
}

/// The table of all acts; what is wrong is red on a terminal.
pub(super) fn table(rows: &[Row], ledger: Ledger) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["act", "sent", "answered", "orders", "charges", "ok"]);
    for row in rows {
        table.add_row([
            row.act.title(ledger).to_owned(),
            row.tally.sent().to_string(),
            row.tally.to_string(),
            row.orders.to_string(),
            row.charges.to_string(),
            row.wrong(ledger).unwrap_or_else(|| "ok".to_owned()),
        ]);
    }
    for index in [1, 3, 4] {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = table.to_string();
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) {
        let mut words: Vec<String> = rows.iter().filter_map(|row| row.wrong(ledger)).collect();
        words.sort_unstable();
        words.dedup();
        for wrong in words {
            // With the blanks around it: "2 charges" is also the end of "52 charges".
            text = text.replace(&format!(" {wrong} "), &format!(" \u{1b}[31m{wrong}\u{1b}[0m "));
        }
    }
    text
}

/// The sentence under the table.
pub(super) fn verdict(rows: &[Row], ledger: Ledger) -> String {
    let (sent, charges): (usize, usize) =
        rows.iter().fold((0, 0), |(sent, charges), row| (sent + row.tally.sent(), charges + row.charges));
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|row| row.wrong(ledger).map(|words| format!("  wrong: {}: {words}", row.act.title(ledger))))
        .collect();
    let summary = format!(
        "{} operations, sent {sent} times, charged {charges} times. Orders counted by SQL, charges (payouts, too) by the receiver's own log.",
        rows.len()
    );
    if wrong.is_empty() { summary } else { format!("{summary}\n{}", wrong.join("\n")) }
}

/// Lines to try while it stays up.
pub(super) fn to_try(stage: &Stage) -> String {
    let post = |amount: u32| {
        format!(
            "curl -i http://{}/charges -H 'Idempotency-Key: try-1' -H 'Content-Type: application/json' \\\n       \
             -d '{{\"reference\":\"try-1\",\"amount\":{amount}}}'",
            stage.entrance()
        )
    };
    match stage.ledger {
        Ledger::With => format!(
            "The gateway is still up. Try it:\n\n  # 201; the same line again: the same answer, with Idempotent-Replayed\n  {}\n  \
             # another amount under the same key: 422\n  {}\n  # what the ledger knows\n  \
             {program} keys list --store {store}\n  {program} keys show charges kill --store {store}\n",
            post(500),
            post(900),
            program = program(),
            store = stage.store(),
        ),
        Ledger::Without => {
            format!("The app is still up. Each time that you send this, it charges:\n\n  {}\n", post(500))
        }
    }
}

/// This program as it was called.
pub(super) fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "onced".to_owned())
}
