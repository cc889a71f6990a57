//! A client by its bytes: it may stop in the middle of what it sends, and read as little as it likes.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::fixture::LIMIT;

/// One connection.
pub(super) struct Raw(TcpStream);

impl Raw {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    /// With as little room as the system allows for what has not been read yet.
    pub(super) async fn connect_narrow(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Self(socket.connect(address).await.unwrap())
    }

    /// The other end of a connection, to speak on as a client does.
    pub(super) fn of(stream: TcpStream) -> Self {
        Self(stream)
    }

    /// The port on this end.
    pub(super) fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    pub(super) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Says that nothing more will be sent.
    pub(super) async fn shut(&mut self) {
        self.0.shutdown().await.unwrap();
    }

    /// The next head, in lower case; nothing after it is taken.
    pub(super) async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let byte = tokio::time::timeout(LIMIT, self.0.read_u8()).await.expect("a head within the limit");
            head.push(byte.unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&head))));
        }
        String::from_utf8(head).unwrap().to_ascii_lowercase()
    }

    pub(super) async fn exactly(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        tokio::time::timeout(LIMIT, self.0.read_exact(&mut bytes)).await.expect("bytes within the limit").unwrap();
        bytes
    }

    /// The next answer, which says its length: its first line and its body.
    pub(super) async fn answer(&mut self) -> (String, Vec<u8>) {
        let head = self.head().await;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.unwrap_or_else(|| panic!("no length in {head}")).parse().unwrap();
        let line = head.lines().next().unwrap_or_default().to_owned();
        (line, self.exactly(length).await)
    }

    /// Whether there is nothing to read at this moment, and no end either.
    pub(super) fn is_silent(&self) -> bool {
        self.0.try_read(&mut [0; 1]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// What comes until the connection ends, in order or by a reset.
    pub(super) async fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let reading = async { while self.0.read_buf(&mut bytes).await.is_ok_and(|count| count > 0) {} };
        tokio::time::timeout(LIMIT, reading).await.expect("the connection ends within the limit");
        bytes
    }

    /// Goes on sending these bytes, again and again, until the connection ends; gives what came back.
    pub(super) async fn drip(self, bytes: &[u8]) -> Vec<u8> {
        let (mut read, mut write) = self.0.into_split();
        let mut back = Vec::new();
        let reading = async { while read.read_buf(&mut back).await.is_ok_and(|count| count > 0) {} };
        let dripping = async {
            while write.write_all(bytes).await.is_ok() {
                // Slowly: that is what the test is about.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            std::future::pending::<()>().await;
        };
        let ended = async {
            tokio::select! {
                () = reading => {}
                () = dripping => {}
            }
        };
        tokio::time::timeout(LIMIT, ended).await.expect("the connection ends within the limit");
        back
    }
}
