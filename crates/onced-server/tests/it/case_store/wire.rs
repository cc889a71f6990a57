//! A TCP proxy that can hold what a server says, cut all connections, and cut one at the very moment at which
//! PostgreSQL or MariaDB has confirmed a claim, so that only the confirmation is lost.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use testkit::{Backend, Database};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The statement by which a key without a record is claimed.
const CLAIM: &[u8] = b"INSERT INTO onced.idempotency_keys";
/// The same on MariaDB, where a `COMMIT` follows it.
const MARIADB_CLAIM: &[u8] = b"INSERT INTO onced_idempotency_keys";
/// The function by which an application claims; it commits by itself.
const BEGIN: &[u8] = b"onced.begin(";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pass,
    HoldAnswers,
    Cut,
}

/// What follows the cut that loses a claim's confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// New connections are passed on as before.
    Mended,
    /// New connections are cut, too.
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Any,
    Postgres,
    MariaDb,
}

/// The proxy. It ends with the test.
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: String,
    mode: watch::Sender<Mode>,
    trap: Mutex<Option<After>>,
    sprung: AtomicBool,
    protocol: Protocol,
}

impl Wire {
    /// Listens in front of that `host:port`, whatever is spoken there.
    pub(crate) async fn start(target: impl ToString) -> Self {
        Self::start_reading(target, Protocol::Any).await
    }

    /// Listens in front of a PostgreSQL server; its clients must not ask for TLS.
    pub(crate) async fn start_to_postgres(target: impl ToString) -> Self {
        Self::start_reading(target, Protocol::Postgres).await
    }

    /// Listens in front of a MariaDB server; its clients must not ask for TLS.
    pub(crate) async fn start_to_mariadb(target: impl ToString) -> Self {
        Self::start_reading(target, Protocol::MariaDb).await
    }

    /// Listens in front of the server of that database. Gives the URL that leads there by the wire, which must see what
    /// is said.
    pub(crate) async fn before(database: &Database) -> (Self, String) {
        let (server, name) = database.url().rsplit_once('/').expect("the URL names a database");
        let (user, server) = server.rsplit_once('@').expect("the URL names a user");
        let (wire, plain) = match database.backend() {
            Backend::MariaDb => (Self::start_to_mariadb(server).await, "ssl-mode=DISABLED"),
            Backend::Postgres | Backend::Sqlite => (Self::start_to_postgres(server).await, "sslmode=disable"),
        };
        let url = format!("{user}@{}/{name}?{plain}", wire.address);
        (wire, url)
    }

    async fn start_reading(target: impl ToString, protocol: Protocol) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            target: target.to_string(),
            protocol,
            mode: watch::Sender::new(Mode::Pass),
            trap: Mutex::new(None),
            sprung: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(converse(client, accepting.clone()));
            }
        });
        Self { address, shared }
    }

    /// Keeps back all that the server says, until [`Wire::mend`].
    pub(crate) fn hold_answers(&self) {
        self.shared.mode.send_replace(Mode::HoldAnswers);
    }

    /// Cuts all connections, and each new one at once, until [`Wire::mend`].
    pub(crate) fn cut(&self) {
        self.shared.mode.send_replace(Mode::Cut);
    }

    /// Passes everything on again.
    pub(crate) fn mend(&self) {
        self.shared.mode.send_replace(Mode::Pass);
    }

    /// Lets the next claim commit, loses its confirmation, and cuts its connection.
    pub(crate) fn lose_the_next_confirmation(&self, after: After) {
        *self.shared.trap.lock().expect("nobody panics with it") = Some(after);
    }

    /// Whether a confirmation has been lost.
    pub(crate) fn has_lost_a_confirmation(&self) -> bool {
        self.shared.sprung.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn is_trap_set(&self) -> bool {
        self.trap.lock().is_ok_and(|trap| trap.is_some())
    }

    fn confirmation_was_lost(&self) {
        let after = self.trap.lock().expect("nobody panics with it").take();
        if after == Some(After::Down) {
            self.mode.send_replace(Mode::Cut);
        }
        self.sprung.store(true, Ordering::SeqCst);
    }
}

async fn converse(client: TcpStream, shared: Arc<Shared>) {
    let mut mode = shared.mode.subscribe();
    if *mode.borrow() == Mode::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(&shared.target).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let claiming = AtomicBool::new(false);
    // Whichever comes first ends both sides.
    tokio::select! {
        _ = mode.wait_for(|mode| *mode == Mode::Cut) => {}
        () = questions(from_client, to_server, &shared, &claiming) => {}
        () = answers(from_server, to_client, &shared, &claiming) => {}
    }
}

async fn questions(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared, claiming: &AtomicBool) {
    let (mut frames, mut claims, mut bytes) = (Frames::new(shared.protocol, From::Client), HashSet::new(), Vec::new());
    let mut begun = false;
    while matches!(from.read_buf(&mut bytes).await, Ok(count) if count > 0) {
        frames.push(&bytes, |kind, frame| {
            let mut parts = frame.split(|byte| *byte == 0);
            let (first, second) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            if shared.protocol == Protocol::MariaDb {
                // The first statement of a new connection that is like it is the claim: what it is asked for later needs
                // no preparing. A query of its own ends its transaction.
                match kind {
                    PREPARE if frame.windows(MARIADB_CLAIM.len()).any(|part| part == MARIADB_CLAIM) => {
                        claims.insert(Vec::new());
                    }
                    QUERY if frame == b"COMMIT" && !claims.is_empty() && shared.is_trap_set() => {
                        claiming.store(true, Ordering::SeqCst);
                    }
                    _ => {}
                }
                return;
            }
            begun |= kind == b'P' && second.windows(BEGIN.len()).any(|part| part == BEGIN);
            match kind {
                // Query: a text without parameters.
                b'Q' if begun
                    && first.eq_ignore_ascii_case(b"commit")
                    && shared.trap.lock().is_ok_and(|trap| trap.is_some()) =>
                {
                    claiming.store(true, Ordering::SeqCst);
                }
                // Parse: the statement's name, its text.
                b'P' if second.windows(CLAIM.len()).any(|part| part == CLAIM) => drop(claims.insert(first.to_vec())),
                b'P' => drop(claims.remove(first)),
                // Bind, which is followed by its Execute: the portal's name, the statement's.
                b'B' if claims.contains(second) && shared.is_trap_set() => {
                    claiming.store(true, Ordering::SeqCst);
                }
                _ => {}
            }
        });
        if to.write_all(&bytes).await.is_err() {
            return;
        }
        bytes.clear();
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared, claiming: &AtomicBool) {
    let (mut frames, mut bytes, mut mode) =
        (Frames::new(shared.protocol, From::Server), Vec::new(), shared.mode.subscribe());
    let (mut done, mut committed) = (false, false);
    while matches!(from.read_buf(&mut bytes).await, Ok(count) if count > 0) {
        if claiming.load(Ordering::SeqCst) {
            frames.push(&bytes, |kind, frame| match kind {
                b'C' => done = true,
                // Ready for the next query, outside of a transaction: what was done is committed.
                b'Z' => committed = done && frame == b"I",
                // The one answer to `COMMIT`.
                OK if shared.protocol == Protocol::MariaDb => committed = true,
                _ => {}
            });
            if committed {
                return shared.confirmation_was_lost();
            }
        } else {
            frames.push(&bytes, |_, _| {});
            // The other end lives as long as the proxy.
            let _ = mode.wait_for(|mode| *mode != Mode::HoldAnswers).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        bytes.clear();
    }
}

/// MariaDB: a query as text, a statement to be prepared, and the answer that all is well.
const QUERY: u8 = 0x03;
const PREPARE: u8 = 0x16;
const OK: u8 = 0x00;

/// Takes one direction of a protocol apart. PostgreSQL's: a kind, a length that counts itself, the rest. MariaDB's: the
/// length of what follows, a number in the conversation, and then the kind and the rest.
struct Frames {
    protocol: Protocol,
    /// The first message of a client has no kind.
    starting: bool,
    pending: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Client,
    Server,
}

impl Frames {
    fn new(protocol: Protocol, from: From) -> Self {
        Self { protocol, starting: from == From::Client, pending: Vec::new() }
    }

    /// Takes in the next bytes, and gives each message that is whole now.
    fn push(&mut self, bytes: &[u8], mut each: impl FnMut(u8, &[u8])) {
        if self.protocol == Protocol::Any {
            return;
        }
        self.pending.extend_from_slice(bytes);
        while self.protocol == Protocol::MariaDb {
            let Some(&[low, middle, high, number]) = self.pending.first_chunk() else { return };
            let end = 4 + u32::from_le_bytes([low, middle, high, 0]) as usize;
            if self.pending.len() < end {
                return;
            }
            let message: Vec<u8> = self.pending.drain(..end).collect();
            // What a client says first in a conversation is numbered 0; the server's answer begins with 1.
            if let (0 | 1, Some((kind, rest))) = (number, message[4..].split_first()) {
                each(*kind, rest);
            }
        }
        loop {
            let at = usize::from(!self.starting);
            let Some(length) = self.pending.get(at..at + 4) else { return };
            let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            if self.pending.len() < at + length {
                return;
            }
            let message: Vec<u8> = self.pending.drain(..at + length).collect();
            if !self.starting {
                each(message[0], &message[5..]);
            }
            self.starting = false;
        }
    }
}
