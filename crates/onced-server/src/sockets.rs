//! How TCP connections are kept, those of clients and those to upstreams: an end that has vanished without a word is
//! noticed, also where nothing is to be sent to it.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// So long a connection is silent before the other end is asked whether it is there, how often it is asked, and how often in
/// vain.
const SILENCE: Duration = Duration::from_secs(60);
const BETWEEN: Duration = Duration::from_secs(15);
const TIMES: u32 = 4;

/// Hints only: without them what is sent goes out a little later, and who has vanished is noticed later.
pub(crate) fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let asking = TcpKeepalive::new().with_time(SILENCE).with_interval(BETWEEN).with_retries(TIMES);
    let _ = SockRef::from(stream).set_tcp_keepalive(&asking);
}
