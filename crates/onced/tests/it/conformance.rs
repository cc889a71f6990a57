//! The list of cases that all backends share, and its runner: a case that is listed but not known, or known but not
//! listed, is a failure, and each case runs on each backend.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::decision_table::{self, Line};

use crate::bench::{Bench, Surrounding, Tested, options};
use crate::decisions::{self, Form};
use crate::edges::Edge;
use crate::endings::Ending;
use crate::functions::SqlFunctions;
use crate::races::{self, Where};
use crate::rival::{Rival, Rivals};
use crate::sweep::Sweeping;
use crate::takings::Swap;
use crate::transient::Transient;

const LIST: &str = include_str!("conformance.txt");
/// How many cases of a backend run side by side, each on a database of its own: they wait far more than they compute.
const WORKERS: usize = 6;

/// One case of the list.
#[derive(Clone, Debug)]
enum Case {
    Decide(Box<Line>, Form, Option<Rival>),
    Take(Swap),
    End(Ending),
    Transient(Transient),
    Edge(Edge),
    Sweep(Sweeping),
    Race(&'static str, Where),
}

impl Case {
    /// Every case that there is a runner for.
    fn all() -> Vec<Self> {
        // Those that wait come first, so that the others fill the time.
        let mut cases: Vec<Self> = Transient::all().into_iter().map(Self::Transient).collect();
        cases.extend(races::LINES.iter().flat_map(|line| Where::ALL.map(|place| Self::Race(line, place))));
        for line in decision_table::lines() {
            let planted = line.found(onced_core::time::Timestamp::from_micros(0)).record.is_some();
            for form in Form::ALL {
                let decide = |rival| Self::Decide(Box::new(line.clone()), form, rival);
                cases.push(decide(None));
                // Where there is no row, nobody can have changed it.
                let rivals = Rival::ALL.into_iter().filter(|rival| planted || *rival != Rival::Row);
                cases.extend(rivals.map(|rival| decide(Some(rival))));
            }
        }
        cases.extend(Swap::all().into_iter().map(Self::Take));
        cases.extend(Ending::all().into_iter().map(Self::End));
        cases.extend(Edge::ALL.into_iter().map(Self::Edge));
        cases.extend(Sweeping::ALL.into_iter().map(Self::Sweep));
        cases
    }

    /// Its line in the list.
    fn name(&self) -> String {
        match self {
            Self::Decide(line, form, rival) => {
                let who = rival.map_or("alone", Rival::name);
                format!("decide | {} | {} | {who}", line.name, form.name())
            }
            Self::Take(swap) => format!("take | {}", swap.name()),
            Self::End(ending) => format!("end | {}", ending.name()),
            Self::Transient(transient) => format!("transient | {}", transient.name()),
            Self::Edge(edge) => format!("edge | {}", edge.name()),
            Self::Sweep(sweeping) => format!("sweep | {}", sweeping.name()),
            Self::Race(line, place) => format!("race | {line} | {}", place.name()),
        }
    }

    async fn run<S: Tested>(&self, worker: &mut Worker<S>) {
        let Worker { bench, rivals } = worker;
        match self {
            Self::Decide(line, form, None) => decisions::alone(bench, line, *form).await,
            Self::Decide(line, form, Some(rival)) => decisions::under(bench, rivals, line, *form, *rival).await,
            Self::Take(swap) => swap.run(bench).await,
            Self::End(ending) => ending.run(bench).await,
            Self::Transient(transient) => transient.run(bench).await,
            Self::Edge(edge) => edge.run(bench).await,
            Self::Sweep(sweeping) => sweeping.run(bench).await,
            Self::Race(line, place) => races::run(bench, rivals, line, *place).await,
        }
    }
}

struct Worker<S: Tested> {
    bench: Bench<S>,
    rivals: Rivals<S>,
}

/// What came of the list on one backend.
struct Tally {
    passed: usize,
    failed: Vec<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_case_of_the_list_passes_on_every_backend() {
    let cases = listed();
    // One server has connections for one of its two at a time.
    let on_postgres = async {
        let by_library = run_all::<PgStore>(&cases, Surrounding::NONE).await;
        (by_library, run_all::<SqlFunctions>(&cases, Surrounding::NONE).await)
    };
    let (sqlite, (postgres, functions), mariadb) = tokio::join!(
        run_all::<SqliteStore>(&cases, Surrounding::NONE),
        on_postgres,
        run_all::<MySqlStore>(&cases, Surrounding::NONE)
    );
    let count = |tally: &Tally| tally.passed + tally.failed.len();
    let summary = format!(
        "conformance: {} cases on sqlite, {} on postgres, {} on mariadb, {} on postgres by SQL functions, none skipped",
        count(&sqlite),
        count(&postgres),
        count(&mariadb),
        count(&functions)
    );
    println!("{}{summary}", if testkit::soaking() { "SOAK: " } else { "" });
    let tallies = [sqlite, postgres, mariadb, functions];
    let failed: Vec<&str> = tallies.iter().flat_map(|tally| &tally.failed).map(String::as_str).collect();
    assert!(failed.is_empty(), "{} cases failed:\n{}", failed.len(), failed.join("\n"));
    assert_eq!(tallies.map(|tally| tally.passed), [cases.len(); 4]);
}

/// The whole list on PostgreSQL in another surrounding; the test is the caller.
pub(crate) async fn whole_list_within<S: Tested>(surrounding: Surrounding, name: &str) {
    let (cases, started) = (listed(), std::time::Instant::now());
    let tally = run_all::<S>(&cases, surrounding).await;
    let (count, seconds) = (tally.passed + tally.failed.len(), started.elapsed().as_secs());
    println!(
        "{}conformance: {count} cases on {name}, none skipped, in {seconds} s",
        if testkit::soaking() { "SOAK: " } else { "" }
    );
    assert!(tally.failed.is_empty(), "{} cases failed:\n{}", tally.failed.len(), tally.failed.join("\n"));
    assert_eq!(tally.passed, cases.len());
}

/// The cases of the file, each with its runner.
fn listed() -> Vec<Case> {
    let lines: Vec<&str> =
        LIST.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let listed: BTreeSet<String> = lines.iter().map(|line| normal(line)).collect();
    assert_eq!(lines.len(), listed.len(), "conformance.txt names a case twice");
    let cases = Case::all();
    let known: BTreeSet<String> = cases.iter().map(Case::name).collect();
    assert_eq!(cases.len(), known.len(), "two cases have one name");
    let show = |names: Vec<&String>| names.into_iter().map(String::as_str).collect::<Vec<_>>().join("\n");
    let (unlisted, without_runner) =
        (show(known.difference(&listed).collect()), show(listed.difference(&known).collect()));
    assert!(
        unlisted.is_empty() && without_runner.is_empty(),
        "conformance.txt lacks these cases:\n{unlisted}\nand lists these, for which there is no runner:\n{without_runner}"
    );
    cases
}

fn normal(line: &str) -> String {
    line.split('|').map(str::trim).collect::<Vec<_>>().join(" | ")
}

async fn run_all<S: Tested>(cases: &[Case], surrounding: Surrounding) -> Tally {
    let queue = Mutex::new(cases.iter());
    let failed = Mutex::new(Vec::new());
    let passed = join_all((0..WORKERS).map(|_| work::<S>(surrounding, &queue, &failed))).await.into_iter().sum();
    Tally { passed, failed: failed.into_inner().unwrap() }
}

/// Takes one case after the other; each failure is noted, and the others still run.
async fn work<'c, S: Tested>(
    surrounding: Surrounding,
    queue: &Mutex<impl Iterator<Item = &'c Case>>,
    failed: &Mutex<Vec<String>>,
) -> usize {
    let mut worker = worker::<S>(surrounding).await;
    let mut passed = 0;
    loop {
        let Some(case) = queue.lock().unwrap().next() else { return passed };
        let ran = AssertUnwindSafe(case.run(&mut worker)).catch_unwind().await;
        match ran {
            Ok(()) => passed += 1,
            Err(why) => {
                failed.lock().unwrap().push(format!("{}: {}: {}", S::NAME, case.name(), words(why.as_ref())));
                // A rival may still hold what it held.
                worker = self::worker::<S>(surrounding).await;
            }
        }
    }
}

async fn worker<S: Tested>(surrounding: Surrounding) -> Worker<S> {
    let bench = Bench::within(surrounding, &options()).await;
    let rivals = Rivals::on(&bench).await;
    Worker { bench, rivals }
}

fn words(why: &(dyn std::any::Any + Send)) -> String {
    let words = why.downcast_ref::<String>().cloned();
    words.or_else(|| why.downcast_ref::<&str>().map(|words| (*words).to_owned())).unwrap_or_default()
}
