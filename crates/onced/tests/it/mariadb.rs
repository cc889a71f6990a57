//! What MariaDB alone has: transactions that end without being told to, settings of its sessions and of the whole server,
//! tables that have no transactions, packets that are too large.

use std::time::{Duration, Instant};

use onced::guard::{Atomic, Begun, EndError, Guard, GuardError, Request};
use onced::store::deliveries::LogDeliveries;
use onced::store::health::{Health as _, Settings};
use onced::store::keys::{Keys as _, OwnerMove, Transactional as _};
use onced::store::mysql::MySqlStore;
use onced::store::sweep::{Batch, Sweep as _};
use onced::store::{AnyStore, Durability, StoreErrorKind, StoreOptions, passes};
use onced_core::key::Key;
use onced_core::record::StoredResponse;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _};
use testkit::{Backend, Database, MariaDbServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::bench::{
    Bench, LIMIT, SCOPE, Tested as _, delivery, executes, fresh_key, line, options, patient, request_of, scope, until,
};
use crate::plant;

type Maria = Bench<MySqlStore>;

/// Below what a statement waits for a lock (5 s), and more than one takes on a machine that is busy.
const AT_ONCE: Duration = Duration::from_secs(3);

async fn begun(bench: &Maria, key: &Key) -> Atomic<MySqlStore> {
    executes(bench.guard.begin_atomic(&delivery(key), Duration::ZERO).await.unwrap())
}

fn insert(key: &Key) -> String {
    format!("INSERT INTO orders (key) VALUES ('{}')", key.as_str())
}

/// Two transactions that have each locked a row and ask for the other's: one of them is undone by the server.
async fn meet(bench: &Maria, key: &Key) -> (Atomic<MySqlStore>, Result<u64, sqlx::Error>) {
    bench
        .execute("CREATE TABLE IF NOT EXISTS stock (item integer PRIMARY KEY, n integer NOT NULL) ENGINE = InnoDB")
        .await;
    bench.execute("REPLACE INTO stock VALUES (1, 0), (2, 0)").await;
    let mut victim = begun(bench, key).await;
    MySqlStore::run(victim.tx(), &insert(key)).await.unwrap();
    MySqlStore::run(victim.tx(), "UPDATE stock SET n = n + 1 WHERE item = 1").await.unwrap();
    let mut rival = bench.store.transaction().await.unwrap();
    // The server ends the transaction that has changed less.
    for _ in 0..20 {
        MySqlStore::run(&mut rival, &insert(&fresh_key())).await.unwrap();
    }
    MySqlStore::run(&mut rival, "UPDATE stock SET n = n + 1 WHERE item = 2").await.unwrap();
    let waiting = tokio::spawn(async move {
        MySqlStore::run(&mut rival, "UPDATE stock SET n = n + 1 WHERE item = 1").await.unwrap();
        rival.rollback().await.unwrap();
    });
    until("the rival waits", async || {
        let running =
            "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'UPDATE stock%'";
        let Some(thread) = bench.rows(running).await.into_iter().flatten().next() else { return false };
        // Its table of transactions is not made anew for whoever asks more often than ten times a second.
        let status = bench.rows("SHOW ENGINE INNODB STATUS").await;
        let thread = format!("thread id {thread},");
        let mut transactions = status[0][2].split("---TRANSACTION");
        transactions.any(|transaction| transaction.contains("LOCK WAIT") && transaction.contains(&thread))
    })
    .await;
    let met = MySqlStore::run(victim.tx(), "UPDATE stock SET n = n + 1 WHERE item = 2").await;
    waiting.await.unwrap();
    (victim, met)
}

/// After a deadlock the server has undone all of the transaction. An application that takes no notice, writes on and
/// commits has written nothing: no statement commits by itself, and the claim is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_after_a_deadlock_is_not_committed_without_its_claim() {
    let bench = Maria::new().await;
    let key = fresh_key();
    let (mut victim, met) = meet(&bench, &key).await;
    let error = met.unwrap_err();
    assert!(passes(&error), "{error}");
    MySqlStore::run(victim.tx(), &insert(&key)).await.unwrap();
    assert_eq!(bench.orders(&key).await, 0, "nothing commits by itself");
    let ended = victim.commit(StoredResponse::bare(201)).await;
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(bench.orders(&key).await, 0);
    assert!(bench.record(&key).await.is_empty());

    // The same connection serves whoever comes next as ever, and the work can be done again.
    let mut again = begun(&bench, &key).await;
    MySqlStore::run(again.tx(), &insert(&key)).await.unwrap();
    again.commit(StoredResponse::bare(201)).await.unwrap();
    assert_eq!(bench.orders(&key).await, 1);
}

/// Whoever meets a rival's lock is told so at once, and not when a wait for it is over: the claimant of a key that is being
/// inserted or taken, and the owner whose record is being ended in a transaction that is slow to commit.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_rivals_lock() {
    let bench = Maria::with(&patient()).await;
    let told = async |what: &str, request: &Request| {
        let since = Instant::now();
        let begun = bench.guard.begin(request).await.unwrap();
        assert!(matches!(begun, Begun::InProgress { .. }), "{what}: {begun:?}");
        assert!(since.elapsed() < AT_ONCE, "{what}: after {:?}", since.elapsed());
    };
    let key = fresh_key();
    let rival = begun(&bench, &key).await;
    let stranger = bench.beside("", &patient()).await;
    let since = Instant::now();
    let answer = stranger.guard.begin(&delivery(&key)).await.unwrap();
    assert!(
        matches!(answer, Begun::InProgress { .. }) && since.elapsed() < AT_ONCE,
        "{answer:?}, {:?}",
        since.elapsed()
    );
    told("inserted", &delivery(&key)).await;
    drop(rival);

    for name in ["failed", "in-progress-over", "in-progress-over-none-left", "completed-expired", "queued"] {
        let (key, line) = (fresh_key(), line(name));
        plant::line(&bench, &line, &key).await;
        let mut rival = bench.store.transaction().await.unwrap();
        let lock = format!("SELECT status FROM onced_idempotency_keys WHERE key = '{}' FOR UPDATE", key.as_str());
        MySqlStore::run(&mut rival, &lock).await.unwrap();
        told(name, &request_of(&line, &key)).await;
        rival.rollback().await.unwrap();
    }

    let key = fresh_key();
    let permit = executes(bench.guard.begin(&delivery(&key)).await.unwrap());
    let mut slow = bench.store.transaction().await.unwrap();
    permit.complete_tx(&mut slow, StoredResponse::bare(201)).await.unwrap();
    let mut heart = bench.store.clone();
    let renew = OwnerMove::Renew { lease: Duration::from_secs(30) };
    let since = Instant::now();
    let renewed = heart.owner_move(&scope(), &key, permit.lease_token(), None, &renew).await;
    assert!(matches!(&renewed, Err(error) if error.is_transient()), "{renewed:?}");
    assert!(since.elapsed() < AT_ONCE, "renewed after {:?}", since.elapsed());
    slow.rollback().await.unwrap();
}

/// A statement that a person or its time-out has ended may have been a commit of the application's own, done or not: its
/// handler must not run again by itself.
#[tokio::test(flavor = "multi_thread")]
async fn an_interruption_of_the_applications_own_statement_does_not_pass() {
    let bench = Maria::new().await;
    let mut tx = bench.store.transaction().await.unwrap();
    for (number, passing) in [(1317, false), (1969, false), (1213, true)] {
        let said = format!("SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'ended'");
        let error = MySqlStore::run(&mut tx, &said).await.unwrap_err();
        assert_eq!(passes(&error), passing, "{number}: {error}");
    }
    tx.rollback().await.unwrap();
}

/// The bound on waiting for a lock that a statement of the application's own meets: an error that passes, and the
/// transaction is still there.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_not_got_in_time_passes_and_undoes_the_statement_alone() {
    let bench = Maria::new().await;
    let key = fresh_key();
    bench.execute("CREATE TABLE stock (item integer PRIMARY KEY, n integer NOT NULL) ENGINE = InnoDB").await;
    bench.execute("INSERT INTO stock VALUES (1, 0)").await;
    let mut holder = bench.store.transaction().await.unwrap();
    MySqlStore::run(&mut holder, "UPDATE stock SET n = 1 WHERE item = 1").await.unwrap();
    let mut atomic = begun(&bench, &key).await;
    MySqlStore::run(atomic.tx(), &insert(&key)).await.unwrap();
    let waited = "SET STATEMENT innodb_lock_wait_timeout = 1 FOR UPDATE stock SET n = 2 WHERE item = 1";
    let error = MySqlStore::run(atomic.tx(), waited).await.unwrap_err();
    assert!(passes(&error) && error.to_string().contains("1205"), "{error}");
    atomic.commit(StoredResponse::bare(201)).await.unwrap();
    assert_eq!(bench.orders(&key).await, 1);
    holder.rollback().await.unwrap();
}

/// Somebody ends the session in the middle of a transaction: all of it is undone, the owner is told, and the key is free.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_connection_takes_its_transaction_with_it() {
    let bench = Maria::new().await;
    let key = fresh_key();
    let mut atomic = begun(&bench, &key).await;
    MySqlStore::run(atomic.tx(), &insert(&key)).await.unwrap();
    let session: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut **atomic.tx()).await.unwrap();
    bench.execute(&format!("KILL {session}")).await;
    match atomic.commit(StoredResponse::bare(201)).await {
        Err(EndError::Store { source, .. }) => assert_eq!(source.kind(), StoreErrorKind::Lost, "{source}"),
        other => panic!("{other:?}"),
    }
    until("the server has noticed", async || bench.record(&key).await.is_empty()).await;
    assert_eq!(bench.orders(&key).await, 0);
    let mut again = begun(&bench, &key).await;
    MySqlStore::run(again.tx(), &insert(&key)).await.unwrap();
    again.commit(StoredResponse::bare(201)).await.unwrap();
    assert_eq!(bench.orders(&key).await, 1);
}

/// A statement that commits by itself (CREATE, ALTER, TRUNCATE …) ends the application's transaction, as the documentation
/// warns. What it has written before stands with a claim that is still its own, and completing that keeps it to one effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_commits_by_itself_leaves_a_claim_that_can_be_completed() {
    let bench = Maria::new().await;
    let (key, left) = (fresh_key(), fresh_key());
    for (key, completes) in [(&key, true), (&left, false)] {
        let mut atomic = begun(&bench, key).await;
        MySqlStore::run(atomic.tx(), &insert(key)).await.unwrap();
        MySqlStore::run(atomic.tx(), "CREATE TABLE IF NOT EXISTS made_on_the_way (n integer)").await.unwrap();
        assert_eq!(bench.columns(key, "status").await, ["in_progress"], "it is committed already");
        if completes {
            atomic.commit(StoredResponse::bare(201)).await.unwrap();
            assert_eq!(bench.columns(key, "status").await, ["completed"]);
        } else {
            // The rows cannot be undone any more: until the lease is over nobody executes again.
            drop(atomic);
            until("the connection is back", async || {
                let told = bench.guard.begin(&delivery(key)).await.unwrap();
                matches!(told, Begun::InProgress { .. })
            })
            .await;
        }
        assert_eq!(bench.orders(key).await, 1);
    }
}

/// Keys are bytes: no collation, no blank at an end, no case makes two of them one.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_a_collation_would_take_for_one_are_two() {
    let bench = Maria::new().await;
    let name = fresh_key();
    for variant in ["a", "A", "a-", "a\\", "a_", "a%", "a b", "a  b", "a'b", "a\"b", "a`b", "ss", "SS"] {
        let key = Key::new(&format!("{}{variant}", name.as_str())).unwrap();
        let permit = executes(bench.guard.begin(&delivery(&key)).await.unwrap());
        permit.complete(StoredResponse::bare(201)).await.unwrap();
        let again = bench.guard.begin(&delivery(&key)).await.unwrap();
        assert!(matches!(again, Begun::Replay { .. }), "{variant}: {again:?}");
    }
    let keys = "SELECT count(*) FROM {keys}";
    assert_eq!(bench.count(keys).await, 13);
    let types = "SELECT data_type FROM information_schema.columns WHERE table_schema = DATABASE() \
                 AND table_name LIKE 'onced%' AND column_name IN ('scope', 'key')";
    assert!(bench.database.sql().text(types).await.iter().all(|row| row == &["varbinary"]));
}

/// An application's own sessions may be set in any way: what is stored and read is the same, to the byte and the
/// microsecond.
#[tokio::test(flavor = "multi_thread")]
async fn no_setting_of_a_session_changes_what_is_stored() {
    let bench = Maria::new().await;
    for settings in [
        "time_zone = '-09:30'",
        "time_zone = '+13:00'",
        "sql_mode = ''",
        "sql_mode = 'ORACLE'",
        "sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE'",
        "sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,TIME_ROUND_FRACTIONAL,SIMULTANEOUS_ASSIGNMENT'",
        "sql_mode = 'TRADITIONAL,ONLY_FULL_GROUP_BY'",
        "collation_connection = utf8mb4_general_ci, character_set_connection = latin1",
        "tx_isolation = 'SERIALIZABLE'",
        "tx_isolation = 'READ-UNCOMMITTED'",
        "autocommit = 0",
        "sql_select_limit = 1, sql_safe_updates = 1, max_statement_time = 30",
        "div_precision_increment = 0, group_concat_max_len = 4, sql_auto_is_null = 1",
    ] {
        let own = MySqlPoolOptions::new().max_connections(1).after_connect(move |conn, _| {
            Box::pin(async move { conn.execute(AssertSqlSafe(format!("SET SESSION {settings}"))).await.map(drop) })
        });
        let own = own.connect(bench.database.url()).await.unwrap();
        let store = MySqlStore::from_pool(own.clone());
        let guard = Guard::new(store.clone(), LogDeliveries::Executed);
        let key = fresh_key();
        let empty = StoredResponse { body: Some(bytes()), ..StoredResponse::bare(201) };
        let nothing = StoredResponse { body: Some(bytes::Bytes::new()), ..StoredResponse::bare(201) };
        for (key, response) in [(&key, empty), (&fresh_key(), nothing)] {
            // BEGIN is something else in Oracle's mode.
            let mut tx = own.begin_with("START TRANSACTION").await.unwrap();
            let permit = executes(guard.begin_tx(&mut tx, &delivery(key)).await.unwrap());
            MySqlStore::run(&mut tx, &insert(key)).await.unwrap();
            permit.complete(&mut tx, response.clone()).await.unwrap();
            tx.commit().await.unwrap();
            assert_eq!(bench.orders(key).await, 1, "{settings}");
            // By another session, and by its own.
            for guard in [&bench.guard, &guard] {
                let replayed = guard.begin(&delivery(key)).await.unwrap();
                let Begun::Replay { response: stored, .. } = replayed else { panic!("{settings}: {replayed:?}") };
                assert_eq!(stored, response, "{settings}");
            }
            let off = format!(
                "SELECT ABS(TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6))) < 60000000 \
                    AND MICROSECOND(created_at) <> 0 FROM {{keys}} WHERE key = '{}'",
                key.as_str()
            );
            assert_eq!(bench.count(&off).await, 1, "{settings}");
        }
    }
}

/// A session can be given a time of its own, which would be the ledger's, and be told to take what is empty for nothing:
/// nothing is claimed there.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_would_change_what_is_stored_claim_nothing() {
    let bench = Maria::new().await;
    let own = MySqlPoolOptions::new().max_connections(1).connect(bench.database.url()).await.unwrap();
    let guard = Guard::new(MySqlStore::from_pool(own.clone()), LogDeliveries::Off);
    let key = fresh_key();
    for (set, claims) in [
        ("SET timestamp = 1000000000.25", false),
        ("SET timestamp = DEFAULT", true),
        ("SET sql_mode = 'ORACLE,EMPTY_STRING_IS_NULL'", false),
        ("SET sql_mode = 'ORACLE'", true),
    ] {
        let mut tx = own.begin_with("START TRANSACTION").await.unwrap();
        MySqlStore::run(&mut tx, set).await.unwrap();
        match guard.begin_tx(&mut tx, &delivery(&key)).await {
            Err(GuardError::Store { source, .. }) => {
                assert!(!claims && source.kind() == StoreErrorKind::Refused, "{source}")
            }
            Ok(begun) => assert!(claims && matches!(begun, Begun::Execute(_)), "{begun:?}"),
            Err(other) => panic!("{other}"),
        }
        tx.rollback().await.unwrap();
    }
}

/// Every byte there is.
fn bytes() -> bytes::Bytes {
    (0..=255_u8).collect::<Vec<_>>().into()
}

/// Whatever cannot be rolled back cannot hold a claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_outside_innodb_is_not_opened() {
    let bench = Maria::new().await;
    bench.execute("ALTER TABLE {deliveries} ENGINE = Aria").await;
    for durability in [Durability::Required, Durability::WeakAccepted] {
        let error =
            MySqlStore::open(bench.database.url(), &StoreOptions { durability, ..options() }).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused);
        assert!(error.words().contains("not in InnoDB: onced_deliveries"), "{error}");
    }
    bench.execute("ALTER TABLE {deliveries} ENGINE = InnoDB").await;
    MySqlStore::open(bench.database.url(), &options()).await.unwrap();
}

/// A server that is set to lose commits, is a replica, or may not hold an outcome.
#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_server_are_refused_or_told() {
    let server = MariaDbServer::start(&["--log-bin", "--sync-binlog=1"]);
    let admin = MySqlPool::connect(&server.url("")).await.unwrap();
    admin.execute("CREATE DATABASE shop").await.unwrap();
    let url = server.url("shop");
    let store = MySqlStore::open(&url, &patient()).await.unwrap();
    store.migrate().await.unwrap();
    for (weak, sound, word) in [
        ("innodb_flush_log_at_trx_commit = 2", "innodb_flush_log_at_trx_commit = 1", "innodb_flush_log_at_trx_commit"),
        ("innodb_flush_log_at_trx_commit = 0", "innodb_flush_log_at_trx_commit = 1", "innodb_flush_log_at_trx_commit"),
        ("sync_binlog = 0", "sync_binlog = 1", "sync_binlog"),
    ] {
        admin.execute(AssertSqlSafe(format!("SET GLOBAL {weak}"))).await.unwrap();
        let error = MySqlStore::open(&url, &options()).await.unwrap_err();
        assert!(error.words().contains(word) && error.words().contains("allow_weak_durability"), "{weak}: {error}");
        let accepting = StoreOptions { durability: Durability::WeakAccepted, ..options() };
        MySqlStore::open(&url, &accepting).await.unwrap();
        admin.execute(AssertSqlSafe(format!("SET GLOBAL {sound}"))).await.unwrap();
        AnyStore::open(&url.replace("mysql:", "mariadb:"), &options()).await.unwrap();
    }

    // It becomes a replica: whoever comes anew is refused, and whoever is there learns nothing from it.
    let guard = Guard::new(store.clone(), LogDeliveries::Executed);
    let key = fresh_key();
    executes(guard.begin(&delivery(&key)).await.unwrap()).complete(StoredResponse::bare(201)).await.unwrap();
    admin.execute("SET GLOBAL read_only = 1").await.unwrap();
    let error = MySqlStore::open(&url, &options()).await.unwrap_err();
    assert!(error.words().contains("on the primary only"), "{error}");
    for key in [&key, &fresh_key()] {
        match Guard::new(store.clone(), LogDeliveries::Off).begin(&delivery(key)).await {
            Err(GuardError::Store { source, .. }) => {
                assert_eq!(source.kind(), StoreErrorKind::Unavailable, "{source}");
                assert!(source.words().contains("read-only"), "{source}");
            }
            other => panic!("{other:?}"),
        }
    }
    // Nor of a key that this process knows: the reading alone would find it.
    let begun = guard.begin(&delivery(&key)).await;
    assert!(matches!(begun, Err(GuardError::Store { .. })), "{begun:?}");
    admin.execute("SET GLOBAL read_only = 0").await.unwrap();
    assert!(matches!(guard.begin(&delivery(&key)).await.unwrap(), Begun::Replay { .. }));

    too_large(&admin, &url).await;
}

/// An outcome that does not fit into a packet is an error in words; the record stays, and nobody executes again.
async fn too_large(admin: &MySqlPool, url: &str) {
    admin.execute("SET GLOBAL max_allowed_packet = 1048576").await.unwrap();
    let mut store = MySqlStore::open(url, &patient()).await.unwrap();
    let Settings::MariaDb(settings) = store.settings().await.unwrap() else { panic!("it is MariaDB") };
    assert_eq!(settings.max_allowed_packet, 1 << 20);
    let guard = Guard::new(store, LogDeliveries::Executed);
    for size in [1 << 20, 5 << 20, 20 << 20] {
        let key = fresh_key();
        let permit = executes(guard.begin(&delivery(&key)).await.unwrap());
        let response = StoredResponse { body: Some(vec![b'x'; size].into()), ..StoredResponse::bare(201) };
        let ended = tokio::time::timeout(LIMIT, permit.complete(response)).await.expect("it is bounded");
        match ended {
            Err(EndError::Store { source, .. }) => {
                assert!(source.words().contains("max_allowed_packet"), "{size}: {source}");
                assert_eq!(source.kind(), StoreErrorKind::Refused, "{size}: {source}");
            }
            other => panic!("{size}: {other:?}"),
        }
        let told = guard.begin(&delivery(&key)).await.unwrap();
        assert!(matches!(told, Begun::InProgress { .. }), "{size}: {told:?}");
    }
    // Half of it fits.
    let key = fresh_key();
    let response = StoredResponse { body: Some(vec![b'x'; 1 << 19].into()), ..StoredResponse::bare(201) };
    executes(guard.begin(&delivery(&key)).await.unwrap()).complete(response).await.unwrap();
    assert!(matches!(guard.begin(&delivery(&key)).await.unwrap(), Begun::Replay { .. }));
}

/// In the words of the server, without the password of the URL.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_there_is_said_to_be_missing() {
    let database = Database::create(Backend::MariaDb).await;
    let (server, _) = database.url().rsplit_once('/').unwrap();
    let error = MySqlStore::open(&format!("{server}/no_such_database"), &options()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.words().contains("Unknown database"), "{error}");
}

/// A server that greets as MySQL does: it is told apart before anything is sent that only MariaDB understands. No MySQL is to be
/// had on the test machine, so that the greeting and the one answer are played.
#[tokio::test(flavor = "multi_thread")]
async fn a_mysql_is_refused_in_words() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("mysql://root@{}/shop", listener.local_addr().unwrap());
    let asked = tokio::spawn(async move { play_mysql(listener.accept().await.unwrap().0).await });
    let error = MySqlStore::open(&url, &options()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(error.words().contains("MySQL 8.0.36") && error.words().contains("MariaDB, 10.6 or newer"), "{error}");
    let asked = asked.await.unwrap();
    assert!(asked.iter().all(|sql| !sql.contains("max_statement_time")), "{asked:?}");
}

/// Gives what was asked, once the client has said that it goes.
async fn play_mysql(mut client: TcpStream) -> Vec<String> {
    const QUIT: u8 = 1;
    let ok = [0, 0, 0, 2, 0, 0, 0];
    let eof = [0xfe, 0, 0, 2, 0];
    let mut greeting = b"\x0a8.0.36\0".to_vec();
    greeting.extend(
        b"\x01\0\0\0salted..\0\x00\xa2\x2d\x02\0\x0b\0\x15\0\0\0\0\0\0\0\0\0\0and salted..\0mysql_native_password\0",
    );
    let mut column = b"\x03def\0\0\0\x09VERSION()\0\x0c\x2d\0".to_vec();
    column.extend([100, 0, 0, 0, 0xfd, 0, 0, 31, 0, 0]);
    send(&mut client, 0, &[&greeting]).await;
    receive(&mut client).await;
    send(&mut client, 2, &[&ok]).await;
    let mut asked = Vec::new();
    loop {
        let command = receive(&mut client).await;
        match command.first() {
            Some(&QUIT) | None => return asked,
            Some(_) => asked.push(String::from_utf8_lossy(&command[1..]).into_owned()),
        }
        if command.ends_with(b"SELECT VERSION()") {
            send(&mut client, 1, &[b"\x01", &column, &eof, b"\x068.0.36", &eof]).await;
        } else {
            send(&mut client, 1, &[&ok]).await;
        }
    }
}

async fn send(client: &mut TcpStream, first: u8, packets: &[&[u8]]) {
    for (number, packet) in (first..).zip(packets) {
        let length = u32::try_from(packet.len()).unwrap().to_le_bytes();
        client.write_all(&[&length[..3], &[number], packet].concat()).await.unwrap();
    }
}

/// Nothing once the client has gone.
async fn receive(client: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; 4];
    if client.read_exact(&mut head).await.is_err() {
        return Vec::new();
    }
    let mut packet = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
    client.read_exact(&mut packet).await.unwrap();
    packet
}

/// The steps of what was picked are deleted by a statement of their own. A record that the one before it has spared, as the
/// clock was set back in between, keeps them.
#[tokio::test(flavor = "multi_thread")]
async fn the_steps_of_a_record_that_is_still_there_are_not_swept() {
    const SWEEP_STEPS: &str = include_str!("../../src/store/mysql/sql/sweep_steps.sql");
    let bench = Maria::new().await;
    let key = fresh_key();
    plant::line(&bench, &line("pending-over-known"), &key).await;
    bench.alter(&key, "status = 'completed', lease_until = NULL").await;
    let pairs = format!(r#"'[["{SCOPE}#call","{}"]]'"#, key.as_str());
    let sweep = SWEEP_STEPS.replacen('?', &pairs, 1);
    let before = bench.record(&key).await;
    assert_eq!((before.len(), bench.execute(&sweep).await), (2, 0));
    assert_eq!(bench.record(&key).await, before);
    assert_eq!(bench.execute(&format!("DELETE FROM {{keys}} WHERE scope = '{SCOPE}'")).await, 1);
    assert_eq!(bench.execute(&sweep).await, 1);
}

/// Many records, each with steps of names of its own: what is deleted is what there is, not each record with each name, which
/// no packet of the server would hold.
#[tokio::test(flavor = "multi_thread")]
async fn records_with_steps_of_many_names_are_swept() {
    const RECORDS: i64 = 2500;
    let bench = Maria::new().await;
    let key = fresh_key();
    let first = plant::line(&bench, &line("completed"), &key).await.unwrap();
    plant::step(&bench, &key, "call", &first).await;
    bench.alter(&key, "expires_at = (SELECT now FROM onced_clock) - INTERVAL 1 SECOND").await;
    let copy = |scope: &str| {
        format!(
            "INSERT INTO {{keys}} (scope, `key`, request_hash, hash_version, status, attempt, retry_window, created_at, \
             updated_at, expires_at) SELECT {scope}, CONCAT('many-', seq), request_hash, hash_version, status, attempt, \
             retry_window, created_at, updated_at, (SELECT now FROM onced_clock) - INTERVAL 1 SECOND \
             FROM {{keys}}, seq_1_to_{RECORDS} WHERE scope = '{SCOPE}' AND `key` = '{}'",
            key.as_str()
        )
    };
    for scope in ["scope".to_owned(), format!("CONCAT('{SCOPE}#charge:', seq)")] {
        assert_eq!(bench.execute(&copy(&scope)).await, u64::try_from(RECORDS).unwrap());
    }
    let swept = bench.store.clone().sweep_keys(10_000).await.unwrap();
    assert_eq!(swept, Batch::Deleted(u64::try_from(2 * (RECORDS + 1)).unwrap()));
    assert_eq!(bench.count("SELECT count(*) FROM {keys}").await, 0);
}
