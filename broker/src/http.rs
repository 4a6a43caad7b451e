//! Metrics and probes over HTTP, on an address of their own.
//!
//! It listens before recovery begins and until everything is closed, so that whoever watches the
//! broker can tell one that is busy from one that is gone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, Version, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kera_metadata::access::{CLUSTER_NAME, Kind, Operation};
use kera_protocol::error::{ErrorCode, WireError};
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::access::{Access, Who};
use crate::api::{self, Api, ServedApi, is_of_no_other_site, refusal};
pub use crate::api::{Method, Route};
use crate::auth::Auth;
use crate::config::{BrokerConfig, Listener, OpenPath};
use crate::error::BrokerError;
use crate::http_auth;
use crate::http_listener::{HttpListener, Peer};
use crate::principal::Principal;
use crate::shared::Shared;
use crate::tls::ServerTls;
use crate::unheard::Unheard;
use crate::{scrape, socket};

/// What is served beside console and API.
#[derive(Clone, Copy)]
enum Plain {
    Metrics,
    Live,
    Ready,
}

/// Its paths.
const PLAIN: [(&str, Plain); 4] = [
    ("/metrics", Plain::Metrics),
    ("/livez", Plain::Live),
    ("/healthz", Plain::Live),
    ("/readyz", Plain::Ready),
];

/// Every path that is served.
pub fn routes() -> Vec<Route> {
    let plain = PLAIN.iter().map(|(path, _)| Route {
        method: Method::Get,
        path: (*path).to_owned(),
    });
    plain.chain(api::routes()).collect()
}

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

    /// Who the users are, and what they may do.
    fn rights(&self) -> (&Auth, &Access);
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

    fn rights(&self) -> (&Auth, &Access) {
        (&self.auth, &self.access)
    }
}

/// The process that is asked about, and what it asks of others.
#[derive(Clone)]
struct Watched {
    /// None while it recovers.
    process: Arc<RwLock<Option<Arc<dyn Told>>>>,
    /// What only users are told.
    closed: Arc<[OpenPath]>,
}

impl Watched {
    fn new(config: &BrokerConfig) -> Self {
        let asks = config.auth.listeners.contains(&Listener::Http);
        let all = [OpenPath::Probes, OpenPath::Metrics].into_iter();
        let closed = all.filter(|path| asks && !config.http.open_paths.contains(path));
        Self {
            process: Arc::default(),
            closed: closed.collect(),
        }
    }

    /// The process, for somebody who may know this of it. While it recovers no user is known, and nothing but that is told.
    async fn for_client(
        &self,
        path: OpenPath,
        peer: Peer,
        headers: &HeaderMap,
    ) -> Result<Option<Arc<dyn Told>>, Box<Response>> {
        let process = self.process.read().clone();
        let Some(told) = process.as_ref().filter(|_| self.closed.contains(&path)) else {
            return Ok(process);
        };
        if !is_of_no_other_site(headers) {
            let text = "what the broker tells its users it tells no page of another site";
            let error = WireError::new(ErrorCode::NotAuthorized, text);
            return Err(Box::new(refusal(&error)));
        }
        let (auth, access) = told.rights();
        let caller = http_auth::asking(auth, peer, headers).await?.caller;
        if path == OpenPath::Metrics {
            let who = Who {
                principal: &Principal::of(caller.user.as_ref()),
                host: caller.address,
                via: Listener::Http.into(),
            };
            // They name streams and groups, as the overview of the API does.
            let thing = (Kind::Cluster, CLUSTER_NAME);
            let may = access.require(who, Operation::Describe, thing);
            may.map_err(|error| Box::new(refusal(&error)))?;
        }
        Ok(process)
    }
}

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
    /// Serves `/metrics`, `/livez` (also `/healthz`), `/readyz` and `/api/v1` on `address`, as `config` says, over TLS if `tls` has
    /// it for HTTP. What requests hold that have not been answered is held in `unheard`. Until [`Http::recovered`] is called the process counts as live and not as ready.
    ///
    /// # Errors
    /// [`BrokerError::Listen`].
    pub async fn start(
        address: &str,
        config: &BrokerConfig,
        tls: Option<Arc<ServerTls>>,
        unheard: &Arc<Unheard>,
    ) -> Result<Self, BrokerError> {
        let listener = socket::bind(address, "http.listen").await?;
        let local = listener.local_addr().map_err(|error| BrokerError::Listen {
            address: address.to_string(),
            key: "http.listen",
            error,
        })?;
        let watched = Watched::new(config);
        let router = PLAIN
            .into_iter()
            .fold(Router::new(), |router, (path, plain)| {
                let handler = match plain {
                    Plain::Metrics => get(scrape),
                    Plain::Live => get(live),
                    Plain::Ready => get(ready),
                };
                router.route(path, handler)
            });
        let router = router.with_state(watched.clone());
        let api = ServedApi::new(config);
        let router = router.merge(api::router(api.clone()));
        let router = router.layer(middleware::from_fn(one_at_a_time));
        let freed = Arc::default();
        let listener = HttpListener::new(listener, tls, &config.http, Arc::clone(&freed), unheard);
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
        *self.watched.process.write() = Some(told);
    }

    /// From now on this answers `/api/v1`.
    pub(crate) fn serve_api(&self, api: Arc<Api>) {
        self.api.serve(Some(api));
    }

    /// Stops listening and lets go of the process.
    pub async fn end(self) {
        self.watched.process.write().take();
        self.api.serve(None);
        self.ended.send_replace(true);
        // A scrape that is under way is welcome to its answer, not to hold up the end.
        let _ = timeout(LAST_REQUESTS, self.task).await;
    }
}

/// A connection has one request under way. HTTP/2 would let one client have hundreds of passwords wait to be checked.
async fn one_at_a_time(request: Request, next: Next) -> Response {
    match request.version() {
        Version::HTTP_2 | Version::HTTP_3 => {
            let text = "the broker speaks HTTP/1.1 here\n";
            (StatusCode::HTTP_VERSION_NOT_SUPPORTED, text).into_response()
        }
        _ => next.run(request).await,
    }
}

async fn scrape(
    State(watched): State<Watched>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Response {
    let told = match watched.for_client(OpenPath::Metrics, peer, &headers).await {
        Ok(told) => told,
        Err(refused) => return *refused,
    };
    let text = tokio::task::spawn_blocking(move || match told {
        Some(told) => told.metrics(),
        None => scrape::render_recovering(),
    });
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let text = text.await.unwrap_or_default();
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text).into_response()
}

async fn live(
    State(watched): State<Watched>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Response {
    let told = match watched.for_client(OpenPath::Probes, peer, &headers).await {
        Ok(told) => told,
        Err(refused) => return *refused,
    };
    match told.map_or(Ok(()), |told| told.live()) {
        Ok(()) => (StatusCode::OK, "ok\n").into_response(),
        Err(broken) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{broken}\n")).into_response(),
    }
}

async fn ready(
    State(watched): State<Watched>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Response {
    let told = match watched.for_client(OpenPath::Probes, peer, &headers).await {
        Ok(told) => told,
        Err(refused) => return *refused,
    };
    match told.map_or(Err("recovering"), |told| told.ready()) {
        Ok(()) => (StatusCode::OK, "ready\n").into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
