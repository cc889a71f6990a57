//! Contracts: whose habits a route follows, as presets of some of its settings. What a route writes itself goes before
//! its contract; that before what `[defaults]` says; that before the contract of `[defaults]`, which counts only where
//! the route names none.

use std::time::Duration;

use http::Method;
use onced_core::failure::FinalPolicy;

use super::document::Entry;
use super::values::{Given, Layers, Words};

/// The senders of Stripe's newer API may send again for 30 days; a key is to outlive that.
const OUTLIVES_30_DAYS: Duration = Duration::from_secs(31 * 24 * 60 * 60);

/// Whose habits a route follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contract {
    /// Nobody's.
    None,
    /// Those of Stripe's API v1: whatever was answered is the outcome, a 500 too.
    StripeV1,
    /// Those of Stripe's API v2: failures run again, for a month; POST and DELETE.
    StripeV2,
}

impl Words for Contract {
    const WORDS: &'static [(&'static str, Self)] =
        &[("none", Self::None), ("stripe-v1", Self::StripeV1), ("stripe-v2", Self::StripeV2)];
}

impl Contract {
    /// Its `final`, where it has one.
    pub(super) fn final_policy(self) -> Option<FinalPolicy> {
        match self {
            Self::None => None,
            Self::StripeV1 => Some(FinalPolicy::Everything),
            Self::StripeV2 => Some(FinalPolicy::Success),
        }
    }

    /// Its `retention`, where it has one.
    pub(super) fn retention(self) -> Option<Duration> {
        match self {
            Self::None | Self::StripeV1 => None,
            Self::StripeV2 => Some(OUTLIVES_30_DAYS),
        }
    }

    /// Its `methods`, where it has some.
    pub(super) fn methods(self) -> Option<Option<Vec<Method>>> {
        match self {
            Self::None | Self::StripeV1 => None,
            Self::StripeV2 => Some(Some(vec![Method::POST, Method::DELETE])),
        }
    }
}

/// The layers of a route, with its contract between them.
pub(super) struct Contracted<'l, 'a, 's> {
    layers: &'l Layers<'a, 's>,
    contract: Contract,
    /// Whether the route names the contract itself.
    is_own: bool,
}

impl<'l, 'a, 's> Contracted<'l, 'a, 's> {
    /// Reads which contract it is.
    pub(super) fn new(layers: &'l Layers<'a, 's>) -> Self {
        let contract = layers.read("contract", Contract::None, Entry::word).value;
        Self { layers, contract, is_own: layers.own_entry("contract").is_some() }
    }

    /// Reads a setting that a contract may preset.
    pub(super) fn read<T>(
        &self,
        name: &'static str,
        preset: impl FnOnce(Contract) -> Option<T>,
        default: T,
        read: impl FnOnce(&Entry<'a>) -> Option<T>,
    ) -> Given<'a, T> {
        match preset(self.contract) {
            Some(value) if self.is_own && self.layers.own_entry(name).is_none() => {
                Given { value, entry: None, sound: true }
            }
            preset => self.layers.read(name, preset.unwrap_or(default), read),
        }
    }
}
