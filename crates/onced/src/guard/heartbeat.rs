//! The heartbeat: renews a lease while its owner works, and knows by the owner's own clock how much of it is left.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use onced_core::lease::Lease;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::Pace;
use crate::store::StoreError;
use crate::store::keys::{Claim, Keys, OwnerMove};

/// The lease as its owner sees it.
#[derive(Debug)]
pub(super) struct OwnLease {
    lease: Lease,
    /// When the claim, or the last renewal that succeeded, was **sent**.
    asked_at: Mutex<Instant>,
    renewals: AtomicU64,
    lost: watch::Sender<bool>,
}

impl OwnLease {
    pub(super) fn new(lease: Lease, asked_at: Instant) -> Self {
        let (lost, _) = watch::channel(false);
        Self { lease, asked_at: Mutex::new(asked_at), renewals: AtomicU64::new(0), lost }
    }

    pub(super) fn begun_anew(&self, asked_at: Instant) {
        *self.asked_at.lock().unwrap_or_else(PoisonError::into_inner) = asked_at;
    }

    pub(super) fn may_start_call(&self) -> bool {
        let asked_at = *self.asked_at.lock().unwrap_or_else(PoisonError::into_inner);
        !self.is_lost() && self.lease.may_start_call(asked_at.elapsed())
    }

    /// Whether the lease lasts, by the owner's own clock.
    pub(super) fn is_good(&self) -> bool {
        let asked_at = *self.asked_at.lock().unwrap_or_else(PoisonError::into_inner);
        !self.is_lost() && asked_at.elapsed() < self.lease.length
    }

    pub(super) fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }
}

/// Renews until it is dropped.
#[derive(Debug)]
pub(super) struct Heartbeat(AbortHandle);

impl Heartbeat {
    pub(super) fn start<K: Keys + Clone + Sync + 'static>(
        keys: K,
        claim: Claim,
        own: Arc<OwnLease>,
        pace: Pace,
        started_at: Instant,
    ) -> Self {
        Self(tokio::spawn(beat(keys, claim, own, pace, started_at)).abort_handle())
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn beat<K: Keys>(mut keys: K, claim: Claim, own: Arc<OwnLease>, pace: Pace, started_at: Instant) {
    let mut wait = pace.heartbeat;
    loop {
        tokio::time::sleep(wait).await;
        if started_at.elapsed() >= pace.max_execution {
            tracing::warn!(scope = %claim.scope, key = claim.key.shortened(), "max_execution is over: the lease is renewed no more");
            return;
        }
        let sent = Instant::now();
        let renew = OwnerMove::Renew { lease: claim.lease };
        match keys.owner_move(&claim.scope, &claim.key, &claim.token, None, &renew).await {
            Ok(Some(_)) => {
                own.begun_anew(sent);
                own.renewals.fetch_add(1, Ordering::Relaxed);
                wait = pace.heartbeat;
            }
            // Ended by the app itself, or taken over: whoever ends the attempt finds out which.
            Ok(None) => {
                own.lost.send_replace(true);
                return;
            }
            Err(error) => {
                note(&claim, &error);
                wait = (pace.heartbeat / 4).max(Duration::from_millis(10));
            }
        }
    }
}

fn note(claim: &Claim, error: &StoreError) {
    tracing::warn!(scope = %claim.scope, key = claim.key.shortened(), %error, "the lease could not be renewed; trying again");
}
