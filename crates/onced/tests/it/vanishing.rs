//! O-28: a record is deleted between the statement that ran into it and the next one, which reads or takes it. The
//! delivery then claims anew; it never runs without a record, and never fails.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use onced::guard::{Begun, Guard};
use onced::store::deliveries::LogDeliveries;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::record::StoredResponse;
use testkit::Sql;

use crate::bench::{Bench, SCOPE, Tested, executes, fresh_key, line, of_backend, request_of};
use crate::onlooked::{Onlooked, Onlooker, Statement};
use crate::plant;

/// Deletes the record before the statements that it is told, each once.
#[derive(Clone, Debug)]
struct Deleter {
    sql: Sql,
    delete: String,
    before: Arc<Mutex<VecDeque<Statement>>>,
}

impl Onlooker for Deleter {
    /// So that the claim runs into the record.
    async fn before(&self, statement: Statement) {
        let is_due = {
            let mut before = self.before.lock().unwrap();
            before.front() == Some(&statement) && before.pop_front().is_some()
        };
        if is_due {
            assert_eq!(self.sql.execute(&self.delete).await, 1, "the record was there");
        }
    }

    fn after_find(&self) {}
}

async fn vanishes<S: Tested>() {
    let bench = Bench::<S>::new().await;
    for (name, before) in [
        ("completed", Statement::Find),
        ("completed-expired", Statement::Find),
        ("completed-expired", Statement::Take),
        ("failed-expired", Statement::Take),
        ("in-progress-over", Statement::Take),
        ("in-progress-over-none-left", Statement::GiveUp),
    ] {
        let (key, line) = (fresh_key(), line(name));
        plant::line(&bench, &line, &key).await;
        let delete = format!("DELETE FROM {{keys}} WHERE scope = '{SCOPE}' AND key = '{}'", key.as_str());
        let deleter = Deleter {
            sql: bench.sql().clone(),
            delete: of_backend(S::BACKEND, &delete),
            before: Arc::new(Mutex::new(VecDeque::from([before]))),
        };
        let store = Onlooked { store: bench.store.clone(), onlooker: deleter };
        let guard = Guard::new(store.clone(), LogDeliveries::Executed);
        let mut begun = guard.begin(&request_of(&line, &key)).await.unwrap();
        if let (Statement::Take | Statement::GiveUp, Begun::InProgress { .. }) = (before, &begun) {
            // Whoever has changed the record may still be at it: a 409, and the next try decides.
            assert!(bench.record(&key).await.is_empty(), "{name}");
            begun = guard.begin(&request_of(&line, &key)).await.unwrap();
        }
        let permit = executes(begun);
        assert!(store.onlooker.before.lock().unwrap().is_empty(), "{name}: it went");
        assert_eq!((permit.attempt(), permit.is_resumed()), (1, false), "{name}: a first life");
        let row = bench.columns(&key, "status, attempt, lease_token").await;
        assert_eq!(row, ["in_progress", "1", permit.lease_token().as_str()], "{name}");
        permit.complete(StoredResponse::bare(201)).await.unwrap();
        assert!(matches!(guard.begin(&request_of(&line, &key)).await.unwrap(), Begun::Replay { .. }), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_deleted_meanwhile_is_claimed_anew_sqlite() {
    vanishes::<SqliteStore>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_deleted_meanwhile_is_claimed_anew_postgres() {
    vanishes::<PgStore>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_deleted_meanwhile_is_claimed_anew_mariadb() {
    vanishes::<MySqlStore>().await;
}
