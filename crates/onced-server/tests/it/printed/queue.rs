//! A queue's task keyed by its id: the worker of the example.

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};

use super::*;
use crate::fixture::sql::let_leases_run_out;

fn worker(database: &str, provider: &str, folder: &Path) -> Process {
    let mut command = Command::new(python());
    command.arg(examples().join("python/job_queue/worker.py")).arg("--until-empty").env("PYTHONPATH", folder);
    command
        .env("DATABASE_URL", database)
        .env("PROVIDER", provider)
        .env("no_proxy", "*")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    Process::start(command)
}

/// Lets the worker work until there is nothing left for it.
pub(super) async fn work(database: &Database, provider: &str) {
    let folder = printed().await;
    let mut worker = worker(database.url(), provider, folder.path());
    assert!(worker.wait(LIMIT).await.success(), "{:?}", worker.stderr().all());
    let left = database.sql().count("SELECT count(*) FROM jobs").await;
    assert_eq!(left, 0, "{:?} {:?}", worker.stdout().all(), worker.stderr().all());
}

/// Killed while the mail is being sent: the task is taken again under the same key, and the provider sends one mail.
#[tokio::test]
async fn a_task_takes_effect_once_though_its_worker_is_killed() {
    let database = database().await;
    let script = [Rule::on_run(1, Reply::hang())];
    let provider = Recorder::start(RecorderOptions::default().deduplicate().script(script)).await.expect("a free port");
    database.sql().execute("INSERT INTO jobs (kind, payload) VALUES ('mail', 'sub_1'), ('mail', 'sub_2')").await;
    let folder = printed().await;
    let mut killed = worker(database.url(), &provider.url(), folder.path());
    provider.wait_for_held(1, LIMIT).await.expect("the mail is being sent");
    killed.kill().await;
    provider.script([]);
    provider.release();
    assert_eq!(database.sql().count("SELECT count(*) FROM jobs").await, 2);

    let_leases_run_out(database.sql(), Backend::Postgres).await;
    database.sql().execute("UPDATE jobs SET not_before = now()").await;
    work(&database, &provider.url()).await;
    let by_key = provider.effects_by_key();
    assert_eq!(by_key.values().collect::<Vec<_>>(), [&1, &1], "two tasks, a mail each: {by_key:?}");
    let completed = "SELECT count(*) FROM onced.idempotency_keys WHERE scope = 'jobs.mail' AND status = 'completed'";
    assert_eq!(database.sql().count(completed).await, 2);
}

/// A person has said what came of it: it is done, and not left to be taken when its key has expired.
#[tokio::test]
async fn a_task_whose_outcome_is_known_leaves_the_queue() {
    let database = database().await;
    let provider = Recorder::start(RecorderOptions::default()).await.expect("a free port");
    database
        .sql()
        .execute("INSERT INTO jobs (id, kind, payload) OVERRIDING SYSTEM VALUE VALUES (77, 'mail', 'sub_1')")
        .await;
    let hash = "onced.raw_hash('', '', '', '', 'sub_1')";
    let token = "lease_token => 'a-token-of-ours-'";
    database.sql().text(&format!("SELECT decision FROM onced.begin('jobs.mail', '77', {hash}, {token})")).await;
    database.sql().text("SELECT onced.complete('jobs.mail', '77', 'a-token-of-ours-', 204)").await;
    work(&database, &provider.url()).await;
    assert_eq!(provider.count(), 0);
}
