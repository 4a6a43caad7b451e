//! Starting and stopping a broker.
//!
//! The order of a start: lock the data directory, serve other brokers' copies, open the metadata
//! store, take new epochs in bulk, recover every streamlet, record what recovery found, open the
//! coordinator, listen.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kera_log_segments::io::Io;
use kera_metadata::{
    ClusterStore, Conflict, Key, Membership, MetadataError, MetadataStore, StreamRecord,
    StreamletRecord,
};
use kera_protocol::ids::{StreamId, StreamletId};
use kera_replication::seldom::Seldom;
use kera_rpc::Channels;
use kera_streamlet::{Env, Streamlet};
use tokio::sync::watch;

use crate::admission::Admission;
use crate::catalog::{Catalog, Stream, make_dirs, settings_of};
use crate::clock::now_ms;
use crate::cluster::cluster_view::Pictured;
use crate::cluster::{
    self, Backup, Cluster, Members, Ownership, Replicated, ownership, takeover, watching,
};
use crate::config::BrokerConfig;
use crate::coordination::Coordination;
use crate::copy_reads::listed::Listed;
use crate::directory::{Directory, Owner};
use crate::error::BrokerError;
use crate::http::Http;
use crate::maintenance::{Maintenance, Retimed};
use crate::metrics::Metrics;
use crate::open::{Begun, open};
use crate::panicked_threads::Fallen;
use crate::recorder::StoreRecorder;
use crate::settings::Settings;
use crate::store_dir::StoreDir;
use crate::{listener, machine};

/// The number of a broker that is given none. To Kafka's clients every broker is number 1 of a
/// cluster of its own.
pub const BROKER_ID: u32 = 1;
/// [`Shared::memory_wait`] unless it is changed.
pub(crate) const MEMORY_WAIT: Duration = Duration::from_secs(10);
/// Longest wait at a stop until copies at other brokers are closed.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// What every part of the broker shares.
pub struct Shared {
    /// Reads of Kafka's clients that failed, as the log tells of them.
    pub failed_reads: parking_lot::Mutex<Seldom>,
    /// Connections of Kafka's clients that broke the protocol, as the log tells of them.
    pub bad_connections: parking_lot::Mutex<Seldom>,
    /// The configuration of the start; what may change since then is in [`Shared::live`].
    pub config: BrokerConfig,
    /// What was changed since.
    pub settings: Settings,
    /// Wakes what waits for a time that a setting tells.
    pub(crate) retimed: Retimed,
    /// This broker's number.
    pub broker_id: u32,
    /// The brokers it works with; `None` if it works alone.
    pub cluster: Option<Cluster>,
    /// The streamlets whose groups have copies at other brokers; `None` if it works alone.
    pub replicated: Option<Arc<Replicated>>,
    /// Data directory.
    pub dir: StoreDir,
    /// Metadata store.
    pub metadata: Arc<dyn MetadataStore>,
    /// The same, if it is shared with other brokers.
    pub store: Option<Arc<dyn ClusterStore>>,
    /// This broker's place among those that share the store.
    pub membership: Option<Arc<Membership>>,
    /// Which brokers there are, and who owns what.
    pub directory: Arc<dyn Directory>,
    /// The brokers that share the store; `None` if it is this one's own.
    pub members: Option<Arc<Members>>,
    /// How streamlets come to this broker and leave it, if others share the store.
    pub ownership: Option<Ownership>,
    /// Owners and copies of all streamlets, if others share the store.
    pub(crate) pictured: Arc<Pictured>,
    /// Closed groups of which this broker may hold copies, as they are recorded.
    pub(crate) listed: Listed,
    /// Records groups.
    pub recorder: Arc<StoreRecorder>,
    /// What streamlets share.
    pub env: Arc<Env>,
    /// The streams.
    pub catalog: Arc<Catalog>,
    /// Consumer groups.
    pub coordination: Coordination,
    /// Metrics.
    pub metrics: Metrics,
    /// Bytes appended and not yet acknowledged, over all connections.
    pub in_flight: AtomicU64,
    /// Bytes of larger buffers that connections receive into, over all connections.
    pub incoming: AtomicU64,
    /// Bytes of connections that were given back to the allocator, and not yet to the system.
    pub(crate) freed: Arc<AtomicU64>,
    /// Bytes that wait to be sent, or come from the disk to be sent, over all connections.
    pub outgoing: AtomicU64,
    /// How many connections there may be.
    pub admission: Admission,
    /// Data and control connections open.
    pub connections: AtomicU64,
    /// Those of them that carry data, which drain when the broker stops.
    pub data_connections: AtomicU64,
    /// The address clients are told.
    pub advertised: String,
    /// Ways to other brokers, for control calls.
    pub others: Channels,
    /// When it started, milliseconds since 1970.
    pub started_ms: u64,
    /// How long the start took until appends were served.
    pub recovery_ms: AtomicU64,
    /// Set once the broker stops: connections drain.
    pub stopping: watch::Sender<bool>,
    /// Producer ids taken from the metadata store and not yet given out.
    pub producer_ids: parking_lot::Mutex<Range<u64>>,
    /// See [`Shared::memory_wait`]; milliseconds.
    pub(crate) memory_wait_ms: AtomicU64,
    /// Somebody is giving back memory right now.
    pub releasing: AtomicBool,
    /// The last write to the page cache took long: pump on a thread that may block.
    pub stalling: AtomicBool,
    /// Its threads that panicked.
    pub fallen: Fallen,
}

/// A running broker.
pub struct Broker {
    shared: Arc<Shared>,
    local: SocketAddr,
    http: Option<Http>,
    maintenance: Maintenance,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Broker {
    /// Starts a broker and returns once it serves.
    ///
    /// # Errors
    /// [`BrokerError`] says what stands in the way and what to do.
    pub async fn start(config: BrokerConfig) -> Result<Self, BrokerError> {
        let named = config.clone();
        let store = off_runtime(move || cluster::store::open(&named)).await?;
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
        let path = config.data_dir.clone();
        let dir = off_runtime(move || StoreDir::open(&path)).await?;
        // First of all, so that brokers that start together find each other's copies.
        let backup = Backup::start(&config, store.is_some()).await?;
        let started = Self::start_over(config, dir, backup.clone(), store, since).await;
        if let (Err(_), Some(backup)) = (&started, backup) {
            backup.stop().await;
        }
        started
    }

    async fn start_over(
        config: BrokerConfig,
        dir: StoreDir,
        backup: Option<Arc<Backup>>,
        store: Option<Arc<dyn ClusterStore>>,
        since: Instant,
    ) -> Result<Self, BrokerError> {
        let listening = listener::bind(&config.server.listen, "server.listen").await?;
        let local = listening
            .local_addr()
            .map_err(|error| BrokerError::Listen {
                address: config.server.listen.clone(),
                key: "server.listen",
                error,
            })?;
        // Before recovery, which may take its time: probes are to see a broker that lives.
        let http = match &config.http.listen {
            Some(address) => Some(Http::start(address, &config.http).await?),
            None => None,
        };
        let freed = http.as_ref().map_or_else(Arc::default, Http::freed);
        let begun = Begun {
            config,
            dir,
            local,
            backup,
            store,
            freed,
        };
        let (shared, maintenance) = off_runtime(move || open(begun)).await?;
        machine::report(&machine::Needs::of(&shared.config, shared.engine()));
        watching::start(&shared);
        takeover::start(&shared);
        cluster::jobs::start(&shared);
        cluster::election::start(&shared);
        shared.coordination.open(&shared).await?;
        let took = since.elapsed();
        shared
            .recovery_ms
            .store(took.as_millis() as u64, Ordering::Relaxed);
        tracing::info!(address = %local, streams = shared.catalog.all().len(), ms = took.as_millis() as u64, "serving");
        let mut tasks = listener::serve(listening, shared.clone());
        tasks.push(tokio::spawn(crate::coordination::drive(shared.clone())));
        if let Some(http) = &http {
            http.recovered(shared.clone());
        }
        Ok(Self {
            shared,
            local,
            http,
            maintenance,
            tasks,
        })
    }

    /// The native address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
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
        cluster::leaving::hand_over_all(&self.shared, within).await;
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
        if let Some(replicated) = &self.shared.replicated {
            replicated.finish(FINISH_WITHIN).await;
        }
        let shared = self.shared.clone();
        let maintenance = self.maintenance;
        let closed = tokio::task::spawn_blocking(move || {
            maintenance.stop();
            close(&shared);
            if let Some(membership) = &shared.membership {
                // The others need not wait for the lease to end.
                membership.leave();
            }
            shared.metadata.close();
        });
        if let Err(error) = closed.await {
            tracing::error!(%error, "closing did not finish");
        }
        // Last: until then other brokers' appends need not look for another backup.
        if let Some(cluster) = &self.shared.cluster {
            cluster.backup.stop().await;
        }
        if let Some(http) = self.http {
            http.end().await;
        }
        tracing::info!("stopped");
    }
}

fn close(shared: &Shared) {
    let now = now_ms();
    for stream in shared.catalog.all() {
        for streamlet in &stream.streamlets {
            let mut attempts = 0;
            while !streamlet.close_all(now) && attempts < 100 {
                // A `synced` group is written by the pump; give it the time of a sync.
                std::thread::park_timeout(Duration::from_millis(10));
                attempts += 1;
            }
        }
    }
    shared.env.pump.stop();
}

/// Runs a step of the start that waits for the disk.
async fn off_runtime<T: Send + 'static>(
    step: impl FnOnce() -> Result<T, BrokerError> + Send + 'static,
) -> Result<T, BrokerError> {
    tokio::task::spawn_blocking(step)
        .await
        .map_err(|panic| BrokerError::System {
            what: "starting failed",
            error: std::io::Error::other(panic),
        })?
}

impl Shared {
    /// A streamlet of a stream, by ids.
    pub fn streamlet(&self, stream: StreamId, streamlet: StreamletId) -> Option<Arc<Streamlet>> {
        self.catalog.streamlet(stream, streamlet)
    }

    /// The cluster's id, as Kafka's clients are told it, which it keeps for life, as 22 characters of
    /// base64url: that of the shared store, or of the data directory.
    pub fn cluster_id(&self) -> String {
        self.directory.cluster_id()
    }

    /// Writes out and gives back what lanes hold beyond need: the pool is empty. Many connections may
    /// ask at once; one at a time does it.
    pub fn release_memory(&self) {
        if self.releasing.swap(true, Ordering::Acquire) {
            return;
        }
        for stream in self.catalog.all() {
            for streamlet in &stream.streamlets {
                streamlet.release_idle(now_ms(), 0);
            }
        }
        self.releasing.store(false, Ordering::Release);
    }

    /// How long an append waits for memory before it is refused with `OVERLOADED`: 10 s.
    pub fn memory_wait(&self) -> Duration {
        Duration::from_millis(self.memory_wait_ms.load(Ordering::Relaxed))
    }

    /// Changes [`Self::memory_wait`], in whole milliseconds; for tests and for tools in the same
    /// process.
    pub fn set_memory_wait(&self, wait: Duration) {
        self.memory_wait_ms
            .store(wait.as_millis() as u64, Ordering::Relaxed);
    }

    /// Creates a stream: its record, its directories, its streamlets. Where brokers share the store its
    /// streamlets are spread over those that are alive.
    ///
    /// # Errors
    /// [`MetadataError`], also where directories cannot be made; the stream exists then, and its
    /// directories are made at the next start.
    pub fn create_stream(
        self: &Arc<Self>,
        record: StreamRecord,
    ) -> Result<Arc<Stream>, MetadataError> {
        if let (Some(ownership), Some(members)) = (&self.ownership, &self.members) {
            let owners = ownership::spread(&self.catalog, &members.living(), self.broker_id);
            let (record, records) = self.metadata.create_stream_over(record, &owners)?;
            let id = record.id;
            ownership.created(self, record, records);
            return self.catalog.get(id).ok_or_else(|| {
                Conflict::Absent {
                    key: Key::Stream(id),
                }
                .into()
            });
        }
        let (record, records) = self.metadata.create_stream(record, self.broker_id)?;
        self.recorder.add_streamlets(&records);
        let streamlets: Vec<_> = records
            .iter()
            .map(|s| {
                Streamlet::new(
                    record.id,
                    s.streamlet,
                    s.epoch,
                    settings_of(&record, s.streamlet),
                    self.env.clone(),
                )
            })
            .collect();
        make_dirs(&streamlets, &self.env).map_err(|error| MetadataError::Storage {
            path: self.dir.streams().join(record.id.to_string()),
            detail: error.to_string(),
        })?;
        if let (true, Some(replicated)) = (record.config.is_replicated(), &self.replicated) {
            for streamlet in &streamlets {
                let next = streamlet.next_group();
                replicated.serve(streamlet, streamlet.epoch(), next, &record.config);
            }
        }
        let owner = |s: &StreamletRecord| Owner {
            broker: s.owner,
            epoch: s.epoch,
        };
        let owners = records.iter().map(owner).collect();
        let stream = Stream::new(record, streamlets, owners);
        self.catalog.insert(stream.clone());
        Ok(stream)
    }

    /// True while more waits to be sent than should.
    pub fn sends_much(&self) -> bool {
        // What waits is mostly the pool's memory, which appends need as well.
        let pool = self.env.pool.limit() as u64;
        let limit = self.config.server.max_in_flight_bytes.min(pool / 2);
        self.outgoing.load(Ordering::Relaxed) >= limit
    }

    /// Connections gave `bytes` back to the allocator.
    pub fn note_freed(&self, bytes: usize) {
        self.freed.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        let io: &dyn Io = &*self.env.io;
        io.name()
    }
}
