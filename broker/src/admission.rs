//! How many connections there may be, and who may have those beyond.
//!
//! Clients and other brokers come in by the same address. A broker that cannot be reached because clients
//! took all places holds up metadata and consumer groups of the whole cluster, so some places are kept for
//! addresses at which brokers of the cluster are known.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::BrokerConfig;
use crate::peer_addresses::PeerAddresses;
use crate::{machine, process};

/// The limit on connections.
#[derive(Debug)]
pub struct Admission {
    limit: AtomicU64,
}

impl Admission {
    /// As configured; fewer where the process may not open as many files.
    pub fn new(config: &BrokerConfig) -> Self {
        let admission = Self {
            limit: AtomicU64::default(),
        };
        admission.set_most(config.server.max_connections);
        admission
    }

    /// Changes how many clients may have; those that are open stay.
    pub(crate) fn set_most(&self, connections: u32) {
        let files = process::open_files_limit();
        let limit = machine::most_connections(connections.into(), files);
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Connections that clients may have.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
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
