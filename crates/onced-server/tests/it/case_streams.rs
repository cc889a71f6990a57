//! Answers that are too large to keep, come little by little, or break off (O-18), and what is done with their records.

mod little_by_little;
mod o_18;
mod observed;
mod stepwise;
