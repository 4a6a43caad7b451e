//! Requests of share groups.

use kafka_protocol::messages::{
    AlterShareGroupOffsetsRequest, DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest, GroupId, ShareAcknowledgeRequest, ShareFetchRequest,
    ShareGroupDescribeRequest, ShareGroupHeartbeatRequest, alter_share_group_offsets_request,
    delete_share_group_offsets_request, describe_share_group_offsets_request,
    share_acknowledge_request, share_fetch_request,
};
use kafka_protocol::protocol::StrBytes;

use super::{group, topic};
use crate::dice::Dice;

/// A share group, half of the time one that others join as well.
fn shares(dice: &mut Dice) -> GroupId {
    match dice.flag() {
        true => GroupId(StrBytes::from_static_str("shares")),
        false => group(dice),
    }
}

/// A member, half of the time the one that fetches too.
fn member(dice: &mut Dice) -> StrBytes {
    match dice.flag() {
        true => StrBytes::from_static_str("m"),
        false => dice.text(),
    }
}

/// The epoch of a session, often one that begins it, goes on with it or ends it.
fn epoch(dice: &mut Dice) -> i32 {
    match dice.below(4) {
        0 => 0,
        1 => -1,
        2 => 1,
        _ => dice.i32(),
    }
}

pub fn heartbeat(dice: &mut Dice) -> ShareGroupHeartbeatRequest {
    let topics = dice.list(topic);
    ShareGroupHeartbeatRequest::default()
        .with_group_id(shares(dice))
        .with_member_id(member(dice))
        .with_member_epoch(epoch(dice))
        .with_rack_id(dice.maybe(Dice::text))
        .with_subscribed_topic_names(dice.flag().then_some(topics))
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn describe(dice: &mut Dice) -> ShareGroupDescribeRequest {
    ShareGroupDescribeRequest::default()
        .with_group_ids(dice.list(shares))
        .with_include_authorized_operations(dice.flag())
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn fetch(dice: &mut Dice) -> ShareFetchRequest {
    use share_fetch_request::{AcknowledgementBatch, FetchPartition, FetchTopic, ForgottenTopic};
    let topics = dice.list(|dice| {
        let partitions = dice.list(|dice| {
            let batches = dice.list(|dice| {
                AcknowledgementBatch::default()
                    .with_first_offset(dice.i64())
                    .with_last_offset(dice.i64())
                    .with_acknowledge_types(dice.list(|dice| dice.below(5) as i8))
                    .with_unknown_tagged_fields(dice.tags(true))
            });
            FetchPartition::default()
                .with_partition_index(dice.i32())
                .with_acknowledgement_batches(batches)
                .with_unknown_tagged_fields(dice.tags(true))
        });
        FetchTopic::default()
            .with_topic_id(dice.uuid())
            .with_partitions(partitions)
            .with_unknown_tagged_fields(dice.tags(true))
    });
    let forgotten = dice.list(|dice| {
        ForgottenTopic::default()
            .with_topic_id(dice.uuid())
            .with_partitions(dice.list(Dice::i32))
            .with_unknown_tagged_fields(dice.tags(true))
    });
    let (group, member) = (shares(dice), member(dice));
    ShareFetchRequest::default()
        .with_group_id(dice.maybe(|_| group.clone()))
        .with_member_id(dice.maybe(|_| member.clone()))
        .with_share_session_epoch(epoch(dice))
        // It waits for as long as it says.
        .with_max_wait_ms(dice.below(3) as i32)
        .with_min_bytes(dice.i32())
        .with_max_bytes(dice.i32())
        .with_max_records(dice.i32())
        .with_batch_size(dice.i32())
        .with_topics(topics)
        .with_forgotten_topics_data(forgotten)
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn acknowledge(dice: &mut Dice) -> ShareAcknowledgeRequest {
    use share_acknowledge_request::{AcknowledgePartition, AcknowledgeTopic, AcknowledgementBatch};
    let topics = dice.list(|dice| {
        let partitions = dice.list(|dice| {
            let batches = dice.list(|dice| {
                AcknowledgementBatch::default()
                    .with_first_offset(dice.i64())
                    .with_last_offset(dice.i64())
                    .with_acknowledge_types(dice.list(|dice| dice.below(5) as i8))
                    .with_unknown_tagged_fields(dice.tags(true))
            });
            AcknowledgePartition::default()
                .with_partition_index(dice.i32())
                .with_acknowledgement_batches(batches)
                .with_unknown_tagged_fields(dice.tags(true))
        });
        AcknowledgeTopic::default()
            .with_topic_id(dice.uuid())
            .with_partitions(partitions)
            .with_unknown_tagged_fields(dice.tags(true))
    });
    let (group, member) = (shares(dice), member(dice));
    ShareAcknowledgeRequest::default()
        .with_group_id(dice.maybe(|_| group.clone()))
        .with_member_id(dice.maybe(|_| member.clone()))
        .with_share_session_epoch(epoch(dice))
        .with_topics(topics)
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn describe_offsets(dice: &mut Dice) -> DescribeShareGroupOffsetsRequest {
    use describe_share_group_offsets_request::{
        DescribeShareGroupOffsetsRequestGroup, DescribeShareGroupOffsetsRequestTopic,
    };
    let groups = dice.list(|dice| {
        let topics = dice.list(|dice| {
            DescribeShareGroupOffsetsRequestTopic::default()
                .with_topic_name(topic(dice))
                .with_partitions(dice.list(Dice::i32))
                .with_unknown_tagged_fields(dice.tags(true))
        });
        DescribeShareGroupOffsetsRequestGroup::default()
            .with_group_id(shares(dice))
            .with_topics(dice.flag().then_some(topics))
            .with_unknown_tagged_fields(dice.tags(true))
    });
    DescribeShareGroupOffsetsRequest::default()
        .with_groups(groups)
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn alter_offsets(dice: &mut Dice) -> AlterShareGroupOffsetsRequest {
    use alter_share_group_offsets_request::{
        AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
    };
    let topics = dice.list(|dice| {
        let partitions = dice.list(|dice| {
            AlterShareGroupOffsetsRequestPartition::default()
                .with_partition_index(dice.i32())
                .with_start_offset(dice.i64())
                .with_unknown_tagged_fields(dice.tags(true))
        });
        AlterShareGroupOffsetsRequestTopic::default()
            .with_topic_name(topic(dice))
            .with_partitions(partitions)
            .with_unknown_tagged_fields(dice.tags(true))
    });
    AlterShareGroupOffsetsRequest::default()
        .with_group_id(shares(dice))
        .with_topics(topics)
        .with_unknown_tagged_fields(dice.tags(true))
}

pub fn delete_offsets(dice: &mut Dice) -> DeleteShareGroupOffsetsRequest {
    use delete_share_group_offsets_request::DeleteShareGroupOffsetsRequestTopic;
    let topics = dice.list(|dice| {
        DeleteShareGroupOffsetsRequestTopic::default()
            .with_topic_name(topic(dice))
            .with_unknown_tagged_fields(dice.tags(true))
    });
    DeleteShareGroupOffsetsRequest::default()
        .with_group_id(shares(dice))
        .with_topics(topics)
        .with_unknown_tagged_fields(dice.tags(true))
}
