//! The report: a table for each comparison, and the goals with what was measured.

use std::fmt::Write as _;
use std::time::Duration;

use crate::pairs::{Outcome, Ratio};

/// What is printed in the end.
#[derive(Default)]
pub(crate) struct Report {
    sections: String,
    goals: Vec<Goal>,
}

struct Goal {
    what: String,
    wanted: String,
    measured: String,
    met: bool,
}

impl Report {
    /// Begins a part, with what each of its sides does.
    pub(crate) fn part(&mut self, title: &str, what_each_does: &str) {
        let _ = write!(self.sections, "\n## {title}\n\n{}\n", what_each_does.trim());
    }

    /// One comparison; `bases` are the sides that the others are set against.
    pub(crate) fn comparison(&mut self, title: &str, outcome: &Outcome, bases: &[&str]) {
        let against: String = bases.iter().map(|base| format!(" × {base} |")).collect();
        let lines = " ---: |".repeat(3 + bases.len());
        let _ = write!(self.sections, "\n### {title}\n\n| | per second | p50 | p99 |{against}\n| --- |{lines}\n");
        for name in outcome.names() {
            let at = outcome.median(name);
            let _ = write!(
                self.sections,
                "| {name} | {:.0} | {} | {} |",
                at.per_second,
                milliseconds(at.p50),
                milliseconds(at.p99)
            );
            for base in bases {
                let cell = if name == *base { String::new() } else { in_words(outcome.ratio(name, base)) };
                let _ = write!(self.sections, " {cell} |");
            }
            self.sections.push('\n');
        }
    }

    /// A line of its own.
    pub(crate) fn line(&mut self, line: &str) {
        let _ = write!(self.sections, "\n{line}\n");
    }

    /// A ratio that is to be that high at least.
    pub(crate) fn goal(&mut self, what: impl Into<String>, wanted: f64, ratio: Ratio) {
        self.goals.push(Goal {
            what: what.into(),
            wanted: format!("≥ {wanted}"),
            measured: in_words(ratio),
            met: ratio.median >= wanted,
        });
    }

    /// A size that is to stay below a bound.
    pub(crate) fn goal_below(&mut self, what: impl Into<String>, bound_mib: f64, mib: f64) {
        self.goals.push(Goal {
            what: what.into(),
            wanted: format!("< {bound_mib} MiB"),
            measured: format!("{mib:.0} MiB"),
            met: mib < bound_mib,
        });
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = "| goal | wanted | measured: median (min to max) | |\n| --- | ---: | ---: | --- |\n".to_owned();
        for Goal { what, wanted, measured, met } in &self.goals {
            let _ = writeln!(text, "| {what} | {wanted} | {measured} | {} |", if *met { "met" } else { "**missed**" });
        }
        text + &self.sections
    }
}

fn in_words(ratio: Ratio) -> String {
    format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max)
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}
