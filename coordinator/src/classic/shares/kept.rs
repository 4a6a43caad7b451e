//! What a group keeps of the partitions that it shares, and of what is set for it.

use std::collections::BTreeMap;

use kera_protocol::ids::StreamId;

use super::{ShareConfigSet, ShareRecord, ShareSet, SharesRemoved};
use crate::classic::group::{Group, OFFSET_BYTES};
use crate::event::Body;
use crate::share::ShareState;

impl Group {
    /// Whether it is a share group.
    pub(crate) fn is_share(&self) -> bool {
        self.consumer
            .as_ref()
            .is_some_and(|consumer| consumer.shares)
    }

    pub(in crate::classic) fn set_share(&mut self, set: &ShareSet) -> bool {
        let Some(stream) = StreamId::from_slice(&set.stream) else {
            return false;
        };
        let record = ShareRecord {
            state_epoch: set.state_epoch,
            owner_epoch: set.owner_epoch,
            state: set.start.map(|start| ShareState::of(start, &set.runs)),
            of_partitions: set.of_partitions,
        };
        self.offset_count += 1;
        self.offset_bytes += OFFSET_BYTES + record.bytes();
        if let Some(old) = self.shares.insert((stream, set.partition), record) {
            self.offset_count -= 1;
            self.offset_bytes -= OFFSET_BYTES + old.bytes();
        }
        true
    }

    pub(in crate::classic) fn remove_shares(&mut self, removed: &SharesRemoved) -> bool {
        let Some(stream) = StreamId::from_slice(&removed.stream) else {
            return false;
        };
        let mut all = true;
        for partition in &removed.partitions {
            match self.shares.remove(&(stream, *partition)) {
                Some(old) => {
                    self.offset_count -= 1;
                    self.offset_bytes -= OFFSET_BYTES + old.bytes();
                }
                None => all = false,
            }
        }
        all
    }

    pub(in crate::classic) fn set_share_config(&mut self, set: &ShareConfigSet) -> bool {
        self.config = set.config();
        true
    }

    /// The events that build what is set for the group, and its partitions.
    pub(in crate::classic) fn share_parts(&self) -> Vec<Body> {
        let config = (!self.config.is_default())
            .then(|| Body::ShareConfigSet(ShareConfigSet::of(&self.config)));
        let shares = self
            .shares
            .iter()
            .map(|(key, record)| Body::ShareSet(ShareSet::of(*key, record)));
        config.into_iter().chain(shares).collect()
    }

    /// What has been read of a partition: all below an ordinal, and so many records behind it.
    pub(in crate::classic) fn place(&self, stream: StreamId, partition: u32) -> Option<(u64, u64)> {
        if let Some(record) = self.shares.get(&(stream, partition)) {
            let state = record.state.as_ref()?;
            return Some((state.start, state.done()));
        }
        let offset = self.offset(stream, partition)?;
        Some((offset.ordinal()?, 0))
    }

    /// Whether a partition was made after the group had begun to read its stream, as far as that is kept.
    pub(super) fn is_younger(&self, stream: StreamId, partition: u32) -> bool {
        let of_stream = self.shares.range((stream, 0)..=(stream, u32::MAX));
        let mut known = of_stream.map(|(_, record)| record.of_partitions);
        known.any(|there_were| there_were > 0 && partition >= there_were)
    }

    /// Partitions of which something is kept, by stream.
    pub(in crate::classic) fn known_partitions(&self) -> BTreeMap<StreamId, Vec<u32>> {
        let mut known = self.shares_by_stream();
        for (stream, offsets) in &self.offsets {
            let partitions = known.entry(*stream).or_default();
            partitions.extend(offsets.keys());
        }
        known
    }

    /// Partitions by stream.
    pub(in crate::classic) fn shares_by_stream(&self) -> BTreeMap<StreamId, Vec<u32>> {
        let mut streams: BTreeMap<StreamId, Vec<u32>> = BTreeMap::new();
        for (stream, partition) in self.shares.keys() {
            streams.entry(*stream).or_default().push(*partition);
        }
        streams
    }
}
