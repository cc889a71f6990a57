//! O-30, items 2, 6 and 7: statements of the ledger that fail once or always, a ledger that is gone, and a restart.

use onced_harness::{Recorder, RecorderOptions};
use testkit::http_client::send;

use super::*;
use crate::case_crash::{is_replayed, nothing_is_running, replays};
use crate::case_store::{assert_come_again, records};
use crate::fixture::sql::let_leases_run_out;

const NO_PROVIDER: &str = "http://127.0.0.1:9";

/// From now on that statement on the ledger's table fails so often, in that way.
async fn let_fail(database: &Database, statement: &str, times: i64, how: &str) {
    let function = format!(
        "CREATE SEQUENCE IF NOT EXISTS faults; SELECT setval('faults', 1, false); \
         CREATE OR REPLACE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN \
         IF nextval('public.faults') <= {times} THEN {how} END IF; RETURN new; END $$; \
         DROP TRIGGER IF EXISTS fault ON onced.idempotency_keys; \
         CREATE TRIGGER fault BEFORE {statement} ON onced.idempotency_keys FOR EACH ROW EXECUTE FUNCTION fault()"
    );
    database.sql().execute(&function).await;
}

async fn heal(database: &Database) {
    database.sql().execute("DROP TRIGGER fault ON onced.idempotency_keys").await;
}

/// Each of the conflicts, once and always, at the claim and at the completion.
async fn o_30_2(example: Example) {
    let database = database().await;
    let app = App::start(example, database.url(), NO_PROVIDER).await;
    let mut expected = 0;
    for code in ["40001", "40P01", "55P03"] {
        for statement in ["INSERT", "UPDATE"] {
            let request = order(&format!("{code}-{statement}"));
            let how = format!("RAISE EXCEPTION 'a conflict' USING ERRCODE = '{code}';");
            let_fail(&database, statement, 1, &how).await;
            let first = send(app.address, &request).await;
            assert_eq!((first.status, is_replayed(&first)), (201, false), "{code} {statement}: {first:?}");
            expected += 1;
            assert_eq!(orders(&database).await, expected);
        }
    }
    for statement in ["INSERT", "UPDATE"] {
        let (request, before) = (order(&format!("always-{statement}")), records(&database).await);
        let_fail(&database, statement, i64::MAX, "RAISE EXCEPTION 'a conflict' USING ERRCODE = '40001';").await;
        assert_come_again(&send(app.address, &request).await, 503, "store-unavailable");
        assert_eq!((orders(&database).await, records(&database).await), (expected, before), "nothing is left of it");
        heal(&database).await;
        let retry = send(app.address, &request).await;
        assert_eq!((retry.status, is_replayed(&retry)), (201, false), "{retry:?}");
        replays(&send(app.address, &request).await, &retry);
        expected += 1;
        assert_eq!(orders(&database).await, expected);
    }
    nothing_is_running(&database).await;
}

/// The ledger's table is gone, its functions are, or its server ends the connection at the completion.
async fn o_30_6(example: Example) {
    let database = database().await;
    let provider = Recorder::start(RecorderOptions::default().deduplicate()).await.expect("the provider can listen");
    let app = App::start(example, database.url(), &provider.url()).await;
    for (break_it, mend_it) in [
        ("ALTER TABLE onced.idempotency_keys RENAME TO away", "ALTER TABLE onced.away RENAME TO idempotency_keys"),
        ("ALTER FUNCTION onced.begin RENAME TO away", "ALTER FUNCTION onced.away RENAME TO begin"),
    ] {
        database.sql().execute(break_it).await;
        for request in [order("o30-6"), post("/api/charge", "o30-6", "{}")] {
            assert_come_again(&send(app.address, &request).await, 503, "store-unavailable");
        }
        assert_eq!((runs(&database).await, provider.count()), (0, 0), "nothing runs without a claim");
        database.sql().execute(mend_it).await;
    }

    let_fail(&database, "UPDATE", i64::MAX, "PERFORM pg_terminate_backend(pg_backend_pid());").await;
    assert_come_again(&send(app.address, &order("o30-6")).await, 503, "store-unavailable");
    assert_eq!((orders(&database).await, records(&database).await), (0, 0), "nothing is half committed");
    let charge = post("/api/charge", "o30-6", "{}");
    assert_come_again(&send(app.address, &charge).await, 503, "store-unavailable");
    let status = "SELECT status FROM onced.idempotency_keys";
    assert_eq!(database.sql().text(status).await, [["pending_external"]]);
    assert_eq!((provider.count(), orders(&database).await), (1, 0));

    heal(&database).await;
    assert_eq!(send(app.address, &order("o30-6")).await.status, 201);
    let_leases_run_out(database.sql(), Backend::Postgres).await;
    let retry = send(app.address, &charge).await;
    assert_eq!((retry.status, is_replayed(&retry)), (200, false), "{retry:?}");
    // Called again under the same key, with one effect.
    assert_eq!((provider.count(), provider.effects(), orders(&database).await), (2, 1, 2));
}

async fn o_30_7(example: Example) {
    let database = database().await;
    let mut app = App::start(example, database.url(), NO_PROVIDER).await;
    let first = send(app.address, &order("o30-7")).await;
    assert_eq!(first.status, 201, "{first:?}");
    app.process.kill().await;
    let app = App::start(example, database.url(), NO_PROVIDER).await;
    replays(&send(app.address, &order("o30-7")).await, &first);
    assert_eq!((runs(&database).await, orders(&database).await), (1, 1));
}

on_each! {
    o_30_2: o_30_2_failing_statements_fastapi, o_30_2_failing_statements_express;
    o_30_6: o_30_6_ledger_gone_fastapi, o_30_6_ledger_gone_express;
    o_30_7: o_30_7_restart_fastapi, o_30_7_restart_express;
}
