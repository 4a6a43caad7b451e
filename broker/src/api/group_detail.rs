//! One consumer group: who holds which lease, and why a lane lags.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kera_coordinator::{Reply, Request};
use kera_grpc::serve::Caller;
use kera_metadata::LaneBy;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, StreamletId};
use kera_protocol::partition::place_of;
use kera_protocol::slices::SliceSet;
use kera_protocol::v1;
use serde::Serialize;

use super::bounds::{MOST_OF_LANES, MOST_OF_MEMBERS, fit};
use super::groups::waits;
use super::snapshot::{Snapshot, Unstable};
use super::views::{GroupRow, short};
use crate::access::hide_progress;
use crate::clock::now_ms;
use crate::coordination::CoordinatorKind;
use crate::data::catalog::Stream;
use crate::others;
use crate::shared::Shared;

/// How long the group's coordinator has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Members that are told.
const MEMBERS: usize = 200;
/// Leases of a lane that are told.
const LEASES: usize = 16;
/// Why the lag of a lane is not known.
const NOT_TOLD: &str = "its owner has not told where it ends";

#[derive(Serialize)]
pub(super) struct GroupDetail {
    taken_ms: u64,
    #[serde(flatten)]
    row: GroupRow,
    /// Of Kafka's clients: the protocol of their group, its generation or epoch, and how they divide the work.
    kafka_type: String,
    generation: i32,
    protocol: String,
    member_descriptions: Vec<Member>,
    lanes_total: usize,
    offset: usize,
    lanes: Vec<Lane>,
    partitions_total: usize,
    partitions: Vec<Partition>,
}

#[derive(Serialize)]
struct Member {
    member: String,
    client: String,
    host: String,
    instance: String,
    leases: u32,
    partitions: u32,
    /// Of the consumer protocol: its epoch, and the partitions that it is to give back.
    epoch: i32,
    revoking: u32,
    last_heartbeat_ms_ago: u64,
    /// Of the lanes and partitions that it has.
    lag: u64,
}

#[derive(Serialize)]
struct Lane {
    streamlet: u32,
    lane: u32,
    committed: u64,
    finished_above: u64,
    /// None, and so is the lag, while the lane's owner has not told where it ends.
    head_ordinal: Option<u64>,
    lag: Option<u64>,
    /// Durable records that an open transaction keeps from its readers.
    above_stable: u64,
    leases_total: usize,
    leases: Vec<Lease>,
    why: String,
}

#[derive(Serialize)]
struct Lease {
    lease: u64,
    member: String,
    start_ordinal: u64,
    end_ordinal: u64,
    /// Only where the order of keys is kept: the slices of the lane, as ranges.
    #[serde(skip_serializing_if = "Option::is_none")]
    slices: Option<String>,
}

#[derive(Serialize)]
struct Partition {
    stream: String,
    partition: u32,
    committed: Option<u64>,
    /// As of lanes.
    head_ordinal: Option<u64>,
    lag: Option<u64>,
    above_stable: u64,
    member: String,
    why: String,
}

/// What its coordinator says of a group, as far as the caller may see its streams; with the lanes from `offset` on, those
/// that lag most first.
pub(super) async fn describe(
    shared: &Arc<Shared>,
    caller: &Caller,
    group: &str,
    snapshot: &Snapshot,
    (offset, limit): (usize, usize),
) -> Result<GroupDetail, WireError> {
    let mut told = ask(shared, group).await?;
    hide_progress(shared, Some(caller), &mut told);
    let row = snapshot.groups.iter().find(|row| row.group == group);
    let row = row.map(|row| row.seen_by(shared, caller));
    let row = row.ok_or_else(|| {
        let text = format!(
            "group \"{group}\" has just come or gone, or its coordinator does not answer; ask again"
        );
        WireError::new(ErrorCode::UnknownConsumerGroup, text)
    })?;
    let mut lags: HashMap<&str, u64> = HashMap::new();
    for lane in &told.lanes {
        for lease in &lane.leases {
            *lags.entry(&lease.member).or_default() += lag_of(lane, lease);
        }
    }
    for partition in &told.partitions {
        *lags.entry(&partition.member).or_default() += partition.lag;
    }
    let mut members: Vec<_> = told
        .members
        .iter()
        .map(|member| of_member(member, &lags))
        .collect();
    members.sort_by(|a, b| (b.lag, &a.member).cmp(&(a.lag, &b.member)));
    members.truncate(MEMBERS);
    fit(&mut members, MOST_OF_MEMBERS);
    let stream = row
        .streams
        .first()
        .and_then(|of| shared.data.catalog.named(&of.stream));
    let waiting = |stream: &str, streamlet, lane| {
        let key = (stream.to_owned(), streamlet, lane);
        snapshot.unstable.get(&key).copied()
    };
    let of_lanes = row.streams.first().map_or("", |of| of.stream.as_str());
    let mut lanes: Vec<_> = told
        .lanes
        .iter()
        .map(|lane| (lane, waiting(of_lanes, lane.streamlet, lane.lane)))
        .collect();
    lanes.sort_by_key(|(lane, waits)| {
        let waits = waits.map(|waits| waits.records);
        (Reverse((lane.lag, waits)), lane.streamlet, lane.lane)
    });
    let mut partitions: Vec<_> = told
        .partitions
        .iter()
        .map(|of| {
            let stream = shared.data.catalog.named(&of.stream);
            let place = stream.map(|of_it| place_of(of.partition, of_it.streamlets.len() as u32));
            let waits = place.and_then(|(at, lane)| waiting(&of.stream, at.0, lane.0));
            (of, waits)
        })
        .collect();
    partitions.sort_by_key(|(of, waits)| {
        let waits = waits.map(|waits| waits.records);
        (Reverse((of.lag, waits)), of.stream.as_str(), of.partition)
    });
    let mut cut = row.clone().cut(None);
    if row.falls_behind
        && let Some(slow) = slow(&members)
    {
        cut.why = format!("{}; {slow}", cut.why);
    }
    let lanes_total = lanes.len();
    let partitions_total = partitions.len();
    let lanes = lanes.into_iter().skip(offset).take(limit);
    let lanes = lanes.map(|(lane, waits)| of_lane(lane, waits, &told, &row, stream.as_deref()));
    let mut lanes = lanes.collect();
    fit(&mut lanes, MOST_OF_LANES);
    let partitions = partitions.into_iter().skip(offset).take(limit);
    let partitions = partitions.map(|(of, waits)| of_partition(of, waits, &told));
    let mut partitions = partitions.collect();
    fit(&mut partitions, MOST_OF_LANES);
    Ok(GroupDetail {
        taken_ms: now_ms(),
        kafka_type: told
            .summary
            .as_ref()
            .map_or_else(String::new, |s| s.kafka_type.clone()),
        generation: told.generation,
        protocol: told.protocol.clone(),
        lanes_total,
        partitions_total,
        offset,
        lanes,
        partitions,
        member_descriptions: members,
        row: cut,
    })
}

async fn ask(shared: &Arc<Shared>, group: &str) -> Result<v1::DescribeGroupResponse, WireError> {
    let request = v1::DescribeGroupRequest {
        group: group.to_owned(),
    };
    let place = shared
        .coordination
        .place(shared, CoordinatorKind::Groups, group)
        .await?;
    if place.broker == shared.data.directory.me() {
        let answer = shared
            .coordination
            .call(shared, group, Request::DescribeGroup(request));
        return match answer.await? {
            Reply::DescribeGroup(told) => Ok(told),
            _ => Err(WireError::new(
                ErrorCode::Internal,
                "the coordinator gave an answer of another kind",
            )),
        };
    }
    let mut stub = others::consumers(shared, place.broker)?;
    others::answer(place.broker, ANSWER_WITHIN, stub.describe_group(request)).await
}

fn of_member(member: &v1::MemberDescription, lags: &HashMap<&str, u64>) -> Member {
    Member {
        member: member.member.clone(),
        client: member.client.clone(),
        host: member.host.clone(),
        instance: member.instance.clone(),
        leases: member.leases,
        partitions: member.partitions,
        epoch: member.epoch,
        revoking: member.revoking,
        last_heartbeat_ms_ago: member.last_heartbeat_ms_ago,
        lag: lags
            .get(member.member.as_str())
            .copied()
            .unwrap_or_default(),
    }
}

/// The member that most of the lag waits for, if there are others.
fn slow(members: &[Member]) -> Option<String> {
    let all: u64 = members.iter().map(|member| member.lag).sum();
    let most = members.iter().max_by_key(|member| member.lag)?;
    (members.len() > 1 && most.lag > all / 2).then(|| {
        format!(
            "member {} has most of it: {} of {all} records, heard of {} ms ago",
            short(&most.member),
            most.lag,
            most.last_heartbeat_ms_ago
        )
    })
}

fn of_lane(
    lane: &v1::LaneProgress,
    waits: Option<Unstable>,
    told: &v1::DescribeGroupResponse,
    row: &GroupRow,
    stream: Option<&Stream>,
) -> Lane {
    let leases = lane.leases.iter().take(LEASES);
    Lane {
        streamlet: lane.streamlet,
        lane: lane.lane,
        committed: lane.committed,
        finished_above: lane.finished_above,
        head_ordinal: (!lane.head_unknown).then_some(lane.head_ordinal),
        lag: (!lane.head_unknown).then_some(lane.lag),
        above_stable: waits.map_or(0, |waits| waits.records),
        leases_total: lane.leases.len(),
        leases: leases
            .map(|lease| Lease {
                lease: lease.lease,
                member: lease.member.clone(),
                start_ordinal: lease.start_ordinal,
                end_ordinal: lease.end_ordinal,
                slices: (lease.slices != 0).then(|| SliceSet::from_bits(lease.slices).to_string()),
            })
            .collect(),
        why: why(lane, waits, told, row, stream),
    }
}

/// What of a lane's lag waits for a lease: where its keys have several holders, what lies above the lease's own position.
fn lag_of(lane: &v1::LaneProgress, lease: &v1::HeldLease) -> u64 {
    match lease.slices {
        0 => lane.lag,
        _ => lane
            .lag
            .min(lane.head_ordinal.saturating_sub(lease.committed)),
    }
}

/// Tells that an open transaction holds back the rest of a lane. Empty if there is none.
fn behind_transaction(waits_for: Option<Unstable>) -> String {
    waits_for.map_or_else(String::new, |open| {
        let (from, records) = (open.from, waits(open.records));
        format!("a transaction is open from ordinal {from} on: {records}")
    })
}

/// Why a lane lags; empty if it does not.
fn why(
    lane: &v1::LaneProgress,
    waits: Option<Unstable>,
    told: &v1::DescribeGroupResponse,
    row: &GroupRow,
    stream: Option<&Stream>,
) -> String {
    if lane.head_unknown {
        return NOT_TOLD.into();
    }
    if lane.lag == 0 {
        return behind_transaction(waits);
    }
    if row.members == 0 {
        return "no member".into();
    }
    if let Some(lease) = lane.leases.first() {
        return match lane.leases.len() {
            1 => read_by(&lease.member, told),
            many => format!("read by {} and {} more", short(&lease.member), many - 1),
        };
    }
    if let Some(held) = lane.held.first() {
        return format!(
            "waits for a transaction of producer {}, which commits ordinals {} to {}",
            held.producer_id, held.from_ordinal, held.next_ordinal
        );
    }
    match stream.and_then(|stream| barrier(lane, told, stream)) {
        Some((before, boundary)) => format!(
            "waits at a growth barrier: first lane {before} of the streamlet is to be consumed to {boundary}, where the lanes were grown"
        ),
        None => "free: no member has taken it yet".into(),
    }
}

fn read_by(name: &str, told: &v1::DescribeGroupResponse) -> String {
    let mut members = told.members.iter();
    let found = members.find(|member| member.member == name);
    let ms = found.map_or(0, |member| member.last_heartbeat_ms_ago);
    format!("read by {}, heard of {ms} ms ago", short(name))
}

/// The lane of the same streamlet that is to be consumed first, and how far: records of one key may have gone there
/// before the lanes were grown.
fn barrier(
    lane: &v1::LaneProgress,
    told: &v1::DescribeGroupResponse,
    stream: &Stream,
) -> Option<(u32, u64)> {
    let record = stream.record.load();
    if record.config.lane_by != LaneBy::Key {
        return None;
    }
    let older = record.lane_generations.len().saturating_sub(1) as u32;
    let same = told
        .lanes
        .iter()
        .filter(|one| one.streamlet == lane.streamlet);
    let mut others = same.filter(|one| one.lane != lane.lane);
    others.find_map(|one| {
        (0..older).find_map(|generation| {
            let id = StreamletId(one.streamlet);
            let boundary = stream.generation_end(id, LaneId(one.lane), generation)?;
            (one.committed < boundary).then_some((one.lane, boundary))
        })
    })
}

fn of_partition(
    of: &v1::PartitionProgress,
    waits: Option<Unstable>,
    told: &v1::DescribeGroupResponse,
) -> Partition {
    let why = match (of.lag, of.member.as_str()) {
        _ if of.head_unknown => NOT_TOLD.to_owned(),
        (0, _) => behind_transaction(waits),
        (_, "") => "no member".to_owned(),
        (_, member) => read_by(member, told),
    };
    Partition {
        why,
        above_stable: waits.map_or(0, |waits| waits.records),
        stream: of.stream.clone(),
        partition: of.partition,
        committed: of.committed,
        head_ordinal: (!of.head_unknown).then_some(of.head_ordinal),
        lag: (!of.head_unknown).then_some(of.lag),
        member: of.member.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_member_that_most_of_the_lag_waits_for_is_named() {
        let member = |(name, lag): (&str, u64)| Member {
            member: name.to_owned(),
            client: String::new(),
            host: String::new(),
            instance: String::new(),
            leases: 1,
            partitions: 0,
            epoch: 0,
            revoking: 0,
            last_heartbeat_ms_ago: 40,
            lag,
        };
        let told = |lags: &[(&str, u64)]| {
            let members: Vec<_> = lags.iter().copied().map(member).collect();
            slow(&members)
        };
        assert_eq!(
            told(&[("b", 900), ("a", 10), ("c", 90)]).as_deref(),
            Some("member b has most of it: 900 of 1000 records, heard of 40 ms ago")
        );
        assert_eq!(told(&[("a", 500), ("b", 500)]), None);
        assert_eq!(told(&[("a", 500)]), None);
        assert_eq!(told(&[("a", 0), ("b", 0)]), None);
    }
}
