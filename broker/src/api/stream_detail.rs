//! One stream: lanes, groups of segments, replicas, owners.

use std::sync::Arc;
use std::time::Duration;

use kera_protocol::error::WireError;
use kera_protocol::ids::{GroupId, StreamletId};
use kera_protocol::partition::partition_of;
use kera_protocol::v1;
use serde::Serialize;

use super::bounds::{MOST_OF_LANES, fit};
use super::views::{GroupRow, StreamRow, StreamSettings};
use crate::admin;
use crate::admin::calls::describe::{join, stream_description};
use crate::clock::now_ms;
use crate::data::catalog::Stream;
use crate::shared::Shared;

/// How long other owners have to describe their lanes.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The newest groups of segments of a lane, as many as are told.
const GROUPS: usize = 12;

#[derive(Serialize)]
pub(super) struct StreamDetail {
    taken_ms: u64,
    #[serde(flatten)]
    row: StreamRow,
    /// None for those who may not see them.
    settings: Option<StreamSettings>,
    under_replicated_groups: u64,
    /// Those that the caller may see.
    consumer_groups: Vec<GroupRow>,
    unserved: Vec<Unserved>,
    lanes_total: usize,
    offset: usize,
    lanes: Vec<LaneDetail>,
}

#[derive(Serialize)]
struct Unserved {
    streamlet: u32,
    reason: String,
}

#[derive(Serialize)]
struct LaneDetail {
    streamlet: u32,
    lane: u32,
    partition: u64,
    owner: Option<u32>,
    epoch: u32,
    log_start: u64,
    head_ordinal: u64,
    end_ordinal: u64,
    records: u64,
    bytes: u64,
    producers: u32,
    groups_total: usize,
    groups: Vec<SegmentGroup>,
}

#[derive(Serialize)]
struct SegmentGroup {
    group: u64,
    epoch: u32,
    first_ordinal: u64,
    end_ordinal: u64,
    bytes: u64,
    closed: bool,
    /// Brokers that are recorded to hold it.
    brokers: Vec<u32>,
    /// Of one that is not closed.
    replicas: Vec<Replica>,
}

#[derive(Serialize)]
struct Replica {
    broker: u32,
    end: u64,
    placed: Option<u64>,
    flushed: Option<u64>,
    lost: Option<String>,
}

/// What of a stream is asked for.
pub(super) struct Asked {
    /// The first lane.
    pub(super) offset: usize,
    pub(super) limit: usize,
    /// The caller may see settings.
    pub(super) sees_settings: bool,
}

/// Describes a stream, with its row and consumer groups as the caller may see them.
pub(super) async fn describe(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    row: StreamRow,
    consumer_groups: Vec<GroupRow>,
    Asked {
        offset,
        limit,
        sees_settings,
    }: Asked,
) -> Result<StreamDetail, WireError> {
    let mut described = stream_description(shared, stream, None).await?;
    if shared.data.directory.is_shared() {
        let others = admin::describe_elsewhere(shared, stream, ANSWER_WITHIN).await;
        join(stream, &mut described, others);
    }
    let info = described.stream.unwrap_or_default();
    let mut lanes = described.lanes;
    lanes.sort_unstable_by_key(|lane| (lane.streamlet, lane.lane));
    let lanes_total = lanes.len();
    let lanes = lanes.into_iter().skip(offset).take(limit);
    let mut lanes = lanes
        .map(|lane| of_lane(shared, stream, &info, lane))
        .collect();
    fit(&mut lanes, MOST_OF_LANES);
    Ok(StreamDetail {
        taken_ms: now_ms(),
        row,
        settings: sees_settings.then(|| StreamSettings::of(&info)),
        under_replicated_groups: described.under_replicated_groups,
        consumer_groups,
        unserved: described
            .unrecovered
            .into_iter()
            .take(100)
            .map(unserved)
            .collect(),
        lanes_total,
        offset,
        lanes,
    })
}

fn unserved(one: v1::UnrecoveredStreamlet) -> Unserved {
    Unserved {
        streamlet: one.streamlet,
        reason: match one.reason.is_empty() {
            true => "it is being recovered".into(),
            false => one.reason,
        },
    }
}

fn of_lane(
    shared: &Shared,
    stream: &Stream,
    info: &v1::StreamInfo,
    lane: v1::LaneDescription,
) -> LaneDetail {
    let owner = info
        .streamlets
        .iter()
        .find(|of| of.streamlet == lane.streamlet);
    let groups_total = lane.groups.len();
    let newest = &lane.groups[groups_total.saturating_sub(GROUPS)..];
    let (id, number) = (
        StreamletId(lane.streamlet),
        kera_protocol::ids::LaneId(lane.lane),
    );
    LaneDetail {
        streamlet: lane.streamlet,
        lane: lane.lane,
        partition: partition_of(id, number, stream.streamlets.len() as u32),
        owner: owner.and_then(|owner| owner.broker),
        epoch: owner.map_or(0, |owner| owner.epoch),
        log_start: lane.log_start,
        head_ordinal: lane.head_ordinal,
        end_ordinal: lane.end_ordinal,
        records: lane.head_ordinal.saturating_sub(lane.log_start),
        bytes: lane.bytes,
        producers: lane.producers,
        groups_total,
        groups: newest
            .iter()
            .map(|group| {
                let of = lane.replicas.iter().filter(|one| one.group == group.group);
                SegmentGroup {
                    group: group.group,
                    epoch: group.epoch,
                    first_ordinal: group.first_ordinal,
                    end_ordinal: group.end_ordinal,
                    bytes: group.bytes,
                    closed: group.closed,
                    brokers: brokers_of(shared, stream, id, GroupId(group.group)),
                    replicas: of.map(replica).collect(),
                }
            })
            .collect(),
    }
}

fn brokers_of(shared: &Shared, stream: &Stream, id: StreamletId, group: GroupId) -> Vec<u32> {
    let streamlet = stream.streamlets.get(id.0 as usize);
    streamlet.map_or_else(Vec::new, |streamlet| {
        shared.data.directory.holders(streamlet.key().group(group))
    })
}

fn replica(position: &v1::ReplicaPosition) -> Replica {
    Replica {
        broker: position.broker,
        end: position.end,
        placed: position.placed,
        flushed: position.flushed,
        lost: Some(position.lost.clone()).filter(|lost| !lost.is_empty()),
    }
}
