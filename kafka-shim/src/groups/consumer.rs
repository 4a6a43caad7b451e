//! The consumer protocol (KIP-848): heartbeats that carry all of a member's life, and what a group is doing.

use std::collections::{BTreeMap, HashSet};

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::consumer_group_describe_response::{
    Assignment as DescribedAssignment, DescribedGroup, Member, TopicPartitions as DescribedTopic,
};
use kafka_protocol::messages::consumer_group_heartbeat_response::{Assignment, TopicPartitions};
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse, GroupId, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use kera_coordinator::classic::consumer::{
    ConsumerBeat, ConsumerDescription, ConsumerHeartbeat, ConsumerMemberDescription, Partitions,
};
use kera_coordinator::classic::{Reply, Request};
use kera_metadata::{Feature, INTERNAL_PREFIX};
use kera_protocol::ids::StreamId;
use uuid::Uuid;

use super::membership::fresh_id;
use super::{client_id, host, mismatch, owned, text, try_ask};
use crate::context::Ctx;
use crate::errors::NONE;
use crate::refusal::Refusal;

/// The epoch of a member that joins.
const JOIN_EPOCH: i32 = 0;
/// The first version in which members choose their ids.
const OWN_IDS_FROM: i16 = 1;
/// The kind of a member that speaks this protocol, as answers number it.
const CONSUMER_MEMBER: i8 = 1;
/// The first version that tells the kind.
const KINDS_FROM: i16 = 1;
/// About what a member takes in an answer beside its names and partitions.
const MEMBER_BYTES: usize = 128;
/// What a topic takes there beside its name, and a partition.
const TOPIC_BYTES: usize = 24;
const PARTITION_BYTES: usize = 4;

/// ConsumerGroupHeartbeat: a member joins, lives, moves on to another share, and leaves.
pub(crate) async fn consumer_heartbeat(
    ctx: &Ctx,
    version: i16,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    let response = ConsumerGroupHeartbeatResponse::default().with_error_message(None);
    match beat(ctx, version, request).await {
        Ok((member, beat)) => response
            .with_error_code(NONE)
            .with_member_id(Some(text(member)))
            .with_member_epoch(beat.epoch)
            .with_heartbeat_interval_ms(i32::try_from(beat.heartbeat_ms).unwrap_or(i32::MAX))
            .with_assignment(beat.assignment.map(assignment)),
        Err(refusal) => response
            .with_error_code(refusal.code)
            .with_error_message(Some(refusal.text())),
    }
}

async fn beat(
    ctx: &Ctx,
    version: i16,
    request: ConsumerGroupHeartbeatRequest,
) -> Result<(String, ConsumerBeat), Refusal> {
    check_feature(ctx)?;
    ctx.check_group(&request.group_id)?;
    let topics = request.subscribed_topic_names;
    for name in topics.iter().flatten() {
        ctx.check_topic(name)?;
    }
    let joins = request.member_epoch == JOIN_EPOCH;
    let member = match request.member_id.is_empty() && joins && version < OWN_IDS_FROM {
        true => fresh_id(""),
        false => request.member_id.to_string(),
    };
    // The broker's own streams are no topics.
    let topics = topics.map(|topics| {
        let shown = topics
            .iter()
            .filter(|name| !name.starts_with(INTERNAL_PREFIX));
        shown.map(|name| name.as_str().to_owned()).collect()
    });
    let heartbeat = ConsumerHeartbeat {
        group: request.group_id.to_string(),
        member: member.clone(),
        epoch: request.member_epoch,
        instance: owned(&request.instance_id),
        rack: owned(&request.rack_id),
        rebalance_ms: u32::try_from(request.rebalance_timeout_ms).ok(),
        topics,
        pattern: owned(&request.subscribed_topic_regex),
        assignor: owned(&request.server_assignor),
        owned: request.topic_partitions.map(|topics| {
            let topics = topics.into_iter().filter_map(|topic| {
                let stream = StreamId::from_slice(topic.topic_id.as_bytes())?;
                let numbers = topic.partitions.into_iter();
                Some((
                    stream,
                    numbers.filter_map(|p| u32::try_from(p).ok()).collect(),
                ))
            });
            topics.collect()
        }),
        client_id: client_id(ctx),
        client_host: host(ctx),
        user: ctx.principal.user().map(|name| name.to_string()),
    };
    match try_ask(ctx, Request::ConsumerHeartbeat(heartbeat)).await? {
        Reply::ConsumerBeat(beat) => Ok((member, beat)),
        other => Err(Refusal::of(mismatch(&other), String::new())),
    }
}

/// Refused as by a Kafka that has no such groups, until every broker can read what is remembered of them.
fn check_feature(ctx: &Ctx) -> Result<(), Refusal> {
    let required = ctx.shared.require(Feature::ConsumerProtocol);
    required.map_err(|error| Refusal::new(ResponseError::UnsupportedVersion, error.message))
}

pub(super) fn uuid_of(stream: StreamId) -> Uuid {
    Uuid::from_slice(stream.as_bytes()).unwrap_or_default()
}

pub(super) fn numbers(numbers: impl IntoIterator<Item = u32>) -> Vec<i32> {
    let numbers = numbers.into_iter();
    numbers
        .filter_map(|number| i32::try_from(number).ok())
        .collect()
}

fn assignment(partitions: Partitions) -> Assignment {
    let topics = partitions.into_iter().map(|(stream, partitions)| {
        TopicPartitions::default()
            .with_topic_id(uuid_of(stream))
            .with_partitions(numbers(partitions))
    });
    Assignment::default().with_topic_partitions(topics.collect())
}

/// ConsumerGroupDescribe.
pub(crate) async fn consumer_describe(
    ctx: &Ctx,
    version: i16,
    request: ConsumerGroupDescribeRequest,
) -> ConsumerGroupDescribeResponse {
    let mut groups = Vec::with_capacity(request.group_ids.len());
    // Asked for twice it is answered once: an answer grows with groups, not with requests.
    let mut seen = HashSet::new();
    for group in request.group_ids {
        if !seen.insert(group.clone()) {
            continue;
        }
        let described = match describe(ctx, version, &group).await {
            Ok(described) if request.include_authorized_operations => {
                described.with_authorized_operations(ctx.rights_to_group(&group))
            }
            Ok(described) => described,
            Err(refusal) => DescribedGroup::default()
                .with_error_code(refusal.code)
                .with_error_message(Some(refusal.text())),
        };
        groups.push(described.with_group_id(group));
    }
    ConsumerGroupDescribeResponse::default().with_groups(groups)
}

async fn describe(ctx: &Ctx, version: i16, group: &GroupId) -> Result<DescribedGroup, Refusal> {
    check_feature(ctx)?;
    let asked = Request::ConsumerDescribe(group.to_string());
    let (found, names) = look_at(ctx, group, asked).await?;
    let members = found.members.into_iter().map(|member| {
        let pattern = Some(member.pattern).filter(|pattern| !pattern.is_empty());
        let topics = member.topics.into_iter();
        Member::default()
            .with_member_id(text(member.member))
            .with_instance_id(member.instance.map(text))
            .with_rack_id(member.rack.map(text))
            .with_member_epoch(member.epoch)
            .with_client_id(text(member.client_id))
            .with_client_host(text(member.client_host))
            .with_subscribed_topic_names(topics.map(|name| TopicName(text(name))).collect())
            .with_subscribed_topic_regex(pattern.map(text))
            .with_assignment(described(member.assigned, &names))
            .with_target_assignment(described(member.target, &names))
            .with_member_type(if version >= KINDS_FROM {
                CONSUMER_MEMBER
            } else {
                -1
            })
    });
    Ok(DescribedGroup::default()
        .with_error_code(NONE)
        .with_error_message(None)
        .with_group_state(StrBytes::from_static_str(found.state.name()))
        .with_group_epoch(found.epoch)
        .with_assignment_epoch(found.epoch)
        .with_assignor_name(text(found.assignor))
        .with_members(members.collect()))
}

/// What a group is doing, by the `request` that asks its coordinator, and the names of its topics.
///
/// # Errors
/// The client may not see that, or the answer would be too long.
pub(super) async fn look_at(
    ctx: &Ctx,
    group: &GroupId,
    request: Request,
) -> Result<(ConsumerDescription, BTreeMap<StreamId, String>), Refusal> {
    ctx.check_group(group)?;
    let found = match try_ask(ctx, request).await? {
        Reply::ConsumerDescribed(found) => found,
        other => return Err(Refusal::of(mismatch(&other), String::new())),
    };
    let names = names(ctx, &found)?;
    let bytes = found.members.iter().map(|member| bytes(member, &names));
    if !ctx.has_room_for(bytes.sum()).await {
        return Err(Refusal::too_long());
    }
    Ok((found, names))
}

/// The names of the topics that members have or are to have.
fn names(ctx: &Ctx, found: &ConsumerDescription) -> Result<BTreeMap<StreamId, String>, Refusal> {
    let members = found.members.iter();
    let shares = members.flat_map(|member| [&member.assigned, &member.target]);
    let mut names = BTreeMap::new();
    for stream in shares.flat_map(BTreeMap::keys) {
        if let Some(known) = ctx.shared.data.catalog.get(*stream) {
            names.insert(*stream, known.name());
        }
    }
    let topics = found.members.iter().flat_map(|member| &member.topics);
    for name in names.values().chain(topics) {
        ctx.check_topic(name)?;
    }
    Ok(names)
}

fn bytes(member: &ConsumerMemberDescription, names: &BTreeMap<StreamId, String>) -> usize {
    let topics: usize = member.topics.iter().map(|name| name.len() + 4).sum();
    let shares = member.assigned.iter().chain(&member.target);
    let shares = shares.map(|(stream, partitions)| {
        let name = names.get(stream).map_or(0, String::len);
        TOPIC_BYTES + name + partitions.len() * PARTITION_BYTES
    });
    MEMBER_BYTES + member.member.len() + member.client_id.len() + topics + shares.sum::<usize>()
}

fn described(partitions: Partitions, names: &BTreeMap<StreamId, String>) -> DescribedAssignment {
    let topics = partitions.into_iter().filter_map(|(stream, partitions)| {
        let name = names.get(&stream)?;
        let topic = DescribedTopic::default()
            .with_topic_id(uuid_of(stream))
            .with_topic_name(TopicName(text(name.clone())))
            .with_partitions(numbers(partitions));
        Some(topic)
    });
    DescribedAssignment::default().with_topic_partitions(topics.collect())
}
