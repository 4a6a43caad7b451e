//! How many connections there may be, and who may have those beyond.
//!
//! Clients and other brokers come in by the same address. A broker that cannot be reached because clients
//! took all places holds up metadata and consumer groups of the whole cluster, so some places are kept for
//! addresses at which brokers of the cluster are known.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::BrokerConfig;
use crate::directory::Directory;
use crate::{machine, process};

/// For how long the addresses of brokers are believed.
const BELIEVED: Duration = Duration::from_secs(5);

/// The limit on connections, and the addresses of brokers as they were looked up last.
#[derive(Debug)]
pub struct Admission {
    limit: AtomicU64,
    brokers: Mutex<Option<(Instant, HashSet<IpAddr>)>>,
}

impl Admission {
    /// As configured; fewer where the process may not open as many files.
    pub fn new(config: &BrokerConfig) -> Self {
        let admission = Self {
            limit: AtomicU64::default(),
            brokers: Mutex::default(),
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
    /// the other brokers of `directory`.
    pub async fn admits(
        &self,
        open: u64,
        peer: IpAddr,
        reserved: u32,
        directory: &dyn Directory,
    ) -> bool {
        let limit = self.limit();
        if open <= limit {
            return true;
        }
        let may_be = open <= limit + u64::from(reserved) && directory.is_shared();
        may_be && self.is_broker(peer, directory).await
    }

    /// True if another broker of the cluster is known at this address.
    async fn is_broker(&self, peer: IpAddr, directory: &dyn Directory) -> bool {
        if let Some((since, known)) = &*self.brokers.lock()
            && since.elapsed() < BELIEVED
        {
            return known.contains(&peer.to_canonical());
        }
        let me = directory.me();
        let mut known = HashSet::new();
        for broker in directory.brokers().iter().filter(|b| b.id != me) {
            match tokio::net::lookup_host(&broker.address).await {
                Ok(found) => known.extend(found.map(|address| address.ip().to_canonical())),
                Err(error) => {
                    tracing::debug!(broker = broker.id, address = broker.address, %error, "a broker's address is not found");
                }
            }
        }
        let is_known = known.contains(&peer.to_canonical());
        *self.brokers.lock() = Some((Instant::now(), known));
        is_known
    }
}
