//! What every part of a broker shares.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kera_controller::Picture;
use kera_grpc::Channels;
use kera_metadata::{MetadataStore, Stranger};
use kera_protocol::ids::{StreamId, StreamletId};
use kera_protocol::v1;
use kera_replication::seldom::Seldom;
use kera_streamlet::Streamlet;
use kera_telemetry::Telemetry;
use tokio::sync::watch;

use crate::access::Access;
use crate::admission::{Admission, Newcomer, Place, TooMany};
use crate::api::Paced;
use crate::audit::Audit;
use crate::auth::Auth;
use crate::cluster::Clustered;
use crate::compaction::Compactor;
use crate::config::{BrokerConfig, Listener, Via};
use crate::coordination::Coordination;
use crate::copy_reads::listed::Listed;
use crate::data::DataPlane;
use crate::group_records::GroupRecords;
use crate::job_queue::Retimed;
use crate::log_levels::LogLevels;
use crate::panicked_threads::Fallen;
use crate::pins::remembered::SharedPins;
use crate::quotas::Quotas;
use crate::settings::Settings;
use crate::shares::Shares;
use crate::store_dir::StoreDir;
use crate::tls::ServerTls;
use crate::transactions::Transactions;
use crate::unheard::Unheard;

/// The number of a broker that is given none. To Kafka's clients every broker is number 1 of a
/// cluster of its own.
pub const BROKER_ID: u32 = 1;

/// What every part of the broker shares: its data plane, what it has because of other brokers, administration and
/// groups of consumers.
pub struct Shared {
    /// Reads of Kafka's clients that failed, as the log tells of them.
    pub failed_reads: parking_lot::Mutex<Seldom>,
    /// Connections of clients that broke the protocol, as the log tells of them.
    pub bad_connections: parking_lot::Mutex<Seldom>,
    /// Commits of Kafka's clients that found no room, as the log tells of them.
    pub full_offsets: parking_lot::Mutex<Seldom>,
    /// What appends and reads share.
    pub data: Arc<DataPlane>,
    /// The configuration of the start; what may change since then is in `settings`.
    pub config: Arc<BrokerConfig>,
    /// What was changed since.
    pub settings: Settings,
    /// Wakes what waits for a time that a setting tells.
    pub(crate) retimed: Retimed,
    /// This broker's number.
    pub broker_id: u32,
    /// The brokers that it shares its metadata store with, and all that comes of that; `None` if it works alone.
    pub clustered: Option<Arc<Clustered>>,
    /// Data directory.
    pub dir: StoreDir,
    /// Metadata store.
    pub metadata: Arc<dyn MetadataStore>,
    /// Closed groups, as they are recorded, for readers of replicas.
    pub(crate) listed: Listed,
    /// Records groups.
    pub recorder: Arc<GroupRecords>,
    /// Who the users are.
    pub auth: Auth,
    /// Who may do what.
    pub access: Access,
    /// Who did what.
    pub audit: Arc<Audit>,
    /// How much clients may do.
    pub quotas: Arc<Quotas>,
    /// Coordinators of consumer groups and of transactions.
    pub coordination: Coordination,
    /// Transactions between coordinators, lanes and groups.
    pub transactions: Transactions,
    /// Share groups in the partitions that it owns.
    pub shares: Shares,
    /// How many connections there may be.
    pub admission: Admission,
    /// Connections that have not said yet what they want.
    pub unheard: Arc<Unheard>,
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
    /// What it told last of what it owns, for a second and longer if it takes long to tell.
    pub(crate) observed: Paced<v1::ObserveResponse>,
    /// What it remembers of pins.
    pub(crate) pins: SharedPins,
    /// Compacts lanes.
    pub(crate) compactor: Compactor,
    /// Its threads that panicked.
    pub fallen: Fallen,
    /// Which lines are logged.
    pub log_levels: LogLevels,
    /// A collector that is told, once the broker serves.
    pub(crate) telemetry: OnceLock<Telemetry>,
}

impl Shared {
    /// A streamlet of a stream, by ids.
    pub fn streamlet(&self, stream: StreamId, streamlet: StreamletId) -> Option<Arc<Streamlet>> {
        self.data.catalog.streamlet(stream, streamlet)
    }

    /// The cluster's id, as Kafka's clients are told it, which it keeps for life, as 22 characters of
    /// base64url: that of the shared store, or of the data directory.
    pub fn cluster_id(&self) -> String {
        self.data.directory.cluster_id()
    }

    /// What answers at the shared store's address and is not the store, while that is so.
    pub fn stranger(&self) -> Option<Stranger> {
        let clustered = self.clustered.as_ref()?;
        clustered.store.stranger().borrow().clone()
    }

    /// Looks at owners and replicas of all streamlets; `None` where brokers share nothing, or nothing was read yet.
    pub(crate) fn cluster_view<T>(&self, look: impl FnOnce(&Picture) -> T) -> Option<T> {
        self.clustered.as_ref()?.cluster_view.read(look)
    }

    /// Whether a connection from `peer` may stay, which is counted already. Where there are too many, one that has not
    /// said yet what it wants makes room. At the native address other brokers may have the places that are kept for them,
    /// and programs on this machine those that are kept for them.
    ///
    /// # Errors
    /// Which limit it is.
    pub(crate) fn admit(&self, via: Via, peer: IpAddr) -> Result<Place, TooMany> {
        let clustered = self.clustered.as_ref();
        let clustered = clustered.filter(|_| via.listener == Listener::Native);
        let brokers = clustered.map(|clustered| clustered.peers.backup.peers());
        let is_broker = brokers.is_some_and(|brokers| brokers.contains(peer));
        if !is_broker && !self.quotas.admits(peer) {
            return Err(TooMany::TooFast(peer));
        }
        let newcomer = Newcomer {
            via,
            peer,
            is_broker,
        };
        let open = self.connections.load(Ordering::Relaxed);
        let kept = self.config.cluster.reserved_connections;
        let now = Instant::now();
        self.admission
            .admit(newcomer, (open, kept), &self.unheard, now)
    }

    /// Counts a connection that is not taken, and tells of it in the log.
    pub fn refuse(&self, via: Via, peer: IpAddr, reason: TooMany) {
        self.admission.refuse(via, peer, reason);
    }
}
