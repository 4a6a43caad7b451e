//! What share groups write to the internal stream beside their members. Tags are never reused.

use kera_protocol::ids::StreamId;
use prost::Message;

use super::config::ShareConfig;
use super::record::ShareRecord;
use crate::share::ShareState;

/// Where a group stands in a partition.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ShareSet {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stream: Vec<u8>,
    #[prost(uint32, tag = "2")]
    pub(crate) partition: u32,
    #[prost(uint64, tag = "3")]
    pub(crate) state_epoch: u64,
    #[prost(uint32, tag = "4")]
    pub(crate) owner_epoch: u32,
    /// Absent until an owner has found where the group begins.
    #[prost(uint64, optional, tag = "5")]
    pub(crate) start: Option<u64>,
    /// From there on: the length of each run, and twice its deliveries, with one more if it is done; done after some
    /// deliveries: it is given up, and no dead letter yet.
    #[prost(uint64, repeated, tag = "6")]
    pub(crate) runs: Vec<u64>,
    /// How many partitions the stream had when this one was first kept; 0 of earlier builds, which pass it over.
    #[prost(uint32, tag = "7")]
    pub(crate) of_partitions: u32,
}

impl ShareSet {
    pub(super) fn of((stream, partition): (StreamId, u32), record: &ShareRecord) -> Self {
        let state = record.state.as_ref();
        Self {
            stream: stream.as_bytes().to_vec(),
            partition,
            state_epoch: record.state_epoch,
            owner_epoch: record.owner_epoch,
            start: state.map(|state| state.start),
            runs: state.map_or_else(Vec::new, ShareState::runs),
            of_partitions: record.of_partitions,
        }
    }
}

/// Partitions of a stream are forgotten.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SharesRemoved {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stream: Vec<u8>,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) partitions: Vec<u32>,
}

/// All that is set for a group.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ShareConfigSet {
    #[prost(message, repeated, tag = "1")]
    pub(crate) configs: Vec<ConfigRecord>,
}

impl ShareConfigSet {
    pub(super) fn of(config: &ShareConfig) -> Self {
        let configs = config.pairs().map(|(name, value)| ConfigRecord {
            name: name.to_owned(),
            value: value.to_owned(),
        });
        Self {
            configs: configs.collect(),
        }
    }

    pub(super) fn config(&self) -> ShareConfig {
        let configs = self.configs.iter();
        ShareConfig::from_pairs(configs.map(|one| (one.name.clone(), one.value.clone())))
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConfigRecord {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}
