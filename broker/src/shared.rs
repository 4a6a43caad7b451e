//! What every part of a broker shares.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kera_log_segments::io::Io;
use kera_metadata::{ClusterStore, Membership, MetadataStore, Stranger};
use kera_protocol::ids::{StreamId, StreamletId};
use kera_replication::seldom::Seldom;
use kera_rpc::Channels;
use kera_streamlet::{Env, Streamlet};
use tokio::sync::watch;

use crate::admission::Admission;
use crate::catalog::Catalog;
use crate::clock::now_ms;
use crate::cluster::cluster_view::Pictured;
use crate::cluster::{Cluster, Known, Members, Ownership, Replicated};
use crate::config::BrokerConfig;
use crate::coordination::Coordination;
use crate::copy_reads::listed::Listed;
use crate::directory::Directory;
use crate::group_records::GroupRecords;
use crate::job_queue::Retimed;
use crate::metrics::Metrics;
use crate::panicked_threads::Fallen;
use crate::settings::Settings;
use crate::store_dir::StoreDir;
use crate::tls::ServerTls;
use crate::unheard::Unheard;

/// The number of a broker that is given none. To Kafka's clients every broker is number 1 of a
/// cluster of its own.
pub const BROKER_ID: u32 = 1;
/// [`Shared::memory_wait`] unless it is changed.
pub(crate) const MEMORY_WAIT: Duration = Duration::from_secs(10);
/// What every part of the broker shares.
pub struct Shared {
    /// Reads of Kafka's clients that failed, as the log tells of them.
    pub failed_reads: parking_lot::Mutex<Seldom>,
    /// Connections of clients that broke the protocol, as the log tells of them.
    pub bad_connections: parking_lot::Mutex<Seldom>,
    /// Commits of Kafka's clients that found no room, as the log tells of them.
    pub full_offsets: parking_lot::Mutex<Seldom>,
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
    pub recorder: Arc<GroupRecords>,
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
    /// Connections that have not said yet what they want.
    pub unheard: Unheard,
    /// TLS, if a listener has it.
    pub tls: Option<Arc<ServerTls>>,
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

    /// What answers at the shared store's address and is not the store, while that is so.
    pub fn stranger(&self) -> Option<Stranger> {
        let store = self.store.as_ref()?;
        store.stranger().borrow().clone()
    }

    /// True while others may take this broker's word for who owns what: it works alone, or its lease is
    /// valid and it has heard of all that was recorded before the lease was taken. Cheap.
    pub fn is_member(&self) -> bool {
        let membership = self.membership.as_ref();
        membership.is_none_or(|membership| membership.is_current())
    }

    /// True if there is room for a connection from `peer`, with which `open` are open.
    pub fn admits(&self, open: u64, peer: IpAddr) -> bool {
        let reserved = self.config.cluster.reserved_connections;
        let cluster = self.cluster.as_ref();
        let brokers = cluster.map(|cluster| cluster.backup.peers());
        self.admission.admits(open, peer, reserved, brokers)
    }

    /// Ends the connection that has been silent for longest since it was opened, so that another has its place;
    /// false if all have said what they want.
    pub fn make_room(&self) -> bool {
        let has_room = self.unheard.end_oldest();
        if has_room {
            self.metrics.connections_refused.inc();
        }
        has_room
    }

    /// What is known of the streamlets whose files other brokers ask this one for.
    pub(crate) fn known(&self) -> Known {
        let replicated = self.replicated.as_ref();
        Known {
            broker_id: self.broker_id,
            catalog: Arc::downgrade(&self.catalog),
            metadata: Arc::downgrade(&self.metadata),
            pictured: self.pictured.clone(),
            replicated: replicated.map_or_else(Weak::new, Arc::downgrade),
        }
    }
}
