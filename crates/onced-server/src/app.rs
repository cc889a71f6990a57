//! The composition root of `onced serve`: opens the ledger, builds the gateway, listens, and shuts down in order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use onced::guard::Guard;
use onced::store::{AnyStore, Durability, StoreOptions};
use tokio::net::TcpListener;

use crate::config::{Config, StoreConfig};
use crate::proxy::Gateway;

/// Opens the ledger and brings its schema up to date.
pub(crate) async fn open_store(config: &StoreConfig) -> anyhow::Result<AnyStore> {
    let store = open_store_as_it_is(config).await?;
    store.migrate().await.with_context(|| format!("the ledger {} cannot be brought up to date", config.url))?;
    Ok(store)
}

/// Opens the ledger without touching its schema.
pub(crate) async fn open_store_as_it_is(config: &StoreConfig) -> anyhow::Result<AnyStore> {
    let options = StoreOptions {
        schema: config.schema.clone(),
        max_connections: config.max_connections,
        acquire_timeout: config.busy_timeout,
        busy_timeout: config.busy_timeout,
        durability: if config.allow_weak_durability { Durability::WeakAccepted } else { Durability::Required },
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
    let listener =
        TcpListener::bind(config.listen).await.with_context(|| format!("cannot listen on {}", config.listen))?;
    let address = listener.local_addr()?;
    let grace = config.shutdown_grace;
    let prefix = config.own_prefix.clone();
    let guard = Guard::new(store, config.store.log_deliveries);
    let gateway = Arc::new(Gateway::new(config, guard));
    let router = Router::new()
        .route(&format!("{prefix}healthz"), get(async || "ok\n"))
        .route(&format!("{prefix}readyz"), get(ready))
        .fallback(proxy)
        .with_state(gateway.clone());
    tracing::info!(target: "onced::serve", %address, "listening");

    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let server = axum::serve(listener, router).with_graceful_shutdown(async move {
        told_to_stop().await;
        tracing::info!(target: "onced::serve", grace = ?grace, "stopping: no new requests, running ones may finish");
        stop.send_replace(true);
    });
    let server = tokio::spawn(async move { server.await });
    // An error means that the server has ended by itself.
    let _ = stopped.wait_for(|stop| *stop).await;
    let deadline = tokio::time::Instant::now() + grace;
    tokio::select! {
        () = gateway.finish() => {}
        () = tokio::time::sleep_until(deadline) => {
            tracing::warn!(target: "onced::serve", "the grace is over: what still runs is left to its lease");
        }
        () = told_to_stop() => {
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
        () = told_to_stop() => return Ok(()),
    }
    // Idle connections are closed by now; on the others an answer is on its way.
    match tokio::time::timeout_at(last, server).await {
        Ok(ended) => ended?.context("the server failed"),
        Err(_) => Ok(()),
    }
}

async fn proxy(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    gateway.handle(request).await.map(axum::body::Body::new)
}

async fn ready(State(gateway): State<Arc<Gateway>>) -> Response {
    match tokio::time::timeout(Duration::from_secs(2), gateway.guard().store().check_ready()).await {
        Ok(Ok(())) => "ready\n".into_response(),
        Ok(Err(error)) => {
            tracing::warn!(target: "onced::serve", %error, "not ready");
            (StatusCode::SERVICE_UNAVAILABLE, "the ledger cannot be used\n").into_response()
        }
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the ledger does not answer\n").into_response(),
    }
}

async fn told_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let wait = async |kind| match signal(kind) {
        Ok(mut signals) => {
            signals.recv().await;
        }
        // Without the handler the signal ends the process at once: rows stay recoverable.
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        () = wait(SignalKind::terminate()) => {}
        () = wait(SignalKind::interrupt()) => {}
    }
}
