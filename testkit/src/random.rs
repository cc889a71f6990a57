//! Chance from a seed, so that a run can be had again.

use std::hash::{BuildHasher, RandomState};

/// The seed of a test: `ONCED_TEST_SEED`, or one of its own, which is printed.
///
/// # Panics
/// Where `ONCED_TEST_SEED` is not a number.
#[must_use]
pub fn seed(name: &str) -> u64 {
    let given = std::env::var("ONCED_TEST_SEED").ok();
    let seed = given.map_or_else(
        || RandomState::new().hash_one(name),
        |text| text.parse().expect("ONCED_TEST_SEED is not a number"),
    );
    println!("SOAK: seed of {name}: ONCED_TEST_SEED={seed}");
    seed
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of that seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another sequence of the same seed.
    #[must_use]
    pub fn fork(&self, number: u64) -> Self {
        let mut fork = Self(self.0 ^ number.wrapping_mul(0xA24B_AED4_963E_E407));
        fork.next();
        fork
    }

    /// The next number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `bound` - 1; 0 where that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }

    /// An index into that many.
    ///
    /// # Panics
    /// Never: it is below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("an index is small")
    }
}
