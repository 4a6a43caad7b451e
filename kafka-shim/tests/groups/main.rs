//! Consumer groups by hand, over a socket: every API in every version that is served, and what
//! connections and restarts do to members that wait.

#[path = "../common/mod.rs"]
mod common;
mod consumer;
mod dead_letters;
mod life;
mod shares;
mod strange;
mod versions;

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ApiKey, GroupId, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse,
    OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse,
    SyncGroupRequest, SyncGroupResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use kera_broker::config::BrokerConfig;

use common::Client;

fn words(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn group(id: &str) -> GroupId {
    GroupId(words(id))
}

fn topic(name: &str) -> TopicName {
    TopicName(words(name))
}

/// No pause before the first rebalance.
fn quick(config: &mut BrokerConfig) {
    config.kafka.group_initial_rebalance_delay = Duration::ZERO;
}

/// A consumer's metadata.
fn subscription(name: &str) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(0);
    out.put_i32(1);
    out.put_i16(name.len() as i16);
    out.put_slice(name.as_bytes());
    out.put_i32(-1);
    out.freeze()
}

fn join_request(version: i16, id: &str, member: &StrBytes) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(words("range"))
        .with_metadata(subscription("t"));
    let request = JoinGroupRequest::default()
        .with_group_id(group(id))
        .with_session_timeout_ms(10_000)
        .with_member_id(member.clone())
        .with_protocol_type(words("consumer"))
        .with_protocols(vec![protocol]);
    if version >= 1 {
        request.with_rebalance_timeout_ms(20_000)
    } else {
        request
    }
}

/// Joins, coming back with the id if told to.
async fn join(client: &mut Client, version: i16, id: &str) -> JoinGroupResponse {
    let mut member = StrBytes::new();
    loop {
        let request = join_request(version, id, &member);
        let joined: JoinGroupResponse = client.call(ApiKey::JoinGroup, version, &request).await;
        if joined.error_code != 79 {
            return joined;
        }
        assert!(version >= 4 && member.is_empty());
        member = joined.member_id;
    }
}

/// Hands in assignments, if `shares` has any.
fn sync_request(
    version: i16,
    id: &str,
    joined: &JoinGroupResponse,
    shares: &[(&StrBytes, &str)],
) -> SyncGroupRequest {
    let shares = shares.iter().map(|(member, share)| {
        SyncGroupRequestAssignment::default()
            .with_member_id((*member).clone())
            .with_assignment(Bytes::copy_from_slice(share.as_bytes()))
    });
    let request = SyncGroupRequest::default()
        .with_group_id(group(id))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone())
        .with_assignments(shares.collect());
    if version >= 5 {
        request
            .with_protocol_type(Some(words("consumer")))
            .with_protocol_name(Some(words("range")))
    } else {
        request
    }
}

async fn sync(
    client: &mut Client,
    version: i16,
    id: &str,
    joined: &JoinGroupResponse,
    shares: &[(&StrBytes, &str)],
) -> SyncGroupResponse {
    let request = sync_request(version, id, joined, shares);
    client.call(ApiKey::SyncGroup, version, &request).await
}

async fn heartbeat(client: &mut Client, version: i16, id: &str, joined: &JoinGroupResponse) -> i16 {
    let request = HeartbeatRequest::default()
        .with_group_id(group(id))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone());
    let reply: HeartbeatResponse = client.call(ApiKey::Heartbeat, version, &request).await;
    reply.error_code
}

/// Commits (topic, partition, offset); the codes in the same order.
async fn commit(
    client: &mut Client,
    version: i16,
    id: &str,
    member: Option<&JoinGroupResponse>,
    offsets: &[(&str, i32, i64)],
) -> Vec<i16> {
    let topics = offsets.iter().map(|(name, partition, offset)| {
        let partition = OffsetCommitRequestPartition::default()
            .with_partition_index(*partition)
            .with_committed_offset(*offset)
            .with_committed_metadata(Some(words("left here")));
        let partition = if version >= 6 {
            partition.with_committed_leader_epoch(7)
        } else {
            partition
        };
        OffsetCommitRequestTopic::default()
            .with_name(topic(name))
            .with_partitions(vec![partition])
    });
    let request = OffsetCommitRequest::default()
        .with_group_id(group(id))
        .with_generation_id_or_member_epoch(member.map_or(-1, |joined| joined.generation_id))
        .with_member_id(member.map_or(StrBytes::new(), |joined| joined.member_id.clone()))
        .with_topics(topics.collect());
    let reply: OffsetCommitResponse = client.call(ApiKey::OffsetCommit, version, &request).await;
    let codes = reply.topics.iter().flat_map(|topic| &topic.partitions);
    codes.map(|partition| partition.error_code).collect()
}

/// Everything a group has committed: (topic, partition, offset).
async fn committed(client: &mut Client, id: &str) -> Vec<(String, i32, i64)> {
    let request = OffsetFetchRequest::default()
        .with_group_id(group(id))
        .with_topics(None);
    let reply: OffsetFetchResponse = client.call(ApiKey::OffsetFetch, 7, &request).await;
    assert_eq!(reply.error_code, 0);
    let mut all = Vec::new();
    for topic in reply.topics {
        for partition in topic.partitions {
            assert_eq!(partition.metadata, Some(words("left here")));
            all.push((
                topic.name.to_string(),
                partition.partition_index,
                partition.committed_offset,
            ));
        }
    }
    all.sort();
    all
}
