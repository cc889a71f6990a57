//! The log of deliveries: executing ones commit with their claim, the others are written in batches.

use std::time::Duration;

use onced::guard::{Begun, Guard};
use onced::store::deliveries::LogDeliveries;
use onced::store::mysql::MySqlStore;
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
    executing::<MySqlStore>().await;
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
    others::<MySqlStore>().await;
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
    in_order::<MySqlStore>().await;
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

/// Lines as they stand where repeats are only observed, against counts by the test's own SQL.
#[tokio::test(flavor = "multi_thread")]
async fn repeats_are_counted_by_scope_and_key() {
    repeats::<SqliteStore>().await;
    repeats::<PgStore>().await;
    repeats::<MySqlStore>().await;
}

async fn repeats<S: Tested>() {
    let bench = bench::<S>(LogDeliveries::Off).await;
    let now = bench.now().await;
    assert_eq!(bench.store.clone().repeats(None).await.unwrap(), []);
    let mut number = 0;
    for (scope, key, decision, times, age) in [
        ("mail", "a", "execute", 1, 60),
        ("mail", "a", "observed: replay", 3, 50),
        ("mail", "a", "observed: replay, payload differs", 1, 40),
        ("mail", "b", "execute", 1, 30),
        ("mail", "b", "observed: in-progress", 2, 20),
        ("mail", "c", "replay", 9, 20),
        ("pay", "a", "execute", 1, 2 * 3600),
        // An execution is no repeat, also where it was only observed.
        ("pay", "i", "observed: execute", 7, 10),
        ("pay", "a", "observed: mismatch", 1, 10),
        ("pay", "d", "observed: unknown", 1, 10),
        ("pay", "e", "observed: unknown", 1, 10),
        ("pay", "f", "observed: unknown", 1, 10),
        ("pay", "g", "observed: unknown", 1, 10),
        ("pay", "h", "observed: exhausted", 2, 10),
    ] {
        for _ in 0..times {
            number += 1;
            let at = now.minus(Duration::from_secs(age));
            plant::delivery(&bench, scope, key, decision, at, number).await;
        }
    }
    for since in [None, Some(Duration::from_secs(3600))] {
        let cut = since.map_or(0, |since: Duration| now.minus(since).as_micros());
        let found = bench.store.clone().repeats(since).await.unwrap();
        assert_eq!(found.iter().map(|repeats| repeats.scope.as_str()).collect::<Vec<_>>(), ["mail", "pay"]);
        for repeats in &found {
            let of =
                format!("FROM {{deliveries}} WHERE scope = '{}' AND {{micros}}(received_at) >= {cut}", repeats.scope);
            let all = bench.count(&format!("SELECT count(*) {of}")).await;
            assert_eq!(repeats.decisions.iter().map(|(_, count)| i64::try_from(*count).unwrap()).sum::<i64>(), all);
            for (decision, count) in &repeats.decisions {
                let counted = bench.count(&format!("SELECT count(*) {of} AND decision = '{decision}'")).await;
                assert_eq!(i64::try_from(*count).unwrap(), counted, "{decision}");
            }
            let edge = async |what| bench.count(&format!("SELECT {{micros}}({what}(received_at)) {of}")).await;
            assert_eq!((repeats.first.as_micros(), repeats.last.as_micros()), (edge("min").await, edge("max").await));
        }
        let keys: Vec<Vec<(&str, u64)>> = found
            .iter()
            .map(|repeats| repeats.keys.iter().map(|(key, count)| (key.as_str(), *count)).collect())
            .collect();
        assert_eq!(keys, [vec![("a", 4), ("b", 2)], vec![("h", 2), ("a", 1), ("d", 1), ("e", 1), ("f", 1)]]);
    }
}
