//! How attempts end where the ending is not the plain one: answers too large to keep, clients that stop reading, apps
//! that change their record while the gateway decides, ledgers that break in the middle.

mod announced_call;
mod broken_ledger;
mod large_answers;
mod odd_requests;

use testkit::{Database, Sql};

/// From now on the ledger takes no completion.
pub(crate) async fn refuse_completions(database: &Database) {
    match database.sql() {
        Sql::Sqlite(_) => {
            let trigger = "CREATE TRIGGER planted BEFORE UPDATE ON onced_idempotency_keys WHEN NEW.status = 'completed' \
                 BEGIN SELECT RAISE(ABORT, 'planted'); END";
            database.sql().execute(trigger).await;
        }
        Sql::Postgres(_) => {
            let function =
                "CREATE FUNCTION planted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted'; END $$";
            database.sql().execute(function).await;
            let trigger = "CREATE TRIGGER planted BEFORE UPDATE ON onced.idempotency_keys FOR EACH ROW \
                 WHEN (NEW.status = 'completed') EXECUTE FUNCTION planted()";
            database.sql().execute(trigger).await;
        }
        Sql::MariaDb(_) => {
            let trigger = "CREATE TRIGGER planted BEFORE UPDATE ON onced_idempotency_keys FOR EACH ROW \
                 BEGIN IF NEW.status = 'completed' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'planted'; END IF; END";
            database.sql().execute(trigger).await;
        }
    }
}
