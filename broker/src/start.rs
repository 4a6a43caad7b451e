//! Starting and stopping a broker.
//!
//! The order of a start: lock the data directory and check whose it is, serve other brokers' copies, open
//! the metadata store, take new epochs in bulk, recover every streamlet, record what recovery found, open the
//! coordinator, listen.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kera_metadata::{ClusterStore, Role};
use kera_telemetry::{Exporter, Telemetry};

use crate::api::Api;
use crate::audit::Audit;
use crate::auth::make_first_user;
use crate::clock::now_ms;
use crate::cluster::ownership::joining::open_dir;
use crate::cluster::ownership::{takeover, watching};
use crate::cluster::store_restore::{self, Restored};
use crate::cluster::{self, Backup};
use crate::config::{BrokerConfig, NEEDS_BROKER_CA, TlsListener};
use crate::error::BrokerError;
use crate::http::Http;
use crate::listener::Way;
use crate::maintenance::Maintenance;
use crate::open::{Begun, open};
use crate::shared::Shared;
use crate::store_calls::blocking;
use crate::store_dir::StoreDir;
use crate::tls::{self, ServerTls};
use crate::unheard::Unheard;
use crate::{listener, machine, socket, telemetry, unreadable};

/// Longest wait at a stop until copies at other brokers are closed.
const FINISH_WITHIN: Duration = Duration::from_secs(5);
/// What has not closed within this is left to the next start.
const CLOSES_WITHIN: Duration = Duration::from_secs(1);
/// A stop that takes longer tells how far it is.
const SILENCE: Duration = Duration::from_secs(2);

/// What a start opens first.
struct Opened {
    dir: StoreDir,
    /// What was done because the store was put back to an older state; `None` if it was not.
    restored: Option<Restored>,
    audit: Arc<Audit>,
    tls: Option<Arc<ServerTls>>,
    unheard: Arc<Unheard>,
    backup: Option<Arc<Backup>>,
}

/// A running broker.
pub struct Broker {
    shared: Arc<Shared>,
    /// The native addresses, in the order of the configuration.
    local: Vec<SocketAddr>,
    http: Option<Http>,
    maintenance: Maintenance,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    exporter: Option<Exporter>,
}

impl Broker {
    /// Starts a broker and returns once it serves.
    ///
    /// # Errors
    /// [`BrokerError`] says what stands in the way and what to do.
    pub async fn start(config: BrokerConfig) -> Result<Self, BrokerError> {
        let named = config.clone();
        let store = blocking(move || cluster::ownership::joining::open_store(&named)).await?;
        Self::start_sharing(config, store).await
    }

    /// As [`start`](Self::start), over a metadata store that is shared with other brokers, whatever the
    /// configuration names; `None` is one of its own. For tests and for tools in the same process.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_sharing(
        config: BrokerConfig,
        store: Option<Arc<dyn ClusterStore>>,
    ) -> Result<Self, BrokerError> {
        let since = Instant::now();
        let (named, shared_store) = (config.clone(), store.clone());
        let opened = blocking(move || open_whole(&named, shared_store.as_deref()));
        let (dir, restored) = opened.await?;
        let settings = config.audit.clone();
        let audit = blocking(move || Audit::open(&settings)).await?;
        let unheard = Arc::new(Unheard::with_most(config.auth.max_unproven_bytes));
        let tls = ServerTls::open(&config, &audit, &unheard)?;
        // First of what other brokers can see, so that brokers that start together find each other's copies.
        let backup = match &store {
            Some(_) => Some(Backup::start(&config, tls.as_ref(), true).await?),
            None => None,
        };
        let opened = Opened {
            dir,
            restored,
            audit,
            tls,
            unheard,
            backup: backup.clone(),
        };
        let started = Self::start_over(config, opened, store, since).await;
        if let (Err(_), Some(backup)) = (&started, backup) {
            backup.stop().await;
        }
        started
    }

    async fn start_over(
        config: BrokerConfig,
        opened: Opened,
        store: Option<Arc<dyn ClusterStore>>,
        since: Instant,
    ) -> Result<Self, BrokerError> {
        let Opened {
            dir,
            restored,
            audit,
            tls,
            unheard,
            backup,
        } = opened;
        let native = tls
            .as_ref()
            .is_some_and(|tls| tls.serves(TlsListener::Native));
        if native && store.is_some() && config.tls.broker_ca.is_none() {
            // The configuration's check does not see a store that was handed over.
            return Err(BrokerError::Tls(format!("tls.listeners {NEEDS_BROKER_CA}")));
        }
        if config.acl.enabled && store.is_some() {
            check_own_name(&config, tls.as_deref())?;
        }
        let (mut listening, mut local) = (Vec::new(), Vec::new());
        for listen in config.server.listen.iter() {
            let address = &listen.address;
            let bound = socket::bind(address, "server.listen").await?;
            let at = bound.local_addr().map_err(|error| BrokerError::Listen {
                address: address.clone(),
                key: "server.listen",
                error,
            })?;
            listening.push((bound, Way::new(&config, listen.name.clone())));
            local.push(at);
        }
        // Before recovery, which may take its time: probes are to see a broker that lives.
        let http = match &config.http.listen {
            Some(address) => Some(Http::start(address, &config, tls.clone(), &unheard).await?),
            None => None,
        };
        let freed = http.as_ref().map_or_else(Arc::default, Http::freed);
        let begun = Begun {
            config,
            dir,
            audit,
            local: local.clone(),
            backup,
            store,
            freed,
            tls,
            unheard,
            restored,
        };
        let (shared, maintenance) = blocking(move || open(begun)).await?;
        machine::report(&machine::Needs::of(&shared.config, shared.data.engine()));
        unreadable::start(&shared);
        if let Some(clustered) = &shared.clustered {
            watching::start(&shared, clustered);
            takeover::start(&shared, clustered);
            cluster::cleanup::start(&shared, clustered);
            cluster::ownership::election::start(&shared, clustered);
        }
        make_first_user(&shared).await?;
        shared.coordination.open(&shared).await?;
        let took = since.elapsed();
        shared
            .recovery_ms
            .store(took.as_millis() as u64, Ordering::Relaxed);
        tracing::info!(address = %local[0], streams = shared.data.catalog.all().len(), ms = took.as_millis() as u64, "serving");
        let mut tasks = listener::serve(listening, &shared);
        if let Some(tls) = &shared.tls {
            let calling = shared.clone();
            let changed = move |tls: &ServerTls| {
                calling.others.use_tls(tls.for_brokers(TlsListener::Native));
                if let Some(clustered) = &calling.clustered {
                    let replicas = tls.for_brokers(TlsListener::Cluster);
                    clustered.peers.use_tls(replicas);
                }
            };
            tasks.push(tokio::spawn(tls::watch(tls.clone(), changed)));
        }
        if let Some(oauth) = shared.auth.oauth() {
            tasks.push(tokio::spawn(oauth.clone().keep()));
        }
        tasks.push(tokio::spawn(shared.quotas.turns.clone().drive()));
        tasks.push(tokio::spawn(crate::coordination::drive(shared.clone())));
        tasks.push(tokio::spawn(crate::transactions::drive(shared.clone())));
        tasks.push(tokio::spawn(crate::transactions::settle(shared.clone())));
        if let Some(http) = &http {
            http.recovered(shared.clone());
            if shared.config.api.enabled {
                http.serve_api(Api::new(shared.clone()));
            }
        }
        Ok(Self {
            shared,
            local,
            http,
            maintenance,
            tasks,
            exporter: None,
        })
    }

    /// Begins to tell a collector. Once for a broker.
    pub fn tell(&mut self, telemetry: Telemetry) {
        self.exporter = Some(telemetry::start(telemetry, &self.shared));
    }

    /// The native address, the first if there are several.
    pub fn local_addr(&self) -> SocketAddr {
        self.local[0]
    }

    /// The native addresses, in the order of the configuration.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local
    }

    /// The address of metrics and health, if they are served.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(Http::local_addr)
    }

    /// What its parts share; for tests and for tools in the same process.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Stops: what other brokers can own is handed over to them, no new connections are taken, open ones
    /// drain within the configured time, every group is synced and closed, so that the next start scans
    /// nothing.
    pub async fn shutdown(self) {
        let within = self.shared.config.server.drain_timeout;
        cluster::ownership::hand_over::hand_over_all(&self.shared, within).await;
        tracing::info!("stopping: draining connections");
        self.shared.stopping.send_replace(true);
        let deadline = Instant::now() + self.shared.config.server.drain_timeout;
        while self.shared.data_connections.load(Ordering::Relaxed) > 0 && Instant::now() < deadline
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for task in &self.tasks {
            task.abort();
        }
        if let Some(clustered) = &self.shared.clustered {
            clustered.replicated.finish(FINISH_WITHIN).await;
        }
        let shared = self.shared.clone();
        let maintenance = self.maintenance;
        let closed = tokio::task::spawn_blocking(move || {
            maintenance.stop();
            close(&shared);
            if let Some(clustered) = &shared.clustered {
                // The others need not wait for the lease to end.
                clustered.membership.leave();
            }
            shared.metadata.close();
            shared.audit.end();
        });
        if let Err(error) = closed.await {
            tracing::error!(%error, "closing did not finish");
        }
        // Last: until then other brokers' appends need not look for another backup.
        if let Some(clustered) = &self.shared.clustered {
            clustered.peers.backup.stop().await;
        }
        if let Some(exporter) = self.exporter {
            exporter.finish(telemetry::FINISH_WITHIN).await;
        }
        if let Some(http) = self.http {
            http.end().await;
        }
        tracing::info!("stopped");
    }
}

/// The data directory, and what was done with what is in it if the store was put back to an older state since. To be called
/// before replicas are served: the replica store frees what no record names.
fn open_whole(
    config: &BrokerConfig,
    store: Option<&dyn ClusterStore>,
) -> Result<(StoreDir, Option<Restored>), BrokerError> {
    let (dir, brokers) = open_dir(config, store, Role::Broker)?;
    let restored = match store {
        // Others may know of a restore that nobody has told this directory of.
        Some(store)
            if dir.is_after_restore() || dir.restore() < store_restore::last_known(&brokers) =>
        {
            Some(store_restore::begin(store, &dir, config, &brokers)?)
        }
        _ => None,
    };
    Ok((dir, restored))
}

/// Checks that the other brokers will let this one do what brokers do.
fn check_own_name(config: &BrokerConfig, tls: Option<&ServerTls>) -> Result<(), BrokerError> {
    let name = tls.and_then(ServerTls::own_name);
    let user = format!("User:{}", name.unwrap_or("NAME"));
    if name.is_some() && config.acl.super_users.contains(&user) {
        return Ok(());
    }
    let found = match name {
        Some(_) => format!(
            "the certificate in tls.certificate is that of {user}, who is not among acl.super_users"
        ),
        None => "the certificate in tls.certificate has no common name".to_owned(),
    };
    Err(BrokerError::Tls(format!(
        "acl.enabled: {found}, so the other brokers of the cluster would deny this one what brokers do among themselves; name every broker's certificate there"
    )))
}

/// How long a stop tries to close streamlets that do not close. Where the disk is full none does, and each attempt may take
/// long: a stop does not wait so long for every streamlet.
struct Patience {
    most: Duration,
    /// Half of it after each that has not closed in time.
    left: Duration,
}

impl Patience {
    fn new(most: Duration) -> Self {
        Self { most, left: most }
    }

    /// Tries until it succeeds, or long enough.
    fn close(&mut self, mut close: impl FnMut() -> bool) {
        let begun = Instant::now();
        let mut is_last = false;
        while !close() {
            if is_last {
                self.left /= 2;
                return;
            }
            // A `synced` group is written by the pump; give it the time of a sync.
            std::thread::park_timeout(Duration::from_millis(10));
            is_last = begun.elapsed() >= self.left;
        }
        self.left = self.most;
    }
}

fn close(shared: &Shared) {
    let now = now_ms();
    let streams = shared.data.catalog.all();
    let streamlets: Vec<_> = streams.iter().flat_map(|one| &one.streamlets).collect();
    let (mut told, mut patience) = (Instant::now(), Patience::new(CLOSES_WITHIN));
    for (closed, streamlet) in streamlets.iter().enumerate() {
        if told.elapsed() >= SILENCE {
            told = Instant::now();
            tracing::info!(
                closed,
                of = streamlets.len(),
                "closing what lanes have open, streamlet by streamlet; after a kill the next start looks through the rest"
            );
        }
        patience.close(|| streamlet.close_all(now));
    }
    shared.data.env.pump.stop();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_closes_is_waited_for_once_and_not_each_time() {
        let mut patience = Patience::new(Duration::from_millis(80));
        let mut attempts = 0;
        for _ in 0..100 {
            patience.close(|| {
                attempts += 1;
                false
            });
        }
        // Each is tried twice, and beyond that all of them together for twice the time.
        assert!((200..=220).contains(&attempts), "{attempts}");
    }

    #[test]
    fn what_closes_late_is_waited_for_also_after_others_that_did() {
        let mut patience = Patience::new(Duration::from_secs(3600));
        for _ in 0..3 {
            let mut attempts = 0;
            patience.close(|| {
                attempts += 1;
                attempts == 4
            });
            assert_eq!((attempts, patience.left), (4, patience.most));
        }
    }
}
