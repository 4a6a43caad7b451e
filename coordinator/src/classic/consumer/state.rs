//! The durable state of a group of the consumer protocol, and how events change it.

use std::collections::{BTreeMap, BTreeSet};

use kera_protocol::ids::StreamId;

use super::event::{ConsumerMemberSet, ConsumerTarget, PartitionsRecord, TargetRecord};

/// Partitions by stream. No set is empty.
pub type Partitions = BTreeMap<StreamId, BTreeSet<u32>>;

/// The epoch of a static member that left for a while.
pub(super) const LEFT: i32 = -2;
/// What a member costs beside its texts.
const MEMBER_BYTES: usize = 512;
/// What a text costs beside its bytes.
const TEXT_BYTES: usize = 32;
/// What a stream and a partition cost in a member's record.
const STREAM_BYTES: usize = 24;
const PARTITION_BYTES: usize = 3;

/// What a group of the consumer protocol has beside its offsets. Its epoch is [`Group::generation`], under which
/// `target` was computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ConsumerGroup {
    /// It is a share group: several members may have the same partition.
    pub(crate) shares: bool,
    pub(crate) members: BTreeMap<String, ConsumerMember>,
    /// What each member is to have in the end; nothing for those that are not in it.
    pub(crate) target: BTreeMap<String, Partitions>,
    /// Parts of a target of which the last one has not come yet.
    staged: Vec<TargetRecord>,
    staged_parts: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ConsumerMember {
    pub(crate) instance: Option<String>,
    pub(crate) rack: Option<String>,
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) user: Option<String>,
    pub(crate) rebalance_ms: u32,
    pub(crate) topics: BTreeSet<String>,
    /// A regular expression for further topics; empty without one.
    pub(crate) pattern: String,
    /// How it would have the work divided; empty if it has no wish.
    pub(crate) assignor: String,
    pub(crate) epoch: i32,
    /// The one before, which it may still name if it did not get the last answer.
    pub(crate) previous_epoch: i32,
    /// What it has, and may keep.
    pub(crate) assigned: Partitions,
    /// What it was told to give back, and has not said that it did.
    pub(crate) revoking: Partitions,
}

impl ConsumerMember {
    /// What it keeps of what it says, in bytes. Its id stands with the member, its target, its session and what it
    /// subscribes to.
    pub(crate) fn bytes(&self, id: &str) -> usize {
        let texts = [
            &self.client_id,
            &self.client_host,
            &self.pattern,
            &self.assignor,
        ];
        let topics = self.topics.iter().chain(texts);
        let optional = [&self.instance, &self.rack, &self.user]
            .into_iter()
            .flatten();
        let texts = topics.chain(optional).map(|text| text.len() + TEXT_BYTES);
        texts.sum::<usize>() + 4 * id.len() + MEMBER_BYTES
    }

    pub(crate) fn record(&self, id: &str) -> ConsumerMemberSet {
        ConsumerMemberSet {
            member: id.to_owned(),
            instance: self.instance.clone(),
            rack: self.rack.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            user: self.user.clone(),
            rebalance_ms: self.rebalance_ms,
            topics: self.topics.iter().cloned().collect(),
            pattern: self.pattern.clone(),
            assignor: self.assignor.clone(),
            epoch: self.epoch,
            previous_epoch: self.previous_epoch,
            assigned: records(&self.assigned),
            revoking: records(&self.revoking),
        }
    }

    pub(super) fn of(record: &ConsumerMemberSet) -> Self {
        Self {
            instance: record.instance.clone(),
            rack: record.rack.clone(),
            client_id: record.client_id.clone(),
            client_host: record.client_host.clone(),
            user: record.user.clone(),
            rebalance_ms: record.rebalance_ms,
            topics: record.topics.iter().cloned().collect(),
            pattern: record.pattern.clone(),
            assignor: record.assignor.clone(),
            epoch: record.epoch,
            previous_epoch: record.previous_epoch,
            assigned: partitions(&record.assigned),
            revoking: partitions(&record.revoking),
        }
    }
}

impl ConsumerGroup {
    /// Without members; a share group, or one of consumers.
    pub(super) fn new(shares: bool) -> Self {
        Self {
            shares,
            ..Self::default()
        }
    }

    /// What a member is to have.
    pub(crate) fn target_of(&self, member: &str) -> Partitions {
        self.target.get(member).cloned().unwrap_or_default()
    }

    /// The member of an instance's name.
    pub(crate) fn of_instance(&self, instance: &str) -> Option<(&String, &ConsumerMember)> {
        let mut members = self.members.iter();
        members.find(|(_, member)| member.instance.as_deref() == Some(instance))
    }

    /// What members other than `except` have, or have not given back.
    pub(crate) fn held_by_others(&self, except: &str) -> BTreeSet<(StreamId, u32)> {
        let others = self.members.iter().filter(|(id, _)| *id != except);
        let held = others.flat_map(|(_, member)| [&member.assigned, &member.revoking]);
        held.flat_map(each).collect()
    }

    pub(super) fn set_target(&mut self, target: &ConsumerTarget) -> bool {
        if target.part == 0 {
            self.staged.clear();
            self.staged_parts = 0;
        }
        if target.part != self.staged_parts {
            return false;
        }
        self.staged.extend_from_slice(&target.members);
        self.staged_parts += 1;
        if target.last {
            for record in std::mem::take(&mut self.staged) {
                let share = partitions(&record.partitions);
                match share.is_empty() {
                    true => self.target.remove(&record.member),
                    false => self.target.insert(record.member, share),
                };
            }
            self.staged_parts = 0;
        }
        true
    }
}

/// Each partition.
pub(super) fn each(partitions: &Partitions) -> impl Iterator<Item = (StreamId, u32)> {
    let streams = partitions.iter();
    streams.flat_map(|(stream, numbers)| numbers.iter().map(|number| (*stream, *number)))
}

/// Whether a partition is among them.
pub(super) fn has(partitions: &Partitions, stream: StreamId, partition: u32) -> bool {
    let numbers = partitions.get(&stream);
    numbers.is_some_and(|numbers| numbers.contains(&partition))
}

/// About the bytes of a record of all partitions of streams, some of them to be given back.
pub(super) fn record_bytes(partitions: impl Iterator<Item = u32>) -> usize {
    partitions
        .map(|count| 2 * STREAM_BYTES + PARTITION_BYTES * count as usize)
        .sum()
}

pub(super) fn records(partitions: &Partitions) -> Vec<PartitionsRecord> {
    let streams = partitions.iter();
    let records = streams.map(|(stream, numbers)| PartitionsRecord {
        stream: stream.as_bytes().to_vec(),
        partitions: numbers.iter().copied().collect(),
    });
    records.collect()
}

fn partitions(records: &[PartitionsRecord]) -> Partitions {
    let known = records
        .iter()
        .filter(|record| !record.partitions.is_empty());
    let known = known.filter_map(|record| {
        let stream = StreamId::from_slice(&record.stream)?;
        Some((stream, record.partitions.iter().copied().collect()))
    });
    known.collect()
}
