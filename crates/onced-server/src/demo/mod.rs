//! `onced demo`: the main job in one command. This process is the load and the payment provider; the gateway and the
//! payment app behind it are two more processes of this binary.

mod act;
pub(crate) mod app;
mod child;
mod client;
mod load;
mod provider;
mod report;
mod stage;
mod story;

use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

use self::report::Screen;
use self::stage::Stage;

/// Whether the story is told with the gateway and its ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ledger {
    /// As it should be.
    With,
    /// `--break-it`: clients and app alone.
    Without,
}

/// What happens after the story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    /// Everything stays up until Ctrl-C.
    StayUp,
    /// It ends.
    Exit,
}

/// The exit code of a program that Ctrl-C has ended.
const INTERRUPTED: u8 = 130;

/// Plays the story. The exit code says whether all counts are right.
pub(crate) async fn run(ledger: Ledger, afterwards: Afterwards) -> anyhow::Result<ExitCode> {
    // From here on a signal ends nothing by itself: the children end first.
    let mut signals = Signals::listen()?;
    let mut stage = tokio::select! {
        stage = Stage::set_up(ledger) => stage?,
        () = signals.stop() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    let screen = Screen::new();
    screen.introduce(&stage);
    let played = tokio::select! {
        played = story::play(&mut stage, &screen) => Some(played),
        () = signals.stop() => None,
    };
    screen.finish();
    let Some(played) = played else {
        stage.take_down(false).await;
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let rows = match played {
        Ok(rows) => rows,
        Err(error) => {
            let kept = stage.take_down(true).await.unwrap_or_default();
            return Err(error.context(format!("the demo broke off; configuration and logs are in {}", kept.display())));
        }
    };
    println!("\n{}\n{}\n", report::table(&rows, ledger), report::verdict(&rows, ledger));
    let right = rows.iter().all(|row| row.wrong(ledger).is_none());
    if afterwards == Afterwards::StayUp {
        println!("{}\nCtrl-C ends it and removes {}.", report::to_try(&stage), stage.folder().display());
        signals.stop().await;
    }
    // Without the ledger it is meant to go wrong, and there is nothing to look into.
    let kept = stage.take_down(!right && ledger == Ledger::With).await;
    if let Some(kept) = kept {
        eprintln!("Configuration, logs and database are kept in {}.", kept.display());
    }
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The signals by which the demo is told to stop.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
