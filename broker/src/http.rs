//! Metrics and probes over HTTP, on an address of their own.
//!
//! It listens before recovery begins and until everything is closed, so that whoever watches the
//! broker can tell one that is busy from one that is gone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::api::{self, Api, ServedApi};
use crate::config::HttpConfig;
use crate::error::BrokerError;
use crate::http_listener::{HttpListener, Peer};
use crate::shared::Shared;
use crate::tls::ServerTls;
use crate::{scrape, socket};

/// Requests under way when the broker ends may take this long to finish.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

/// What is told over HTTP.
pub trait Told: Send + Sync + 'static {
    /// The metrics, as text.
    fn metrics(&self) -> String;

    /// Whether the process can go on as it is: a new start would not mend what keeps it from being
    /// ready.
    ///
    /// # Errors
    /// One line for people: what has broken.
    fn live(&self) -> Result<(), String>;

    /// Whether the process does what it is there for.
    ///
    /// # Errors
    /// One line for people: why not.
    fn ready(&self) -> Result<(), &'static str>;
}

impl Told for Shared {
    fn metrics(&self) -> String {
        scrape::render(self)
    }

    fn live(&self) -> Result<(), String> {
        self.liveness()
    }

    fn ready(&self) -> Result<(), &'static str> {
        self.readiness()
    }
}

/// The process that is asked about; none while it recovers.
type Watched = Arc<RwLock<Option<Arc<dyn Told>>>>;

/// The HTTP address of a process. Dropping it closes the address.
pub struct Http {
    local: SocketAddr,
    watched: Watched,
    api: ServedApi,
    ended: watch::Sender<bool>,
    task: JoinHandle<()>,
    freed: Arc<AtomicU64>,
}

impl Http {
    /// Serves `/metrics`, `/livez` (also `/healthz`), `/readyz` and `/api/v1` on `address`, over TLS if `tls` has it for HTTP. Until
    /// [`Http::recovered`] is called the process counts as live and not as ready.
    ///
    /// # Errors
    /// [`BrokerError::Listen`].
    pub async fn start(
        address: &str,
        config: &HttpConfig,
        tls: Option<Arc<ServerTls>>,
    ) -> Result<Self, BrokerError> {
        let listener = socket::bind(address, "http.listen").await?;
        let local = listener.local_addr().map_err(|error| BrokerError::Listen {
            address: address.to_string(),
            key: "http.listen",
            error,
        })?;
        let watched = Watched::default();
        let router = Router::new()
            .route("/metrics", get(scrape))
            .route("/livez", get(live))
            .route("/healthz", get(live))
            .route("/readyz", get(ready))
            .with_state(watched.clone());
        let api = ServedApi::default();
        let router = router.merge(api::router(api.clone()));
        let freed = Arc::default();
        let listener = HttpListener::new(listener, tls, config, Arc::clone(&freed));
        let (ended, mut end) = watch::channel(false);
        let task = tokio::spawn(async move {
            let end = async move {
                let _ = end.wait_for(|end| *end).await;
            };
            if let Err(error) = axum::serve(
                listener,
                router.into_make_service_with_connect_info::<Peer>(),
            )
            .with_graceful_shutdown(end)
            .await
            {
                tracing::error!(%error, "serving metrics ended");
            }
        });
        Ok(Self {
            local,
            watched,
            api,
            ended,
            task,
            freed,
        })
    }

    /// Bytes that connections which have ended gave back to the allocator.
    pub(crate) fn freed(&self) -> Arc<AtomicU64> {
        self.freed.clone()
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// From now on requests are about this process.
    pub fn recovered(&self, told: Arc<dyn Told>) {
        *self.watched.write() = Some(told);
    }

    /// From now on this answers `/api/v1`.
    pub(crate) fn serve_api(&self, api: Arc<Api>) {
        *self.api.write() = Some(api);
    }

    /// Stops listening and lets go of the process.
    pub async fn end(self) {
        self.watched.write().take();
        self.api.write().take();
        self.ended.send_replace(true);
        // A scrape that is under way is welcome to its answer, not to hold up the end.
        let _ = timeout(LAST_REQUESTS, self.task).await;
    }
}

async fn scrape(State(watched): State<Watched>) -> impl IntoResponse {
    let text = tokio::task::spawn_blocking(move || {
        let told = watched.read().clone();
        match told {
            Some(told) => told.metrics(),
            None => scrape::render_recovering(),
        }
    });
    (
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text.await.unwrap_or_default(),
    )
}

async fn live(State(watched): State<Watched>) -> (StatusCode, String) {
    match watched.read().as_ref().map_or(Ok(()), |told| told.live()) {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(broken) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{broken}\n")),
    }
}

async fn ready(State(watched): State<Watched>) -> (StatusCode, String) {
    let watched = watched.read();
    match watched
        .as_ref()
        .map_or(Err("recovering"), |told| told.ready())
    {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
