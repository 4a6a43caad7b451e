//! Becoming one of the brokers that share a store.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kera_metadata::{
    BrokerRecord, ClusterStore, Incarnation, LiveBroker, Living, Membership, Role,
};

use super::{Backup, addresses, host_name};
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::store_dir::StoreDir;

/// Longest wait for the store to tell who else is alive.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// This broker's place among those that share a store.
pub(crate) struct Joined {
    /// The store.
    pub(crate) store: Arc<dyn ClusterStore>,
    /// The lease, which lives as long as this.
    pub(crate) membership: Arc<Membership>,
    /// This broker's number.
    pub(crate) id: u32,
    /// What the others are told of it.
    pub(crate) live: LiveBroker,
}

impl Joined {
    /// Takes this broker's place: the data directory is checked to be its own, and the lease is taken.
    /// Nothing is recorded yet. Blocks, and is to be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BrokerError`] if the directory belongs to another broker or another cluster, if the store is older
    /// than what the broker has seen of it, if the number is taken, if the store cannot be reached, or if
    /// this broker and one on another machine do not reach each other.
    pub(crate) fn join(
        store: Arc<dyn ClusterStore>,
        config: &BrokerConfig,
        dir: &StoreDir,
        backup: Option<&Backup>,
        advertised: &str,
        role: Role,
    ) -> Result<Self, BrokerError> {
        let id = config.cluster.broker_id.ok_or(BrokerError::NoNumber)?;
        dir.belongs_to(store.cluster())?;
        store.require(dir.revision())?;
        check_number(&store.brokers()?, dir, id, role)?;
        let incarnation = Incarnation {
            store_id: dir.incarnation().store_id,
            boot_id: dir.incarnation().boot_id,
        };
        let mut live = LiveBroker::new(id, incarnation);
        live.role = role;
        if role == Role::Broker {
            live.address = advertised.to_owned();
        }
        live.replication_address = replication_address(config, backup, advertised);
        live.host = config.cluster.host.clone().unwrap_or_else(host_name);
        live.rack = config.cluster.rack.clone();
        live.version = env!("CARGO_PKG_VERSION").to_owned();
        let membership = store.join(live.clone(), config.cluster.lease)?;
        // Once it has the place: of two that join at once, one sees the other.
        addresses::check(&live, &seen_with(&*store, &live))?;
        Ok(Self {
            store,
            membership: Arc::new(membership),
            id,
            live,
        })
    }
}

/// Who is alive, once that is known to be as new as the place of `live`.
fn seen_with(store: &dyn ClusterStore, live: &LiveBroker) -> Living {
    let mut living = store.living();
    let mine = |all: &Living| {
        let place = all.get(&live.id);
        place.is_some_and(|place| place.incarnation == live.incarnation)
    };
    let seen = tokio::runtime::Handle::current().block_on(async {
        let seen = tokio::time::timeout(SEEN_WITHIN, living.wait_for(mine));
        matches!(seen.await, Ok(Ok(_)))
    });
    if !seen {
        tracing::warn!("the metadata store does not tell who is alive yet");
    }
    store.living().borrow().clone()
}

/// A directory is never another broker's: streamlets and copies there go by its number.
/// A number keeps its role: a broker may own streamlets and have files of its own that a replica store does
/// not serve.
fn check_number(
    brokers: &[BrokerRecord],
    dir: &StoreDir,
    wanted: u32,
    role: Role,
) -> Result<(), BrokerError> {
    let mut same = brokers.iter().filter(|b| b.id == wanted);
    if let Some(other) = same.find(|b| b.role != role) {
        return Err(BrokerError::OtherRole {
            id: wanted,
            found: other.role,
            wanted: role,
        });
    }
    let store_id = dir.incarnation().store_id;
    let mut brokers = brokers.iter();
    match brokers.find(|b| b.store_id == store_id && b.id != wanted) {
        Some(other) => Err(BrokerError::OtherBroker {
            path: dir.path().to_path_buf(),
            found: other.id,
            wanted,
        }),
        None => Ok(()),
    }
}

/// Where other brokers reach the copies here: what is configured, or the address that is listened on,
/// or, where that is every interface, the host that clients are told.
fn replication_address(config: &BrokerConfig, backup: Option<&Backup>, advertised: &str) -> String {
    if let Some(address) = &config.cluster.advertise {
        return address.clone();
    }
    let Some(local) = backup.map(Backup::local_addr) else {
        return String::new();
    };
    reachable(local, advertised)
}

fn reachable(local: SocketAddr, advertised: &str) -> String {
    if !local.ip().is_unspecified() {
        return local.to_string();
    }
    let host = advertised
        .rsplit_once(':')
        .map_or(advertised, |(host, _)| host);
    format!("{host}:{}", local.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_an_address_that_they_can_reach() {
        let at = |local: &str, advertised: &str| {
            reachable(local.parse().expect("an address"), advertised)
        };
        assert_eq!(at("10.0.0.1:7601", "broker1:7600"), "10.0.0.1:7601");
        assert_eq!(at("0.0.0.0:7601", "broker1:7600"), "broker1:7601");
        assert_eq!(at("[::]:7601", "[fd00::1]:7600"), "[fd00::1]:7601");
    }
}
