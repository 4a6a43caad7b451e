//! Classic groups as people see them: progress and lag, and moving them.

use std::collections::BTreeMap;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, LaneKey, StreamId, StreamletId};
use kera_protocol::v1::{
    DescribeGroupResponse, GroupKind, GroupSummary, MemberDescription, PartitionProgress,
    ResetGroupRequest, ResetGroupResponse, StreamLag, start_at,
};

use super::consumer::Partitions;
use super::event::OffsetRecord;
use super::group::{Group, offset_parts};
use super::live::LiveGroup;
use super::request::GroupState;
use super::shares::SHARE;
use super::subscription;
use crate::admin::{not_empty, ordinals_at, sum_of};
use crate::coordinator::{Coordinator, Step};
use crate::view::{LaneView, StreamShape};

impl Coordinator {
    pub(crate) fn classic_summaries(&self, view: &dyn LaneView) -> Vec<GroupSummary> {
        let groups = self.state.classic.iter();
        groups
            .filter_map(|(name, group)| Some(summary(name, group, self.classic.get(name)?, view)))
            .collect()
    }

    /// Members and progress, if the group is of this kind.
    pub(crate) fn classic_progress(
        &self,
        now_ms: u64,
        name: &str,
        view: &dyn LaneView,
    ) -> Option<DescribeGroupResponse> {
        let group = self.state.classic.get(name)?;
        let live = self.classic.get(name)?;
        let mut assigned: BTreeMap<(String, u32), &str> = BTreeMap::new();
        let mut members = Vec::with_capacity(live.member_count());
        for (id, member) in group.consumer.iter().flat_map(|consumer| &consumer.members) {
            members.push(MemberDescription {
                member: id.clone(),
                client: member.client_id.clone(),
                last_heartbeat_ms_ago: live
                    .consumer
                    .as_ref()
                    .and_then(|live| live.seen_ms(id))
                    .map_or(0, |seen_ms| now_ms.saturating_sub(seen_ms)),
                host: member.client_host.trim_start_matches('/').to_owned(),
                instance: member.instance.clone().unwrap_or_default(),
                partitions: count(&member.assigned),
                epoch: member.epoch,
                revoking: count(&member.revoking),
                ..MemberDescription::default()
            });
            // What it is to give back it holds until it has.
            // Members of share groups share them, and none of them is told alone.
            let held = member.assigned.iter().chain(&member.revoking);
            for (stream, numbers) in held.filter(|_| !group.is_share()) {
                if let Some(shape) = view.stream_by_id(*stream) {
                    let held = numbers.iter().map(|number| (shape.name.clone(), *number));
                    assigned.extend(held.map(|partition| (partition, id.as_str())));
                }
            }
        }
        for (id, member) in &live.members {
            let share = subscription::assigned(&member.info.assignment).unwrap_or_default();
            members.push(MemberDescription {
                member: id.clone(),
                client: member.info.client_id.clone(),
                last_heartbeat_ms_ago: now_ms.saturating_sub(member.seen_ms),
                host: member.info.client_host.trim_start_matches('/').to_owned(),
                instance: member.info.instance.clone().unwrap_or_default(),
                partitions: share.len() as u32,
                ..MemberDescription::default()
            });
            let share = share.into_iter();
            assigned.extend(share.map(|(topic, p)| ((topic.to_owned(), p), id.as_str())));
        }
        let mut partitions = Vec::new();
        for (stream, numbers) in group.known_partitions() {
            let Some(shape) = view.stream_by_id(stream) else {
                continue;
            };
            for partition in numbers {
                let mut progress = progress(group, &shape, partition, view);
                let owner = assigned.remove(&(shape.name.clone(), partition));
                progress.member = owner.unwrap_or_default().to_owned();
                partitions.push(progress);
            }
        }
        // What is assigned and has no offset yet.
        for ((topic, partition), member) in assigned {
            if let Some(shape) = view.stream_by_name(&topic) {
                let mut progress = progress(group, &shape, partition, view);
                progress.member = member.to_owned();
                partitions.push(progress);
            }
        }
        partitions.sort_by(|a, b| (&a.stream, a.partition).cmp(&(&b.stream, b.partition)));
        Some(DescribeGroupResponse {
            summary: Some(summary(name, group, live, view)),
            members,
            lanes: Vec::new(),
            partitions,
            generation: live.generation,
            protocol: live.protocol.clone(),
        })
    }

    /// Sets the offsets of an empty group.
    pub(crate) fn classic_reset(
        &mut self,
        now_ms: u64,
        request: &ResetGroupRequest,
        at: &start_at::At,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<ResetGroupResponse, WireError> {
        let name = request.group.as_str();
        self.classic_check_empty(name, "reset")?;
        if request.streamlet.is_some() || request.lane.is_some() {
            return Err(invalid(format!(
                "group {name:?} belongs to Kafka clients: choose a stream and partition, not a streamlet and lane"
            )));
        }
        let group = &self.state.classic[name];
        let chosen = match &request.stream {
            Some(stream) => {
                let shape = view.stream_by_name(stream).ok_or_else(|| {
                    WireError::new(
                        ErrorCode::UnknownStream,
                        format!("stream {stream:?} does not exist: check the name"),
                    )
                })?;
                let partitions = match request.partition {
                    Some(partition) if partition < shape.partitions() => vec![partition],
                    Some(partition) => {
                        return Err(WireError::new(
                            ErrorCode::UnknownLane,
                            format!(
                                "stream {stream:?} has no partition {partition}: it has {}",
                                shape.partitions()
                            ),
                        ));
                    }
                    None => (0..shape.partitions()).collect(),
                };
                vec![(shape, partitions)]
            }
            None if request.partition.is_some() => {
                return Err(invalid(format!(
                    "reset of group {name:?} names a partition: name its stream too"
                )));
            }
            None => {
                let known = group.known_partitions().into_iter();
                known
                    .filter_map(|(stream, numbers)| Some((view.stream_by_id(stream)?, numbers)))
                    .collect()
            }
        };
        let total: usize = chosen.iter().map(|(_, partitions)| partitions.len()).sum();
        if group.offset_count + total > self.limits.classic.offsets {
            return Err(WireError::new(
                ErrorCode::Overloaded,
                format!(
                    "group {name:?} would keep offsets of more than {} partitions: name fewer",
                    self.limits.classic.offsets
                ),
            ));
        }
        let mut placed = Vec::new();
        for (shape, partitions) in &chosen {
            let lanes = partitions.iter().map(|&partition| shape.lane_of(partition));
            placed.push(ordinals_at(shape, at, lanes, view)?);
        }
        for ((shape, partitions), places) in chosen.iter().zip(placed) {
            if self.is_share_group(name) {
                for (&partition, (_, ordinal)) in partitions.iter().zip(places) {
                    self.share_set(name, shape, partition, ordinal, step);
                }
                continue;
            }
            let placed = partitions.iter().zip(places);
            let records = placed.map(|(&partition, (_, ordinal))| OffsetRecord {
                partition,
                offset: i64::try_from(ordinal).unwrap_or(i64::MAX),
                leader_epoch: -1,
                metadata: String::new(),
                committed_ms: now_ms,
                retention_ms: None,
                order: 0,
            });
            for body in offset_parts(shape.id, records) {
                self.emit(step, name, body);
            }
        }
        let group = &self.state.classic[name];
        let partitions = chosen.iter().flat_map(|(shape, partitions)| {
            let all = partitions.iter();
            all.map(move |partition| progress(group, shape, *partition, view))
        });
        Ok(ResetGroupResponse {
            lanes: Vec::new(),
            partitions: partitions.collect(),
        })
    }

    pub(crate) fn classic_check_empty(&self, name: &str, what: &str) -> Result<(), WireError> {
        match self.classic.get(name) {
            Some(live) if live.state != GroupState::Empty => {
                Err(not_empty(name, what, live.member_count()))
            }
            _ => Ok(()),
        }
    }
}

fn count(partitions: &Partitions) -> u32 {
    partitions
        .values()
        .map(|numbers| numbers.len() as u32)
        .sum()
}

impl StreamShape {
    /// The lane of a partition.
    fn lane_of(&self, partition: u32) -> LaneKey {
        let (streamlet, lane) = self.place_of(partition);
        LaneKey {
            stream: self.id,
            streamlet: StreamletId(streamlet),
            lane: LaneId(lane),
        }
    }
}

fn summary(name: &str, group: &Group, live: &LiveGroup, view: &dyn LaneView) -> GroupSummary {
    let lag = |(stream, numbers): (StreamId, Vec<u32>)| {
        let shape = view.stream_by_id(stream)?;
        let lags = numbers.into_iter();
        let lags = lags.map(|partition| Some(head_and_lag(group, &shape, partition, view)?.1));
        let (lag, unknown_lanes) = sum_of(lags);
        Some(StreamLag {
            lag,
            unknown_lanes,
            stream: shape.name.clone(),
        })
    };
    let known = group.known_partitions().into_iter();
    let mut streams: Vec<StreamLag> = known.filter_map(lag).collect();
    streams.sort_by(|a, b| a.stream.cmp(&b.stream));
    GroupSummary {
        group: name.to_owned(),
        members: live.member_count() as u32,
        lag: streams.iter().fold(0, |sum, s| sum.saturating_add(s.lag)),
        unknown_lanes: streams.iter().map(|of| of.unknown_lanes).sum(),
        kind: GroupKind::Kafka as i32,
        state: live.state.name().to_owned(),
        kafka_type: match &group.consumer {
            Some(consumer) if consumer.shares => SHARE,
            Some(_) => "consumer",
            None => "classic",
        }
        .to_owned(),
        streams,
        ..GroupSummary::default()
    }
}

/// Head, and durable records not committed; `None` while the partition's owner has not told where it ends.
fn head_and_lag(
    group: &Group,
    shape: &StreamShape,
    partition: u32,
    view: &dyn LaneView,
) -> Option<(u64, u64)> {
    let lane = shape.lane_of(partition);
    let status = view.lane(lane)?;
    let lag = group
        .place(shape.id, partition)
        .map_or(0, |(ordinal, done)| {
            let from = view.skip_gap(lane, ordinal.max(status.log_start));
            status.head.saturating_sub(from).saturating_sub(done)
        });
    Some((status.head, lag))
}

fn progress(
    group: &Group,
    shape: &StreamShape,
    partition: u32,
    view: &dyn LaneView,
) -> PartitionProgress {
    let offset = group.offset(shape.id, partition);
    let end = head_and_lag(group, shape, partition, view);
    let (head_ordinal, lag) = end.unwrap_or_default();
    PartitionProgress {
        stream: shape.name.clone(),
        partition,
        committed: group.place(shape.id, partition).map(|(ordinal, _)| ordinal),
        head_ordinal,
        lag,
        head_unknown: end.is_none(),
        member: String::new(),
        metadata: offset.map(|o| o.metadata.clone()).unwrap_or_default(),
    }
}

fn invalid(message: String) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, message)
}
