//! What is known of each provider: one file a provider, embedded, with the date and the sources of what it says. A
//! configuration may say otherwise: its tables are laid over a row, member by member.

use std::time::Duration;

use serde::Deserialize;
use toml::{Table, Value};

use super::event::EventRule;
use super::signature::SignatureRule;

/// The rows, by name. `custom` comes last: it is what a configuration fills in.
const ROWS: [(&str, &str); 10] = [
    ("github", include_str!("providers/github.toml")),
    ("hookdeck", include_str!("providers/hookdeck.toml")),
    ("sendgrid", include_str!("providers/sendgrid.toml")),
    ("shopify", include_str!("providers/shopify.toml")),
    ("slack", include_str!("providers/slack.toml")),
    ("standard-webhooks", include_str!("providers/standard-webhooks.toml")),
    ("stripe", include_str!("providers/stripe.toml")),
    ("svix", include_str!("providers/svix.toml")),
    ("twilio", include_str!("providers/twilio.toml")),
    ("custom", include_str!("providers/custom.toml")),
];

/// A provider: how its deliveries are verified, told apart and answered.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// Its name in configurations; a row does not say it.
    #[serde(skip)]
    pub name: String,
    /// Its name among people.
    pub title: String,
    /// The month of these facts.
    pub as_of: String,
    /// Where they were read.
    pub sources: Vec<String>,
    /// Who made the delivery that the tests verify.
    pub fixture: String,
    /// How it signs; none signs nothing, and is told from a forgery by nothing here.
    pub signature: Option<SignatureRule>,
    /// What its events are called.
    pub event: EventRule,
    /// When and how it waits and comes again.
    pub delivery: DeliveryHabits,
}

/// When and how a provider waits for an answer and sends again.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeliveryHabits {
    /// How long it waits for an answer; none where it does not say.
    #[serde(default, deserialize_with = "super::signature::duration")]
    pub deadline: Option<Duration>,
    /// How it sends again, in words.
    pub retries: String,
    /// How long after the first delivery the last one may come by itself.
    #[serde(deserialize_with = "whole_duration")]
    pub retry_window: Duration,
    /// How long a key is kept: twice that, in whole days; longer where people send again by hand.
    #[serde(deserialize_with = "whole_duration")]
    pub retention: Duration,
    /// What differs between deliveries of one event, and is therefore no part of its fingerprint.
    #[serde(default)]
    pub changes: Vec<String>,
}

/// Why there is no provider.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// A name that is not in the catalogue.
    #[error("there is no provider \"{0}\"; `onced providers` lists them, and `custom` is for any other")]
    Unknown(String),
    /// A row that does not make sense with what was laid over it.
    #[error("provider \"{name}\": {reason}")]
    Row {
        /// The provider.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

impl Provider {
    /// The names of all providers.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ROWS.iter().map(|(name, _)| *name)
    }

    /// The provider of that name, as the catalogue has it; `None` where it has none. `custom` has none of its own: see
    /// [`Provider::with`].
    pub fn named(name: &str) -> Option<Self> {
        Self::with(name, &Table::new()).ok()
    }

    /// The provider of that name, with what a configuration says laid over its row: a table's members one by one,
    /// anything else as a whole.
    ///
    /// # Errors
    /// [`CatalogueError`] where there is no such provider, or the result makes no sense.
    pub fn with(name: &str, over: &Table) -> Result<Self, CatalogueError> {
        let row = Self::row(name).ok_or_else(|| CatalogueError::Unknown(name.to_owned()))?;
        let refused = |reason: String| CatalogueError::Row { name: name.to_owned(), reason };
        let mut table: Table = row.parse().map_err(|error: toml::de::Error| refused(error.message().to_owned()))?;
        lay_over(&mut table, over);
        let read = table.try_into();
        let mut provider: Self = read.map_err(|error: toml::de::Error| refused(error.to_string().trim().to_owned()))?;
        if let Some(Err(reason)) = provider.signature.as_ref().map(SignatureRule::check) {
            return Err(refused(format!("its signature {reason}")));
        }
        if provider.event.id.is_empty() || provider.event.id.iter().any(Vec::is_empty) {
            return Err(refused("its event needs an id: a list of lists of parts".to_owned()));
        }
        if provider.delivery.retention < provider.delivery.retry_window {
            return Err(refused("a key would be forgotten while its sender still retries".to_owned()));
        }
        name.clone_into(&mut provider.name);
        Ok(provider)
    }

    /// The row as it is written.
    pub fn row(name: &str) -> Option<&'static str> {
        ROWS.iter().find(|(known, _)| *known == name).map(|(_, row)| *row)
    }
}

fn lay_over(row: &mut Table, over: &Table) {
    for (name, value) in over {
        match (row.get_mut(name), value) {
            (Some(Value::Table(row)), Value::Table(over)) => lay_over(row, over),
            _ => {
                row.insert(name.clone(), value.clone());
            }
        }
    }
}

fn whole_duration<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    super::signature::duration(from)?.ok_or_else(|| serde::de::Error::custom("a duration such as \"3days\" is needed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    #[test]
    fn every_row_makes_sense() {
        for name in Provider::names().filter(|name| *name != "custom") {
            let provider = Provider::with(name, &Table::new()).unwrap_or_else(|error| panic!("{error}"));
            assert!(
                !provider.sources.is_empty() && provider.sources.iter().all(|at| at.starts_with("https://")),
                "{name}"
            );
            assert!(provider.as_of.len() == 7 && provider.as_of.starts_with("20"), "{name}");
            assert!(!provider.fixture.is_empty(), "{name}");
            let habits = &provider.delivery;
            assert!(habits.retention >= habits.retry_window * 2 && habits.retention >= DAY, "{name}");
            assert!(habits.retention.as_secs().is_multiple_of(DAY.as_secs()), "{name}");
        }
    }

    #[test]
    fn a_configuration_is_laid_over_a_row() {
        let over: Table = "[signature]\ntolerance = \"1day\"\n[delivery]\nretention = \"30days\"".parse().unwrap();
        let provider = Provider::with("stripe", &over).unwrap();
        assert_eq!(provider.signature.unwrap().tolerance, Some(DAY));
        assert_eq!((provider.delivery.retention, provider.delivery.retry_window), (30 * DAY, 3 * DAY));

        let shopify: Table = "[event]\nid = [[{ header = \"X-Shopify-Webhook-Id\" }]]".parse().unwrap();
        assert_eq!(Provider::with("shopify", &shopify).unwrap().event.id.len(), 1);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let refused = |name: &str, over: &str| Provider::with(name, &over.parse().unwrap()).unwrap_err().to_string();
        assert!(refused("stripey", "").contains("no provider \"stripey\""));
        assert!(refused("custom", "").contains("event"), "custom says nothing by itself");
        assert!(refused("stripe", "colour = 1").contains("colour"));
        assert!(refused("stripe", "[delivery]\nretention = \"1day\"").contains("forgotten"));
        assert!(refused("stripe", "[delivery]\nretention = \"soon\"").contains("retention"));
        assert!(refused("stripe", "[signature]\nmessage = \"{bodies}\"").contains("{bodies}"));
        assert!(refused("stripe", "[signature]\nlayout = \"list\"").contains("pair"));
        assert!(refused("stripe", "[event]\nid = []").contains("id"));
        assert!(refused("stripe", "[event]\nid = [[{ header = \"a\", form = \"b\" }]]").contains("write one of"));
        assert!(refused("github", "[signature]\ntolerance = \"5min\"").contains("signs no timestamp"));
    }

    #[test]
    fn strength_follows_from_what_is_signed() {
        let strength = |name: &str| {
            let strength = Provider::named(name).unwrap().signature.unwrap().strength();
            (strength.binds_body, strength.binds_time)
        };
        for name in ["stripe", "slack", "standard-webhooks", "svix", "sendgrid"] {
            assert_eq!(strength(name), (true, true), "{name}");
        }
        for name in ["github", "shopify", "hookdeck", "twilio"] {
            assert_eq!(strength(name), (true, false), "{name}");
        }
    }
}
