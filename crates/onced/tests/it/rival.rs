//! Rivals: others who have a transaction open while a delivery comes in.

use onced::guard::Guard;
use onced::store::deliveries::LogDeliveries;
use onced_core::decision_table::{Expected, Line};
use onced_core::key::Key;
use testkit::Backend;

use crate::bench::{Bench, SCOPE, Tested, patient, request_of};
use crate::rival_process::RivalProcess;

/// Who else is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rival {
    /// Another connection of this process has begun the same key in an open transaction.
    Transaction,
    /// Another connection holds the claim lock (PostgreSQL), the write lock (SQLite) or the key's place in the table
    /// (MariaDB), by plain SQL.
    Lock,
    /// Another connection has changed the row in an open transaction, by plain SQL and without the claim lock: what
    /// an owner does who is about to commit its outcome.
    Row,
    /// Another process has begun the same key in an open transaction.
    Process,
}

impl Rival {
    pub(crate) const ALL: [Self; 4] = [Self::Transaction, Self::Lock, Self::Row, Self::Process];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Transaction => "rival-transaction",
            Self::Lock => "rival-lock",
            Self::Row => "rival-row",
            Self::Process => "rival-process",
        }
    }

    /// What a line comes to under this rival.
    ///
    /// On PostgreSQL a rival's claim lock shows at once. A changed row, and on the others any open transaction, shows only
    /// to who wants to write: what needs no writing is answered from what is committed, as if before the rival.
    pub(crate) fn expected(self, backend: Backend, line: &Line) -> Expected {
        match (backend, self) {
            (Backend::Postgres, Self::Transaction | Self::Lock | Self::Process) => line.expected_under_rival(),
            (Backend::Postgres, Self::Row) | (Backend::Sqlite | Backend::MariaDb, _) => match &line.expected {
                _ if line.gives_up() => Expected::InProgress,
                Expected::Execute { .. } => Expected::InProgress,
                Expected::Replay
                | Expected::InProgress
                | Expected::Mismatch
                | Expected::Unknown
                | Expected::Exhausted
                | Expected::NotUnderstood => line.expected.clone(),
            },
        }
    }
}

/// Rivals on one database; what they hold is let go of by [`Rivals::let_go`].
pub(crate) struct Rivals<S: Tested> {
    store: S,
    guard: Guard<S>,
    process: Option<RivalProcess>,
    held: Option<S::Tx>,
}

impl<S: Tested> Rivals<S> {
    pub(crate) async fn on(bench: &Bench<S>) -> Self {
        let store = bench.another_store(&patient()).await;
        Self { guard: Guard::new(store.clone(), LogDeliveries::Off), store, process: None, held: None }
    }

    /// Returns once the rival's transaction is open.
    pub(crate) async fn hold(&mut self, bench: &Bench<S>, rival: Rival, line: &Line, key: &Key) {
        let change = format!(
            "UPDATE {} SET error = 'a rival was here' WHERE scope = '{SCOPE}' AND key = '{}'",
            crate::bench::of_backend(S::BACKEND, "{keys}"),
            key.as_str()
        );
        match rival {
            Rival::Transaction => {
                let mut tx = self.store.transaction().await.unwrap();
                S::deliver_tx(&self.guard, &mut tx, &request_of(line, key)).await;
                self.held = Some(tx);
            }
            Rival::Lock => {
                let mut tx = self.store.transaction().await.unwrap();
                let key = key.as_str();
                let lock = match S::BACKEND {
                    Backend::Sqlite => "SELECT 1".to_owned(),
                    Backend::Postgres => format!("SELECT pg_advisory_xact_lock(onced.lock_id('{SCOPE}', '{key}'))"),
                    // Locks the row that is there, or makes one that is not committed.
                    Backend::MariaDb => format!(
                        "INSERT INTO onced_idempotency_keys \
                             (scope, key, request_hash, hash_version, status, attempt, retry_window, created_at, updated_at) \
                         SELECT '{SCOPE}', '{key}', REPEAT('x', 32), '', 'queued', 0, 0, now, now FROM onced_clock \
                         ON DUPLICATE KEY UPDATE error = onced_idempotency_keys.error"
                    ),
                };
                S::run(&mut tx, &lock).await.unwrap();
                self.held = Some(tx);
            }
            Rival::Row => {
                let mut tx = self.store.transaction().await.unwrap();
                assert_eq!(S::run(&mut tx, &change).await.unwrap(), 1);
                self.held = Some(tx);
            }
            Rival::Process => {
                let answer = self.process(bench).ask(&format!("hold {} {}", line.name, key.as_str())).await;
                assert_eq!(answer, "holding");
            }
        }
    }

    /// The other process, started when it is first needed.
    pub(crate) fn process(&mut self, bench: &Bench<S>) -> &mut RivalProcess {
        self.process.get_or_insert_with(|| RivalProcess::start(&S::url_of_rival(bench.database.url())))
    }

    /// Rolls back whatever is held.
    pub(crate) async fn let_go(&mut self) {
        if let Some(tx) = self.held.take() {
            tx.rollback().await.unwrap();
        }
        if let Some(process) = &mut self.process {
            assert_eq!(process.ask("let-go").await, "let go");
        }
    }
}
