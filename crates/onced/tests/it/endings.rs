//! Every move of an owner, from every status, with the right token, a stale one, and without a row: it must agree with
//! the core's table of moves, through the store and through the permit, in either kind of transaction.

use std::time::Duration;

use bytes::Bytes;
use onced::guard::{Begun, EndError};
use onced::store::keys::{Keys, OwnerMove};
use onced_core::key::Key;
use onced_core::record::{LeaseToken, Record, Status, StoredResponse};
use onced_core::transition::Move;

use crate::bench::{Bench, Tested, delivery, fresh_key, line, scope};
use crate::plant;

/// Through what the move is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Through {
    Store,
    StoreInTx,
    /// The store, told to make the move only from `in_progress`.
    StoreOnlyFromInProgress,
    Permit,
    /// `Permit::complete_tx`, or the permit of `begin_tx`.
    PermitInTx,
}

/// What the move meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meets {
    Row { status: Status, attempt: u32, token: Token, with_step: bool },
    NoRow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Right,
    Stale,
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    step: Move,
    through: Through,
    meets: Meets,
}

impl Ending {
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for through in Through::ALL {
            for step in Move::ALL.into_iter().filter(|step| through.can_make(*step)) {
                all.extend(what_is_met(step).into_iter().map(|meets| Self { step, through, meets }));
            }
        }
        all
    }

    pub(crate) fn name(&self) -> String {
        let step = match self.step {
            Move::Complete => "complete",
            Move::Fail => "fail",
            Move::External => "external",
            Move::Release => "release",
            Move::Renew => "renew",
        };
        let through = match self.through {
            Through::Store => "store",
            Through::StoreInTx => "store-in-tx",
            Through::StoreOnlyFromInProgress => "store-only-from-in_progress",
            Through::Permit => "permit",
            Through::PermitInTx => "permit-in-tx",
        };
        let meets = match self.meets {
            Meets::NoRow => "no-row".to_owned(),
            Meets::Row { status, attempt, token, with_step } => {
                let token = if token == Token::Right { "right-token" } else { "stale-token" };
                let with_step = if with_step { " | with-step" } else { "" };
                format!("{status} | attempt-{attempt} | {token}{with_step}")
            }
        };
        format!("{step} | {through} | {meets}")
    }

    fn is_allowed(&self) -> bool {
        match self.meets {
            Meets::Row { status, attempt, token: Token::Right, with_step } => {
                self.step.is_allowed_from(status, attempt)
                    && !(with_step && self.step == Move::Release)
                    && self.through.only_from().is_none_or(|only| only == status)
            }
            Meets::Row { token: Token::Stale, .. } | Meets::NoRow => false,
        }
    }

    pub(crate) async fn run<S: Tested>(&self, bench: &Bench<S>) {
        let key = fresh_key();
        let (before, made) = match self.through {
            Through::Store | Through::StoreInTx | Through::StoreOnlyFromInProgress => {
                let token = LeaseToken::from_random([7; 16]);
                self.plant(bench, &key, &token).await;
                let before = bench.record(&key).await;
                (before, self.through_the_store(bench, &key, &token).await)
            }
            Through::Permit | Through::PermitInTx => self.through_a_permit(bench, &key).await,
        };
        assert_eq!(made, self.is_allowed(), "whether the move was made");
        if made {
            self.check_made(bench, &key).await;
        } else {
            assert_eq!(bench.record(&key).await, before, "a refused move changes nothing");
        }
    }

    async fn plant<S: Tested>(&self, bench: &Bench<S>, key: &Key, right: &LeaseToken) {
        let Meets::Row { status, attempt, token, with_step } = self.meets else { return };
        let now = bench.now().await;
        let likeness = line(match status {
            Status::Queued => "queued",
            Status::InProgress => "in-progress-alive",
            Status::PendingExternal => "pending-alive",
            Status::Completed => "completed",
            Status::Failed => "failed",
        });
        let standing = if token == Token::Right { right.clone() } else { LeaseToken::from_random([9; 16]) };
        // Even a queued row, which has no token, must not be moved by whoever names the one it had.
        let record = Record { attempt, lease_token: Some(standing), ..likeness.found(now).record.unwrap() };
        plant::record(bench, scope().as_str(), key, &record).await;
        if with_step {
            plant::step(bench, key, "mail", &record).await;
        }
    }

    async fn through_the_store<S: Tested>(&self, bench: &Bench<S>, key: &Key, token: &LeaseToken) -> bool {
        let (owner_move, from) = (self.owner_move(), self.through.only_from());
        if self.through != Through::StoreInTx {
            return bench.store.clone().owner_move(&scope(), key, token, from, &owner_move).await.unwrap().is_some();
        }
        let mut tx = bench.store.transaction().await.unwrap();
        let moved = bench.store.within(&mut tx).owner_move(&scope(), key, token, from, &owner_move).await.unwrap();
        tx.commit().await.unwrap();
        moved.is_some()
    }

    /// Begins, then puts the record into the state that the move is to meet, and makes the move.
    async fn through_a_permit<S: Tested>(&self, bench: &Bench<S>, key: &Key) -> (Vec<Vec<String>>, bool) {
        let Begun::Execute(mut permit) = bench.guard.begin(&delivery(key)).await.unwrap() else {
            panic!("a new key executes");
        };
        let right = permit.lease_token().clone();
        bench.execute(&format!("DELETE FROM {{keys}} WHERE key = '{}'", key.as_str())).await;
        self.plant(bench, key, &right).await;
        let before = bench.record(key).await;
        let ended = match (self.step, self.through) {
            (Move::Complete, Through::PermitInTx) => {
                let mut tx = bench.store.transaction().await.unwrap();
                let ended = permit.complete_tx(&mut tx, outcome()).await.map(drop);
                tx.commit().await.unwrap();
                ended
            }
            (Move::Complete, _) => permit.complete(outcome()).await.map(drop),
            (Move::Fail, _) => permit.fail("it did not happen", Some(outcome())).await,
            (Move::External, _) => permit.external().await,
            (Move::Release, _) => permit.release().await,
            (Move::Renew, _) => unreachable!("the heartbeat renews, nobody else"),
        };
        match ended {
            Ok(()) => (before, true),
            Err(EndError::ClaimLost { .. }) => (before, false),
            Err(error) => panic!("{error}"),
        }
    }

    fn owner_move(&self) -> OwnerMove {
        let lease = Duration::from_secs(30);
        match self.step {
            Move::Complete => OwnerMove::Complete(outcome()),
            Move::Fail => OwnerMove::Fail { error: "it did not happen".to_owned(), response: Some(outcome()) },
            Move::External => OwnerMove::External { lease },
            Move::Renew => OwnerMove::Renew { lease },
            Move::Release => OwnerMove::Release,
        }
    }

    async fn check_made<S: Tested>(&self, bench: &Bench<S>, key: &Key) {
        let Meets::Row { status, attempt, .. } = self.meets else { panic!("no row was moved") };
        let Some(after) = self.step.leads_to(status) else {
            assert!(bench.record(key).await.is_empty(), "the key is given back");
            return;
        };
        let row = bench.columns(key, "status, attempt, lease_until IS NULL, completed_at IS NULL, called_at IS NULL");
        let row: Vec<bool> = match row.await.as_slice() {
            [status, number, flags @ ..] => {
                assert_eq!((status.as_str(), number.as_str()), (after.as_str(), attempt.to_string().as_str()));
                flags.iter().map(|flag| flag == "1" || flag == "t").collect()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(row[0], after.is_finished(), "a lease is left exactly where the work goes on");
        assert_eq!(row[1], after != Status::Completed);
        assert!(!row[2] || after != Status::PendingExternal, "an announced call has a time");
        if after.is_finished() {
            let seen = bench.store.clone().find(&scope(), key).await.unwrap().unwrap();
            assert_eq!(seen.record.response, Some(outcome()), "byte for byte");
        } else {
            let left = bench.columns(key, "{micros}(lease_until) - {micros}({now})").await;
            assert!(left[0].parse::<i64>().unwrap() > 22_000_000, "the lease was not set anew: {left:?} µs are left");
        }
    }
}

impl Through {
    const ALL: [Self; 5] =
        [Self::Store, Self::StoreInTx, Self::StoreOnlyFromInProgress, Self::Permit, Self::PermitInTx];

    fn only_from(self) -> Option<Status> {
        (self == Self::StoreOnlyFromInProgress).then_some(Status::InProgress)
    }

    fn can_make(self, step: Move) -> bool {
        match self {
            Self::Store | Self::StoreInTx => true,
            Self::StoreOnlyFromInProgress => matches!(step, Move::Complete | Move::Fail),
            Self::Permit => step != Move::Renew,
            Self::PermitInTx => step == Move::Complete,
        }
    }
}

fn what_is_met(step: Move) -> Vec<Meets> {
    let mut all = vec![Meets::NoRow];
    for status in Status::ALL {
        for attempt in [1, 2] {
            for token in [Token::Right, Token::Stale] {
                all.push(Meets::Row { status, attempt, token, with_step: false });
            }
        }
    }
    if step == Move::Release {
        all.push(Meets::Row { status: Status::InProgress, attempt: 1, token: Token::Right, with_step: true });
    }
    all
}

/// An outcome with all that is hard to keep: repeated headers, bytes outside of ASCII, a NUL.
fn outcome() -> StoredResponse {
    StoredResponse {
        headers: vec![
            ("link".to_owned(), b"</a>; rel=\"prev\"".to_vec()),
            ("link".to_owned(), b"</b>".to_vec()),
            ("x-odd".to_owned(), vec![0xE9, 0xFF, b'\\']),
        ],
        body: Some(Bytes::from_static(b"{\"b\":1.0,\"a\":\"\\u0000\"}\0\xFF")),
        ..StoredResponse::bare(201)
    }
}
