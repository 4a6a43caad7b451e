//! A classic group's durable state and how events change it.

use std::collections::BTreeMap;

use bytes::Bytes;
use kera_protocol::ids::StreamId;

use super::ConsumerGroup;
use super::event::{
    Assigned, Generation, MemberRecord, MemberReplaced, OffsetRecord, OffsetsRemoved, OffsetsSet,
    ProtocolRecord,
};
use super::pending::Pending;
use super::shares::{ShareConfig, ShareRecord};
use crate::event::{Body, GroupCreated, KIND_CLASSIC};

/// Bytes after which an event's list of members or offsets is continued in another event. With the
/// largest member on top, an event still fits a batch of the internal stream.
const EVENT_BYTES: usize = 64 << 10;
/// What an offset costs beside its metadata.
pub(crate) const OFFSET_BYTES: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) created_ms: u64,
    /// The host of the client that created it; empty if that is not known.
    pub(crate) created_by: String,
    pub(crate) generation: i32,
    pub(crate) protocol_type: String,
    pub(crate) protocol: String,
    pub(crate) leader: String,
    /// True if the members know, or may ask for, their assignments.
    pub(crate) assigned: bool,
    /// When the generation began.
    pub(crate) since_ms: u64,
    pub(crate) members: BTreeMap<String, Member>,
    /// What makes it a group of the consumer protocol; `members` is empty then.
    pub(crate) consumer: Option<ConsumerGroup>,
    pub(crate) offsets: BTreeMap<StreamId, BTreeMap<u32, Offset>>,
    /// Offsets, with those that are pending.
    pub(crate) offset_count: usize,
    pub(crate) offset_bytes: usize,
    /// What open transactions commit, by producer.
    pub(crate) pending: BTreeMap<i64, Pending>,
    /// What is set for it.
    pub(crate) config: ShareConfig,
    /// Of a share group: where it stands in each partition.
    pub(crate) shares: BTreeMap<(StreamId, u32), ShareRecord>,
    /// Parts of a generation, or of assignments, of which the last one has not come yet.
    staged: Vec<MemberRecord>,
    staged_parts: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Member {
    pub(crate) instance: Option<String>,
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) session_ms: u32,
    pub(crate) rebalance_ms: u32,
    pub(crate) protocols: Vec<(String, Bytes)>,
    pub(crate) assignment: Bytes,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Offset {
    pub(crate) offset: i64,
    pub(crate) leader_epoch: i32,
    pub(crate) metadata: String,
    pub(crate) committed_ms: u64,
    pub(crate) retention_ms: Option<u64>,
    /// Of the offsets of a partition, committed and pending, the later one has the greater; 0 where it was committed
    /// while none was pending.
    pub(crate) order: u64,
}

impl Member {
    /// Its metadata for a protocol; empty if it does not offer it.
    pub(crate) fn metadata(&self, protocol: &str) -> Bytes {
        self.protocols
            .iter()
            .find(|(name, _)| name == protocol)
            .map(|(_, metadata)| metadata.clone())
            .unwrap_or_default()
    }

    pub(crate) fn bytes(&self) -> usize {
        let protocols = self.protocols.iter().map(|(name, m)| name.len() + m.len());
        protocols.sum::<usize>()
            + self.assignment.len()
            + self.client_id.len()
            + self.client_host.len()
            + 256
    }

    pub(crate) fn record(&self, id: &str) -> MemberRecord {
        MemberRecord {
            member: id.to_owned(),
            instance: self.instance.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            session_ms: self.session_ms,
            rebalance_ms: self.rebalance_ms,
            protocols: self
                .protocols
                .iter()
                .map(|(name, metadata)| ProtocolRecord {
                    name: name.clone(),
                    metadata: metadata.clone(),
                })
                .collect(),
            assignment: self.assignment.clone(),
        }
    }

    fn of(record: MemberRecord) -> (String, Self) {
        let member = Self {
            instance: record.instance,
            client_id: record.client_id,
            client_host: record.client_host,
            session_ms: record.session_ms,
            rebalance_ms: record.rebalance_ms,
            protocols: record
                .protocols
                .into_iter()
                .map(|protocol| (protocol.name, protocol.metadata))
                .collect(),
            assignment: record.assignment,
        };
        (record.member, member)
    }
}

impl Group {
    pub(crate) fn new(created: &GroupCreated) -> Self {
        Self {
            created_ms: created.created_ms,
            created_by: created.created_by.clone(),
            generation: 0,
            protocol_type: String::new(),
            protocol: String::new(),
            leader: String::new(),
            assigned: false,
            since_ms: created.created_ms,
            members: BTreeMap::new(),
            consumer: None,
            offsets: BTreeMap::new(),
            offset_count: 0,
            offset_bytes: 0,
            pending: BTreeMap::new(),
            config: ShareConfig::default(),
            shares: BTreeMap::new(),
            staged: Vec::new(),
            staged_parts: 0,
        }
    }

    pub(crate) fn created(created_ms: u64, created_by: &str) -> Body {
        Body::GroupCreated(GroupCreated {
            kind: KIND_CLASSIC,
            created_ms,
            created_by: created_by.to_owned(),
            ..GroupCreated::default()
        })
    }

    pub(crate) fn offset(&self, stream: StreamId, partition: u32) -> Option<&Offset> {
        self.offsets.get(&stream)?.get(&partition)
    }

    /// Applies one event. False if it does not fit the state, which then is as it was.
    pub(crate) fn apply(&mut self, body: &Body) -> bool {
        match body {
            Body::ClassicGeneration(generation) => self.begin(generation),
            Body::ClassicAssigned(assigned) => self.assign(assigned),
            Body::ClassicMemberReplaced(replaced) => self.replace(replaced),
            Body::OffsetsSet(set) => self.set_offsets(set),
            Body::OffsetsRemoved(removed) => self.remove_offsets(removed),
            Body::OffsetsPending(set) => self.set_pending(set),
            Body::OffsetsEnded(ended) => self.end_pending(ended),
            Body::ConsumerBegun(begun) => self.begin_consumers(begun),
            Body::ConsumerMemberSet(set) => self.set_consumer(set),
            Body::ConsumerMemberRemoved(removed) => self.remove_consumer(removed),
            Body::ConsumerTarget(target) => self.set_target(target),
            Body::ShareSet(set) => self.set_share(set),
            Body::SharesRemoved(removed) => self.remove_shares(removed),
            Body::ShareConfigSet(set) => self.set_share_config(set),
            _ => false,
        }
    }

    /// Takes a part of something; `None` if it does not follow the one before.
    fn stage(
        &mut self,
        part: u32,
        last: bool,
        members: &[MemberRecord],
    ) -> Option<Vec<MemberRecord>> {
        if part == 0 {
            self.staged.clear();
            self.staged_parts = 0;
        }
        if part != self.staged_parts {
            return None;
        }
        self.staged.extend_from_slice(members);
        self.staged_parts += 1;
        if !last {
            return Some(Vec::new());
        }
        self.staged_parts = 0;
        Some(std::mem::take(&mut self.staged))
    }

    fn begin(&mut self, generation: &Generation) -> bool {
        let Some(members) = self.stage(generation.part, generation.last, &generation.members)
        else {
            return false;
        };
        if generation.last {
            self.consumer = None;
            self.generation = generation.generation;
            self.protocol_type.clone_from(&generation.protocol_type);
            self.protocol.clone_from(&generation.protocol);
            self.leader.clone_from(&generation.leader);
            self.assigned = generation.assigned;
            self.since_ms = generation.since_ms;
            self.members = members.into_iter().map(Member::of).collect();
        }
        true
    }

    fn assign(&mut self, assigned: &Assigned) -> bool {
        if assigned.generation != self.generation {
            return false;
        }
        let Some(members) = self.stage(assigned.part, assigned.last, &assigned.members) else {
            return false;
        };
        let mut fits = true;
        if assigned.last {
            self.assigned = true;
            for record in members {
                match self.members.get_mut(&record.member) {
                    Some(member) => member.assignment = record.assignment,
                    None => fits = false,
                }
            }
        }
        fits
    }

    fn replace(&mut self, replaced: &MemberReplaced) -> bool {
        let Some(new) = replaced.new.clone() else {
            return false;
        };
        let Some(old) = self.members.remove(&replaced.old) else {
            return false;
        };
        let (id, mut member) = Member::of(new);
        member.assignment = old.assignment;
        if self.leader == replaced.old {
            self.leader.clone_from(&id);
        }
        self.members.insert(id, member);
        true
    }

    fn set_offsets(&mut self, set: &OffsetsSet) -> bool {
        let Some(stream) = StreamId::from_slice(&set.stream) else {
            return false;
        };
        for record in &set.offsets {
            let pending = self.pending_order(stream, record.partition);
            let order = pending.map_or(0, |last| last.saturating_add(1));
            self.put_offset(stream, record.partition, Offset::of(record, order));
        }
        true
    }

    pub(super) fn put_offset(&mut self, stream: StreamId, partition: u32, offset: Offset) {
        self.offset_count += 1;
        self.offset_bytes += OFFSET_BYTES + offset.metadata.len();
        let partitions = self.offsets.entry(stream).or_default();
        if let Some(old) = partitions.insert(partition, offset) {
            self.offset_count -= 1;
            self.offset_bytes -= OFFSET_BYTES + old.metadata.len();
        }
    }

    fn remove_offsets(&mut self, removed: &OffsetsRemoved) -> bool {
        let Some(stream) = StreamId::from_slice(&removed.stream) else {
            return false;
        };
        let Some(partitions) = self.offsets.get_mut(&stream) else {
            return false;
        };
        let gone: Vec<Offset> = if removed.all {
            std::mem::take(partitions).into_values().collect()
        } else {
            let gone = removed.partitions.iter();
            gone.filter_map(|partition| partitions.remove(partition))
                .collect()
        };
        if partitions.is_empty() {
            self.offsets.remove(&stream);
        }
        self.offset_count -= gone.len();
        self.offset_bytes -= gone
            .iter()
            .map(|offset| OFFSET_BYTES + offset.metadata.len())
            .sum::<usize>();
        removed.all || gone.len() == removed.partitions.len()
    }

    /// The events that build this state from nothing.
    pub(crate) fn snapshot(&self) -> Vec<Body> {
        let mut bodies = vec![Self::created(self.created_ms, &self.created_by)];
        if self.consumer.is_some() {
            bodies.extend(self.consumer_parts());
        } else if self.generation > 0 {
            let head = Generation {
                generation: self.generation,
                protocol_type: self.protocol_type.clone(),
                protocol: self.protocol.clone(),
                leader: self.leader.clone(),
                assigned: self.assigned,
                since_ms: self.since_ms,
                ..Generation::default()
            };
            let members = self.members.iter().map(|(id, member)| member.record(id));
            bodies.extend(generation_parts(&head, members));
        }
        for (stream, partitions) in &self.offsets {
            let records = partitions
                .iter()
                .map(|(&partition, offset)| offset.record(partition));
            bodies.extend(offset_parts(*stream, records));
        }
        bodies.extend(self.pending_parts());
        bodies.extend(self.share_parts());
        bodies
    }
}

impl Offset {
    /// Where reading goes on; `None` for a negative number, which only its client understands.
    pub(crate) fn ordinal(&self) -> Option<u64> {
        u64::try_from(self.offset).ok()
    }

    /// `order` is for a record that does not say its own.
    pub(super) fn of(record: &OffsetRecord, order: u64) -> Self {
        Self {
            offset: record.offset,
            leader_epoch: record.leader_epoch,
            metadata: record.metadata.clone(),
            committed_ms: record.committed_ms,
            retention_ms: record.retention_ms,
            order: match record.order {
                0 => order,
                known => known,
            },
        }
    }

    pub(super) fn record(&self, partition: u32) -> OffsetRecord {
        OffsetRecord {
            partition,
            offset: self.offset,
            leader_epoch: self.leader_epoch,
            metadata: self.metadata.clone(),
            committed_ms: self.committed_ms,
            retention_ms: self.retention_ms,
            order: self.order,
        }
    }
}

/// Cuts a list into runs of about [`EVENT_BYTES`]; at least one run, which may be empty.
pub(super) fn runs<T>(items: impl Iterator<Item = T>, bytes: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut runs = vec![Vec::new()];
    let mut filled = 0;
    for item in items {
        let size = bytes(&item);
        if filled > 0 && filled + size > EVENT_BYTES {
            runs.push(Vec::new());
            filled = 0;
        }
        filled += size;
        if let Some(run) = runs.last_mut() {
            run.push(item);
        }
    }
    runs
}

/// The events of a generation with these members; everything else is as in `head`.
pub(crate) fn generation_parts(
    head: &Generation,
    members: impl Iterator<Item = MemberRecord>,
) -> Vec<Body> {
    let runs = runs(members, prost::Message::encoded_len);
    let last = runs.len() - 1;
    runs.into_iter()
        .enumerate()
        .map(|(part, members)| {
            Body::ClassicGeneration(Generation {
                part: part as u32,
                last: part == last,
                members,
                ..head.clone()
            })
        })
        .collect()
}

/// The events of a generation's assignments.
pub(crate) fn assigned_parts(
    generation: i32,
    assignments: impl Iterator<Item = (String, Bytes)>,
) -> Vec<Body> {
    let records = assignments.map(|(member, assignment)| MemberRecord {
        member,
        assignment,
        ..MemberRecord::default()
    });
    let runs = runs(records, prost::Message::encoded_len);
    let last = runs.len() - 1;
    runs.into_iter()
        .enumerate()
        .map(|(part, members)| {
            Body::ClassicAssigned(Assigned {
                generation,
                part: part as u32,
                last: part == last,
                members,
            })
        })
        .collect()
}

/// The events that set offsets of a stream.
pub(crate) fn offset_parts(
    stream: StreamId,
    offsets: impl Iterator<Item = OffsetRecord>,
) -> Vec<Body> {
    runs(offsets, prost::Message::encoded_len)
        .into_iter()
        .map(|offsets| {
            Body::OffsetsSet(OffsetsSet {
                stream: stream.as_bytes().to_vec(),
                offsets,
            })
        })
        .collect()
}
