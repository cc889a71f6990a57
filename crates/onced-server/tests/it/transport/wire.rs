//! An upstream by its bytes: it counts connections and whole requests, and does with each what the test says.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::fixture::LIMIT;

/// What becomes of a request and of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// It is answered, and the connection is kept.
    Answer,
    /// It is answered, and then the connection is closed, which the answer does not say.
    AnswerThenClose,
    /// The connection is closed, in order and without an answer.
    Close,
    /// The connection is reset.
    Reset,
    /// It is answered with 101, whether it asked for that or not.
    Switch,
}

/// What has happened so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The connection of each whole request, counted from 0.
    pub(super) requests: Vec<usize>,
    /// The heads of the requests, as they came.
    pub(super) heads: Vec<String>,
    /// The connections that have ended, by whomsoever.
    pub(super) ended: Vec<usize>,
}

/// The upstream; it ends when dropped.
pub(super) struct Wire {
    pub(super) address: SocketAddr,
    seen: watch::Receiver<Seen>,
    close: Arc<Notify>,
    _serving: JoinSet<()>,
}

impl Wire {
    /// Does with the requests, in the order in which they come, what the script says; once that is over, it answers.
    pub(super) async fn start(script: impl IntoIterator<Item = Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(Mutex::new(script.into_iter().collect::<VecDeque<_>>()));
        let (note, seen) = watch::channel(Seen::default());
        let note = Arc::new(note);
        let (mut serving, close) = (JoinSet::new(), Arc::new(Notify::new()));
        let closed = close.clone();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            for index in 0.. {
                let stream = listener.accept().await.unwrap().0;
                let (serve, closed) = (serve(stream, index, script.clone(), note.clone()), closed.clone());
                let note = note.clone();
                connections.spawn(async move {
                    tokio::select! {
                        () = serve => {}
                        () = closed.notified() => {}
                    }
                    note.send_modify(|seen| seen.ended.push(index));
                });
            }
        });
        Self { address, seen, close, _serving: serving }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Closes all connections.
    pub(super) fn close(&self) {
        self.close.notify_waiters();
    }

    /// The connections of the requests so far.
    pub(super) fn requests(&self) -> Vec<usize> {
        self.seen.borrow().requests.clone()
    }

    /// Waits until it is so.
    pub(super) async fn wait_until(&self, wanted: impl Fn(&Seen) -> bool) {
        let mut seen = self.seen.clone();
        let waited = tokio::time::timeout(LIMIT, seen.wait_for(|seen| wanted(seen))).await;
        drop(waited.unwrap_or_else(|_| panic!("it never came to that: {:?}", self.seen())).unwrap());
    }
}

async fn serve(mut stream: TcpStream, index: usize, script: Arc<Mutex<VecDeque<Act>>>, note: Arc<watch::Sender<Seen>>) {
    while let Some(head) = read_request(&mut stream).await {
        let act = script.lock().unwrap().pop_front().unwrap_or(Act::Answer);
        note.send_modify(|seen| {
            seen.requests.push(index);
            seen.heads.push(head);
        });
        let answer = match act {
            Act::Answer | Act::AnswerThenClose => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            Act::Switch => "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: own\r\n\r\n",
            Act::Close => break,
            Act::Reset => {
                stream.set_zero_linger().unwrap();
                break;
            }
        };
        if stream.write_all(answer.as_bytes()).await.is_err() || act == Act::AnswerThenClose {
            break;
        }
    }
}

/// The head of the next whole request; `None` where the connection ends.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end + 4]).into_owned();
            let length = head.to_ascii_lowercase().lines().find_map(|line| {
                line.strip_prefix("content-length:").and_then(|length| length.trim().parse::<usize>().ok())
            });
            if bytes.len() >= end + 4 + length.unwrap_or(0) {
                return Some(head);
            }
        }
        if !matches!(stream.read_buf(&mut bytes).await, Ok(count) if count > 0) {
            return None;
        }
    }
}
