//! What clients know about a stream.

use kera_protocol::ids::{StreamId, StreamletId};
use kera_protocol::v1;

use crate::error::RpcError;

/// A stream as clients need it: an answer of `GetStream`, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamMeta {
    /// The name it was asked for by.
    pub name: String,
    /// The id that frames carry.
    pub id: StreamId,
    /// All settings, every field present.
    pub config: v1::StreamConfig,
    /// M: streamlets.
    pub streamlets: u32,
    /// Q: lanes of each streamlet, or of those that have one more than the others.
    pub lanes: u32,
    /// n: lanes of all streamlets, Kafka's partitions. Partition p is lane p / M of streamlet p % M.
    pub partitions: u32,
    /// How records find their lane.
    pub lane_by: v1::LaneBy,
    /// Most bytes of a batch.
    pub max_batch_bytes: usize,
    /// Grows by one with each growth of lanes.
    pub lane_generation: u32,
    owners: Vec<String>,
    epochs: Vec<u32>,
}

/// Most lanes of a stream, in all of its streamlets.
pub(crate) const MAX_LANES: u32 = 1 << 16;
/// Most bytes of a batch if the broker names no limit.
const DEFAULT_MAX_BATCH_BYTES: u32 = 1 << 20;

impl StreamMeta {
    /// Checks what a broker answered; `bootstrap` stands for owners that have no address.
    ///
    /// # Errors
    /// [`RpcError::BadAnswer`] if the answer contradicts itself.
    pub fn from_info(info: v1::StreamInfo, bootstrap: &str) -> Result<Self, RpcError> {
        let bad = |what: &str| RpcError::BadAnswer(format!("stream {}: {what}", info.name));
        let id = StreamId::from_slice(&info.id).ok_or_else(|| bad("its id has not 16 bytes"))?;
        let config = info.config.ok_or_else(|| bad("its settings are missing"))?;
        let streamlets = config.streamlets.unwrap_or(0);
        let lanes = config.lanes.unwrap_or(0);
        if !(1..=MAX_LANES).contains(&streamlets) || !(1..=MAX_LANES).contains(&lanes) {
            return Err(bad("it has no streamlets or no lanes, or too many"));
        }
        // Brokers of older versions know no other number.
        let partitions = match config.partitions {
            None => streamlets.saturating_mul(lanes),
            Some(told) => told,
        };
        if partitions < streamlets || partitions.div_ceil(streamlets) != lanes {
            return Err(bad("its partitions do not fit its streamlets and lanes"));
        }
        let mut owners = vec![String::new(); streamlets as usize];
        let mut epochs = vec![0; streamlets as usize];
        for streamlet in &info.streamlets {
            let owner = owners
                .get_mut(streamlet.streamlet as usize)
                .ok_or_else(|| bad("it lists a streamlet that it does not have"))?;
            owner.clone_from(&streamlet.owner);
            epochs[streamlet.streamlet as usize] = streamlet.epoch;
        }
        for owner in &mut owners {
            if owner.is_empty() {
                bootstrap.clone_into(owner);
            }
        }
        Ok(Self {
            id,
            streamlets,
            lanes,
            partitions,
            lane_by: config.lane_by(),
            max_batch_bytes: config.max_batch_bytes.unwrap_or(DEFAULT_MAX_BATCH_BYTES) as usize,
            lane_generation: info.lane_generation,
            owners,
            epochs,
            config,
            name: info.name,
        })
    }

    /// Whether `self` was told by a broker that hears of changes later than whoever told `other`, or not at
    /// all: epochs only rise.
    pub(crate) fn is_older_than(&self, other: &Self) -> bool {
        let mut pairs = self.epochs.iter().zip(&other.epochs);
        self.id == other.id && pairs.any(|(mine, others)| mine < others)
    }

    /// Whether who looks for a change of `other` has not found it here.
    pub(crate) fn brings_nothing_new_to(&self, other: &Self) -> bool {
        self.id == other.id
            && self.epochs == other.epochs
            && self.owners == other.owners
            && self.lane_generation == other.lane_generation
    }

    /// [`partitions`](Self::partitions) if they are no multiple of the streamlets, or else 0, as requests
    /// that older brokers understand have it.
    pub fn uneven_partitions(&self) -> u32 {
        match self.partitions.is_multiple_of(self.streamlets) {
            true => 0,
            false => self.partitions,
        }
    }

    /// HOST:PORT of the streamlet's owner; `None` if the stream has no such streamlet.
    pub fn owner(&self, streamlet: StreamletId) -> Option<&str> {
        self.owners.get(streamlet.0 as usize).map(String::as_str)
    }

    /// Owners by streamlet.
    pub fn owners(&self) -> &[String] {
        &self.owners
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn info() -> v1::StreamInfo {
        v1::StreamInfo {
            name: "s".to_owned(),
            id: Bytes::from_static(&[3; 16]),
            config: Some(v1::StreamConfig {
                streamlets: Some(2),
                lanes: Some(4),
                ..v1::StreamConfig::default()
            }),
            streamlets: vec![v1::StreamletInfo {
                streamlet: 1,
                owner: "b:2".to_owned(),
                epoch: 1,
                ..v1::StreamletInfo::default()
            }],
            lane_generation: 5,
            ..v1::StreamInfo::default()
        }
    }

    #[test]
    fn owners_without_address_are_the_bootstrap_broker() {
        let meta = StreamMeta::from_info(info(), "a:1").unwrap();
        assert_eq!(meta.owner(StreamletId(0)), Some("a:1"));
        assert_eq!(meta.owner(StreamletId(1)), Some("b:2"));
        assert_eq!(meta.owner(StreamletId(2)), None);
        assert_eq!((meta.lanes, meta.lane_generation), (4, 5));
    }

    #[test]
    fn an_older_broker_names_no_number_of_partitions() {
        let meta = StreamMeta::from_info(info(), "a:1").unwrap();
        assert_eq!((meta.partitions, meta.uneven_partitions()), (8, 0));
        for (partitions, uneven) in [(8, 0), (7, 7)] {
            let mut info = info();
            info.config.as_mut().unwrap().partitions = Some(partitions);
            let meta = StreamMeta::from_info(info, "a:1").unwrap();
            assert_eq!(meta.partitions, partitions);
            assert_eq!(meta.uneven_partitions(), uneven);
        }
    }

    #[test]
    fn answers_that_contradict_themselves_are_refused() {
        let broken: [fn(&mut v1::StreamInfo); 6] = [
            |info| info.config.as_mut().unwrap().partitions = Some(6),
            |info| info.config.as_mut().unwrap().partitions = Some(9),
            |info| info.id = Bytes::from_static(&[1; 3]),
            |info| info.config = None,
            |info| info.streamlets[0].streamlet = 2,
            |info| info.config.as_mut().unwrap().lanes = Some(0),
        ];
        for change in broken {
            let mut info = info();
            change(&mut info);
            assert!(StreamMeta::from_info(info, "a:1").is_err());
        }
    }
}
