//! The coordinator's part in what share groups have read.

use kera_protocol::ids::Ordinal;

use super::request::{
    ShareConfigure, ShareOffset, ShareOpen, ShareOpened, ShareSetOffsets, ShareWrite,
};
use super::{ShareConfig, ShareConfigSet, ShareRecord, ShareSet, SharesRemoved};
use crate::classic::group::Group;
use crate::classic::join::check_group_id;
use crate::classic::{Fault, GroupState, Reply};
use crate::coordinator::{Coordinator, Step};
use crate::event::Body;
use crate::share::ShareState;
use crate::view::{LaneView, StreamShape};

impl Coordinator {
    pub(in crate::classic) fn is_share_group(&self, name: &str) -> bool {
        let group = self.state.classic.get(name);
        group.is_some_and(Group::is_share)
    }

    fn share_group(&self, name: &str) -> Result<&Group, Fault> {
        let group = self.state.classic.get(name).ok_or(Fault::GroupNotFound)?;
        match group.is_share() {
            true => Ok(group),
            false => Err(Fault::NotShare),
        }
    }

    pub(in crate::classic) fn share_open(
        &mut self,
        request: &ShareOpen,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let name = request.group.as_str();
        let group = self.share_group(name)?;
        let stream = view.stream_by_id(request.stream);
        let partitions = stream.map_or(0, |stream| stream.partitions());
        if request.partition >= partitions {
            return Err(Fault::UnknownPartition);
        }
        let key = (request.stream, request.partition);
        let known = group.shares.get(&key);
        if known.is_some_and(|known| known.owner_epoch > request.owner_epoch) {
            return Err(Fault::FencedShare);
        }
        if known.is_none() {
            self.share_check_room(name, None, &ShareState::default())?;
        }
        let group = self.share_group(name)?;
        let mut record = match group.shares.get(&key) {
            Some(known) => known.clone(),
            None => ShareRecord {
                of_partitions: partitions,
                ..ShareRecord::default()
            },
        };
        // What was appended before a member came to fetch of it counts: to the group it is all new.
        if record.state.is_none() && group.is_younger(request.stream, request.partition) {
            record.state = Some(ShareState::at(0));
        }
        // Above that of any owner before, also where what was kept of the partition was deleted in between.
        record.state_epoch = (record.state_epoch + 1).max(u64::from(request.owner_epoch) << 32);
        record.owner_epoch = request.owner_epoch;
        let opened = ShareOpened {
            state_epoch: record.state_epoch,
            state: record.state.clone(),
            config: group.config.clone(),
        };
        self.emit(step, name, Body::ShareSet(ShareSet::of(key, &record)));
        Ok(Reply::ShareOpened(opened))
    }

    pub(in crate::classic) fn share_write(
        &mut self,
        request: &ShareWrite,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let name = request.group.as_str();
        let key = (request.stream, request.partition);
        let known = self.share_group(name)?.shares.get(&key);
        let known = known.filter(|known| known.state_epoch == request.state_epoch);
        let known = known.ok_or(Fault::FencedShare)?;
        if view.stream_by_id(request.stream).is_none() {
            return Err(Fault::UnknownPartition);
        }
        let record = ShareRecord {
            state: Some(request.state.clone()),
            ..known.clone()
        };
        let before = known.state.as_ref().map_or(0, ShareState::bytes);
        self.share_check_room(name, Some(before), &request.state)?;
        self.emit(step, name, Body::ShareSet(ShareSet::of(key, &record)));
        Ok(Reply::ShareWritten)
    }

    /// Refuses what there is no room for. What was kept before goes on, and so does what takes less.
    fn share_check_room(
        &self,
        name: &str,
        before: Option<usize>,
        state: &ShareState,
    ) -> Result<(), Fault> {
        let limits = &self.limits.classic;
        let group = &self.state.classic[name];
        let more = state.bytes().saturating_sub(before.unwrap_or(0));
        let of_group = group.offset_bytes + more;
        let fits = of_group <= limits.group_offset_bytes
            && (self.state.offset_bytes + more <= limits.total_bytes
                || of_group <= limits.small_group_bytes);
        let is_new = before.is_none();
        match (is_new && group.offset_count >= limits.offsets) || ((is_new || more > 0) && !fits) {
            true => Err(Fault::TooManyOffsets),
            false => Ok(()),
        }
    }

    pub(in crate::classic) fn share_configure(
        &mut self,
        now_ms: u64,
        request: ShareConfigure,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        check_group_id(&request.group, &self.limits.classic)?;
        let name = request.group.as_str();
        if self.state.groups.contains_key(name) {
            return Err(Fault::OtherKind);
        }
        let group = self.state.classic.get(name);
        let before = group.map(|group| group.config.clone()).unwrap_or_default();
        let mut config = match request.whole {
            true => ShareConfig::default(),
            false => before.clone(),
        };
        for (name, value) in &request.changes {
            let set = config.set(name, value.as_deref());
            set.map_err(Fault::InvalidConfig)?;
        }
        if config == before || request.validate_only {
            return Ok(Reply::ShareConfigured(config));
        }
        if group.is_none() {
            self.classic_create(now_ms, name, &request.client_host, step)?;
        }
        self.emit(
            step,
            name,
            Body::ShareConfigSet(ShareConfigSet::of(&config)),
        );
        Ok(Reply::ShareConfigured(config))
    }

    pub(in crate::classic) fn share_offsets(&self, name: &str) -> Result<Reply, Fault> {
        let shares = self.share_group(name)?.shares.iter();
        let offsets = shares.map(|((stream, partition), record)| ShareOffset {
            stream: *stream,
            partition: *partition,
            start: record.state.as_ref().map(|state| state.start),
            done: record.state.as_ref().map_or(0, ShareState::done),
            owner_epoch: record.owner_epoch,
        });
        Ok(Reply::ShareOffsets(offsets.collect()))
    }

    pub(in crate::classic) fn share_set_offsets(
        &mut self,
        request: &ShareSetOffsets,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let name = request.group.as_str();
        self.share_group(name)?;
        if self.classic_live(name)?.state != GroupState::Empty {
            return Err(Fault::NonEmptyGroup);
        }
        let mut results = Vec::with_capacity(request.offsets.len());
        for &(stream, partition, start) in &request.offsets {
            let key = (stream, partition);
            let known = self.share_group(name)?.shares.get(&key).cloned();
            let Some(start) = start else {
                if known.is_some() {
                    let removed = SharesRemoved {
                        stream: stream.as_bytes().to_vec(),
                        partitions: vec![partition],
                    };
                    self.emit(step, name, Body::SharesRemoved(removed));
                }
                results.push(Ok(()));
                continue;
            };
            let shape = view.stream_by_id(stream);
            let Some(shape) = shape.filter(|shape| partition < shape.partitions()) else {
                results.push(Err(Fault::UnknownPartition));
                continue;
            };
            let before = known.as_ref().map(|_| 0);
            if let Err(fault) = self.share_check_room(name, before, &ShareState::at(start)) {
                results.push(Err(fault));
                continue;
            }
            self.share_set(name, &shape, partition, start, step);
            results.push(Ok(()));
        }
        Ok(Reply::ShareOffsetsSet(results))
    }

    /// A group begins in a partition with a record. Its owner writes nothing any more.
    pub(in crate::classic) fn share_set(
        &mut self,
        name: &str,
        stream: &StreamShape,
        partition: u32,
        start: Ordinal,
        step: &mut Step,
    ) {
        let key = (stream.id, partition);
        let known = self.state.classic.get(name);
        let known = known.and_then(|group| group.shares.get(&key));
        let mut record = known.cloned().unwrap_or_else(|| ShareRecord {
            of_partitions: stream.partitions(),
            ..ShareRecord::default()
        });
        record.state_epoch += 1;
        record.state = Some(ShareState::at(start));
        self.emit(step, name, Body::ShareSet(ShareSet::of(key, &record)));
    }

    /// Forgets partitions of streams that are gone, and those of a group that nobody was in for long.
    pub(in crate::classic) fn share_expire(
        &mut self,
        now_ms: u64,
        name: &str,
        view: &dyn LaneView,
        step: &mut Step,
    ) {
        let (Some(group), Some(live)) = (self.state.classic.get(name), self.classic.get(name))
        else {
            return;
        };
        if group.shares.is_empty() {
            return;
        }
        let retention_ms = self.limits.classic.offset_retention_ms;
        let is_over = live.state == GroupState::Empty
            && retention_ms > 0
            && group.since_ms.saturating_add(retention_ms) <= now_ms;
        let streams = group.shares_by_stream().into_iter();
        let gone = streams.filter(|(stream, _)| is_over || view.stream_by_id(*stream).is_none());
        let removed: Vec<SharesRemoved> = gone
            .map(|(stream, partitions)| SharesRemoved {
                stream: stream.as_bytes().to_vec(),
                partitions,
            })
            .collect();
        for removed in removed {
            self.emit(step, name, Body::SharesRemoved(removed));
        }
    }
}
