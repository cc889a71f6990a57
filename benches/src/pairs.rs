//! Sides that take turns, A B A B …, so that what the machine does meanwhile hits all of them alike.

use std::time::Duration;

use crate::work::{self, Sample, Workers, percentile};

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) pairs: usize,
    pub(crate) lasts: Duration,
    pub(crate) warm_up: Duration,
}

/// One of those that are compared.
pub(crate) struct Side {
    pub(crate) name: String,
    workers: Workers,
    samples: Vec<Sample>,
}

impl Side {
    pub(crate) fn new(name: impl Into<String>, workers: Workers) -> Self {
        Self { name: name.into(), workers, samples: Vec::new() }
    }
}

/// What the sides of one comparison came to, in their order.
pub(crate) struct Outcome {
    sides: Vec<(String, Vec<Sample>)>,
}

/// A ratio over the pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// Warms every side up, then has them take turns.
pub(crate) async fn take_turns(title: &str, mut sides: Vec<Side>, plan: &Plan) -> anyhow::Result<Outcome> {
    for side in &mut sides {
        (side.workers, _) = work::run(std::mem::take(&mut side.workers), plan.warm_up).await?;
    }
    for turn in 1..=plan.pairs {
        for side in &mut sides {
            let (workers, sample) = work::run(std::mem::take(&mut side.workers), plan.lasts).await?;
            side.workers = workers;
            side.samples.push(sample);
            eprintln!("bench: {title}, turn {turn}: {} {:.0}/s", side.name, sample.per_second);
        }
    }
    Ok(Outcome { sides: sides.into_iter().map(|side| (side.name, side.samples)).collect() })
}

impl Outcome {
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.sides.iter().map(|(name, _)| name.as_str())
    }

    fn samples(&self, name: &str) -> &[Sample] {
        self.sides.iter().find(|(side, _)| side == name).map_or(&[], |(_, samples)| samples)
    }

    /// The medians of a side: its rate, p50 and p99.
    pub(crate) fn median(&self, name: &str) -> Sample {
        let samples = self.samples(name);
        let middle = |of: fn(&Sample) -> Duration| {
            let mut values: Vec<Duration> = samples.iter().map(of).collect();
            values.sort_unstable();
            percentile(&values, 0.5)
        };
        Sample {
            per_second: median(samples.iter().map(|sample| sample.per_second).collect()),
            p50: middle(|sample| sample.p50),
            p99: middle(|sample| sample.p99),
        }
    }

    /// How much faster `side` is than `base`, pair by pair.
    pub(crate) fn ratio(&self, side: &str, base: &str) -> Ratio {
        let pairs = self.samples(side).iter().zip(self.samples(base));
        let ratios: Vec<f64> = pairs.map(|(side, base)| side.per_second / base.per_second).collect();
        Ratio {
            min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            max: ratios.iter().copied().fold(0.0, f64::max),
            median: median(ratios),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let above = values.get(values.len() / 2).copied().unwrap_or_default();
    (percentile(&values, 0.5) + above) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn a_ratio_is_taken_turn_by_turn() {
        let side = |rates: [f64; 3]| {
            let time = Duration::from_millis(1);
            rates.map(|per_second| Sample { per_second, p50: time, p99: time }).to_vec()
        };
        let sides = vec![("a".to_owned(), side([10.0, 40.0, 30.0])), ("b".to_owned(), side([10.0, 20.0, 10.0]))];
        let ratio = Outcome { sides }.ratio("a", "b");
        assert_eq!((ratio.min, ratio.median, ratio.max), (1.0, 2.0, 3.0));
    }
}
