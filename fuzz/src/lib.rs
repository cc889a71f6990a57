//! A small fuzzer on stable Rust: it mutates and splices the inputs of a corpus until its time is over, and reports the
//! first input that makes the target panic, in hexadecimal digits.
//!
//! Coverage-guided engines need a nightly compiler, and what runs on the stable one (bolero's default engine) draws bytes
//! at random, which hardly ever get past the first line of a parser. Instead of coverage the target says what came of an
//! input: inputs of an outcome that was not seen before join the corpus.

mod mutate;

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mutate::Random;

/// One execution must not take longer, on whatever machine.
const SLOW: Duration = Duration::from_secs(10);
/// Outcomes that are remembered; a target may have endlessly many.
const MAX_POOL: usize = 20_000;

/// What was tried without finding anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How many inputs.
    pub executions: u64,
    /// How many different outcomes they had.
    pub outcomes: usize,
    /// What all chance was drawn from.
    pub seed: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} executions, {} outcomes, seed {}", self.executions, self.outcomes, self.seed)
    }
}

/// An input that must not do what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The input.
    pub input: Vec<u8>,
    /// What happened.
    pub what: String,
    /// What all chance was drawn from.
    pub seed: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nseed {}, input in hexadecimal digits: ", self.what, self.seed)?;
        self.input.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "\nas text: {}", self.input.escape_ascii())
    }
}

impl std::error::Error for Failure {}

/// The files of a folder.
///
/// # Errors
/// Where it cannot be read, or is empty.
pub fn corpus(folder: &Path) -> std::io::Result<Vec<Vec<u8>>> {
    let mut files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.sort(); // so that a seed means the same everywhere
    let inputs = files.iter().map(fs::read).collect::<std::io::Result<Vec<_>>>()?;
    if inputs.is_empty() { Err(std::io::ErrorKind::NotFound.into()) } else { Ok(inputs) }
}

/// Tries inputs until the time is over: first the corpus as it is. The target panics where something is wrong, and
/// otherwise says what came of the input, as any number.
///
/// # Errors
/// With the first input that made it panic, or took too long.
pub fn run(
    corpus: Vec<Vec<u8>>,
    time: Duration,
    seed: u64,
    target: impl Fn(&[u8]) -> u64,
) -> Result<Report, Box<Failure>> {
    // The hook is the whole process's, in which tests may run side by side.
    let _alone = HOOK.lock().unwrap_or_else(PoisonError::into_inner);
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|info| LAST_PANIC.set(info.to_string())));
    let result = tries(corpus, time, seed, &target);
    panic::set_hook(hook);
    result
}

static HOOK: Mutex<()> = Mutex::new(());

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

fn tries(
    mut pool: Vec<Vec<u8>>,
    time: Duration,
    seed: u64,
    target: &impl Fn(&[u8]) -> u64,
) -> Result<Report, Box<Failure>> {
    let start = Instant::now();
    let (mut random, mut seen, mut executions) = (Random::new(seed), HashSet::new(), 0);
    let given = pool.len();
    while executions < given as u64 || start.elapsed() < time {
        let as_given = usize::try_from(executions).ok().filter(|at| *at < given);
        let input = as_given.map_or_else(|| mutate::mutated(&pool, &mut random), |at| pool[at].clone());
        let failed = |what: String| Box::new(Failure { input: input.clone(), what, seed });
        let began = Instant::now();
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| target(&input)));
        let outcome = outcome.map_err(|_| failed(LAST_PANIC.take()))?;
        if began.elapsed() > SLOW {
            return Err(failed(format!("it took {:?}", began.elapsed())));
        }
        executions += 1;
        if seen.insert(outcome) && as_given.is_none() && pool.len() < MAX_POOL {
            pool.push(input);
        }
    }
    Ok(Report { executions, outcomes: seen.len(), seed })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails three steps away from the corpus, and says how far an input has come.
    fn faulty(input: &[u8]) -> u64 {
        let wanted = b"{\"a\":[]}";
        let right = input.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        assert!(right < wanted.len(), "planted");
        right as u64
    }

    #[test]
    fn a_planted_fault_is_found_and_reported() {
        let corpus = vec![b"{\"a\":1}".to_vec(), b"[]".to_vec()];
        let failure = run(corpus, Duration::from_secs(60), 1, faulty).unwrap_err();
        assert!(failure.input.starts_with(b"{\"a\":[]}"), "{failure}");
        let text = failure.to_string();
        assert!(text.contains("planted") && text.contains("7b2261223a5b5d7d") && text.contains("seed 1"), "{text}");
    }

    #[test]
    fn a_seed_gives_the_same_inputs_again() {
        let of = |seed| {
            let inputs = RefCell::new(Vec::new());
            let stopped = run(vec![b"abc".to_vec()], Duration::from_secs(60), seed, |input| {
                inputs.borrow_mut().push(input.to_vec());
                assert!(inputs.borrow().len() < 200);
                input.len() as u64
            });
            assert!(stopped.is_err());
            inputs.into_inner()
        };
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }
}
