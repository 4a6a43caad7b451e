//! Where share groups stand, and setting it: DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets.

use std::collections::{BTreeMap, HashMap, HashSet};

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::alter_share_group_offsets_response::{
    AlterShareGroupOffsetsResponsePartition, AlterShareGroupOffsetsResponseTopic,
};
use kafka_protocol::messages::delete_share_group_offsets_response::DeleteShareGroupOffsetsResponseTopic;
use kafka_protocol::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestTopic;
use kafka_protocol::messages::describe_share_group_offsets_response::{
    DescribeShareGroupOffsetsResponseGroup, DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
};
use kafka_protocol::messages::{
    AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse, DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse, DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse, GroupId, TopicName,
};
use kera_broker::audit::Change;
use kera_coordinator::classic::shares::{ShareOffset, ShareSetOffsets};
use kera_coordinator::classic::{Fault, Reply, Request};
use kera_protocol::ids::StreamId;

use super::consumer::uuid_of;
use super::{fault_code, mismatch, text, try_ask};
use crate::context::Ctx;
use crate::errors::NONE;
use crate::refusal::Refusal;
use crate::shares::check_feature;
use crate::topic;

/// Of a partition that the group has not read.
const UNKNOWN: i64 = -1;
/// What a partition takes in an answer, and a topic beside its name.
const PARTITION_BYTES: usize = 32;
const TOPIC_BYTES: usize = 32;

/// DescribeShareGroupOffsets: where a group begins to read, of the partitions asked or of all that it has read.
pub(crate) async fn describe_share_offsets(
    ctx: &Ctx,
    _version: i16,
    request: DescribeShareGroupOffsetsRequest,
) -> DescribeShareGroupOffsetsResponse {
    let mut groups = Vec::with_capacity(request.groups.len());
    let mut seen = HashSet::new();
    for group in request.groups {
        if !seen.insert(group.group_id.clone()) {
            continue;
        }
        let response = DescribeShareGroupOffsetsResponseGroup::default().with_error_message(None);
        let response = match describe(ctx, &group.group_id, group.topics).await {
            Ok(topics) => response.with_topics(topics),
            Err(refusal) => response
                .with_error_code(refusal.code)
                .with_error_message(Some(refusal.text())),
        };
        groups.push(response.with_group_id(group.group_id));
    }
    DescribeShareGroupOffsetsResponse::default().with_groups(groups)
}

async fn describe(
    ctx: &Ctx,
    group: &GroupId,
    topics: Option<Vec<DescribeShareGroupOffsetsRequestTopic>>,
) -> Result<Vec<DescribeShareGroupOffsetsResponseTopic>, Refusal> {
    check_feature(ctx)?;
    ctx.check_group(group)?;
    // Of topics that the client may not see nothing is asked.
    let sees = |topics: &Vec<DescribeShareGroupOffsetsRequestTopic>| {
        let mut topics = topics.iter();
        topics.any(|topic| ctx.may_topic(&topic.topic_name))
    };
    let known = match topics.as_ref().is_none_or(sees) {
        true => known(ctx, group).await?,
        false => Vec::new(),
    };
    let mut by_stream: BTreeMap<StreamId, BTreeMap<u32, ShareOffset>> = BTreeMap::new();
    for offset in known {
        let stream = by_stream.entry(offset.stream).or_default();
        stream.insert(offset.partition, offset);
    }
    let mut answers = Vec::new();
    match topics {
        None => {
            for (stream, offsets) in by_stream {
                let Some(found) = ctx.shared.data.catalog.get(stream) else {
                    continue;
                };
                let name = found.name();
                if !ctx.may_topic(&name) {
                    continue;
                }
                let read = offsets.iter().filter(|(_, offset)| offset.start.is_some());
                let partitions = read.map(|(number, offset)| partition(*number, Some(offset)));
                let partitions: Vec<_> = partitions.collect();
                take_room(ctx, name.len(), partitions.len()).await?;
                answers.push(
                    DescribeShareGroupOffsetsResponseTopic::default()
                        .with_topic_name(TopicName(text(name)))
                        .with_topic_id(uuid_of(stream))
                        .with_partitions(partitions),
                );
            }
        }
        Some(topics) => {
            let mut seen = HashSet::new();
            for asked in topics {
                let name = asked.topic_name;
                if !seen.insert(name.clone()) {
                    continue;
                }
                let denied = !ctx.may_topic(&name);
                let stream = topic::named(&ctx.shared, &name).filter(|_| !denied);
                let offsets = stream.as_ref().and_then(|s| by_stream.get(&s.id()));
                let error = match (denied, &stream) {
                    (true, _) => Some(ResponseError::TopicAuthorizationFailed),
                    (_, None) => Some(ResponseError::UnknownTopicOrPartition),
                    _ => None,
                };
                take_room(ctx, name.len(), asked.partitions.len()).await?;
                let partitions = asked.partitions.into_iter().map(|number| {
                    let offset = u32::try_from(number).ok();
                    let offset = offset.and_then(|number| offsets?.get(&number));
                    let data = partition(0, offset).with_partition_index(number);
                    match error {
                        None => data,
                        Some(error) => data
                            .with_error_code(error.code())
                            .with_error_message(Some(text(error.to_string()))),
                    }
                });
                let partitions = partitions.collect();
                answers.push(
                    DescribeShareGroupOffsetsResponseTopic::default()
                        .with_topic_name(name)
                        .with_topic_id(stream.map_or_else(Default::default, |s| uuid_of(s.id())))
                        .with_partitions(partitions),
                );
            }
        }
    }
    Ok(answers)
}

/// Where a group stands.
async fn known(ctx: &Ctx, group: &str) -> Result<Vec<ShareOffset>, Refusal> {
    match try_ask(ctx, Request::ShareOffsets(group.to_owned())).await? {
        Reply::ShareOffsets(known) => Ok(known),
        other => Err(Refusal::of(mismatch(&other), String::new())),
    }
}

async fn take_room(ctx: &Ctx, name: usize, partitions: usize) -> Result<(), Refusal> {
    let bytes = TOPIC_BYTES + name + partitions * PARTITION_BYTES;
    match ctx.has_room_for(bytes).await {
        true => Ok(()),
        false => Err(Refusal::too_long()),
    }
}

fn partition(
    number: u32,
    offset: Option<&ShareOffset>,
) -> DescribeShareGroupOffsetsResponsePartition {
    let start = offset.and_then(|offset| offset.start);
    let epoch = offset.map_or(0, |offset| offset.owner_epoch);
    DescribeShareGroupOffsetsResponsePartition::default()
        .with_partition_index(i32::try_from(number).unwrap_or(i32::MAX))
        .with_start_offset(start.map_or(UNKNOWN, |start| start as i64))
        .with_leader_epoch(i32::try_from(epoch).unwrap_or(i32::MAX))
        .with_error_message(None)
}

/// AlterShareGroupOffsets: where an empty group begins from now on.
pub(crate) async fn alter_share_offsets(
    ctx: &Ctx,
    _version: i16,
    request: AlterShareGroupOffsetsRequest,
) -> AlterShareGroupOffsetsResponse {
    let response = AlterShareGroupOffsetsResponse::default().with_error_message(None);
    match alter(ctx, request).await {
        Ok(topics) => response.with_responses(topics),
        Err(refusal) => response
            .with_error_code(refusal.code)
            .with_error_message(Some(refusal.text())),
    }
}

async fn alter(
    ctx: &Ctx,
    request: AlterShareGroupOffsetsRequest,
) -> Result<Vec<AlterShareGroupOffsetsResponseTopic>, Refusal> {
    check_feature(ctx)?;
    let group = request.group_id.as_str();
    ctx.check_group(group)?;
    let mut answers = Vec::with_capacity(request.topics.len());
    // What is set, by where it is answered.
    let mut wanted = Vec::new();
    let mut places = Vec::new();
    for asked in request.topics {
        let name = asked.topic_name;
        let denied = !ctx.may_topic(&name);
        let stream = topic::named(&ctx.shared, &name).filter(|_| !denied);
        let mut partitions = Vec::with_capacity(asked.partitions.len());
        for one in asked.partitions {
            let number = u32::try_from(one.partition_index).ok();
            let start = u64::try_from(one.start_offset).ok();
            let code = match (&stream, number, start) {
                _ if denied => ResponseError::TopicAuthorizationFailed.code(),
                (None, _, _) | (_, None, _) => ResponseError::UnknownTopicOrPartition.code(),
                (_, _, None) => ResponseError::InvalidRequest.code(),
                (Some(stream), Some(number), Some(start)) => {
                    places.push((answers.len(), partitions.len()));
                    wanted.push((stream.id(), number, Some(start)));
                    NONE
                }
            };
            partitions.push(
                AlterShareGroupOffsetsResponsePartition::default()
                    .with_partition_index(one.partition_index)
                    .with_error_code(code)
                    .with_error_message(None),
            );
        }
        answers.push(
            AlterShareGroupOffsetsResponseTopic::default()
                .with_topic_name(name)
                .with_topic_id(stream.map_or_else(Default::default, |s| uuid_of(s.id())))
                .with_partitions(partitions),
        );
    }
    if wanted.is_empty() {
        return Ok(answers);
    }
    let results = set(ctx, group, wanted).await?;
    for ((topic, partition), result) in places.into_iter().zip(results) {
        if let Err(fault) = result {
            let partition = &mut answers[topic].partitions[partition];
            partition.error_code = fault_code(&fault);
            partition.error_message = Some(text(fault.to_string()));
        }
    }
    Ok(answers)
}

/// DeleteShareGroupOffsets: an empty group forgets topics.
pub(crate) async fn delete_share_offsets(
    ctx: &Ctx,
    _version: i16,
    request: DeleteShareGroupOffsetsRequest,
) -> DeleteShareGroupOffsetsResponse {
    let response = DeleteShareGroupOffsetsResponse::default().with_error_message(None);
    match delete(ctx, request).await {
        Ok(topics) => response.with_responses(topics),
        Err(refusal) => response
            .with_error_code(refusal.code)
            .with_error_message(Some(refusal.text())),
    }
}

async fn delete(
    ctx: &Ctx,
    request: DeleteShareGroupOffsetsRequest,
) -> Result<Vec<DeleteShareGroupOffsetsResponseTopic>, Refusal> {
    check_feature(ctx)?;
    let group = request.group_id.as_str();
    ctx.check_group(group)?;
    let mut topics = request.topics.iter();
    let known = match topics.any(|topic| ctx.may_topic(&topic.topic_name)) {
        true => known(ctx, group).await?,
        false => Vec::new(),
    };
    let mut by_stream: HashMap<StreamId, Vec<u32>> = HashMap::new();
    for offset in known {
        let partitions = by_stream.entry(offset.stream).or_default();
        partitions.push(offset.partition);
    }
    let mut wanted = Vec::new();
    let mut answers = Vec::with_capacity(request.topics.len());
    for asked in request.topics {
        let name = asked.topic_name;
        let denied = !ctx.may_topic(&name);
        let stream = topic::named(&ctx.shared, &name).filter(|_| !denied);
        let error = match (denied, &stream) {
            (true, _) => Some(ResponseError::TopicAuthorizationFailed),
            (_, None) => Some(ResponseError::UnknownTopicOrPartition),
            (_, Some(stream)) => {
                let partitions = by_stream.remove(&stream.id()).unwrap_or_default();
                wanted.extend(partitions.into_iter().map(|p| (stream.id(), p, None)));
                None
            }
        };
        answers.push(
            DeleteShareGroupOffsetsResponseTopic::default()
                .with_topic_name(name)
                .with_topic_id(stream.map_or_else(Default::default, |s| uuid_of(s.id())))
                .with_error_code(error.map_or(NONE, |error| error.code()))
                .with_error_message(error.map(|error| text(error.to_string()))),
        );
    }
    if !wanted.is_empty() {
        set(ctx, group, wanted).await?;
    }
    Ok(answers)
}

async fn set(
    ctx: &Ctx,
    group: &str,
    offsets: Vec<(StreamId, u32, Option<u64>)>,
) -> Result<Vec<Result<(), Fault>>, Refusal> {
    let change = Change::new("reset_group", "group", group, "share offsets");
    let attempt = ctx.attempt(change);
    let request = ShareSetOffsets {
        group: group.to_owned(),
        offsets,
    };
    match try_ask(ctx, Request::ShareSetOffsets(request)).await {
        Ok(Reply::ShareOffsetsSet(results)) => {
            attempt.made();
            Ok(results)
        }
        // Its end is not known: dropped, the attempt says so.
        Ok(other) => Err(Refusal::of(mismatch(&other), String::new())),
        Err(refusal) => {
            refusal.end(attempt);
            Err(refusal)
        }
    }
}
