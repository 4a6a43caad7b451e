//! What several brokers on one store need beyond records: who is alive, what changes, who decides.
//!
//! ```
//! use std::time::Duration;
//! use kera_metadata::*;
//! use uuid::Uuid;
//!
//! let cluster = MemoryCluster::new();
//! let live = LiveBroker::new(1, Incarnation { store_id: Uuid::new_v4(), boot_id: Uuid::new_v4() });
//! let membership = cluster.join(live, Duration::from_secs(5))?;
//! assert!(membership.is_valid());
//! assert!(cluster.living().borrow().contains_key(&1));
//!
//! membership.campaign();
//! assert_eq!(*cluster.controller().borrow(), Some(1));
//! // Whatever the controller decides compares that it still is one.
//! let fence = membership.fence().expect("elected");
//! cluster.commit(Transaction::new(vec![fence], vec![]))?;
//! membership.leave();
//! assert!(cluster.living().borrow().is_empty());
//! # Ok::<(), MetadataError>(())
//! ```

#[cfg(any(test, feature = "testing"))]
mod memory;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::encode::Record;
use crate::error::MetadataError;
use crate::store::MetadataStore;
use crate::wrong_store::Stranger;
use kera_records::BrokerRecord;
use kera_records::CLUSTER_VERSION;
use kera_records::Compare;
use kera_records::Role;
use kera_records::key::Key;

pub use kera_protocol::ids::Incarnation;
#[cfg(any(test, feature = "testing"))]
pub use memory::MemoryCluster;

/// Most bytes of each of a living broker's addresses, host and rack.
pub const MAX_MEMBER_TEXT: usize = 1024;
/// Most bytes of the reason why a broker refuses another's certificate.
pub const MAX_REFUSAL_TEXT: usize = 256;
/// Most brokers of which one tells that it refuses their certificates.
pub const MAX_REFUSALS: usize = 1000;

/// What a living broker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LiveState {
    /// It serves, and takes what it is given.
    #[default]
    Serving,
    /// It serves what it owns and keeps its copies, and is given nothing more.
    Draining,
}

/// The most addresses with names that a broker tells.
pub const MAX_ADVERTISED: usize = 64;

/// An address of a broker that its configuration gives a name: clients that come in by that name, at any broker, are told
/// this address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertisedAddress {
    /// Whom it is for.
    pub clients: ClientKind,
    /// The name.
    pub name: String,
    /// `host:port`.
    pub address: String,
}

/// The clients that an address is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// Kera's own.
    Native,
    /// Kafka's.
    Kafka,
}

/// A broker that is alive, as it describes itself. Texts have at most [`MAX_MEMBER_TEXT`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveBroker {
    /// The broker's number; streamlets name their owner by it.
    pub id: u32,
    /// Which life of it this is.
    pub incarnation: Incarnation,
    /// `host:port` that clients reach it at.
    pub address: String,
    /// `host:port` that other brokers send copies to; empty where it keeps none.
    pub replication_address: String,
    /// `host:port` of its Kafka listeners, separated by commas, if it has any.
    pub kafka_address: Option<String>,
    /// Those of its addresses that have a name, which the two fields above may hold as well.
    pub named: Vec<AdvertisedAddress>,
    /// The machine it runs on: no two copies of a group lie on one.
    pub host: String,
    /// The rack, or zone, its machine stands in.
    pub rack: Option<String>,
    /// What it is for the others.
    pub role: Role,
    /// What it does.
    pub state: LiveState,
    /// Version of its program; for people.
    pub version: String,
    /// The newest cluster version that its program can; 0 of programs that know none.
    pub cluster_version: u32,
    /// The brokers, itself among them, whose certificates it refuses, with why.
    pub refuses: BTreeMap<u32, String>,
    /// Another number when its files for TLS have changed; 0 without TLS between brokers.
    pub tls_files: u32,
    /// Why it cannot write its own files, for people, while it cannot: it is given no streamlets.
    pub cannot_write: Option<String>,
}

impl LiveBroker {
    /// A serving broker without addresses.
    pub fn new(id: u32, incarnation: Incarnation) -> Self {
        Self {
            id,
            incarnation,
            address: String::new(),
            replication_address: String::new(),
            kafka_address: None,
            named: Vec::new(),
            host: String::new(),
            rack: None,
            role: Role::Broker,
            state: LiveState::Serving,
            version: String::new(),
            cluster_version: CLUSTER_VERSION,
            refuses: BTreeMap::new(),
            tls_files: 0,
            cannot_write: None,
        }
    }

    /// True if it may be given streamlets: a broker that does not drain and can write its own files.
    pub fn may_own(&self) -> bool {
        self.is_to_stay() && self.cannot_write.is_none()
    }

    /// True if what it holds can be read there for longer: a broker that does not drain.
    pub fn is_to_stay(&self) -> bool {
        self.role == Role::Broker && self.state == LiveState::Serving
    }

    /// # Errors
    /// A text that is too long, as invalid.
    pub(crate) fn check(&self) -> Result<(), MetadataError> {
        let texts = [
            ("address", Some(&self.address)),
            ("replication address", Some(&self.replication_address)),
            ("Kafka address", self.kafka_address.as_ref()),
            ("host", Some(&self.host)),
            ("rack", self.rack.as_ref()),
            ("version", Some(&self.version)),
            ("reason not to write of", self.cannot_write.as_ref()),
        ];
        for (name, text) in texts {
            let bytes = text.map_or(0, String::len);
            if bytes > MAX_MEMBER_TEXT {
                return Err(MetadataError::invalid(format!(
                    "the {name} of broker {} has {bytes} bytes, more than {MAX_MEMBER_TEXT}; shorten it",
                    self.id
                )));
            }
        }
        let named = self.named.iter();
        let longest = named.map(|one| one.name.len().max(one.address.len())).max();
        if self.named.len() > MAX_ADVERTISED || longest > Some(MAX_MEMBER_TEXT) {
            return Err(MetadataError::invalid(format!(
                "broker {} tells {} addresses with names; at most {MAX_ADVERTISED} of at most {MAX_MEMBER_TEXT} bytes can be told",
                self.id,
                self.named.len()
            )));
        }
        let longest = self.refuses.values().map(String::len).max();
        if self.refuses.len() > MAX_REFUSALS || longest > Some(MAX_REFUSAL_TEXT) {
            return Err(MetadataError::invalid(format!(
                "broker {} tells of {} certificates that it refuses, at most {MAX_REFUSALS} with reasons of at most {MAX_REFUSAL_TEXT} bytes can be told",
                self.id,
                self.refuses.len()
            )));
        }
        Ok(())
    }
}

/// The brokers that are alive, by number.
pub type Living = Arc<BTreeMap<u32, LiveBroker>>;

/// One record that was written or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The record.
    pub key: Key,
    /// What it is now; `None` when it was deleted.
    pub record: Option<Record>,
    /// The revision of the transaction that did it.
    pub revision: u64,
}

/// A watch cannot go on where it was: changes may have been missed. Load anew, and watch from there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("changes of the metadata store may have been missed ({detail}); load anew")]
pub struct WatchLost {
    /// Why.
    pub detail: String,
}

/// The changes of one or more whole transactions, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The changes of records; none where something else was recorded, such as a lease.
    pub changes: Vec<Change>,
    /// The revision up to which all changes are told with these.
    pub revision: u64,
}

/// What a watch yields.
pub type Watched = Result<Changes, WatchLost>;

/// A store that several brokers share.
///
/// Leases tell who is alive, and no more: what a broker may write is decided by the epochs and
/// revisions its transactions compare.
pub trait ClusterStore: MetadataStore {
    /// Every change of a record after `revision`, such as an image's, in order. The changes of a
    /// transaction are never split. It goes on by itself when the store was away; it ends with
    /// [`WatchLost`], or without a word when the store is closed or the receiver fell too far behind:
    /// then load anew.
    ///
    /// The streamlets of a stream of very many come before the stream itself. A lease that is
    /// [taken](Self::join) is told as well, without changes.
    fn watch(&self, after: u64) -> mpsc::Receiver<Watched>;

    /// Takes a lease of `ttl`, in whole seconds rounded up, records `live` under it, and keeps it alive
    /// until the membership is dropped. A lease that ended, as after a long pause, is taken anew. Blocks.
    ///
    /// # Errors
    /// A number that a living broker of another store id has, as invalid. A broker of the same
    /// store id is taken for an earlier life of this one and is replaced.
    fn join(&self, live: LiveBroker, ttl: Duration) -> Result<Membership, MetadataError>;

    /// The cluster's id, made when the store was prepared for it.
    fn cluster(&self) -> Uuid;

    /// Every broker that was ever recorded, alive or not, by number. Blocks.
    ///
    /// # Errors
    /// As [`MetadataStore::load`].
    fn brokers(&self) -> Result<Vec<BrokerRecord>, MetadataError>;

    /// Who is alive. While the store is away: who was, when it was last heard of.
    fn living(&self) -> watch::Receiver<Living>;

    /// Who was elected controller.
    fn controller(&self) -> watch::Receiver<Option<u32>>;

    /// From now on a state of the store older than `revision`, which somebody has seen, is not taken for
    /// the store. Blocks.
    ///
    /// # Errors
    /// [`MetadataError::Stranger`] if the store is older, or as of [`MetadataStore::load`].
    fn require(&self, revision: u64) -> Result<(), MetadataError> {
        let found = self.load()?.revision;
        if found < revision {
            return Err(MetadataError::Stranger(Stranger::Older {
                store: "this address".to_owned(),
                cluster: self.cluster(),
                seen: revision,
                found,
            }));
        }
        Ok(())
    }

    /// What answers at the store's address and is not taken for the store, while that is so: another
    /// cluster's, an empty one, or an older state of it.
    fn stranger(&self) -> watch::Receiver<Option<Stranger>> {
        watch::channel(None).1
    }
}

/// A broker's number that a living broker of another store has.
pub(crate) fn number_in_use(other: &LiveBroker) -> MetadataError {
    let address = match other.role {
        Role::Broker => &other.address,
        Role::ReplicaStore => &other.replication_address,
    };
    MetadataError::invalid(format!(
        "{} {} is alive already, at {address} with store {}; give this one another number, or stop that one",
        other.role, other.id, other.incarnation.store_id
    ))
}

/// A membership whose place a later start of the same broker took.
pub(crate) fn replaced(id: u32) -> MetadataError {
    MetadataError::invalid(format!(
        "broker {id} was started once more from the same directory and that one has its place; stop one of the two"
    ))
}

/// How a membership reaches its store.
pub(crate) trait Seat: Send + Sync {
    fn update(&self, live: LiveBroker) -> Result<(), MetadataError>;
    fn campaign(&self);
    fn succeed(&self, gone: u32) -> bool;
    fn leave(&self);
}

/// Whether a lease may be kept; why not, for people.
type MayHold = dyn Fn() -> Result<(), String> + Send + Sync;

/// What a membership and whoever keeps its lease alive share.
pub(crate) struct Tenure {
    base: Instant,
    /// Nanoseconds after `base` at which the lease may have ended; 0: it has.
    until: AtomicU64,
    /// The revision at which the lease was taken.
    taken: AtomicU64,
    /// The revision up to which the holder has read what others recorded.
    read: AtomicU64,
    valid: watch::Sender<bool>,
    term: watch::Sender<Option<u64>>,
    may_hold: OnceLock<Box<MayHold>>,
}

impl Tenure {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            base: Instant::now(),
            until: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            read: AtomicU64::new(0),
            valid: watch::Sender::new(false),
            term: watch::Sender::new(None),
            may_hold: OnceLock::new(),
        })
    }

    /// Whether the lease may be kept, or taken anew; why not.
    pub(crate) fn may_hold(&self) -> Result<(), String> {
        self.may_hold.get().map_or(Ok(()), |may_hold| may_hold())
    }

    /// A lease is about to be had that was taken at `revision`.
    pub(crate) fn taken_at(&self, revision: u64) {
        self.taken.store(revision, Ordering::Release);
    }

    /// The lease holds until `until`, `None` for good.
    pub(crate) fn extend(&self, until: Option<Instant>) {
        let until = until.map_or(u64::MAX, |until| {
            let nanos = until.saturating_duration_since(self.base).as_nanos();
            u64::try_from(nanos).unwrap_or(u64::MAX)
        });
        self.until.store(until, Ordering::Release);
        self.look();
    }

    /// The lease has ended.
    pub(crate) fn end(&self) {
        self.until.store(0, Ordering::Release);
        self.look();
    }

    /// Tells those who wait what the clock says now; true while the lease holds.
    pub(crate) fn look(&self) -> bool {
        let mut valid = false;
        self.valid.send_if_modified(|known| {
            // Here, where nobody else tells anything: what somebody else has told meanwhile is true.
            valid = self.is_valid();
            let changed = *known != valid;
            *known = valid;
            changed
        });
        if !valid {
            self.elected(None);
        }
        valid
    }

    /// This broker was elected for `term`, or no longer is.
    pub(crate) fn elected(&self, term: Option<u64>) {
        self.term.send_if_modified(|known| {
            let changed = *known != term;
            *known = term;
            changed
        });
    }

    /// Whether the lease holds, as it changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<bool> {
        self.valid.subscribe()
    }

    fn is_valid(&self) -> bool {
        let now = u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX);
        now < self.until.load(Ordering::Acquire)
    }
}

/// This broker's place among the living. Dropping it leaves.
pub struct Membership {
    tenure: Arc<Tenure>,
    seat: Mutex<Option<Box<dyn Seat>>>,
}

impl Membership {
    pub(crate) fn new(tenure: Arc<Tenure>, seat: Box<dyn Seat>) -> Self {
        Self {
            tenure,
            seat: Mutex::new(Some(seat)),
        }
    }

    /// True while the lease certainly holds, by this machine's monotonic clock and with a margin.
    /// Reads the clock, and nothing else: cheap enough for every request.
    pub fn is_valid(&self) -> bool {
        self.tenure.is_valid()
    }

    /// Notes that everything recorded up to `revision` is known here.
    pub fn read_to(&self, revision: u64) {
        self.tenure.read.fetch_max(revision, Ordering::AcqRel);
    }

    /// [`is_valid`](Self::is_valid), and everything is known that others had recorded when the lease was
    /// taken: a broker that was away has heard of its successors. As cheap.
    pub fn is_current(&self) -> bool {
        // The lease first: one that is taken in between was taken later.
        let valid = self.is_valid();
        let taken = self.tenure.taken.load(Ordering::Acquire);
        valid && self.tenure.read.load(Ordering::Acquire) >= taken
    }

    /// From now on the lease is kept, or taken anew, only while `may_hold` says so, which is asked from time to time
    /// and must not block. Where it says why not, the lease is given back, so that others take over. The first call counts.
    pub fn hold_while(&self, may_hold: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        let _ = self.tenure.may_hold.set(Box::new(may_hold));
    }

    /// [`is_valid`](Self::is_valid) as it changes; may be told a little later than that.
    pub fn valid(&self) -> watch::Receiver<bool> {
        self.tenure.subscribe()
    }

    /// Describes this broker anew; its number and incarnation cannot change. While it has no lease this
    /// is kept for the next one. Blocks.
    pub fn update(&self, live: LiveBroker) -> Result<(), MetadataError> {
        match self.seat.lock().as_ref() {
            Some(seat) => seat.update(live),
            None => Err(MetadataError::Closed),
        }
    }

    /// Stands for election, from now on until this is dropped, and returns at once. The receiver has
    /// this broker's term while it is controller. Leadership ends with the lease.
    pub fn campaign(&self) -> watch::Receiver<Option<u64>> {
        if let Some(seat) = self.seat.lock().as_ref() {
            seat.campaign();
        }
        self.tenure.term.subscribe()
    }

    /// Takes the controller's office from broker `gone`, whose lease goes on though it is known to be
    /// over, as after a crash. True if this broker is controller now, which [`campaign`](Self::campaign)'s
    /// receiver then tells too; false if it does not stand for election, has no lease, or another was
    /// faster or is elected already. Safe whether or not `gone` still lives: what it decides from now on
    /// is refused as [`Conflict::NotController`](crate::Conflict::NotController). Blocks.
    pub fn succeed(&self, gone: u32) -> bool {
        let valid = self.is_valid();
        let seat = self.seat.lock();
        seat.as_ref()
            .is_some_and(|seat| valid && seat.succeed(gone))
    }

    /// The comparison that every transaction of the controller carries: refused as
    /// [`Conflict::NotController`](crate::Conflict::NotController) once another was elected. `None`
    /// while this broker is not controller, or has no valid lease.
    pub fn fence(&self) -> Option<Compare> {
        let term = *self.tenure.term.borrow();
        // The term is told to be over a little later than the lease is.
        let term = term.filter(|_| self.is_valid());
        term.map(|term| Compare::Controller { term })
    }

    /// Gives the lease back, so that others need not wait for its end. Blocks for a bounded time.
    pub fn leave(&self) {
        if let Some(seat) = self.seat.lock().take() {
            seat.leave();
        }
        self.tenure.end();
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}
