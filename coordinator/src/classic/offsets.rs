//! Committed offsets.

use std::collections::BTreeMap;

use kera_protocol::ids::StreamId;

use super::OffsetsRemoved;
use super::event::OffsetRecord;
use super::group::{OFFSET_BYTES, Offset, offset_parts};
use super::join::check_group_id;
use super::pending::pending_parts;
use super::request::{
    CommitOffsets, CommittedOffset, DeleteOffsets, Fault, FetchOffsets, GroupState, Reply,
};
use crate::coordinator::{Coordinator, Step};
use crate::event::Body;
use crate::view::LaneView;

impl Coordinator {
    pub(super) fn classic_commit(
        &mut self,
        now_ms: u64,
        request: CommitOffsets,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        check_group_id(&request.group, &self.limits.classic)?;
        let name = request.group.as_str();
        if self.state.groups.contains_key(name) {
            return Err(Fault::OtherKind);
        }
        if let Some(transaction) = request.transaction {
            self.classic_check_transaction(name, transaction)?;
        }
        if self.classic.contains_key(name) {
            self.check_committer(now_ms, &request)?;
        } else if request.generation >= 0 {
            return Err(Fault::IllegalGeneration);
        } else if !request.offsets.is_empty() {
            self.classic_create(now_ms, name, &request.client_host, step)?;
        } else {
            return Ok(Reply::Committed(Vec::new()));
        }
        let limits = &self.limits.classic;
        let group = &self.state.classic[name];
        let mut count = group.offset_count;
        // Bytes that the request adds.
        let mut added = 0;
        let mut results = Vec::with_capacity(request.offsets.len());
        let mut streams: BTreeMap<StreamId, BTreeMap<u32, OffsetRecord>> = BTreeMap::new();
        for wanted in request.offsets {
            if wanted.metadata.len() > limits.offset_metadata_bytes {
                results.push(Err(Fault::OffsetMetadataTooLarge));
                continue;
            }
            let in_request = streams
                .get(&wanted.stream)
                .and_then(|partitions| partitions.get(&wanted.partition))
                .map(|record| record.metadata.len());
            let before = in_request.or_else(|| {
                let offset = match request.transaction {
                    Some(transaction) => {
                        group.pending_offset(transaction, wanted.stream, wanted.partition)?
                    }
                    None => group.offset(wanted.stream, wanted.partition)?,
                };
                Some(offset.metadata.len())
            });
            let is_new = before.is_none();
            let before = before.map_or(0, |metadata| OFFSET_BYTES + metadata);
            let more = (OFFSET_BYTES + wanted.metadata.len()).saturating_sub(before);
            let of_group = group.offset_bytes + added + more;
            let of_all = self.state.offset_bytes + added + more;
            let fits = of_group <= limits.group_offset_bytes
                && (of_all <= limits.total_bytes || of_group <= limits.small_group_bytes);
            // One that was committed before goes on, whatever there is by now.
            if (is_new && count >= limits.offsets) || (more > 0 && !fits) {
                results.push(Err(Fault::TooManyOffsets));
                continue;
            }
            added += more;
            // A stream that is gone takes no offsets; nobody will look for them.
            if view.stream_by_id(wanted.stream).is_some() {
                count += usize::from(is_new);
                streams.entry(wanted.stream).or_default().insert(
                    wanted.partition,
                    OffsetRecord {
                        partition: wanted.partition,
                        offset: wanted.offset,
                        leader_epoch: wanted.leader_epoch,
                        metadata: wanted.metadata,
                        committed_ms: now_ms,
                        retention_ms: request.retention_ms,
                        order: 0,
                    },
                );
            }
            results.push(Ok(()));
        }
        for (stream, offsets) in streams {
            let records = offsets.into_values();
            let bodies = match request.transaction {
                Some(transaction) => pending_parts(transaction, stream, records),
                None => offset_parts(stream, records),
            };
            for body in bodies {
                self.emit(step, name, body);
            }
        }
        Ok(Reply::Committed(results))
    }

    /// Checks that the sender of a commit may commit.
    fn check_committer(&mut self, now_ms: u64, request: &CommitOffsets) -> Result<(), Fault> {
        if self.is_share_group(&request.group) {
            return Err(Fault::NotConsumer);
        }
        if self.classic_live(&request.group)?.consumer.is_some() {
            // Whoever commits by transactions alone need not be a member, as below.
            let anyone = request.transaction.is_some() && request.instance.is_none();
            return self.consumer_check(
                &request.group,
                &request.member,
                request.generation,
                anyone,
            );
        }
        let live = self.classic_live_mut(&request.group)?;
        let is_member = !request.member.is_empty() || request.instance.is_some();
        if request.generation < 0 && live.state == GroupState::Empty {
            return Ok(());
        }
        if request.generation < 0 && !is_member {
            // Whoever commits by transactions alone need not be a member: its transactional id fences it.
            return match request.transaction {
                Some(_) => Ok(()),
                None => Err(Fault::UnknownMember),
            };
        }
        live.check_member(&request.member, request.instance.as_deref())?;
        if request.generation != live.generation {
            return Err(Fault::IllegalGeneration);
        }
        live.touch(now_ms, &request.member);
        if live.state == GroupState::CompletingRebalance && request.transaction.is_none() {
            // It has heard of the generation, but does not know its share yet.
            return Err(Fault::RebalanceInProgress);
        }
        Ok(())
    }

    pub(super) fn classic_fetch(&self, request: FetchOffsets) -> Result<Reply, Fault> {
        check_group_id(&request.group, &self.limits.classic)?;
        if self.state.groups.contains_key(&request.group) {
            return Err(Fault::OtherKind);
        }
        if let Some((member, epoch)) = &request.member {
            self.consumer_check(&request.group, member, *epoch, true)?;
        }
        let group = self.state.classic.get(&request.group);
        let metadata = |offset: &Offset| offset.metadata.len();
        let bytes: usize = match &request.partitions {
            Some(partitions) => {
                let found = partitions
                    .iter()
                    .filter_map(|(stream, p)| group?.offset(*stream, *p));
                found.map(metadata).sum()
            }
            None => {
                let streams = group.into_iter().flat_map(|group| group.offsets.values());
                streams
                    .flat_map(|stream| stream.values())
                    .map(metadata)
                    .sum()
            }
        };
        if bytes > request.max_bytes {
            return Err(Fault::TooLarge);
        }
        let mut offsets: Vec<(StreamId, u32, Option<CommittedOffset>)> = match request.partitions {
            Some(partitions) => partitions
                .into_iter()
                .map(|(stream, partition)| {
                    let offset = group.and_then(|group| group.offset(stream, partition));
                    (stream, partition, offset.map(committed))
                })
                .collect(),
            None => group
                .into_iter()
                .flat_map(|group| group.partitions(request.require_stable))
                .map(|(stream, partition)| {
                    let offset = group.and_then(|group| group.offset(stream, partition));
                    (stream, partition, offset.map(committed))
                })
                .collect(),
        };
        if let Some(group) = group.filter(|_| request.require_stable) {
            for (stream, partition, offset) in &mut offsets {
                if group.is_unstable(*stream, *partition) {
                    *offset = Some(CommittedOffset::unstable());
                }
            }
        }
        Ok(Reply::Offsets(offsets))
    }

    pub(super) fn classic_delete_offsets(
        &mut self,
        request: &DeleteOffsets,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        check_group_id(&request.group, &self.limits.classic)?;
        let name = request.group.as_str();
        let live = self.classic_live(name)?;
        if live.state != GroupState::Empty && live.protocol_type != "consumer" {
            return Err(Fault::NonEmptyGroup);
        }
        let mut results = Vec::with_capacity(request.topics.len());
        let mut events = Vec::new();
        for topic in &request.topics {
            if live.subscribes(&topic.name) || self.consumer_subscribes(name, topic.stream) {
                let refused = topic.partitions.iter();
                results.push(refused.map(|_| Err(Fault::SubscribedToTopic)).collect());
                continue;
            }
            results.push(vec![Ok(()); topic.partitions.len()]);
            let mut partitions = topic.partitions.clone();
            partitions.sort_unstable();
            partitions.dedup();
            let group = &self.state.classic[name];
            partitions.retain(|partition| group.offset(topic.stream, *partition).is_some());
            if !partitions.is_empty() {
                events.push((topic.stream, partitions));
            }
        }
        for (stream, mut partitions) in events {
            // The same topic may stand in a request twice.
            let group = &self.state.classic[name];
            partitions.retain(|partition| group.offset(stream, *partition).is_some());
            if !partitions.is_empty() {
                self.classic_forget(name, stream, partitions, step);
            }
        }
        Ok(Reply::OffsetsDeleted(results))
    }

    fn classic_forget(
        &mut self,
        name: &str,
        stream: StreamId,
        partitions: Vec<u32>,
        step: &mut Step,
    ) {
        let removed = OffsetsRemoved {
            stream: stream.as_bytes().to_vec(),
            partitions,
            all: false,
        };
        self.emit(step, name, Body::OffsetsRemoved(removed));
    }

    /// Forgets offsets of streams that are gone, and those whose time is over.
    pub(super) fn classic_expire_offsets(
        &mut self,
        now_ms: u64,
        name: &str,
        view: &dyn LaneView,
        step: &mut Step,
    ) {
        let Some(group) = self.state.classic.get(name) else {
            return;
        };
        let is_empty = self
            .classic
            .get(name)
            .is_some_and(|live| live.state == GroupState::Empty && live.pending.is_empty());
        let retention_ms = self.limits.classic.offset_retention_ms;
        let is_over = |offset: &Offset| match (offset.retention_ms, retention_ms) {
            (Some(ms), _) => offset.committed_ms.saturating_add(ms) <= now_ms,
            (None, 0) => false,
            (None, ms) => offset.committed_ms.max(group.since_ms).saturating_add(ms) <= now_ms,
        };
        let mut removed = Vec::new();
        for (stream, offsets) in &group.offsets {
            let all = view.stream_by_id(*stream).is_none();
            let partitions: Vec<u32> = if all || !is_empty {
                Vec::new()
            } else {
                let over = offsets.iter().filter(|(_, offset)| is_over(offset));
                over.map(|(partition, _)| *partition).collect()
            };
            if all || !partitions.is_empty() {
                removed.push(OffsetsRemoved {
                    stream: stream.as_bytes().to_vec(),
                    partitions,
                    all,
                });
            }
        }
        for removed in removed {
            self.emit(step, name, Body::OffsetsRemoved(removed));
        }
    }
}

fn committed(offset: &Offset) -> CommittedOffset {
    CommittedOffset {
        offset: offset.offset,
        leader_epoch: offset.leader_epoch,
        metadata: offset.metadata.clone(),
        unstable: false,
    }
}

impl CommittedOffset {
    /// Of a partition of which no offset is stable.
    fn unstable() -> Self {
        Self {
            offset: -1,
            leader_epoch: -1,
            metadata: String::new(),
            unstable: true,
        }
    }
}
