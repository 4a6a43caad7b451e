//! Metrics and health over HTTP, on an address of their own.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::error::BrokerError;
use crate::listener;
use crate::metrics;
use crate::start::Shared;

/// Serves `/metrics`, `/healthz` (the process lives) and `/readyz` (appends are accepted).
///
/// # Errors
/// [`BrokerError::Listen`].
pub async fn serve(address: &str, shared: Arc<Shared>) -> Result<SocketAddr, BrokerError> {
    let listener = listener::bind(address, "http.listen").await?;
    let local = listener.local_addr().map_err(|error| BrokerError::Listen {
        address: address.to_string(),
        key: "http.listen",
        error,
    })?;
    let mut stopping = shared.stopping.subscribe();
    let router = Router::new()
        .route("/metrics", get(scrape))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(shared);
    tokio::spawn(async move {
        let stop = async move {
            let _ = stopping.wait_for(|stop| *stop).await;
        };
        if let Err(error) = axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
        {
            tracing::error!(%error, "serving metrics ended");
        }
    });
    Ok(local)
}

async fn scrape(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let text = tokio::task::spawn_blocking(move || metrics::render(&shared))
        .await
        .unwrap_or_default();
    (
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    )
}

async fn ready(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    if *shared.stopping.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
    }
    if shared
        .env
        .disk_full
        .load(kera_log_segments::sync::Ordering::Relaxed)
    {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "disk full: appends are refused, reads are served\n",
        );
    }
    (StatusCode::OK, "ready\n")
}
