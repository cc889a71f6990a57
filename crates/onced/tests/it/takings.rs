//! Every taking of a row repeats all that was decided on: if any of it has changed since it was read, nothing is taken
//! and nothing is changed.

use std::time::Duration;

use onced::store::keys::{Basis, Claim, Claimed, Keys};
use onced_core::decision::{Enter, Taking};
use onced_core::key::Key;
use onced_core::record::{LeaseToken, Record};

use crate::bench::{Bench, Tested, at, fresh_key, line, scope};
use crate::plant;

/// What has happened to the row between its reading and its taking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Nothing,
    AnotherStatus,
    AnotherAttempt,
    AnotherToken,
    /// Its lease was renewed, or its expiry moved.
    AnotherTime,
    Gone,
}

/// How the row is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Take(Taking),
    GiveUp,
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Swap {
    how: How,
    since: Since,
    in_tx: bool,
}

impl Swap {
    pub(crate) fn all() -> Vec<Self> {
        let takings = [Taking::Expired, Taking::Queued, Taking::LeaseOver, Taking::PendingLeaseOver, Taking::Failed]
            .map(How::Take);
        let mut all = Vec::new();
        for how in takings.into_iter().chain([How::GiveUp]) {
            for since in [
                Since::Nothing,
                Since::AnotherStatus,
                Since::AnotherAttempt,
                Since::AnotherToken,
                Since::AnotherTime,
                Since::Gone,
            ] {
                if how.depends_on(since) {
                    all.extend([false, true].map(|in_tx| Self { how, since, in_tx }));
                }
            }
        }
        all
    }

    pub(crate) fn name(&self) -> String {
        let how = self.how.name();
        let since = match self.since {
            Since::Nothing => "nothing has changed",
            Since::AnotherStatus => "another status",
            Since::AnotherAttempt => "another attempt",
            Since::AnotherToken => "another token",
            Since::AnotherTime => "another time",
            Since::Gone => "gone",
        };
        format!("{how} | {} | {since}", if self.in_tx { "store-in-tx" } else { "store" })
    }

    pub(crate) async fn run<S: Tested>(&self, bench: &Bench<S>) {
        let (key, line) = (fresh_key(), line(self.how.line()));
        let read = plant::line(bench, &line, &key).await.unwrap();
        self.change(bench, &key).await;
        let before = bench.record(&key).await;
        let taken = if self.in_tx {
            let mut tx = bench.store.transaction().await.unwrap();
            let taken = self.take(&mut bench.store.within(&mut tx), &key, &read).await;
            tx.commit().await.unwrap();
            taken
        } else {
            self.take(&mut bench.store.clone(), &key, &read).await
        };
        assert_eq!(taken, self.since == Since::Nothing);
        if taken {
            assert_ne!(bench.record(&key).await, before);
        } else {
            assert_eq!(bench.record(&key).await, before, "nothing was taken, and yet something has changed");
        }
    }

    async fn take(&self, keys: &mut impl Keys, key: &Key, read: &Record) -> bool {
        let basis =
            |taking| Basis { taking, status: read.status, attempt: read.attempt, token: read.lease_token.clone() };
        match self.how {
            How::Take(taking) => match keys.take(&claim(key, read), &basis(taking)).await.unwrap() {
                Claimed::Yes { .. } => true,
                Claimed::No => false,
                Claimed::LockMissed => panic!("nobody else is at work"),
            },
            How::GiveUp => keys.give_up(&scope(), key, &basis(Taking::LeaseOver), "gave up").await.unwrap(),
        }
    }

    async fn change<S: Tested>(&self, bench: &Bench<S>, key: &Key) {
        let later = at(S::BACKEND, bench.now().await.plus(Duration::from_secs(60)));
        let set = match self.since {
            Since::Nothing => return,
            Since::Gone => {
                bench.execute(&format!("DELETE FROM {{keys}} WHERE key = '{}'", key.as_str())).await;
                return;
            }
            Since::AnotherStatus => self.how.another_status(&at(S::BACKEND, bench.now().await)),
            Since::AnotherAttempt => "attempt = attempt + 1".to_owned(),
            Since::AnotherToken => "lease_token = 'another'".to_owned(),
            Since::AnotherTime if self.how == How::Take(Taking::Expired) => format!("expires_at = {later}"),
            Since::AnotherTime => format!("lease_until = {later}"),
        };
        bench.alter(key, &set).await;
    }
}

impl How {
    fn name(self) -> &'static str {
        match self {
            Self::Take(Taking::Insert) => "none",
            Self::Take(Taking::Expired) => "expired",
            Self::Take(Taking::Queued) => "queued",
            Self::Take(Taking::LeaseOver) => "lease over",
            Self::Take(Taking::PendingLeaseOver) => "pending, lease over",
            Self::Take(Taking::Failed) => "failed",
            Self::GiveUp => "out of attempts",
        }
    }

    fn line(self) -> &'static str {
        match self {
            Self::Take(Taking::Insert) => "none",
            Self::Take(Taking::Expired) => "completed-expired",
            Self::Take(Taking::Queued) => "queued",
            Self::Take(Taking::LeaseOver) => "in-progress-over",
            Self::Take(Taking::PendingLeaseOver) => "pending-over-retry",
            Self::Take(Taking::Failed) => "failed",
            Self::GiveUp => "in-progress-over-none-left",
        }
    }

    /// What can change without what was decided on changing: a new attempt of a finished row has a new token, and
    /// neither a queued nor a failed row has a lease.
    fn depends_on(self, since: Since) -> bool {
        match (self, since) {
            (Self::Take(Taking::Expired), Since::AnotherAttempt)
            | (Self::Take(Taking::Queued | Taking::Failed), Since::AnotherTime) => false,
            (Self::Take(_) | Self::GiveUp, _) => true,
        }
    }

    /// Whatever else it says, a lease that is over stays over.
    fn another_status(self, now: &str) -> String {
        match self {
            Self::Take(Taking::LeaseOver) | Self::GiveUp => "status = 'pending_external'".to_owned(),
            Self::Take(_) => format!("status = 'in_progress', lease_until = {now}"),
        }
    }
}

fn claim(key: &Key, read: &Record) -> Claim {
    Claim {
        scope: scope(),
        key: key.clone(),
        request_hash: read.request_hash,
        hash_version: read.hash_version.clone(),
        token: LeaseToken::from_random([5; 16]),
        enter: Enter::InProgress,
        lease: Duration::from_secs(30),
        keep: Duration::from_secs(3600),
        retry_window: Duration::from_secs(1800),
        downstream_key: "onced1_x".to_owned(),
        delivery: None,
    }
}
