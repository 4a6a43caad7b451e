//! Hosts the coordinators of consumer groups and of transactions: one per streamlet of an internal stream of each
//! kind, at the broker that owns the streamlet. A group's, or a transactional id's, coordinator is the one of the
//! streamlet that the hash of the name chooses.
//!
//! A request becomes events; the events are appended to the internal stream; the reply is sent
//! when they, and all before them, are durable. If an append fails the coordinator is dropped and
//! read anew from the stream.

mod ask;
mod follow;
mod host;
mod kind;
mod place;
mod remote;
mod serve;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;
use std::time::Duration;

use kera_coordinator::{Limits, classic, transactions};
use kera_protocol::ids::StreamletId;
use kera_replication::seldom::Seldom;
use parking_lot::{Mutex, RwLock};

use crate::bell::Bell;
use crate::config::BrokerConfig;
pub(crate) use host::Host;
use remote::Remote;

pub use kind::CoordinatorKind;
pub(crate) use place::raise_copies;
pub use place::{Place, hear_of};
pub use serve::drive;

/// The internal stream of leases and commits.
pub const GROUPS_STREAM: &str = "_kera_groups";
/// The internal stream of transactions. Made when the first producer with a transactional id begins.
pub const TRANSACTIONS_STREAM: &str = "_kera_transactions";
/// How often sessions and leases are looked at.
const TICK: Duration = Duration::from_millis(100);
/// Heads that move within this time are looked at together.
const COALESCE: Duration = Duration::from_millis(1);

/// What bounds a coordinator.
fn limits_of(config: &BrokerConfig) -> Limits {
    let (consumers, kafka) = (&config.consumers, &config.kafka);
    let max_prepared = config.transactions.max_prepared;
    let ms = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
    Limits {
        groups: consumers.max_groups as usize,
        members: consumers.max_members as usize,
        min_session_ms: ms(consumers.session_min),
        max_session_ms: ms(consumers.session_max),
        default_session_ms: ms(consumers.session_default),
        classic: classic::Limits {
            min_session_ms: ms(kafka.session_min),
            max_session_ms: ms(kafka.session_max),
            consumer_session_ms: ms(kafka.consumer_session),
            consumer_heartbeat_ms: ms(kafka.consumer_heartbeat),
            initial_delay_ms: ms(kafka.group_initial_rebalance_delay),
            offset_retention_ms: u64::try_from(kafka.offsets_retention.as_millis())
                .unwrap_or(u64::MAX),
            total_bytes: usize::try_from(consumers.max_group_bytes).unwrap_or(usize::MAX),
            ..classic::Limits::default()
        },
        transactions: transactions::Limits {
            max_timeout_ms: ms(config.transactions.max_timeout),
            outcome_ms: u64::try_from(config.transactions.outcome_retention.as_millis())
                .unwrap_or(u64::MAX),
            outcomes: usize::try_from(config.transactions.max_outcomes).unwrap_or(usize::MAX),
            max_prepared_ms: (!max_prepared.is_zero())
                .then(|| u64::try_from(max_prepared.as_millis()).unwrap_or(u64::MAX)),
            ..transactions::Limits::default()
        },
        ..Limits::default()
    }
}

/// All coordinators of this broker.
pub struct Coordination {
    streamlets: u32,
    limits: Arc<Mutex<Limits>>,
    /// By kind and streamlet: those of this broker.
    hosts: RwLock<BTreeMap<(CoordinatorKind, StreamletId), Arc<Host>>>,
    remote: Remote,
    /// Somebody looks at a disk for where a range ends.
    looking: Arc<AtomicBool>,
    /// Ranges whose ends were not found, as the log tells of them.
    uncut: Mutex<Seldom>,
    /// Times that were not found, likewise.
    untimed: Mutex<Seldom>,
    /// One attempt to make the internal stream at a time.
    making: tokio::sync::Mutex<()>,
    bell: Arc<Bell>,
    waker: Waker,
}

impl Coordination {
    /// Nothing is served before [`Self::open`].
    pub fn new(config: &BrokerConfig) -> Self {
        let bell = Arc::new(Bell::default());
        Self {
            streamlets: config.consumers.internal_streamlets,
            limits: Arc::new(Mutex::new(limits_of(config))),
            hosts: RwLock::default(),
            remote: Remote::new(bell.clone()),
            looking: Arc::default(),
            uncut: Mutex::default(),
            untimed: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            waker: Waker::from(bell.clone()),
            bell,
        }
    }

    /// Bounds coordinators as the settings have it from now on.
    pub(crate) fn set_limits(&self, config: &BrokerConfig) {
        let limits = limits_of(config);
        *self.limits.lock() = limits.clone();
        for host in self.hosts.read().values() {
            host.set_limits(limits.clone());
        }
    }

    /// Owners of the internal stream's streamlets may have changed: coordinators are looked at soon.
    pub fn owners_changed(&self) {
        self.bell.ring();
    }

    /// Coordinators of transactions of this broker.
    pub(crate) fn transaction_hosts(&self) -> Vec<Arc<Host>> {
        let hosts = self.hosts.read();
        let hosts = hosts
            .iter()
            .filter(|((kind, _), _)| *kind == CoordinatorKind::Transactions);
        hosts.map(|(_, host)| host.clone()).collect()
    }

    /// Lanes that other brokers serve.
    fn remote(&self) -> &Remote {
        &self.remote
    }

    /// True if the state of some coordinator of this broker cannot be read.
    pub fn is_unreadable(&self) -> bool {
        self.hosts.read().values().any(|host| host.is_unreadable())
    }

    /// Records among the events of this broker's coordinators that could not be read and were passed over.
    pub fn passed_over(&self) -> u64 {
        self.hosts
            .read()
            .values()
            .map(|host| host.passed_over())
            .sum()
    }
}
