//! What an acknowledgement means, and what each broker has of it.

use serde::{Deserialize, Serialize};

use super::Broker;

/// What survives once a record is acknowledged.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    Deserialize,
    Serialize,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Durability {
    /// Nothing: the broker has the record in its memory.
    Memory,
    /// The end of the broker's process: the record is in the page cache.
    #[default]
    Written,
    /// A loss of power: the record is on the device.
    Synced,
}

impl Durability {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Written => "written",
            Self::Synced => "synced",
        }
    }

    /// What gives it at `broker`, in words; `None` if it has nothing of the kind.
    pub(crate) fn means(self, broker: Broker) -> Option<&'static str> {
        match (broker, self) {
            (Broker::Kera, Self::Memory) => Some("kera.ack=memory"),
            (Broker::Kera, Self::Written) => Some("kera.ack=written, page cache"),
            (Broker::Kera, Self::Synced) => Some("kera.ack=synced"),
            (Broker::Kafka, Self::Written) => Some("page cache, no flush"),
            (Broker::Kafka, Self::Synced) => Some("flush.messages=1"),
            (Broker::Kafka, Self::Memory) => None,
            (Broker::KeraCluster(_), Self::Memory) => Some("kera.ack=memory, at every copy"),
            (Broker::KeraCluster(_), Self::Written) => {
                Some("kera.ack=written, page cache or shared memory, at every copy")
            }
            (Broker::KeraCluster(_), Self::Synced) => Some("kera.ack=synced, at every copy"),
            (Broker::KafkaCluster(_), Self::Written) => {
                Some("page cache of every replica in sync, no flush")
            }
            (Broker::KafkaCluster(_), Self::Synced) => Some("flush.messages=1 at every replica"),
            (Broker::KafkaCluster(_), Self::Memory) => None,
            (Broker::Nats, Self::Memory) => Some("file store, persist_mode async"),
            (Broker::Nats, Self::Written) => Some("file store, page cache, sync_interval 2m"),
            (Broker::NatsSynced, Self::Synced) => Some("file store, sync_interval always"),
            (Broker::Nats | Broker::NatsSynced, _) => None,
            (Broker::IggyMemory, Self::Memory) => {
                Some("defaults, up to 1,024 messages or 1 MiB of a partition unsaved")
            }
            (Broker::Iggy, Self::Written) => Some("messages_required_to_save 1, page cache"),
            (Broker::IggySynced, Self::Synced) => {
                Some("messages_required_to_save 1, enforce_fsync")
            }
            (Broker::Iggy | Broker::IggyMemory | Broker::IggySynced, _) => None,
        }
    }

    /// The setting of a topic that gives it, at brokers whose topics Kafka clients make.
    pub(crate) fn setting(self, broker: Broker) -> Option<(&'static str, &'static str)> {
        match (broker, self) {
            (Broker::Kera | Broker::KeraCluster(_), _) => Some(("kera.ack", self.name())),
            (Broker::Kafka | Broker::KafkaCluster(_), Self::Synced) => {
                Some(("flush.messages", "1"))
            }
            _ => None,
        }
    }
}
