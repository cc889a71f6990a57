//! Webhooks: who sent a delivery, and which event it is.
//!
//! What differs between providers is data, not code: the [`catalogue`] has a row for each, with the date and the sources of
//! what it says. [`verify`] checks a delivery against a row's signature rule on the bytes as they came; [`event`] finds
//! the event's key and tenant. Neither knows of a ledger: a signature says where something comes from, never that it comes
//! for the first time.
//!
//! ```
//! use http::HeaderMap;
//! use onced::core::time::Timestamp;
//! use onced::webhook::{catalogue::Provider, verify::{Incoming, Verifier}};
//!
//! let stripe = Provider::named("stripe").expect("stripe is in the catalogue");
//! let verifier = Verifier::new(stripe.signature.as_ref().expect("stripe signs"), &["whsec_open21_new".into()])?;
//! let mut headers = HeaderMap::new();
//! let signed = "t=1764633600,v1=9b70125b176f4c8f68664a7a992b72f2b8336f5dfd019f474d235867712c283f";
//! headers.insert("stripe-signature", signed.parse()?);
//! let body = br#"{"id":"evt_open_21","type":"invoice.paid","data":{"object":{"id":"in_21","amount_paid":4200}}}"#;
//! let now = Timestamp::from_micros(1_764_633_600_000_000);
//! verifier.verify(&Incoming { headers: &headers, body, url: None }, now)?;
//! let key = stripe.event.key(&headers, body)?.expect("every Stripe event has an id");
//! assert_eq!(key.as_str(), "evt_open_21");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod catalogue;
mod crypto;
pub mod event;
mod message;
pub mod signature;
mod signatures;
pub mod verify;
