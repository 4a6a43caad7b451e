//! Who is alive and who is controller, as seen from here.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::client::{Client, PAGE, Pauses, pages};
use super::follow::follow;
use super::messages::*;
use super::space::{Space, range_of};
use crate::cluster::{AdvertisedAddress, ClientKind, Incarnation, LiveBroker, LiveState, Living};
use kera_records::Role;

/// Changes that wait to be taken in.
const WAITING: usize = 64;

/// A broker's place, as etcd holds it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) live: LiveBroker,
    pub(super) lease: i64,
    pub(super) revision: u64,
}

/// The elected controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elected {
    pub(super) broker: u32,
    pub(super) lease: i64,
    pub(super) term: u64,
}

/// Everybody, at one revision.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Presence {
    pub(super) places: BTreeMap<u32, Place>,
    pub(super) controller: Option<Elected>,
    /// 0 before anything was seen.
    pub(super) revision: u64,
}

impl Presence {
    fn put(&mut self, space: &Space, kv: &KeyValue) {
        if kv.key == space.controller() {
            let broker = ControllerMessage::decode(kv.value.as_slice());
            self.controller = broker.ok().map(|message| Elected {
                broker: message.broker,
                lease: kv.lease,
                term: kv.revision(),
            });
        } else if let Some(id) = space.broker_of(&kv.key) {
            match decode(id, &kv.value) {
                Ok(live) => {
                    let place = Place {
                        live,
                        lease: kv.lease,
                        revision: kv.revision(),
                    };
                    self.places.insert(id, place);
                }
                Err(detail) => tracing::error!(broker = id, detail, "a living broker's record"),
            }
        }
    }

    fn remove(&mut self, space: &Space, key: &[u8]) {
        if key == space.controller() {
            self.controller = None;
        } else if let Some(id) = space.broker_of(key) {
            self.places.remove(&id);
        }
    }
}

/// A living broker's record, as it is stored.
pub(super) fn encode(live: &LiveBroker) -> Vec<u8> {
    let message = LiveMessage {
        store_id: live.incarnation.store_id.as_bytes().to_vec(),
        boot_id: live.incarnation.boot_id.as_bytes().to_vec(),
        address: live.address.clone(),
        replication_address: live.replication_address.clone(),
        kafka_address: live.kafka_address.clone(),
        host: live.host.clone(),
        rack: live.rack.clone(),
        // A version that does not know roles takes a replica store for a broker that drains, and gives
        // it no streamlets.
        state: match (live.role, live.state) {
            (Role::Broker, LiveState::Serving) => 0,
            (Role::Broker, LiveState::Draining) | (Role::ReplicaStore, _) => 1,
        },
        version: live.version.clone(),
        role: live.role.number().into(),
        cluster_version: live.cluster_version,
        refuses: live.refuses.iter().map(refusal).collect(),
        tls_files: live.tls_files,
        cannot_write: live.cannot_write.clone(),
        named: live.named.iter().map(named_message).collect(),
    };
    message.encode_to_vec()
}

fn named_message(one: &AdvertisedAddress) -> AdvertisedMessage {
    AdvertisedMessage {
        clients: match one.clients {
            ClientKind::Native => 0,
            ClientKind::Kafka => 1,
        },
        name: one.name.clone(),
        address: one.address.clone(),
    }
}

/// `None` of clients of a later version.
fn named_address(message: AdvertisedMessage) -> Option<AdvertisedAddress> {
    Some(AdvertisedAddress {
        clients: match message.clients {
            0 => ClientKind::Native,
            1 => ClientKind::Kafka,
            _ => return None,
        },
        name: message.name,
        address: message.address,
    })
}

fn refusal((broker, reason): (&u32, &String)) -> RefusalMessage {
    RefusalMessage {
        broker: *broker,
        reason: reason.clone(),
    }
}

/// The living broker of a stored record.
pub(super) fn decode(id: u32, value: &[u8]) -> Result<LiveBroker, &'static str> {
    let message = LiveMessage::decode(value).map_err(|_| "it cannot be decoded")?;
    let uuid = |bytes: &[u8]| Uuid::from_slice(bytes).map_err(|_| "an id is not 16 bytes long");
    let role = Role::of_number(message.role).ok_or("its role is unknown")?;
    Ok(LiveBroker {
        id,
        incarnation: Incarnation {
            store_id: uuid(&message.store_id)?,
            boot_id: uuid(&message.boot_id)?,
        },
        address: message.address,
        replication_address: message.replication_address,
        kafka_address: message.kafka_address,
        host: message.host,
        rack: message.rack,
        role,
        state: match (role, message.state) {
            (Role::Broker, 0) | (Role::ReplicaStore, _) => LiveState::Serving,
            (Role::Broker, 1) => LiveState::Draining,
            (Role::Broker, _) => return Err("its state is unknown"),
        },
        version: message.version,
        cluster_version: message.cluster_version,
        refuses: message
            .refuses
            .into_iter()
            .map(|one| (one.broker, one.reason))
            .collect(),
        tls_files: message.tls_files,
        cannot_write: message.cannot_write,
        named: message
            .named
            .into_iter()
            .filter_map(named_address)
            .collect(),
    })
}

/// What the three kinds of onlookers see.
pub(super) struct Boards {
    pub(super) presence: watch::Sender<Arc<Presence>>,
    pub(super) living: watch::Sender<Living>,
    pub(super) controller: watch::Sender<Option<u32>>,
}

impl Boards {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            presence: watch::Sender::new(Arc::default()),
            living: watch::Sender::new(Living::default()),
            controller: watch::Sender::new(None),
        })
    }

    fn show(&self, presence: &Presence) {
        let living: BTreeMap<u32, LiveBroker> = presence
            .places
            .iter()
            .map(|(id, place)| (*id, place.live.clone()))
            .collect();
        self.living.send_if_modified(|known| {
            let changed = **known != living;
            if changed {
                *known = Arc::new(living);
            }
            changed
        });
        let controller = presence.controller.map(|elected| elected.broker);
        self.controller.send_if_modified(|known| {
            let changed = *known != controller;
            *known = controller;
            changed
        });
        self.presence.send_replace(Arc::new(presence.clone()));
    }
}

/// Keeps the boards true, for as long as it is polled.
pub(super) async fn look_on(client: Arc<Client>, space: Space, boards: Arc<Boards>) {
    let mut pauses = Pauses::endless();
    loop {
        let range = range_of(space.members());
        match pages(&client, range.clone(), 0, false, PAGE).await {
            Ok((revision, found)) => {
                pauses = Pauses::endless();
                let mut presence = Presence {
                    revision,
                    ..Presence::default()
                };
                for kv in &found {
                    presence.put(&space, kv);
                }
                boards.show(&presence);
                let (sender, mut receiver) = mpsc::channel(WAITING);
                let following = follow(client.clone(), range, revision, sender);
                let taking = async {
                    while let Some(Ok((events, revision))) = receiver.recv().await {
                        for event in &events {
                            match &event.kv {
                                Some(kv) if event.kind == DELETE => {
                                    presence.remove(&space, &kv.key);
                                }
                                Some(kv) => presence.put(&space, kv),
                                None => {}
                            }
                        }
                        presence.revision = revision;
                        boards.show(&presence);
                    }
                };
                // Ends when changes may have been missed: then all is read anew.
                tokio::join!(following, taking);
            }
            Err(error) => tracing::debug!(%error, "who is alive cannot be read yet"),
        }
        pauses.pause().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn living_brokers_round_trip() {
        let incarnation = Incarnation {
            store_id: Uuid::from_u128(1),
            boot_id: Uuid::from_u128(2),
        };
        let plain = LiveBroker::new(7, incarnation);
        let full = LiveBroker {
            address: "a:1".into(),
            replication_address: "a:2".into(),
            kafka_address: Some("a:3,b:3".into()),
            host: "a".into(),
            rack: Some(String::new()),
            state: LiveState::Draining,
            version: "0.1.0".into(),
            cluster_version: 3,
            refuses: BTreeMap::from([(7, "it has expired".into()), (8, String::new())]),
            tls_files: 5,
            cannot_write: Some("its disk is full".into()),
            named: [ClientKind::Native, ClientKind::Kafka]
                .map(|clients| AdvertisedAddress {
                    clients,
                    name: "outer".into(),
                    address: "b:3".into(),
                })
                .into(),
            ..plain.clone()
        };
        let store = LiveBroker {
            role: Role::ReplicaStore,
            replication_address: "a:2".into(),
            ..plain.clone()
        };
        for live in [plain, full, store.clone()] {
            assert_eq!(decode(7, &encode(&live)), Ok(live));
        }
        // What a version without roles reads of it: it is given no streamlets.
        let old = LiveMessage::decode(&*encode(&store)).expect("a message");
        assert_eq!((old.state, old.role), (1, 1));
        // And a later version's role is nobody's that this one could give something to.
        let later = LiveMessage { role: 2, ..old };
        assert!(decode(7, &later.encode_to_vec()).is_err());
        // Addresses for clients that only a later version knows are nobody's here.
        let strange = AdvertisedMessage {
            clients: 2,
            name: "outer".into(),
            address: "b:4".into(),
        };
        let later = LiveMessage {
            role: 0,
            state: 0,
            named: vec![strange],
            ..later
        };
        let read = decode(7, &later.encode_to_vec()).expect("a broker");
        assert_eq!(read.named, []);
        assert!(decode(7, b"\xff").is_err());
        assert!(decode(7, b"").is_err());
    }
}
