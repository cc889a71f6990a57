//! The composition root of `onced serve`: opens the ledger, builds the gateway, listens, and shuts down in order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use onced::guard::Guard;
use onced::store::{AnyStore, Durability, StoreOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{Config, StoreConfig};
use crate::maintenance::sweeper::Sweeper;
use crate::proxy::{AnyBody, Gateway, whole};
use crate::server::{self, Handler};

/// Opens the ledger and brings its schema up to date.
pub(crate) async fn open_store(config: &StoreConfig) -> anyhow::Result<AnyStore> {
    let store = open_store_as_it_is(config).await?;
    store.migrate().await.with_context(|| format!("the ledger {} cannot be brought up to date", config.url))?;
    Ok(store)
}

/// Opens the ledger without touching its schema.
pub(crate) async fn open_store_as_it_is(config: &StoreConfig) -> anyhow::Result<AnyStore> {
    open(config, if config.allow_weak_durability { Durability::WeakAccepted } else { Durability::Required }).await
}

/// Opens a ledger that is only looked at, whatever its server is like.
pub(crate) async fn open_store_to_look_at(config: &StoreConfig) -> anyhow::Result<AnyStore> {
    open(config, Durability::NotAsked).await
}

async fn open(config: &StoreConfig, durability: Durability) -> anyhow::Result<AnyStore> {
    let options = StoreOptions {
        schema: config.schema.clone(),
        max_connections: config.max_connections,
        acquire_timeout: config.busy_timeout,
        busy_timeout: config.busy_timeout,
        pooler: config.pooler,
        durability,
    };
    AnyStore::open(config.url.expose(), &options)
        .await
        .with_context(|| format!("the ledger {} cannot be opened", config.url))
}

/// Serves until told to stop; then lets what is running finish within the grace.
pub(crate) async fn serve(config: Config) -> anyhow::Result<()> {
    let store = open_store(&config.store).await?;
    for notice in config.warnings() {
        tracing::warn!(target: "onced::config", "{notice}");
    }
    let (listen, grace, clients) = (config.listen, config.shutdown_grace, config.clients);
    let own_prefix = config.own_prefix.clone();
    let (sweep, to_sweep) = (config.sweep, store.clone());
    let guard = Guard::new(store, config.store.log_deliveries).keeping_outcomes(config.store.replay_memory);
    let gateway = Arc::new(Gateway::new(config, guard)?);
    // Before anything is taken that would have to be finished.
    let mut signals = Signals::catch();
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr()?;
    tracing::info!(target: "onced::serve", %address, "listening");

    let (stop, stopped) = tokio::sync::watch::channel(false);
    if let Some(every) = sweep.every {
        let sweeper = Sweeper { store: to_sweep, keep_deliveries: sweep.keep_deliveries, batch: None };
        tokio::spawn(sweeper.run(every, stopped.clone()));
    }
    let front = Arc::new(Front { own_prefix, checking: tokio::sync::Mutex::default(), gateway: gateway.clone() });
    let server = tokio::spawn(server::serve(listener, clients, front, stopped));
    signals.told().await;
    tracing::info!(target: "onced::serve", grace = ?grace, "stopping: no new requests, running ones may finish");
    stop.send_replace(true);
    gateway.end_waiting();
    let deadline = tokio::time::Instant::now() + grace;
    // Requests are still coming in until the server has ended, and some outlive their clients.
    let finished = async {
        let ended = server.await;
        gateway.finish().await;
        ended
    };
    tokio::select! {
        ended = finished => ended.context("the server failed")?,
        () = tokio::time::sleep_until(deadline) => {
            tracing::warn!(target: "onced::serve", "the grace is over: what still runs is left to its lease");
        }
        () = signals.told() => {
            tracing::warn!(target: "onced::serve", "told again: what still runs is left to its lease");
            return Ok(());
        }
    }
    let last = deadline.max(tokio::time::Instant::now() + Duration::from_secs(1));
    tokio::select! {
        () = gateway.close() => {}
        () = tokio::time::sleep_until(last) => {
            tracing::warn!(target: "onced::serve", "lines of the log of deliveries could not be written in time");
        }
        () = signals.told() => {}
    }
    Ok(())
}

/// The gateway, with its own endpoints before it.
struct Front {
    own_prefix: String,
    /// The check writes: one at a time, whoever asks how often.
    checking: tokio::sync::Mutex<()>,
    gateway: Arc<Gateway>,
}

impl Handler for Front {
    async fn answer(&self, request: Request<Incoming>) -> Response<AnyBody> {
        let own = request.uri().path().strip_prefix(&self.own_prefix);
        let (status, words) = match own {
            Some("healthz" | "readyz") if !matches!(*request.method(), Method::GET | Method::HEAD) => {
                (StatusCode::METHOD_NOT_ALLOWED, "this can only be read\n")
            }
            Some("healthz") => (StatusCode::OK, "ok\n"),
            Some("readyz") => self.ready().await,
            Some(_) | None => return self.gateway.handle(request).await,
        };
        let mut response = Response::new(whole(Bytes::from_static(words.as_bytes())));
        *response.status_mut() = status;
        let text = http::HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(http::header::CONTENT_TYPE, text);
        response
    }
}

impl Front {
    async fn ready(&self) -> (StatusCode, &'static str) {
        let checking = async {
            let _alone = self.checking.lock().await;
            self.gateway.guard().store().check_ready().await
        };
        match tokio::time::timeout(Duration::from_secs(2), checking).await {
            Ok(Ok(())) => (StatusCode::OK, "ready\n"),
            Ok(Err(error)) => {
                tracing::warn!(target: "onced::serve", %error, "not ready");
                (StatusCode::SERVICE_UNAVAILABLE, "the ledger cannot be used\n")
            }
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the ledger does not answer\n"),
        }
    }
}

/// The signals that end the gateway in order.
struct Signals([Option<Signal>; 2]);

impl Signals {
    /// From here on none of them ends the process at once. Where that cannot be had, rows stay recoverable.
    fn catch() -> Self {
        Self([SignalKind::terminate(), SignalKind::interrupt()].map(|kind| signal(kind).ok()))
    }

    /// Waits until told to stop.
    async fn told(&mut self) {
        let [terminate, interrupt] = &mut self.0;
        tokio::select! {
            Some(()) = next(terminate) => {}
            Some(()) = next(interrupt) => {}
            else => std::future::pending().await,
        }
    }
}

async fn next(signals: &mut Option<Signal>) -> Option<()> {
    signals.as_mut()?.recv().await
}
