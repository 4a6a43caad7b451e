//! Members of share groups (KIP-932): heartbeats that carry all of a member's life, and what a group is doing.

use std::collections::{BTreeMap, HashSet};

use kafka_protocol::messages::share_group_describe_response::{
    Assignment as DescribedAssignment, DescribedGroup, Member, TopicPartitions as DescribedTopic,
};
use kafka_protocol::messages::share_group_heartbeat_response::{Assignment, TopicPartitions};
use kafka_protocol::messages::{
    GroupId, ShareGroupDescribeRequest, ShareGroupDescribeResponse, ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use kera_coordinator::classic::consumer::{ConsumerBeat, Partitions, ShareHeartbeat};
use kera_coordinator::classic::{Reply, Request};
use kera_metadata::INTERNAL_PREFIX;
use kera_protocol::ids::StreamId;

use super::consumer::{look_at, numbers, uuid_of};
use super::{client_id, host, mismatch, owned, text, try_ask};
use crate::context::Ctx;
use crate::errors::NONE;
use crate::refusal::Refusal;
use crate::shares::check_feature;

/// ShareGroupHeartbeat: a member joins, lives, and leaves.
pub(crate) async fn share_heartbeat(
    ctx: &Ctx,
    _version: i16,
    request: ShareGroupHeartbeatRequest,
) -> ShareGroupHeartbeatResponse {
    let response = ShareGroupHeartbeatResponse::default().with_error_message(None);
    let member = request.member_id.clone();
    match beat(ctx, request).await {
        Ok(beat) => response
            .with_error_code(NONE)
            .with_member_id(Some(member))
            .with_member_epoch(beat.epoch)
            .with_heartbeat_interval_ms(i32::try_from(beat.heartbeat_ms).unwrap_or(i32::MAX))
            .with_assignment(beat.assignment.map(assignment)),
        Err(refusal) => response
            .with_error_code(refusal.code)
            .with_error_message(Some(refusal.text())),
    }
}

async fn beat(ctx: &Ctx, request: ShareGroupHeartbeatRequest) -> Result<ConsumerBeat, Refusal> {
    check_feature(ctx)?;
    ctx.check_group(&request.group_id)?;
    let topics = request.subscribed_topic_names;
    for name in topics.iter().flatten() {
        ctx.check_topic(name)?;
    }
    // The broker's own streams are no topics.
    let topics = topics.map(|topics| {
        let shown = topics
            .iter()
            .filter(|name| !name.starts_with(INTERNAL_PREFIX));
        shown.map(|name| name.as_str().to_owned()).collect()
    });
    let heartbeat = ShareHeartbeat {
        group: request.group_id.to_string(),
        member: request.member_id.to_string(),
        epoch: request.member_epoch,
        rack: owned(&request.rack_id),
        topics,
        client_id: client_id(ctx),
        client_host: host(ctx),
    };
    match try_ask(ctx, Request::ShareHeartbeat(heartbeat)).await? {
        Reply::ConsumerBeat(beat) => Ok(beat),
        other => Err(Refusal::of(mismatch(&other), String::new())),
    }
}

fn assignment(partitions: Partitions) -> Assignment {
    let topics = partitions.into_iter().map(|(stream, partitions)| {
        TopicPartitions::default()
            .with_topic_id(uuid_of(stream))
            .with_partitions(numbers(partitions))
    });
    Assignment::default().with_topic_partitions(topics.collect())
}

/// ShareGroupDescribe.
pub(crate) async fn share_describe(
    ctx: &Ctx,
    _version: i16,
    request: ShareGroupDescribeRequest,
) -> ShareGroupDescribeResponse {
    let mut groups = Vec::with_capacity(request.group_ids.len());
    // Asked for twice it is answered once: an answer grows with groups, not with requests.
    let mut seen = HashSet::new();
    for group in request.group_ids {
        if !seen.insert(group.clone()) {
            continue;
        }
        let described = match describe(ctx, &group).await {
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
    ShareGroupDescribeResponse::default().with_groups(groups)
}

async fn describe(ctx: &Ctx, group: &GroupId) -> Result<DescribedGroup, Refusal> {
    check_feature(ctx)?;
    let asked = Request::ShareDescribe(group.to_string());
    let (found, names) = look_at(ctx, group, asked).await?;
    let members = found.members.into_iter().map(|member| {
        let topics = member.topics.into_iter();
        Member::default()
            .with_member_id(text(member.member))
            .with_rack_id(member.rack.map(text))
            .with_member_epoch(member.epoch)
            .with_client_id(text(member.client_id))
            .with_client_host(text(member.client_host))
            .with_subscribed_topic_names(topics.map(|name| TopicName(text(name))).collect())
            .with_assignment(described(member.assigned, &names))
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
