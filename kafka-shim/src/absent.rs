//! Answers about what Kera does not have, or does by itself: tools ask for it beside other things, and an
//! empty answer lets them go on.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::list_config_resources_response::ConfigResource;
use kafka_protocol::messages::{
    DescribeQuorumRequest, DescribeQuorumResponse, ElectLeadersRequest, ElectLeadersResponse,
    ListConfigResourcesRequest, ListConfigResourcesResponse, ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse, TopicName,
};

use crate::configs::{BROKER, TOPIC};
use crate::context::Ctx;
use crate::refusal::text;
use crate::{brokers, topic};

/// Bytes of an answer about so many partitions of a topic, generously.
fn room(partitions: usize) -> usize {
    64 * (partitions + 1)
}

/// Whether a partition is there, as an error.
fn known(ctx: &Ctx, name: &TopicName, partition: i32, then: i16) -> i16 {
    let stream = topic::shown(&ctx.shared, name);
    match stream.is_some_and(|stream| topic::lane_of(&stream, partition).is_some()) {
        true => then,
        false => ResponseError::UnknownTopicOrPartition.code(),
    }
}

/// ListPartitionReassignments: the brokers move copies by themselves, and tell Kafka's tools nothing of it.
pub(crate) async fn list_partition_reassignments(
    ctx: &Ctx,
    _version: i16,
    _request: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    let response = ListPartitionReassignmentsResponse::default().with_error_message(None);
    match ctx.check_cluster() {
        Ok(()) => response,
        Err(refusal) => response
            .with_error_code(refusal.code)
            .with_error_message(Some(refusal.text())),
    }
}

/// First version of ElectLeaders with an error of the whole.
const ERROR_FROM: i16 = 1;

/// ElectLeaders: never needed, as the brokers choose owners by themselves.
pub(crate) async fn elect_leaders(
    ctx: &Ctx,
    version: i16,
    request: ElectLeadersRequest,
) -> ElectLeadersResponse {
    if let Err(refusal) = ctx.check_cluster() {
        let response = ElectLeadersResponse::default();
        return match version >= ERROR_FROM {
            true => response.with_error_code(refusal.code),
            false => response,
        };
    }
    let not_needed = ResponseError::ElectionNotNeeded.code();
    let mut results = Vec::new();
    for asked in request.topic_partitions.unwrap_or_default() {
        if !ctx.has_room_for(room(asked.partitions.len())).await {
            break;
        }
        let partitions = asked.partitions.iter().map(|partition| {
            PartitionResult::default()
                .with_partition_id(*partition)
                .with_error_code(known(ctx, &asked.topic, *partition, not_needed))
                .with_error_message(None)
        });
        let partitions = partitions.collect();
        results.push(
            ReplicaElectionResult::default()
                .with_topic(asked.topic)
                .with_partition_result(partitions),
        );
    }
    ElectLeadersResponse::default().with_replica_election_results(results)
}

/// First version that tells in words why a quorum is not described.
const WORDS_FROM: i16 = 2;

/// DescribeQuorum: there is no log of controllers to describe. As a cluster of Kafka's that keeps its metadata
/// elsewhere: to clients the request is not supported, which they know how to take.
pub(crate) async fn describe_quorum(
    ctx: &Ctx,
    version: i16,
    _request: DescribeQuorumRequest,
) -> DescribeQuorumResponse {
    if let Err(refusal) = ctx.check_cluster() {
        return DescribeQuorumResponse::default()
            .with_error_code(refusal.code)
            .with_error_message((version >= WORDS_FROM).then(|| refusal.text()));
    }
    let why = "metadata is kept in etcd, or in a file of a broker that works alone, and not in a log of controllers; DescribeCluster tells the controller, `kera cluster status` tells more";
    DescribeQuorumResponse::default()
        .with_error_code(ResponseError::UnsupportedVersion.code())
        .with_error_message((version >= WORDS_FROM).then(|| text(why)))
}

/// First version that lists anything but subscriptions to clients' metrics, of which there are none.
const ALL_KINDS_FROM: i16 = 1;

/// ListConfigResources: topics and brokers. Nothing is ever set for a group.
pub(crate) async fn list_config_resources(
    ctx: &Ctx,
    version: i16,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    let response = ListConfigResourcesResponse::default();
    if let Err(refusal) = ctx.check_cluster() {
        return response.with_error_code(refusal.code);
    }
    if version < ALL_KINDS_FROM {
        return response;
    }
    let kinds = request.resource_types;
    let wanted = |kind: i8| kinds.is_empty() || kinds.contains(&kind);
    let resource = |kind: i8, name: String| {
        ConfigResource::default()
            .with_resource_type(kind)
            .with_resource_name(text(name))
    };
    let mut all = Vec::new();
    if wanted(TOPIC) {
        all.extend(
            topic::visible(&ctx.shared)
                .iter()
                .map(|s| resource(TOPIC, s.name())),
        );
    }
    if wanted(BROKER) {
        let brokers = brokers::endpoints(ctx).into_iter();
        all.extend(brokers.map(|broker| resource(BROKER, broker.id.to_string())));
    }
    let mut found = Vec::with_capacity(all.len());
    for resource in all {
        if !ctx.has_room_for_item(&resource, version).await {
            let cut = ResponseError::PolicyViolation.code();
            return response.with_error_code(cut);
        }
        found.push(resource);
    }
    response.with_config_resources(found)
}
