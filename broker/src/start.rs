//! Starting and stopping a broker.
//!
//! The order of a start: lock the data directory, open the metadata store, take new epochs in bulk,
//! recover every streamlet, record what recovery found, open the coordinator, listen.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kera_log_segments::io::{EngineKind, Io, open_engine};
use kera_log_segments::pool::ChunkPool;
use kera_log_segments::pump::Pump;
use kera_metadata::{
    BrokerRecord, Compare, EmbeddedOptions, EmbeddedStore, GroupRecord, GroupState, Image,
    MetadataError, MetadataStore, StreamRecord, StreamletRecord, Transaction, Write,
};
use kera_protocol::ids::{LaneId, StreamId, StreamletId};
use kera_streamlet::recorder::{Closed, GroupName, GroupRecorder};
use kera_streamlet::{Env, LaneRecords, Limits, RecoveredGroup, Recovery, Streamlet};
use tokio::sync::watch;
use uuid::Uuid;

use crate::catalog::{Catalog, Stream, make_dirs, settings_of};
use crate::clock::now_ms;
use crate::config::{BrokerConfig, EngineChoice};
use crate::coordination::Coordination;
use crate::error::BrokerError;
use crate::maintenance::{Jobs, Maintenance};
use crate::metrics::Metrics;
use crate::recorder::StoreRecorder;
use crate::store_dir::StoreDir;
use crate::{http, listener};

/// This broker's number while there is only one.
pub const BROKER_ID: u32 = 1;
/// [`Shared::memory_wait`] unless it is changed.
const MEMORY_WAIT: Duration = Duration::from_secs(10);
/// Changes recorded in one transaction after recovery.
const CHANGES_PER_TRANSACTION: usize = 4096;

/// What every part of the broker shares.
pub struct Shared {
    /// The configuration.
    pub config: BrokerConfig,
    /// Data directory.
    pub dir: StoreDir,
    /// Metadata store.
    pub metadata: Arc<dyn MetadataStore>,
    /// Records groups.
    pub recorder: Arc<StoreRecorder>,
    /// What streamlets share.
    pub env: Arc<Env>,
    /// The streams.
    pub catalog: Catalog,
    /// Consumer groups.
    pub coordination: Coordination,
    /// Metrics.
    pub metrics: Metrics,
    /// Bytes appended and not yet acknowledged, over all connections.
    pub in_flight: AtomicU64,
    /// Bytes that wait to be sent, or come from the disk to be sent, over all connections.
    pub outgoing: AtomicU64,
    /// Data and control connections open.
    pub connections: AtomicU64,
    /// Those of them that carry data, which drain when the broker stops.
    pub data_connections: AtomicU64,
    /// The address clients are told.
    pub advertised: String,
    /// When it started, milliseconds since 1970.
    pub started_ms: u64,
    /// How long the start took until appends were served.
    pub recovery_ms: AtomicU64,
    /// Set once the broker stops: connections drain.
    pub stopping: watch::Sender<bool>,
    /// Producer ids taken from the metadata store and not yet given out.
    pub producer_ids: parking_lot::Mutex<Range<u64>>,
    /// See [`Shared::memory_wait`]; milliseconds.
    memory_wait_ms: AtomicU64,
    /// Somebody is giving back memory right now.
    pub releasing: AtomicBool,
    /// The last write to the page cache took long: pump on a thread that may block.
    pub stalling: AtomicBool,
}

/// A running broker.
pub struct Broker {
    shared: Arc<Shared>,
    local: SocketAddr,
    http: Option<SocketAddr>,
    maintenance: Maintenance,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Broker {
    /// Starts a broker and returns once it serves.
    ///
    /// # Errors
    /// [`BrokerError`] says what stands in the way and what to do.
    pub async fn start(config: BrokerConfig) -> Result<Self, BrokerError> {
        let begun = Instant::now();
        let path = config.data_dir.clone();
        let dir = off_runtime(move || StoreDir::open(&path)).await?;
        let listening = listener::bind(&config.server.listen, "server.listen").await?;
        let local = listening
            .local_addr()
            .map_err(|error| BrokerError::Listen {
                address: config.server.listen.clone(),
                key: "server.listen",
                error,
            })?;
        let (shared, maintenance) = off_runtime(move || open(config, dir, local)).await?;
        shared.coordination.open(&shared).await?;
        let http = match &shared.config.http.listen {
            Some(address) => Some(http::serve(address, shared.clone()).await?),
            None => None,
        };
        let took = begun.elapsed();
        shared
            .recovery_ms
            .store(took.as_millis() as u64, Ordering::Relaxed);
        tracing::info!(address = %local, streams = shared.catalog.all().len(), ms = took.as_millis() as u64, "serving");
        let mut tasks = listener::serve(listening, shared.clone());
        tasks.push(tokio::spawn(crate::coordination::drive(shared.clone())));
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
        self.http
    }

    /// What its parts share; for tests and for tools in the same process.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Stops: no new connections, open ones drain within the configured time, every group is synced
    /// and closed, so that the next start scans nothing.
    pub async fn shutdown(self) {
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
        let shared = self.shared.clone();
        let maintenance = self.maintenance;
        let closed = tokio::task::spawn_blocking(move || {
            maintenance.stop();
            close(&shared);
        });
        if let Err(error) = closed.await {
            tracing::error!(%error, "closing did not finish");
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
    shared.metadata.close();
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

fn open(
    config: BrokerConfig,
    dir: StoreDir,
    local: SocketAddr,
) -> Result<(Arc<Shared>, Maintenance), BrokerError> {
    let metadata: Arc<dyn MetadataStore> = Arc::new(EmbeddedStore::open(
        dir.metadata(),
        EmbeddedOptions::default(),
    )?);
    let advertised = config
        .server
        .advertise
        .clone()
        .unwrap_or_else(|| advertised_address(local));
    let started_ms = now_ms();
    record_broker(&*metadata, &dir, &advertised, started_ms)?;
    let streamlets = metadata.bump_epochs(BROKER_ID)?;
    let image = metadata.load()?;

    let io = open_engine(match config.storage.engine {
        EngineChoice::Auto => EngineKind::Auto,
        EngineChoice::Uring => EngineKind::Uring,
        EngineChoice::Blocking => EngineKind::Blocking,
    });
    let pool = ChunkPool::new(usize::try_from(config.memory.pool).unwrap_or(usize::MAX)).map_err(
        |error| BrokerError::System {
            what: "reserving memory.pool failed",
            error,
        },
    )?;
    let recorder = Arc::new(StoreRecorder::new(
        metadata.clone(),
        BROKER_ID,
        dir.incarnation(),
        &image,
        &streamlets,
    ));
    let jobs = Arc::new(Jobs::default());
    let pump = Pump::new(io.clone());
    let env = Arc::new(Env {
        io,
        pool,
        pump,
        recorder: recorder.clone(),
        incarnation: dir.incarnation(),
        jobs: Box::new({
            let jobs = jobs.clone();
            move |job| jobs.push(job)
        }),
        root: dir.streams(),
        limits: Limits {
            max_producers: config.producers.max_per_lane as usize,
            producer_expiry_ms: config.producers.expiry.as_millis() as u64,
            prepare_at: if config.groups.prepare_ahead {
                0.5
            } else {
                2.0
            },
            ..Limits::default()
        },
        disk_full: Default::default(),
    });
    let catalog = recover_all(&image, &streamlets, &env, &recorder)?;
    remove_deleted_streams(&dir, &image);
    let shared = Arc::new(Shared {
        coordination: Coordination::new(&config),
        config,
        dir,
        metadata,
        recorder,
        env,
        catalog,
        metrics: Metrics::default(),
        in_flight: AtomicU64::new(0),
        outgoing: AtomicU64::new(0),
        connections: AtomicU64::new(0),
        data_connections: AtomicU64::new(0),
        advertised,
        started_ms,
        recovery_ms: AtomicU64::new(0),
        stopping: watch::channel(false).0,
        producer_ids: Default::default(),
        memory_wait_ms: AtomicU64::new(MEMORY_WAIT.as_millis() as u64),
        releasing: AtomicBool::new(false),
        stalling: AtomicBool::new(false),
    });
    let maintenance = Maintenance::start(shared.clone(), jobs)?;
    Ok((shared, maintenance))
}

/// What clients are told: the bound address, or loopback where it is bound to every interface.
fn advertised_address(local: SocketAddr) -> String {
    if local.ip().is_unspecified() {
        return format!("127.0.0.1:{}", local.port());
    }
    local.to_string()
}

fn record_broker(
    metadata: &dyn MetadataStore,
    dir: &StoreDir,
    address: &str,
    started_ms: u64,
) -> Result<(), BrokerError> {
    let revision = metadata.broker(BROKER_ID)?.map_or(0, |b| b.revision);
    let record = BrokerRecord {
        id: BROKER_ID,
        address: address.to_string(),
        store_id: Uuid::from_bytes(dir.incarnation().store_id),
        boot_id: Uuid::from_bytes(dir.incarnation().boot_id),
        started_ms,
        version: env!("CARGO_PKG_VERSION").to_string(),
        revision: 0,
    };
    metadata.commit(Transaction::new(
        vec![Compare::BrokerRevision {
            id: BROKER_ID,
            revision,
        }],
        vec![Write::PutBroker(record)],
    ))?;
    Ok(())
}

fn recover_all(
    image: &Image,
    streamlets: &[StreamletRecord],
    env: &Arc<Env>,
    recorder: &StoreRecorder,
) -> Result<Catalog, BrokerError> {
    let catalog = Catalog::default();
    let mut work: Vec<(&StreamRecord, &StreamletRecord)> = Vec::with_capacity(streamlets.len());
    let streams: HashMap<StreamId, &StreamRecord> =
        image.streams.iter().map(|s| (s.id, s)).collect();
    for streamlet in streamlets {
        if let Some(stream) = streams.get(&streamlet.stream) {
            work.push((stream, streamlet));
        }
    }
    // Scans wait for the disk and checksum: as many threads as cores, at least two.
    let threads = std::thread::available_parallelism()
        .map_or(2, |n| n.get())
        .max(2)
        .min(work.len().max(1));
    let next = AtomicU64::new(0);
    let results = parking_lot::Mutex::new(Vec::with_capacity(work.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((stream, streamlet)) =
                    work.get(next.fetch_add(1, Ordering::Relaxed) as usize)
                {
                    let outcome = recover_one(image, stream, streamlet, env);
                    results.lock().push((stream.name.clone(), outcome));
                }
            });
        }
    });
    let mut recovered: HashMap<StreamId, Vec<Arc<Streamlet>>> = HashMap::new();
    let (mut scanned, mut scanned_bytes) = (0, 0);
    for (name, outcome) in results.into_inner() {
        let (streamlet, recovery) = outcome.map_err(|error| BrokerError::Stream {
            stream: name.clone(),
            error,
        })?;
        scanned += recovery.scanned;
        scanned_bytes += recovery.scanned_bytes;
        settle(&name, &streamlet, recovery, env, recorder)?;
        recovered
            .entry(streamlet.stream())
            .or_default()
            .push(streamlet);
    }
    if scanned > 0 {
        tracing::info!(
            groups = scanned,
            bytes = scanned_bytes,
            "scanned open groups"
        );
    }
    for stream in &image.streams {
        let mut streamlets = recovered.remove(&stream.id).unwrap_or_default();
        streamlets.sort_by_key(|s| s.id());
        make_dirs(&streamlets, env).map_err(|error| BrokerError::Stream {
            stream: stream.name.clone(),
            error,
        })?;
        catalog.insert(Stream::new(stream.clone(), streamlets));
    }
    Ok(catalog)
}

fn recover_one(
    image: &Image,
    stream: &StreamRecord,
    streamlet: &StreamletRecord,
    env: &Arc<Env>,
) -> std::io::Result<(Arc<Streamlet>, Recovery)> {
    let mut lanes: HashMap<LaneId, LaneRecords> = HashMap::new();
    for start in image.lane_starts_of(stream.id, streamlet.streamlet) {
        lanes.entry(start.key.lane).or_default().log_start = start.ordinal;
    }
    for group in image.groups_of(stream.id, streamlet.streamlet) {
        lanes
            .entry(group.lane)
            .or_default()
            .groups
            .push(recovered_group(group));
    }
    Streamlet::recover(
        stream.id,
        streamlet.streamlet,
        streamlet.epoch,
        streamlet.next_group,
        settings_of(stream),
        env.clone(),
        lanes,
        now_ms(),
    )
}

fn recovered_group(record: &GroupRecord) -> RecoveredGroup {
    let closed = (record.state == GroupState::Closed).then(|| Closed {
        group: GroupName {
            stream: record.stream,
            streamlet: record.streamlet,
            group: record.group,
        },
        lane: record.lane,
        epoch: record.epoch,
        first_ordinal: record.first_ordinal.unwrap_or(record.end_ordinal),
        data_start: 0,
        length: record.length,
        end_ordinal: record.end_ordinal,
        next_ordinal: record.next_ordinal,
        max_timestamp: record.max_timestamp_ms,
        closed_ms: record.closed_ms,
        damage: record
            .damaged
            .as_ref()
            .map(|d| d.detail.clone())
            .unwrap_or_default(),
    });
    RecoveredGroup {
        group: record.group,
        generation: record.generation,
        epoch: record.epoch,
        first_ordinal: record.first_ordinal,
        closed,
        boot_id: record
            .copies
            .first()
            .map_or([0; 16], |c| *c.boot_id.as_bytes()),
    }
}

/// Records what recovery decided, then removes what no longer counts.
fn settle(
    name: &str,
    streamlet: &Streamlet,
    recovery: Recovery,
    env: &Env,
    recorder: &StoreRecorder,
) -> Result<(), BrokerError> {
    for report in &recovery.reports {
        tracing::warn!(stream = name, streamlet = streamlet.id().0, "{report}");
    }
    for (lane, from, to) in &recovery.gaps {
        tracing::warn!(
            stream = name,
            streamlet = streamlet.id().0,
            lane = lane.0,
            from,
            to,
            "ordinals jump: what was shown between them may be lost and is never reused"
        );
    }
    for changes in recovery.changes.chunks(CHANGES_PER_TRANSACTION) {
        recorder
            .record_now(streamlet.epoch(), changes.to_vec())
            .map_err(|error| BrokerError::Stream {
                stream: name.to_string(),
                error: std::io::Error::other(error),
            })?;
    }
    for path in &recovery.remove {
        if let Err(error) = env.io.remove_file(path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(file = %path.display(), %error, "a file that no longer counts could not be removed");
        }
    }
    Ok(())
}

/// Directories of streams that no longer exist: a delete was cut short by a crash.
fn remove_deleted_streams(dir: &StoreDir, image: &Image) {
    let Ok(entries) = std::fs::read_dir(dir.streams()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Ok(id) = name.to_string_lossy().parse::<StreamId>() else {
            tracing::warn!(path = %entry.path().display(), "not a stream's directory; it is left alone");
            continue;
        };
        if !image.streams.iter().any(|s| s.id == id)
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            tracing::warn!(path = %entry.path().display(), %error, "files of a deleted stream could not be removed");
        }
    }
}

impl Shared {
    /// A streamlet of a stream, by ids.
    pub fn streamlet(&self, stream: StreamId, streamlet: StreamletId) -> Option<Arc<Streamlet>> {
        self.catalog.streamlet(stream, streamlet)
    }

    /// The cluster's id, as Kafka's clients are told it: the id of the data directory, which it keeps
    /// for life, as 22 characters of base64url.
    pub fn cluster_id(&self) -> String {
        crate::admin::base64url(self.dir.incarnation().store_id)
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

    /// Creates a stream: its record, its directories, its streamlets.
    ///
    /// # Errors
    /// [`MetadataError`], also where directories cannot be made; the stream exists then, and its
    /// directories are made at the next start.
    pub fn create_stream(&self, record: StreamRecord) -> Result<Arc<Stream>, MetadataError> {
        let (record, records) = self.metadata.create_stream(record, BROKER_ID)?;
        self.recorder.add_streamlets(&records);
        let settings = settings_of(&record);
        let streamlets: Vec<_> = records
            .iter()
            .map(|s| {
                Streamlet::new(
                    record.id,
                    s.streamlet,
                    s.epoch,
                    settings.clone(),
                    self.env.clone(),
                )
            })
            .collect();
        make_dirs(&streamlets, &self.env).map_err(|error| MetadataError::Storage {
            path: self.dir.streams().join(record.id.to_string()),
            detail: error.to_string(),
        })?;
        let stream = Stream::new(record, streamlets);
        self.catalog.insert(stream.clone());
        Ok(stream)
    }

    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        let io: &dyn Io = &*self.env.io;
        io.name()
    }
}
