//! The log of deliveries: executing ones commit with their claim, the others are written in batches.

use onced::guard::{Begun, Guard};
use onced::store::deliveries::LogDeliveries;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::key::Key;
use onced_core::record::StoredResponse;
use testkit::Database;

use crate::bench::{Bench, Tested, delivery, fresh_key, line, patient, request_of, scope};
use crate::plant;

#[tokio::test(flavor = "multi_thread")]
async fn an_executing_delivery_is_logged_with_its_claim_and_its_answer_later() {
    executing::<SqliteStore>().await;
    executing::<PgStore>().await;
}

async fn executing<S: Tested>() {
    for (wanted, logged) in [(LogDeliveries::All, 1), (LogDeliveries::Executed, 1), (LogDeliveries::Off, 0)] {
        let bench = bench::<S>(wanted).await;
        for (name, attempt) in [("none", "1"), ("failed", "2"), ("queued", "1"), ("completed-expired", "1")] {
            let (key, line) = (fresh_key(), line(name));
            plant::line(&bench, &line, &key).await;
            let Begun::Execute(permit) = bench.guard.begin(&request_of(&line, &key)).await.unwrap() else {
                panic!("{name} executes");
            };
            // Nothing was flushed: the line is there as soon as the claim is.
            let lines = lines(&bench, &key).await;
            assert_eq!(lines.len(), logged, "{wanted:?}, {name}");
            assert!(lines.iter().all(|line| line == &["execute", "NULL", attempt]), "{lines:?}");
            assert_eq!(permit.delivery().is_some(), wanted != LogDeliveries::Off);
            permit.own_record().answered(201).await;
            permit.complete(StoredResponse::bare(201)).await.unwrap();
            bench.guard.close().await;
            let answered = self::lines(&bench, &key).await;
            assert!(answered.iter().all(|line| line == &["execute", "201", attempt]), "{answered:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_deliveries_are_logged_in_batches_where_all_are_wanted() {
    others::<SqliteStore>().await;
    others::<PgStore>().await;
}

async fn others<S: Tested>() {
    let lines_of = [
        ("completed", "replay", "1"),
        ("in-progress-alive", "in-progress", "1"),
        ("completed-foreign", "mismatch", "1"),
        ("pending-over-hold", "unknown", "1"),
        ("failed-none-left-bare", "exhausted", "5"),
        ("note-completed", "replay, payload differs", "1"),
    ];
    for (wanted, logged) in [(LogDeliveries::All, 1), (LogDeliveries::Executed, 0), (LogDeliveries::Off, 0)] {
        let bench = bench::<S>(wanted).await;
        for (name, decision, attempt) in lines_of {
            let (key, line) = (fresh_key(), line(name));
            plant::line(&bench, &line, &key).await;
            let about = match bench.guard.begin(&request_of(&line, &key)).await.unwrap() {
                Begun::Execute(_) => panic!("{name} does not execute"),
                Begun::Replay { about, .. }
                | Begun::InProgress { about, .. }
                | Begun::Mismatch { about }
                | Begun::Unknown { about, .. }
                | Begun::Exhausted { about } => about,
            };
            bench.guard.answered(about.delivery, 409).await;
            bench.guard.close().await;
            let lines = lines(&bench, &key).await;
            assert_eq!(lines.len(), logged, "{wanted:?}, {name}");
            assert!(lines.iter().all(|line| line == &[decision, "409", attempt]), "{name}: {lines:?}");
        }
    }
}

/// "Did we do it twice?" is one query: what arrived, in order, and what was decided.
#[tokio::test(flavor = "multi_thread")]
async fn the_deliveries_of_a_key_are_read_back_in_order() {
    in_order::<SqliteStore>().await;
    in_order::<PgStore>().await;
}

async fn in_order<S: Tested>() {
    let bench = bench::<S>(LogDeliveries::All).await;
    let key = fresh_key();
    let Begun::Execute(permit) = bench.guard.begin(&delivery(&key)).await.unwrap() else { panic!("executes") };
    assert!(matches!(bench.guard.begin(&delivery(&key)).await.unwrap(), Begun::InProgress { .. }));
    bench.guard.close().await;
    permit.complete(StoredResponse::bare(201)).await.unwrap();
    for _ in 0..3 {
        assert!(matches!(bench.guard.begin(&delivery(&key)).await.unwrap(), Begun::Replay { .. }));
    }
    bench.guard.close().await;
    let read = bench.store.clone().deliveries_of(&scope(), &key, 10).await.unwrap();
    let decisions: Vec<&str> = read.iter().map(|line| line.decision.as_str()).collect();
    assert_eq!(decisions, ["execute", "in-progress", "replay", "replay", "replay"]);
    assert!(read.windows(2).all(|pair| pair[0].received_at <= pair[1].received_at));
    assert_eq!(bench.store.clone().deliveries_of(&scope(), &key, 2).await.unwrap(), read[..2]);
}

async fn bench<S: Tested>(log: LogDeliveries) -> Bench<S> {
    let bench = Bench::<S>::on(Database::create(S::BACKEND).await, &patient(), log).await;
    let _: &Guard<S> = &bench.guard;
    bench
}

async fn lines<S: Tested>(bench: &Bench<S>, key: &Key) -> Vec<Vec<String>> {
    let sql = format!(
        "SELECT decision, answered_status, attempt FROM {{deliveries}} WHERE scope = '{}' AND key = '{}' \
         ORDER BY received_at, id",
        scope(),
        key.as_str()
    );
    bench.rows(&sql).await
}
