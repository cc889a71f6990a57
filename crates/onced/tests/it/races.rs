//! Many deliveries of one key at once: exactly one executes, in one process and across two.

use std::sync::Arc;

use onced::guard::{Guard, Request};
use onced::store::deliveries::LogDeliveries;
use onced_core::decision_table::Expected;
use tokio::sync::Barrier;

use crate::bench::{Bench, Tested, fresh_key, line, patient, request_of};
use crate::decisions::Came;
use crate::plant;
use crate::rival::Rivals;

/// Lines of the table of which one delivery executes: a new key, retries of a failed one, takeovers of an over lease,
/// of one whose call is unknown but repeatable, a queued one, an expired one.
pub(crate) const LINES: [&str; 6] =
    ["none", "failed", "in-progress-over", "pending-over-retry", "queued", "completed-expired"];
const AT_ONCE: usize = 16;

/// Where the deliveries come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    OneProcess,
    TwoProcesses,
}

impl Where {
    pub(crate) const ALL: [Self; 2] = [Self::OneProcess, Self::TwoProcesses];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneProcess => "one-process",
            Self::TwoProcesses => "two-processes",
        }
    }
}

/// Begins that often at the same moment.
pub(crate) async fn at_once<S: Tested>(guard: &Guard<S>, request: &Request, count: usize) -> Vec<Came> {
    let start = Arc::new(Barrier::new(count));
    let deliveries: Vec<_> = (0..count)
        .map(|_| {
            let (guard, request, start) = (guard.clone(), request.clone(), start.clone());
            tokio::spawn(async move {
                start.wait().await;
                S::deliver(&guard, &request).await
            })
        })
        .collect();
    let mut begun = Vec::with_capacity(count);
    for delivery in deliveries {
        begun.push(delivery.await.unwrap());
    }
    begun
}

/// Twenty races for a line.
pub(crate) async fn run<S: Tested>(bench: &Bench<S>, rivals: &mut Rivals<S>, name: &str, place: Where) {
    let guard = Guard::new(bench.another_store(&patient()).await, LogDeliveries::Executed);
    let line = line(name);
    let rounds = if testkit::soaking() { 200 } else { 20 };
    let mut rival = (place == Where::TwoProcesses).then(|| rivals.process(bench));
    for round in 0..rounds {
        let key = fresh_key();
        plant::line(bench, &line, &key).await;
        let request = request_of(&line, &key);
        let (begun, won_elsewhere) = match &mut rival {
            None => (at_once(&guard, &request, AT_ONCE).await, 0),
            Some(rival) => {
                let half = AT_ONCE / 2;
                assert_eq!(rival.ask(&format!("race {name} {} {half}", key.as_str())).await, "ready");
                let (begun, answer) = tokio::join!(at_once(&guard, &request, half), rival.ask("go"));
                (begun, answer.strip_prefix("won ").unwrap().parse().unwrap())
            }
        };
        let won = begun.iter().filter(|begun| begun.executes()).count();
        assert_eq!(won + won_elsewhere, 1, "round {round}: {begun:?}");
        for begun in &begun {
            assert!(begun.executes() || begun.to == Expected::InProgress, "round {round}: {begun:?}");
        }
        let Expected::Execute { attempt, .. } = &line.expected else { panic!("nobody executes {name}") };
        let row = bench.columns(&key, "status, attempt").await;
        assert_eq!(row, [line.after.as_str(), &attempt.to_string()], "round {round}");
    }
}
