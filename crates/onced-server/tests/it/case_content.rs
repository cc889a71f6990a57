//! Reported cases about what a request and an answer consist of: which requests are the same (O-10, O-11), what a key may
//! look like (O-14), what a browser is told (O-15), and what of an answer is told again (O-16, O-17). Beside them what a
//! packed request means.

mod encoded_requests;
mod o_10_other_clothes;
mod o_11_look_alikes;
mod o_14_key_syntax;
mod o_15_other_origins;
mod o_16_the_first_answer;
mod o_17_empty_and_binary;
mod o_19_which_answers_are_kept;

use std::net::SocketAddr;

use testkit::http_raw::raw;

/// An answer as it came over the wire: header names as they were written, chunks put together.
#[derive(Debug)]
struct RawAnswer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl RawAnswer {
    /// Sends these bytes on a connection of their own.
    async fn to(address: SocketAddr, request: &[u8]) -> Self {
        let bytes = raw(address, request).await;
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("the answer has a head");
        let head = String::from_utf8(bytes[..end].to_vec()).expect("the head is text");
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status line");
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
        let mut answer = Self { status, headers, body: bytes[end + 4..].to_vec() };
        if answer.all("transfer-encoding") == ["chunked"] {
            answer.body = dechunked(&answer.body);
        }
        answer
    }

    /// Every value of a header, in order.
    fn all(&self, name: &str) -> Vec<&str> {
        let lines = self.headers.iter().filter(|(header, _)| header.eq_ignore_ascii_case(name));
        lines.map(|(_, value)| value.as_str()).collect()
    }

    /// The code of a problem of ours; `None` where the answer is none.
    fn problem(&self) -> Option<String> {
        if self.all("content-type") != ["application/problem+json"] {
            return None;
        }
        let body: serde_json::Value = serde_json::from_slice(&self.body).expect("a problem is JSON");
        assert_eq!(body["status"], self.status, "{body}");
        Some(body["code"].as_str().expect("a problem has a code").to_owned())
    }

    fn is_replay(&self) -> bool {
        self.all("idempotent-replayed") == ["true"]
    }
}

fn dechunked(mut chunks: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = chunks.windows(2).position(|two| two == b"\r\n").expect("a chunk has a length");
        let length = std::str::from_utf8(&chunks[..end]).expect("the length is text");
        let length = usize::from_str_radix(length, 16).expect("the length is a hexadecimal number");
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&chunks[end + 2..][..length]);
        chunks = &chunks[end + 2 + length + 2..];
    }
}
