//! Takes connections: HTTP/1.1 and HTTP/2, so many at a time, and none that sends or reads too slowly.

mod streams;
mod under_way;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_io_timeout::TimeoutWriter;
use tokio_util::task::TaskTracker;

use self::streams::Streams;
use self::under_way::{UnderWay, Watched};
use crate::config::ClientsConfig;
use crate::proxy::AnyBody;
use crate::sockets;

/// How many requests one HTTP/2 connection may have under way.
const STREAMS: u32 = 128;
/// How long a connection that is to end may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long nothing is accepted after the system has refused to.
const PAUSE: Duration = Duration::from_millis(100);

/// A place among the connections, taken until the last of its copies is gone. Each request carries one.
#[derive(Clone)]
pub(crate) struct Place {
    _held: Arc<OwnedSemaphorePermit>,
}

/// Answers requests.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers one request. Dropped where the client hangs up.
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<AnyBody>> + Send;
}

/// Serves until told to stop; returns once every connection has ended.
pub(crate) async fn serve<H: Handler>(
    listener: TcpListener,
    clients: ClientsConfig,
    handler: Arc<H>,
    mut stop: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(clients.max_connections));
    let connections = TaskTracker::new();
    let mut is_full = false;
    loop {
        if places.available_permits() == 0 && !std::mem::replace(&mut is_full, true) {
            tracing::warn!(target: "onced::serve", most = clients.max_connections, "as many clients are connected as may be: others wait");
        }
        let accepting = async {
            // The semaphore is never closed.
            let place = places.clone().acquire_owned().await.ok()?;
            Some((listener.accept().await, place))
        };
        let accepted = tokio::select! {
            accepted = accepting => accepted,
            () = told(&mut stop) => None,
        };
        let Some((stream, place)) = accepted else { break };
        is_full = is_full && places.available_permits() == 0;
        match stream {
            Ok((stream, _)) => {
                let connection =
                    connection(stream, Place { _held: Arc::new(place) }, clients, handler.clone(), stop.clone());
                connections.spawn(connection);
            }
            Err(error) => {
                tracing::warn!(target: "onced::serve", %error, "no connection could be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connection<H: Handler>(
    stream: TcpStream,
    place: Place,
    clients: ClientsConfig,
    handler: Arc<H>,
    mut stop: watch::Receiver<bool>,
) {
    sockets::tune(&stream);
    let under_way = UnderWay::new();
    let mut stream = TimeoutWriter::new(Watched::new(stream, under_way.clone()));
    stream.set_timeout(Some(clients.write_timeout));
    let service = service_fn(|mut request: Request<Incoming>| {
        let counted = under_way.enter();
        request.extensions_mut().insert(place.clone());
        let handler = handler.clone();
        async move {
            let response = handler.answer(request).await;
            Ok::<_, Infallible>(response.map(|body| counted.until_the_end_of(body, streams::pace())))
        }
    });
    let builder = builder(&clients, Streams::new(under_way.clone(), clients.write_timeout));
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(Box::pin(stream)), service));
    // How a connection ends is its client's concern alone.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = under_way.idle_for(clients.head_timeout) => {}
        () = told(&mut stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        () = under_way.idle_for(GOODBYE) => {}
    }
}

async fn told(stop: &mut watch::Receiver<bool>) {
    // Whoever would tell is gone: so it is time.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn builder(clients: &ClientsConfig, streams: Streams) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(streams);
    // The time for a head is kept here, from the first byte of a connection on.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(clients.max_head_bytes);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(clients.max_head_bytes).unwrap_or(u32::MAX))
        // What is asked may wait behind an answer that is read slowly.
        .keep_alive_interval(clients.head_timeout)
        .keep_alive_timeout(clients.write_timeout);
    builder
}
