//! How many connections there may be, and who may have those beyond.
//!
//! Clients and other brokers come in by the same address. A broker that cannot be reached because clients
//! took all places holds up metadata and consumer groups of the whole cluster, so some places are kept for
//! addresses at which brokers of the cluster are known. And one address may be kept from taking all that there are.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::config::BrokerConfig;
use crate::peer_addresses::PeerAddresses;
use crate::unheard::Source;
use crate::{machine, process};

/// Why a connection is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMany {
    /// There are so many, its limit.
    InAll(u64),
    /// So many come from its address, the limit for one.
    FromAddress(IpAddr, u64),
    /// They come faster from its address than its quota allows.
    TooFast(IpAddr),
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InAll(limit) => write!(
                f,
                "the broker has {limit} connections, its limit; close some or raise server.max_connections"
            ),
            Self::TooFast(address) => write!(
                f,
                "connections from {address} are opened faster than its quota allows; keep connections, or raise connection_creation_rate (kera quota list)"
            ),
            Self::FromAddress(address, limit) => write!(
                f,
                "the broker has {limit} connections from {address}, the limit for one address; close some or raise server.max_connections_per_address"
            ),
        }
    }
}

/// The limit on connections.
#[derive(Debug)]
pub struct Admission {
    limit: AtomicU64,
    per_address: AtomicU64,
    /// Connections that are open, by where they come from.
    open: Mutex<HashMap<Source, u64>>,
}

impl Admission {
    /// As configured; fewer where the process may not open as many files.
    pub fn new(config: &BrokerConfig) -> Self {
        let admission = Self {
            limit: AtomicU64::default(),
            per_address: AtomicU64::default(),
            open: Mutex::default(),
        };
        admission.set_most(config);
        admission
    }

    /// Changes how many clients may have; those that are open stay.
    pub(crate) fn set_most(&self, config: &BrokerConfig) {
        let files = process::open_files_limit();
        let limit = machine::most_connections(config.server.max_connections.into(), files);
        self.limit.store(limit, Ordering::Relaxed);
        let per_address = config.server.max_connections_per_address.into();
        self.per_address.store(per_address, Ordering::Relaxed);
    }

    /// Connections that clients may have.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// One more connection is open.
    pub(crate) fn enter(&self, source: Source) {
        *self.open.lock().entry(source).or_default() += 1;
    }

    /// One has ended.
    pub(crate) fn leave(&self, source: Source) {
        let mut open = self.open.lock();
        if let Some(count) = open.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                open.remove(&source);
            }
        }
    }

    /// The limit for one address, if more are open from `source`.
    pub(crate) fn exceeded(&self, source: Source) -> Option<u64> {
        let limit = self.per_address.load(Ordering::Relaxed);
        let open = self.open.lock().get(&source).copied();
        (open.unwrap_or(0) > limit).then_some(limit)
    }

    /// True if there is room for a connection from `peer`, with which `open` are open; `reserved` more are for
    /// the other `brokers` of the cluster.
    pub fn admits(
        &self,
        open: u64,
        peer: IpAddr,
        reserved: u32,
        brokers: Option<&PeerAddresses>,
    ) -> bool {
        let limit = self.limit();
        if open <= limit {
            return true;
        }
        let may_be = open <= limit + u64::from(reserved);
        may_be && brokers.is_some_and(|brokers| brokers.contains(peer))
    }
}
