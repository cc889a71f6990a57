//! Load: workers that do the same thing again and again until the time is over, and what that came to.

use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::future::BoxFuture;

/// What one connection does, once.
pub(crate) trait Work: Send {
    fn once(&mut self) -> BoxFuture<'_, anyhow::Result<()>>;
}

/// As many as there are connections.
pub(crate) type Workers = Vec<Box<dyn Work>>;

/// One run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// Has all workers at it for that long, and gives them back. The first error ends the bench: what fails is not fast.
pub(crate) async fn run(workers: Workers, lasts: Duration) -> anyhow::Result<(Workers, Sample)> {
    let begun = Instant::now();
    let running: Vec<_> = workers.into_iter().map(|worker| tokio::spawn(until(worker, begun + lasts))).collect();
    let (mut workers, mut latencies) = (Vec::with_capacity(running.len()), Vec::new());
    for worker in running {
        let (worker, took) = worker.await.context("a worker panicked")??;
        workers.push(worker);
        latencies.extend(took);
    }
    let elapsed = begun.elapsed();
    latencies.sort_unstable();
    let sample = Sample {
        per_second: latencies.len() as f64 / elapsed.as_secs_f64(),
        p50: percentile(&latencies, 0.50),
        p99: percentile(&latencies, 0.99),
    };
    Ok((workers, sample))
}

async fn until(mut worker: Box<dyn Work>, end: Instant) -> anyhow::Result<(Box<dyn Work>, Vec<Duration>)> {
    let mut took = Vec::with_capacity(4096);
    loop {
        let begun = Instant::now();
        if begun >= end {
            return Ok((worker, took));
        }
        worker.once().await?;
        took.push(begun.elapsed());
    }
}

/// Of sorted values; the smallest that so great a share does not exceed.
pub(crate) fn percentile<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<u32> = (1..=100).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|share| percentile(&values, share)), [50, 99, 100]);
        assert_eq!((percentile(&[7_u32], 0.99), percentile::<u32>(&[], 0.5)), (7, 0));
    }
}
