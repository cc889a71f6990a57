//! The four sides of the library's comparison: what each does for one first delivery.

use anyhow::bail;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use onced::guard::{Begun, Guard, Pace, Request};
use onced_core::decision::{Enter, MismatchPolicy, OnUnknown, Policy};
use onced_core::fingerprint::{BodyRecipe, Fingerprint, RequestParts};
use onced_core::key::{Key, Scope};
use onced_core::lease::Lease;
use onced_core::record::StoredResponse;
use onced_core::retention::Retention;
use std::time::Duration;
use uuid::Uuid;

use super::sql::Ledger;
use crate::work::Work;

const REQUEST: &str = r#"{"amount":4200,"currency":"eur","customer":"cus_9s6XKzkNRiz8i3"}"#;
pub(super) const RESPONSE: &str = r#"{"id":"ch_3MmlLrLkdIwHu7ix0snN0B15","amount":4200,"status":"succeeded"}"#;
const HEADERS: &str = r#"[["content-type","application/json"]]"#;

/// What all sides share.
pub(super) struct Common<S> {
    pub(super) store: S,
    pub(super) guard: Guard<S>,
}

impl<S: Clone> Clone for Common<S> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), guard: self.guard.clone() }
    }
}

pub(super) struct Bare<S>(pub(super) Common<S>);
pub(super) struct Sketch<S>(pub(super) Common<S>);
pub(super) struct Atomic<S>(pub(super) Common<S>);
pub(super) struct Leased<S>(pub(super) Common<S>);

impl<S: Ledger> Work for Bare<S> {
    fn once(&mut self) -> BoxFuture<'_, anyhow::Result<()>> {
        async {
            let key = new_key();
            let mut tx = self.0.store.transaction().await?;
            S::order(&mut tx, &key).await?;
            Ok(tx.commit().await?)
        }
        .boxed()
    }
}

impl<S: Ledger> Work for Sketch<S> {
    fn once(&mut self) -> BoxFuture<'_, anyhow::Result<()>> {
        async {
            let key = new_key();
            let mut tx = self.0.store.transaction().await?;
            if !S::sketch_claim(&mut tx, &key).await? {
                bail!("a random key was there already");
            }
            S::order(&mut tx, &key).await?;
            S::sketch_complete(&mut tx, &key, 201, HEADERS, RESPONSE.as_bytes()).await?;
            Ok(tx.commit().await?)
        }
        .boxed()
    }
}

impl<S: Ledger> Work for Atomic<S> {
    fn once(&mut self) -> BoxFuture<'_, anyhow::Result<()>> {
        async {
            let key = new_key();
            let request = request(&key)?;
            let Common { store, guard } = &self.0;
            let mut tx = store.transaction().await?;
            let Begun::Execute(permit) = guard.begin_tx(&mut tx, &request).await? else {
                bail!("a random key was there already");
            };
            S::order(&mut tx, &key).await?;
            permit.complete(&mut tx, response()).await?;
            Ok(tx.commit().await?)
        }
        .boxed()
    }
}

impl<S: Ledger> Work for Leased<S> {
    fn once(&mut self) -> BoxFuture<'_, anyhow::Result<()>> {
        async {
            let key = new_key();
            let request = request(&key)?;
            let Common { store, guard } = &self.0;
            let Begun::Execute(permit) = guard.begin(&request).await? else {
                bail!("a random key was there already");
            };
            let mut tx = store.transaction().await?;
            S::order(&mut tx, &key).await?;
            permit.complete_tx(&mut tx, response()).await?;
            Ok(tx.commit().await?)
        }
        .boxed()
    }
}

fn new_key() -> String {
    Uuid::new_v4().to_string()
}

fn request(key: &str) -> anyhow::Result<Request> {
    let parts = RequestParts {
        method: "POST".to_owned(),
        path: "/charges".to_owned(),
        media_type: "application/json".to_owned(),
        body: Bytes::from_static(REQUEST.as_bytes()),
        ..RequestParts::default()
    };
    Ok(Request {
        scope: Scope::new("bench.charge")?,
        key: Key::new(key)?,
        fingerprint: Fingerprint::new(parts, BodyRecipe::All),
        policy: Policy {
            lease: Lease::new(Duration::from_secs(30)),
            retention: Retention::default(),
            max_attempts: Some(5),
            mismatch: MismatchPolicy::Reject,
            on_unknown: OnUnknown::Retry,
            downstream_window: Duration::from_secs(24 * 3600),
            enter: Enter::InProgress,
        },
        pace: Pace::default(),
    })
}

fn response() -> StoredResponse {
    StoredResponse {
        code: 201,
        headers: vec![("content-type".to_owned(), b"application/json".to_vec())],
        body: Some(Bytes::from_static(RESPONSE.as_bytes())),
        body_omitted: false,
    }
}
