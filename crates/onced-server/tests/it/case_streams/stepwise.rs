//! An upstream that is told, piece by piece, what to write; so a test knows what has been written before it looks.

use std::net::SocketAddr;

use testkit::Database;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::case_crash::outside_order;
use crate::same_database_app::create_orders;

/// The upstream. Each request that it gets writes one order, and then is the test's to answer.
pub(super) struct Stepwise {
    pub(super) address: SocketAddr,
    requests: mpsc::UnboundedReceiver<TcpStream>,
}

impl Stepwise {
    pub(super) async fn start(database: &Database) -> Self {
        create_orders(database).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (to_test, requests) = mpsc::unbounded_channel();
        let sql = database.sql().clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                // Every request of these tests has this body.
                while !request.ends_with(b"{\"n\":1}") {
                    if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        break;
                    }
                }
                outside_order(&sql, "stepwise", 1).await;
                if to_test.send(stream).is_err() {
                    break;
                }
            }
        });
        Self { address, requests }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next request, to be answered.
    pub(super) async fn next(&mut self) -> Answering {
        Answering(self.requests.recv().await.expect("the upstream listens"))
    }

    /// The next request, answered with the head of an event stream.
    pub(super) async fn next_with_events(&mut self) -> Answering {
        let mut answering = self.next().await;
        answering
            .write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await;
        answering
    }

    /// Whether another request has come.
    pub(super) fn has_more(&mut self) -> bool {
        self.requests.try_recv().is_ok()
    }
}

/// An answer that is being written.
pub(super) struct Answering(TcpStream);

impl Answering {
    /// Bytes as they are.
    pub(super) async fn write(&mut self, bytes: &str) {
        self.0.write_all(bytes.as_bytes()).await.expect("the gateway reads");
    }

    /// One chunk.
    pub(super) async fn chunk(&mut self, text: &str) {
        self.write(&format!("{:x}\r\n{text}\r\n", text.len())).await;
    }

    /// The end of all chunks.
    pub(super) async fn end(mut self) {
        self.write("0\r\n\r\n").await;
    }
}
