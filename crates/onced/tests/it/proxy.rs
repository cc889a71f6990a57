//! A proxy between a store and PostgreSQL or MariaDB that cuts the connection at a chosen statement, before it is sent or
//! right after the server has committed it, so that the reply is lost; or that keeps all replies back, so that the way to
//! the server is silent.

use std::sync::{Arc, Mutex};

use onced_core::key::Key;
use testkit::Backend;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

/// Where a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The statement never reaches the server.
    BeforeItIsSent,
    /// It passes: the next cut is another message's.
    Not,
    /// The server has committed it; its reply never reaches the client.
    BeforeTheReply,
    /// The server has committed it; the client is told that it was interrupted. On MariaDB alone.
    ForAnInterruption,
}

/// What is spoken. Either way each message from the client comes as a whole, and is answered before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Postgres,
    MariaDb,
}

/// The next cuts: each is used once, by the first message from the client that contains the marker.
#[derive(Default)]
struct Plan {
    marker: Vec<u8>,
    cuts: Vec<Cut>,
    made: u32,
    hold: Option<Hold>,
}

/// From which message on all replies are kept back, and who is told.
struct Hold {
    marker: Vec<u8>,
    left: u32,
    told: oneshot::Sender<()>,
}

pub(crate) struct Proxy {
    pub(crate) url: String,
    plan: Arc<Mutex<Plan>>,
    /// Of the connections that are accepted from now on.
    silent: Arc<Mutex<watch::Sender<bool>>>,
}

impl Proxy {
    /// Stands in front of the server of that URL, which it passes on unchanged until told otherwise.
    pub(crate) async fn before(url: &str) -> Self {
        let (user, rest) = url.split_once('@').unwrap();
        let (server, database) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let protocol = if url.starts_with("mysql:") { Protocol::MariaDb } else { Protocol::Postgres };
        let (plan, server) = (Arc::new(Mutex::new(Plan::default())), server.to_owned());
        let silent = Arc::new(Mutex::new(watch::Sender::new(false)));
        let (shared, gate) = (plan.clone(), silent.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                let silent = gate.lock().unwrap().clone();
                tokio::spawn(connection(client, server, protocol, shared.clone(), silent));
            }
        });
        Self { url: format!("{user}@127.0.0.1:{port}/{database}"), plan, silent }
    }

    /// Keeps all replies back from that one on to the `nth` message that contains the marker; told when it has come.
    pub(crate) fn be_silent_at(&self, marker: &str, nth: u32) -> oneshot::Receiver<()> {
        let (told, is_told) = oneshot::channel();
        self.plan.lock().unwrap().hold = Some(Hold { marker: marker.as_bytes().to_vec(), left: nth, told });
        is_told
    }

    /// Passes everything on again, the replies that were kept back first.
    pub(crate) fn speak_again(&self) {
        self.silent.lock().unwrap().send_replace(false);
    }

    /// Passes everything on again, on connections that are made from now on: those that are there stay as they are.
    pub(crate) fn speak_to_newcomers(&self) {
        *self.silent.lock().unwrap() = watch::Sender::new(false);
    }

    /// Cuts at the next messages that contain the marker, one after the other.
    pub(crate) fn cut_at(&self, marker: &str, cuts: &[Cut]) {
        *self.plan.lock().unwrap() =
            Plan { marker: marker.as_bytes().to_vec(), cuts: cuts.to_vec(), ..Plan::default() };
    }

    /// As [`Proxy::cut_at`], for the statements that claim that key: on MariaDB each is preceded by a look whether there is
    /// a record.
    pub(crate) fn cut_claims(&self, backend: Backend, key: &Key, cuts: &[Cut]) {
        let mut all = Vec::new();
        let mut claims = true;
        for cut in cuts {
            if claims && backend == Backend::MariaDb {
                all.push(Cut::Not);
            }
            all.push(*cut);
            // Afterwards there is one, and it is the look whose reply is lost next.
            claims = *cut != Cut::BeforeTheReply;
        }
        self.cut_at(key.as_str(), &all);
    }

    /// How often it has cut since it was told to.
    pub(crate) fn cuts_made(&self) -> u32 {
        self.plan.lock().unwrap().made
    }
}

/// The connection ends for both as soon as either direction does.
async fn connection(
    client: TcpStream,
    server: TcpStream,
    protocol: Protocol,
    plan: Arc<Mutex<Plan>>,
    silent: watch::Sender<bool>,
) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (next, reply) = watch::channel(Reply::Passed);
    tokio::select! {
        () = requests(from_client, to_server, protocol, &plan, &next, &silent) => {}
        () = replies(from_server, to_client, protocol, reply, silent.subscribe()) => {}
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    protocol: Protocol,
    plan: &Mutex<Plan>,
    reply: &watch::Sender<Reply>,
    silent: &watch::Sender<bool>,
) {
    let mut course = Course::new(protocol);
    let mut buffer = vec![0; 65_536];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        match course.next(plan, &buffer[..count]) {
            Then::Pass => {}
            Then::Cut => return,
            Then::Reply(how) => drop(reply.send(how)),
        }
        // Before the server can answer.
        let held = plan.lock().unwrap().held(&buffer[..count]);
        if held.is_some() {
            silent.send_replace(true);
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
        // Whoever asked may not want to know any more.
        held.map(|told| told.send(()));
    }
}

/// A commit as it goes over the wire; the opening of a transaction has the word in it, too.
pub(crate) fn commit_of(backend: Backend) -> &'static str {
    match backend {
        Backend::MariaDb => "\x03COMMIT",
        Backend::Postgres | Backend::Sqlite => "COMMIT\0",
    }
}

/// What becomes of a message.
enum Then {
    Pass,
    Cut,
    /// It passes; its reply does not.
    Reply(Reply),
}

/// What becomes of the next reply.
#[derive(Clone, Copy)]
enum Reply {
    Passed,
    Swallowed,
    Replaced,
}

/// How far a connection has come. On MariaDB what is done in a transaction is committed by a message of its own: the reply
/// to that is the one which is lost.
struct Course {
    protocol: Protocol,
    in_transaction: bool,
    /// What becomes of the reply to this transaction's commit.
    doomed: Option<Reply>,
}

impl Course {
    fn new(protocol: Protocol) -> Self {
        Self { protocol, in_transaction: false, doomed: None }
    }

    fn next(&mut self, plan: &Mutex<Plan>, message: &[u8]) -> Then {
        let says = |word: &[u8]| message.windows(word.len()).any(|part| part == word);
        let commits = self.protocol == Protocol::MariaDb && message.get(4..) == Some(b"\x03COMMIT");
        if let Some(how) = self.doomed {
            return if commits { Then::Reply(how) } else { Then::Pass };
        }
        let waits_for_its_commit = self.in_transaction && !commits;
        if self.protocol == Protocol::MariaDb {
            let begins = says(b"START TRANSACTION");
            self.in_transaction = begins || self.in_transaction && !commits && !says(b"\x03ROLLBACK");
        }
        let how = match plan.lock().unwrap().next(message) {
            None | Some(Cut::Not) => return Then::Pass,
            Some(Cut::BeforeItIsSent) => return Then::Cut,
            Some(Cut::BeforeTheReply) => Reply::Swallowed,
            Some(Cut::ForAnInterruption) => Reply::Replaced,
        };
        if waits_for_its_commit {
            self.doomed = Some(how);
            return Then::Pass;
        }
        Then::Reply(how)
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    protocol: Protocol,
    reply: watch::Receiver<Reply>,
    mut silent: watch::Receiver<bool>,
) {
    // "Ready for query, outside of a transaction": whatever came before is committed.
    const COMMITTED: &[u8] = b"Z\0\0\0\x05I";
    // MariaDB's packet of an error, the first after a command: length, number, kind, code, state, words.
    const INTERRUPTED: &[u8] = b"\x28\0\0\x01\xff\x25\x05#70100Query execution was interrupted";
    let mut buffer = vec![0; 65_536];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        let how = *reply.borrow();
        match how {
            Reply::Passed => {
                if silent.wait_for(|silent| !silent).await.is_err() || to.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
            Reply::Replaced => drop(to.write_all(INTERRUPTED).await),
            Reply::Swallowed => {}
        }
        if !matches!(how, Reply::Passed) && (protocol == Protocol::MariaDb || buffer[..count].ends_with(COMMITTED)) {
            return;
        }
    }
}

impl Plan {
    fn held(&mut self, message: &[u8]) -> Option<oneshot::Sender<()>> {
        let hold = self.hold.as_mut()?;
        hold.left -= u32::from(message.windows(hold.marker.len()).any(|part| part == hold.marker));
        if hold.left > 0 { None } else { self.hold.take().map(|hold| hold.told) }
    }

    fn next(&mut self, message: &[u8]) -> Option<Cut> {
        let meant = !self.cuts.is_empty() && message.windows(self.marker.len()).any(|part| part == self.marker);
        meant.then(|| {
            let cut = self.cuts.remove(0);
            self.made += u32::from(cut != Cut::Not);
            cut
        })
    }
}
