//! The brokers that share a store, and who owns what, as clients and this broker's own parts are told.

use std::sync::Arc;
use std::time::Duration;

use kera_metadata::{
    AdvertisedAddress, ClientKind, LiveBroker, Living, Membership, MetadataError, Role,
};
use kera_protocol::ids::{GroupKey, Ordinal, StreamId, StreamletId};
use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use super::joining::Joined;
use crate::cluster::cluster_view::ClusterView;
use crate::data::catalog::Catalog;
use crate::data::directory::{BrokerInfo, Directory, Owner, with_names};

/// Pause before the others are told once more what they could not be told.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// The brokers that share a store with this one.
pub struct Members {
    me: u32,
    cluster_id: String,
    catalog: Arc<Catalog>,
    living: watch::Receiver<Living>,
    controller: watch::Receiver<Option<u32>>,
    membership: Arc<Membership>,
    /// Owners and replicas of all streamlets.
    cluster_view: Arc<ClusterView>,
    /// This broker as it described itself last.
    live: Arc<Mutex<LiveBroker>>,
}

impl Members {
    /// The brokers that share the store of `joined`, of cluster `cluster`.
    pub(crate) fn new(
        cluster: Uuid,
        catalog: Arc<Catalog>,
        cluster_view: Arc<ClusterView>,
        joined: &Joined,
    ) -> Arc<Self> {
        Arc::new(Self {
            me: joined.id,
            cluster_id: crate::cluster_id::base64url(*cluster.as_bytes()),
            catalog,
            living: joined.store.living(),
            controller: joined.store.controller(),
            membership: joined.membership.clone(),
            cluster_view,
            live: Arc::new(Mutex::new(joined.live.clone())),
        })
    }

    /// Those that are alive, this one among them, and replica stores; while the store is away, those that were.
    pub fn living(&self) -> Living {
        self.living.borrow().clone()
    }

    /// Tells the others something else of this broker; its number and incarnation stay. Blocks.
    ///
    /// # Errors
    /// The metadata store's; they may have been told all the same.
    pub fn describe(&self, change: impl FnOnce(&mut LiveBroker)) -> Result<(), MetadataError> {
        describe(&self.membership, &self.live, change)
    }
}

fn describe(
    membership: &Membership,
    live: &Mutex<LiveBroker>,
    change: impl FnOnce(&mut LiveBroker),
) -> Result<(), MetadataError> {
    // One at a time, so that the last to be told is the last that was meant.
    let mut live = live.lock();
    change(&mut live);
    membership.update(live.clone())
}

/// Calls `tell`, which waits for the store, until it is true.
async fn until_told(tell: impl Fn() -> bool + Clone + Send + 'static) {
    while let Ok(false) = tokio::task::spawn_blocking(tell.clone()).await {
        tokio::time::sleep(TELL_AGAIN).await;
    }
}

/// True if clients and control calls reach it: a replica store has no address for either.
fn serves(live: &&LiveBroker) -> bool {
    live.role == Role::Broker
}

/// How a living broker is reached.
pub(crate) fn info_of(live: &LiveBroker) -> BrokerInfo {
    let kafka = live.kafka_address.iter().flat_map(|list| list.split(','));
    let named = |clients: ClientKind| {
        let named = live.named.iter().filter(|one| one.clients == clients);
        named
            .map(|one| (one.name.clone(), one.address.clone()))
            .collect()
    };
    BrokerInfo {
        id: live.id,
        address: live.address.clone(),
        native_named: named(ClientKind::Native),
        kafka_named: named(ClientKind::Kafka),
        kafka: kafka.map(str::to_owned).collect(),
        host: live.host.clone(),
        rack: live.rack.clone(),
    }
}

impl Directory for Members {
    fn me(&self) -> u32 {
        self.me
    }

    fn cluster_id(&self) -> String {
        self.cluster_id.clone()
    }

    fn brokers(&self) -> Arc<Vec<BrokerInfo>> {
        let living = self.living.borrow();
        Arc::new(living.values().filter(serves).map(info_of).collect())
    }

    fn broker(&self, id: u32) -> Option<BrokerInfo> {
        self.living.borrow().get(&id).filter(serves).map(info_of)
    }

    fn controller(&self) -> Option<u32> {
        *self.controller.borrow()
    }

    fn owner(&self, stream: StreamId, streamlet: StreamletId) -> Option<Owner> {
        let stream = self.catalog.get(stream)?;
        let owner = stream.owner(streamlet)?;
        if owner.broker != self.me {
            return Some(owner);
        }
        // Its own it may have taken anew since.
        let now = stream.streamlet(streamlet)?;
        let epoch = now.epoch().max(owner.epoch);
        Some(Owner { epoch, ..owner })
    }

    fn serves(&self, stream: StreamId, streamlet: StreamletId) -> bool {
        let found = self.catalog.streamlet(stream, streamlet);
        let served = found.is_some_and(|s| !s.is_over() && s.is_recovered());
        served && self.membership.is_current()
    }

    fn is_current(&self) -> bool {
        self.membership.is_current()
    }

    fn holders(&self, group: GroupKey) -> Vec<u32> {
        let held = self.cluster_view.read(|picture| {
            let streamlet = picture.streamlet(group.streamlet_key())?;
            Some(streamlet.groups.get(&group.group)?.copies.to_vec())
        });
        held.flatten().unwrap_or_default()
    }

    fn given_up(&self, group: GroupKey, ordinal: Ordinal) -> Option<Ordinal> {
        let behind = self.cluster_view.read(|picture| {
            let streamlet = picture.streamlet(group.streamlet_key())?;
            streamlet.groups.get(&group.group)?.behind_lost(ordinal)
        });
        behind.flatten()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn announce_kafka(&self, addresses: Vec<(Option<String>, String)>) {
        let (membership, live) = (Arc::downgrade(&self.membership), self.live.clone());
        let tell = move || {
            // Whoever left has nothing to tell.
            let Some(membership) = membership.upgrade() else {
                return true;
            };
            let told = describe(&membership, &live, |live| {
                let all: Vec<_> = addresses.iter().map(|(_, told)| told.as_str()).collect();
                live.kafka_address = (!all.is_empty()).then(|| all.join(","));
                live.named.retain(|one| one.clients != ClientKind::Kafka);
                let named = with_names(&addresses).map(|(name, address)| AdvertisedAddress {
                    clients: ClientKind::Kafka,
                    name,
                    address,
                });
                live.named.extend(named);
            });
            match told {
                Ok(()) | Err(MetadataError::Closed) => true,
                Err(error) => {
                    tracing::warn!(%error, "other brokers do not know yet where this one serves Kafka's clients");
                    false
                }
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(until_told(tell))),
            Err(_) => _ = tell(),
        }
    }
}
