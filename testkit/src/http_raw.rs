//! Bytes in, bytes out: for requests that no HTTP library would write.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Writes the bytes as they are and reads one whole answer, or whatever came before the connection ended.
///
/// # Panics
/// Where it cannot connect, or nothing complete comes within 30 seconds.
pub async fn raw(addr: SocketAddr, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).await.expect("cannot connect");
    // A server may answer and close before it has read everything.
    stream.write_all(bytes.as_ref()).await.ok();
    let mut answer = Vec::new();
    let read = async {
        while !is_whole(&answer) {
            if !matches!(stream.read_buf(&mut answer).await, Ok(count) if count > 0) {
                break;
            }
        }
    };
    let limit = Duration::from_secs(30);
    let in_time = tokio::time::timeout(limit, read).await.is_ok();
    assert!(in_time, "no whole answer within {limit:?}, only {:?}", String::from_utf8_lossy(&answer));
    answer
}

/// Whether an answer is complete while its connection stays open.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4) else {
        return false;
    };
    let (head, body) = answer.split_at(end);
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let status = head.split(' ').nth(1).unwrap_or_default();
    let value = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    if status.starts_with('1') {
        return is_whole(body);
    }
    if matches!(status, "204" | "304") {
        return true;
    }
    if value("transfer-encoding").is_some_and(|codings| codings.contains("chunked")) {
        return body.ends_with(b"0\r\n\r\n");
    }
    let length = value("content-length").and_then(|length| length.parse().ok());
    length.is_some_and(|length: usize| body.len() >= length)
}
