//! Offsets that open transactions commit.

use std::collections::{BTreeMap, BTreeSet};

use kera_protocol::ids::StreamId;

use super::event::{OffsetRecord, OffsetsEnded, OffsetsPending};
use super::group::{Group, OFFSET_BYTES, Offset, runs};
use super::request::OfTransaction;
use crate::event::Body;

/// What one open transaction commits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pending {
    pub(crate) number: u64,
    pub(crate) offsets: BTreeMap<StreamId, BTreeMap<u32, Offset>>,
}

impl Pending {
    fn count(&self) -> usize {
        self.offsets.values().map(BTreeMap::len).sum()
    }

    fn bytes(&self) -> usize {
        let offsets = self.offsets.values().flat_map(BTreeMap::values);
        offsets
            .map(|offset| OFFSET_BYTES + offset.metadata.len())
            .sum()
    }
}

impl Group {
    /// Whether an open transaction commits an offset of the partition.
    pub(crate) fn is_unstable(&self, stream: StreamId, partition: u32) -> bool {
        let mut pending = self.pending.values();
        pending.any(|pending| {
            let offsets = pending.offsets.get(&stream);
            offsets.is_some_and(|offsets| offsets.contains_key(&partition))
        })
    }

    /// What a transaction commits of a partition.
    pub(super) fn pending_offset(
        &self,
        transaction: OfTransaction,
        stream: StreamId,
        partition: u32,
    ) -> Option<&Offset> {
        let pending = self.pending.get(&transaction.producer);
        let pending = pending.filter(|pending| pending.number == transaction.number)?;
        pending.offsets.get(&stream)?.get(&partition)
    }

    /// The order of the offset of a partition that was pending last.
    pub(super) fn pending_order(&self, stream: StreamId, partition: u32) -> Option<u64> {
        let pending = self.pending.values();
        let offsets = pending.filter_map(|pending| pending.offsets.get(&stream)?.get(&partition));
        offsets.map(|offset| offset.order).max()
    }

    /// The order of the offset of a partition that is committed.
    fn committed_order(&self, stream: StreamId, partition: u32) -> Option<u64> {
        let offset = self.offsets.get(&stream)?.get(&partition);
        offset.map(|offset| offset.order)
    }

    /// Every partition of which there is an offset; of which one is pending as well, `with_pending`.
    pub(super) fn partitions(&self, with_pending: bool) -> BTreeSet<(StreamId, u32)> {
        let pending = self.pending.values().filter(|_| with_pending);
        let pending = pending.map(|pending| &pending.offsets);
        let all = pending.chain([&self.offsets]);
        let all = all.flat_map(|streams| {
            let streams = streams.iter();
            streams.flat_map(|(stream, offsets)| offsets.keys().map(|p| (*stream, *p)))
        });
        all.collect()
    }

    pub(super) fn set_pending(&mut self, set: &OffsetsPending) -> bool {
        let Some(stream) = StreamId::from_slice(&set.stream) else {
            return false;
        };
        let next = |record: &OffsetRecord| {
            let pending = self.pending_order(stream, record.partition);
            let last = pending.max(self.committed_order(stream, record.partition));
            last.unwrap_or(0).saturating_add(1)
        };
        let offsets = set.offsets.iter();
        let offsets: Vec<_> = offsets
            .map(|record| (record.partition, Offset::of(record, next(record))))
            .collect();
        let pending = self.pending.entry(set.producer).or_default();
        let before = (pending.count(), pending.bytes());
        if pending.number != set.number {
            *pending = Pending {
                number: set.number,
                ..Pending::default()
            };
        }
        let partitions = pending.offsets.entry(stream).or_default();
        partitions.extend(offsets);
        let after = (pending.count(), pending.bytes());
        self.offset_count = self.offset_count + after.0 - before.0;
        self.offset_bytes = self.offset_bytes + after.1 - before.1;
        true
    }

    pub(super) fn end_pending(&mut self, ended: &OffsetsEnded) -> bool {
        let Some(pending) = self.pending.remove(&ended.producer) else {
            return false;
        };
        self.offset_count -= pending.count();
        self.offset_bytes -= pending.bytes();
        if !ended.commit {
            return true;
        }
        for (stream, offsets) in pending.offsets {
            for (partition, mut offset) in offsets {
                // They may have been pending for longer than offsets are kept.
                offset.committed_ms = offset.committed_ms.max(ended.ended_ms.unwrap_or(0));
                // What was committed meanwhile is newer, and was acknowledged.
                let committed = self.committed_order(stream, partition);
                if committed.is_none_or(|committed| committed <= offset.order) {
                    self.put_offset(stream, partition, offset);
                }
            }
        }
        true
    }

    /// The events that build what is pending.
    pub(super) fn pending_parts(&self) -> Vec<Body> {
        let mut bodies = Vec::new();
        for (producer, pending) in &self.pending {
            let transaction = OfTransaction {
                producer: *producer,
                number: pending.number,
            };
            for (stream, offsets) in &pending.offsets {
                let records = offsets.iter().map(|(at, offset)| offset.record(*at));
                bodies.extend(pending_parts(transaction, *stream, records));
            }
        }
        bodies
    }
}

/// The events that keep offsets of a stream aside.
pub(super) fn pending_parts(
    transaction: OfTransaction,
    stream: StreamId,
    offsets: impl Iterator<Item = OffsetRecord>,
) -> Vec<Body> {
    let runs = runs(offsets, prost::Message::encoded_len).into_iter();
    let parts = runs.map(|offsets| {
        Body::OffsetsPending(OffsetsPending {
            producer: transaction.producer,
            number: transaction.number,
            stream: stream.as_bytes().to_vec(),
            offsets,
        })
    });
    parts.collect()
}
