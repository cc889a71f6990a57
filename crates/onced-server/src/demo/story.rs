//! The story: plays each act against the stage, the same way with the ledger and without, and counts at the end.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use http::HeaderValue;
use serde_json::json;
use tokio::task::JoinSet;

use super::Ledger;
use super::act::{Act, BURST};
use super::client::Post;
use super::load::{Outcome, Tally, deliver, deliver_until_final};
use super::report::{Row, Screen, program};
use super::stage::Stage;

const AMOUNT: u32 = 1200;
/// Longer than the lease.
const SLOW: Duration = Duration::from_secs(3);
/// How often the sender of the lost answer asks at most.
const ASKS: usize = 10;

/// Plays all acts; one row for each.
pub(super) async fn play(stage: &mut Stage, screen: &Screen) -> anyhow::Result<Vec<Row>> {
    let mut tallies = Vec::new();
    for (number, act) in Act::ALL.into_iter().enumerate() {
        screen.begins(number + 1, act.title(stage.ledger));
        let tally = act.play(stage, screen).await.with_context(|| act.title(stage.ledger))?;
        screen.ends(act.shows(stage.ledger), &tally);
        tallies.push((act, tally));
    }
    // Whatever is still under way shall be counted.
    stage.settled_app().await?;
    let mut rows = Vec::new();
    for (act, tally) in tallies {
        let orders = stage.orders_of(act.reference()).await?;
        let charges = stage.provider.effects_of(act.reference());
        rows.push(Row { act, tally, orders, charges });
    }
    Ok(rows)
}

impl Act {
    async fn play(self, stage: &mut Stage, screen: &Screen) -> anyhow::Result<Tally> {
        match self {
            Self::Burst => burst(stage, self.charge()).await,
            Self::Redelivery => two(stage, self.charge(), self.charge()).await,
            Self::OtherBody => two(stage, self.charge(), self.charge_of(AMOUNT + 700)).await,
            Self::Slow => slow(stage, self.charge()).await,
            Self::HangUp => hang_up(stage, self).await,
            Self::LostAnswer => lost_answer(stage, screen, self).await,
            Self::Agent => two(stage, self.tool_call("call_1"), self.tool_call("call_2")).await,
            Self::Kill => kill(stage, self.charge()).await,
        }
    }

    fn charge(self) -> Post {
        self.charge_of(AMOUNT)
    }

    fn charge_of(self, amount: u32) -> Post {
        self.keyed("/charges", amount)
    }

    fn keyed(self, path: &'static str, amount: u32) -> Post {
        let body = json!({ "reference": self.reference(), "amount": amount });
        Post::new(path, &body).header("idempotency-key", HeaderValue::from_static(self.reference()))
    }

    /// What an agent sends: no key, and a call id that is new with every try.
    fn tool_call(self, call_id: &str) -> Post {
        let arguments = json!({ "reference": self.reference(), "amount": AMOUNT });
        let body = json!({ "call_id": call_id, "step": "7", "arguments": arguments });
        Post::new("/tools/buy", &body).header("x-conversation-id", HeaderValue::from_static("conversation-1"))
    }
}

/// The same at once from many senders. The provider waits until each has its answer, or waits for the provider.
async fn burst(stage: &Stage, charge: Post) -> anyhow::Result<Tally> {
    let to = stage.entrance();
    stage.provider.hold();
    let mut flights: JoinSet<Outcome> = (0..BURST).map(|_| deliver(charge.clone(), to)).collect();
    let mut tally = Tally::default();
    loop {
        let held = stage.provider.held();
        if tally.sent() + held >= BURST {
            break;
        }
        tokio::select! {
            Some(outcome) = flights.join_next() => tally.add(outcome?),
            arrived = stage.provider.wait_for_held(held + 1) => arrived?,
        }
    }
    stage.provider.release();
    // The one that was executed is named first.
    let mut all = Tally::default();
    while let Some(outcome) = flights.join_next().await {
        all.add(outcome?);
    }
    all.add_all(tally);
    Ok(all)
}

/// One after the other.
async fn two(stage: &Stage, first: Post, second: Post) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    tally.add(deliver(first, stage.entrance()).await);
    tally.add(deliver(second, stage.entrance()).await);
    Ok(tally)
}

/// The retry comes while the first is under way.
async fn slow(stage: &Stage, charge: Post) -> anyhow::Result<Tally> {
    let to = stage.entrance();
    let before = stage.provider.calls();
    stage.provider.take(SLOW);
    let first = tokio::spawn(deliver(charge.clone(), to));
    stage.provider.wait_for_call_after(before).await?;
    let again = deliver_until_final(charge, to).await?;
    stage.provider.take(Duration::ZERO);
    let mut tally = Tally::default();
    tally.add(first.await?);
    tally.add_all(again);
    Ok(tally)
}

/// The client goes while the provider has the call.
async fn hang_up(stage: &Stage, act: Act) -> anyhow::Result<Tally> {
    let to = stage.entrance();
    stage.provider.hold();
    let first = tokio::spawn(deliver(act.charge(), to));
    stage.provider.wait_for_held(1).await?;
    first.abort();
    let mut tally = Tally::default();
    match first.await {
        Ok(outcome) => tally.add(outcome),
        Err(_) => tally.add(Outcome::HungUp),
    }
    stage.provider.release();
    stage.provider.wait_for_answers(act.reference()).await?;
    stage.settled_app().await?;
    tally.add_all(deliver_until_final(act.charge(), to).await?);
    Ok(tally)
}

/// The bank does it, and the connection breaks before it can say so.
async fn lost_answer(stage: &Stage, screen: &Screen, act: Act) -> anyhow::Result<Tally> {
    let (to, payout) = (stage.payouts(), act.keyed("/payouts", AMOUNT));
    stage.provider.lose_next_answer();
    let mut tally = Tally::default();
    tally.add(deliver(payout.clone(), to).await);
    if stage.ledger == Ledger::With {
        tally.add_all(ask_until_unknown(payout.clone(), to).await?);
        resolve(stage, screen, act).await?;
    }
    tally.add_all(deliver_until_final(payout, to).await?);
    Ok(tally)
}

/// First the lease must run out; then the gateway says that nobody knows.
async fn ask_until_unknown(payout: Post, to: SocketAddr) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    for _ in 0..ASKS {
        let outcome = deliver(payout.clone(), to).await;
        let (problem, again_after) = (outcome.problem(), outcome.again_after());
        tally.add(outcome);
        match (problem.as_deref(), again_after) {
            (Some("outcome-unknown"), _) => return Ok(tally),
            (Some("in-progress"), Some(wait)) => tokio::time::sleep(wait).await,
            (problem, _) => bail!("the answer is {problem:?} and not that the outcome is unknown: {tally}"),
        }
    }
    bail!("the lease does not run out: {tally}")
}

/// A person asks the bank, and tells the ledger.
async fn resolve(stage: &Stage, screen: &Screen, act: Act) -> anyhow::Result<()> {
    let receipt = stage.provider.receipt_of(act.reference()).context("the bank knows nothing of it")?;
    let file = stage.folder().join("receipt.json");
    std::fs::write(&file, receipt)?;
    let file = file.display().to_string();
    let reason = "the bank shows it as paid";
    let args =
        ["resolve", "payouts", act.reference(), "--happened", "--status", "201", "--body", &file, "--reason", reason];
    screen.runs(&format!(
        "{} keys resolve payouts {} --happened --status 201 \\\n         --body {file} --reason '{reason}' \\\n         --store {}",
        program(),
        act.reference(),
        stage.store()
    ));
    screen.says(&stage.keys(&args).await?);
    Ok(())
}

/// What stands between client and provider dies while the provider has the call.
async fn kill(stage: &mut Stage, charge: Post) -> anyhow::Result<Tally> {
    let before = stage.settled_app().await?;
    stage.provider.hold();
    let first = tokio::spawn(deliver(charge.clone(), stage.entrance()));
    stage.provider.wait_for_held(1).await?;
    stage.kill_the_middle().await?;
    let mut tally = Tally::default();
    tally.add(first.await?);
    stage.restart_the_middle().await?;
    let again = tokio::spawn(deliver_until_final(charge, stage.entrance()));
    // Both attempts have the call now; let both go on.
    stage.provider.wait_for_held(2).await?;
    stage.provider.release();
    tally.add_all(again.await??);
    let taken_over = stage.settled_app().await?.saturating_sub(before);
    if stage.ledger == Ledger::With && taken_over != 1 {
        bail!("{taken_over} attempts found themselves taken over, and not the one");
    }
    Ok(tally)
}
