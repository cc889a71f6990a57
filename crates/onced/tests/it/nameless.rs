//! What a store behind a pooler sends, read from the wire: each of its statements without a name and inside a
//! transaction. Every statement file of the backend must have been seen, so a new one cannot stay away from here.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onced::guard::Guard;
use onced::store::deliveries::{Deliveries as _, DeliveryLine, LogDeliveries};
use onced::store::health::Health as _;
use onced::store::keys::{Basis, Claim, InTransaction as _, Keys, OwnerMove, ParentMove, Transactional as _};
use onced::store::postgres::PgStore;
use onced::store::sweep::Sweep as _;
use onced::store::upkeep::{Because, Filter, Resolution, Upkeep as _};
use onced::store::{Pooler, StoreOptions};
use onced_core::decision::{Enter, Taking};
use onced_core::key::Key;
use onced_core::record::{LeaseToken, Status, StoredResponse};
use testkit::{Backend, Database};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use crate::bench::{delivery, executes, fresh_key, options, scope};

/// Sent by the plain protocol: before there is a ledger, and with a role's name put in.
const NOT_PREPARED: [&str; 2] = ["process.sql", "grant.sql"];
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_every_statement_is_nameless_and_in_a_transaction() {
    let database = Database::create(Backend::Postgres).await;
    let watched = Watched::before(database.url()).await;
    let options = StoreOptions { pooler: Pooler::Transaction, ..options() };
    let store = PgStore::open(&watched.url, &options).await.unwrap();
    say_everything(store).await;

    let seen = watched.seen.lock().unwrap();
    assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/postgres/sql");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let unseen: Vec<_> = files
        .filter(|file| !NOT_PREPARED.iter().any(|name| file.ends_with(name)))
        .filter(|file| !seen.prepared.contains(&std::fs::read_to_string(file).unwrap()))
        .collect();
    assert!(unseen.is_empty(), "these were never sent: {unseen:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn straight_to_the_server_statements_are_prepared_once() {
    let database = Database::create(Backend::Postgres).await;
    let watched = Watched::before(database.url()).await;
    say_everything(PgStore::open(&watched.url, &options()).await.unwrap()).await;
    let seen = watched.seen.lock().unwrap();
    // It is what the other test would see if the option did nothing.
    assert!(seen.wrong.iter().any(|what| what.contains("has a name")), "{:#?}", seen.wrong);
    assert!(seen.wrong.iter().any(|what| what.contains("outside")), "{:#?}", seen.wrong);
}

/// Calls all that a store can do. What comes of it does not matter here.
async fn say_everything(mut store: PgStore) {
    store.migrate().await.unwrap();
    store.check_schema().await.unwrap();
    store.check_ready().await.unwrap();
    each_key_statement(&mut store.clone()).await;
    let (mut tx, key) = (store.transaction().await.unwrap(), fresh_key());
    each_key_statement(&mut store.within(&mut tx)).await;
    for parent_move in [ParentMove::StepBegun { lease: HOUR }, ParentMove::StepEnded] {
        let token = LeaseToken::from_random([0; 16]);
        store.within(&mut tx).parent_move(&scope(), &key, &token, parent_move).await.unwrap();
    }
    tx.commit().await.unwrap();

    let guard = Guard::new(store.clone(), LogDeliveries::All);
    let permit = executes(guard.begin(&delivery(&key)).await.unwrap());
    permit.complete(StoredResponse::bare(201)).await.unwrap();
    drop(guard.begin(&delivery(&key)).await.unwrap());
    guard.close().await;
    let line = DeliveryLine {
        id: Uuid::now_v7(),
        scope: scope(),
        key: key.clone(),
        age: Duration::ZERO,
        decision: "replay".to_owned(),
        answered_status: None,
        request_hash: *delivery(&key).fingerprint.hash(),
        attempt: 1,
    };
    let answered = [(line.id, 200)];
    store.log(&[line], &answered).await.unwrap();
    store.deliveries_of(&scope(), &key, 10).await.unwrap();
    store.repeats(None).await.unwrap();

    store.list(&Filter { scope: None, status: None, limit: 10 }).await.unwrap();
    store.audit_of(&scope(), &key).await.unwrap();
    let because = Because { who: "me".to_owned(), reason: "a test".to_owned() };
    for resolution in [Resolution::Happened(StoredResponse::bare(201)), Resolution::DidNotHappen { settle: HOUR }] {
        store.resolve(&scope(), &key, None, &resolution, &because).await.unwrap();
    }
    store.sweep_keys(10).await.unwrap();
    store.sweep_deliveries(HOUR, 10).await.unwrap();
    store.due(HOUR).await.unwrap();

    store.settings().await.unwrap();
    store.schema_version().await.unwrap();
    store.database_time().await.unwrap();
    store.backends().await.unwrap();
    store.unfinished().await.unwrap();
    store.overdue().await.unwrap();
    store.growth().await.unwrap();
}

async fn each_key_statement(keys: &mut impl Keys) {
    let key = fresh_key();
    let claim = claim(&key);
    keys.claim(&claim).await.unwrap();
    keys.find(&scope(), &key).await.unwrap();
    for (taking, status) in [(Taking::Failed, Status::Failed), (Taking::Expired, Status::Completed)] {
        let basis = Basis { taking, status, attempt: 1, token: None };
        keys.take(&claim, &basis).await.unwrap();
        keys.give_up(&scope(), &key, &basis, "too often").await.unwrap();
    }
    for owner_move in [
        OwnerMove::Renew { lease: HOUR },
        OwnerMove::External { lease: HOUR },
        OwnerMove::Fail { error: "no".to_owned(), response: None },
        OwnerMove::Complete(StoredResponse::bare(201)),
        OwnerMove::Release,
    ] {
        keys.owner_move(&scope(), &key, &claim.token, None, &owner_move).await.unwrap();
    }
}

fn claim(key: &Key) -> Claim {
    let fingerprint = delivery(key).fingerprint;
    Claim {
        scope: scope(),
        key: key.clone(),
        request_hash: *fingerprint.hash(),
        hash_version: fingerprint.version().to_string(),
        token: LeaseToken::from_random(*Uuid::new_v4().as_bytes()),
        enter: Enter::InProgress,
        lease: HOUR,
        keep: HOUR,
        retry_window: HOUR,
        downstream_key: "down".to_owned(),
        delivery: Some(Uuid::now_v7()),
    }
}

/// Between a store and PostgreSQL; passes everything on and reads along.
struct Watched {
    url: String,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// The texts of what was prepared.
    prepared: BTreeSet<String>,
    wrong: Vec<String>,
}

impl Watched {
    async fn before(url: &str) -> Self {
        let (user, rest) = url.split_once('@').unwrap();
        let (server, database) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, server) = (Arc::new(Mutex::new(Seen::default())), server.to_owned());
        let shared = seen.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                for side in [&client, &server] {
                    side.set_nodelay(true).unwrap();
                }
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let within = Arc::new(Mutex::new(b'I'));
                tokio::spawn(replies(from_server, to_client, within.clone()));
                tokio::spawn(requests(from_client, to_server, within, shared.clone()));
            }
        });
        // Without TLS the first message says what the session wants, and all that follow have a type.
        Self { url: format!("{user}@127.0.0.1:{port}/{database}?sslmode=disable"), seen }
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, within: Arc<Mutex<u8>>, seen: Arc<Mutex<Seen>>) {
    let Ok(length) = from.read_u32().await else { return };
    let mut first = vec![0; length as usize - 4];
    from.read_exact(&mut first).await.unwrap();
    to.write_all(&[&length.to_be_bytes()[..], &first].concat()).await.unwrap();
    while let Some((kind, body)) = message(&mut from).await {
        seen.lock().unwrap().note(kind, &body, *within.lock().unwrap() != b'I');
        if pass(&mut to, kind, &body).await.is_none() {
            return;
        }
    }
}

/// Notes before it passes on whether a transaction is open, so the next request is judged by it.
async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, within: Arc<Mutex<u8>>) {
    while let Some((kind, body)) = message(&mut from).await {
        if kind == b'Z' {
            *within.lock().unwrap() = body[0];
        }
        if pass(&mut to, kind, &body).await.is_none() {
            return;
        }
    }
}

async fn message(from: &mut OwnedReadHalf) -> Option<(u8, Vec<u8>)> {
    let kind = from.read_u8().await.ok()?;
    let mut body = vec![0; from.read_u32().await.ok()? as usize - 4];
    from.read_exact(&mut body).await.ok()?;
    Some((kind, body))
}

async fn pass(to: &mut OwnedWriteHalf, kind: u8, body: &[u8]) -> Option<()> {
    let length = u32::try_from(body.len() + 4).unwrap();
    to.write_all(&[&[kind], &length.to_be_bytes()[..], body].concat()).await.ok()
}

impl Seen {
    fn note(&mut self, kind: u8, body: &[u8], is_open: bool) {
        let mut texts = body.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned());
        let first = texts.next().unwrap_or_default();
        match kind {
            b'P' => {
                let text = texts.next().unwrap_or_default();
                if !first.is_empty() {
                    self.wrong.push(format!("has a name, {first}: {text}"));
                }
                if !is_open {
                    self.wrong.push(format!("outside of a transaction: {text}"));
                }
                self.prepared.insert(text);
            }
            b'B' | b'E' | b'D' if !is_open => self.wrong.push(format!("outside of a transaction: a {}", kind as char)),
            b'Q' if !is_open && !is_opening(&first) => self.wrong.push(format!("outside of a transaction: {first}")),
            _ => {}
        }
    }
}

/// Also with bounds or a question behind it: whatever is in one message goes to one server.
fn is_opening(text: &str) -> bool {
    text.starts_with("BEGIN") || text.contains("\nBEGIN;")
}
