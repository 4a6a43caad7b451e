//! DescribeCluster and DescribeLogDirs: the brokers, and what lies on this one's disk.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::{
    DescribeClusterRequest, DescribeClusterResponse, DescribeLogDirsRequest,
    DescribeLogDirsResponse, TopicName,
};
use kera_broker::data::catalog::Stream;

use crate::access;
use crate::brokers;
use crate::context::Ctx;
use crate::refusal::{Refusal, text};
use crate::topic;

/// The endpoints that are brokers', as the request numbers them.
const BROKERS: i8 = 1;
/// First version that tells how much room there is.
const SPACE_FROM: i16 = 4;
/// First version with an error of the whole.
const ERROR_FROM: i16 = 3;

/// The cluster: the brokers that live, at the addresses of the listener the client came in by.
pub(crate) async fn describe_cluster(
    ctx: &Ctx,
    version: i16,
    request: DescribeClusterRequest,
) -> DescribeClusterResponse {
    let mut response = DescribeClusterResponse::default();
    if version >= 1 && request.endpoint_type != BROKERS {
        response.error_code = ResponseError::MismatchedEndpointType.code();
        response.error_message = Some(text("this listener is a broker's; ask it for brokers"));
        return response;
    }
    let brokers = brokers::endpoints(ctx).into_iter().map(|broker| {
        DescribeClusterBroker::default()
            .with_broker_id(broker.id)
            .with_host(broker.host)
            .with_port(broker.port)
            .with_rack(broker.rack)
    });
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = ctx.rights_to_cluster();
    }
    response
        .with_cluster_id(text(ctx.shared.cluster_id()))
        .with_controller_id(brokers::controller(ctx))
        .with_brokers(brokers.collect())
}

/// The data directory with the bytes of each partition in it.
pub(crate) async fn describe_log_dirs(
    ctx: &Ctx,
    version: i16,
    request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse {
    if !ctx.may_cluster() {
        let denied = DescribeLogDirsResponse::default();
        return match version >= ERROR_FROM {
            true => denied.with_error_code(access::no_cluster().code),
            false => denied,
        };
    }
    let all = request.topics.is_none();
    let mut wanted: HashMap<String, HashSet<i32>> = HashMap::new();
    for topic in request.topics.unwrap_or_default() {
        let partitions = wanted.entry(topic.topic.as_str().to_owned()).or_default();
        partitions.extend(topic.partitions);
    }
    let mut topics = Vec::new();
    for stream in topic::visible(&ctx.shared) {
        let name = stream.name();
        let partitions = wanted.get(&name);
        if !all && partitions.is_none() {
            continue;
        }
        let sizes = sizes(&stream).into_iter();
        let partitions: Vec<_> = sizes
            .filter(|(p, _)| partitions.is_none_or(|some| some.contains(p)))
            .map(|(partition, bytes)| {
                DescribeLogDirsPartition::default()
                    .with_partition_index(partition)
                    .with_partition_size(i64::try_from(bytes).unwrap_or(i64::MAX))
            })
            .collect();
        if partitions.is_empty() {
            continue;
        }
        let topic = DescribeLogDirsTopic::default()
            .with_name(TopicName(text(name)))
            .with_partitions(partitions);
        if !ctx.has_room_for_item(&topic, version).await {
            let code = Refusal::too_long().code;
            let dir = DescribeLogDirsResult::default().with_error_code(code);
            return DescribeLogDirsResponse::default().with_results(vec![dir]);
        }
        topics.push(topic);
    }
    let path = ctx.shared.dir.path();
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let mut dir = DescribeLogDirsResult::default()
        .with_log_dir(text(path.display().to_string()))
        .with_topics(topics);
    if version >= SPACE_FROM
        && let Ok((free, total)) = ctx.shared.dir.space()
    {
        dir.total_bytes = i64::try_from(total).unwrap_or(i64::MAX);
        dir.usable_bytes = i64::try_from(free).unwrap_or(i64::MAX);
    }
    DescribeLogDirsResponse::default().with_results(vec![dir])
}

/// The bytes of each partition's files.
fn sizes(stream: &Arc<Stream>) -> Vec<(i32, u64)> {
    let lanes = stream.streamlets.iter().flat_map(|streamlet| {
        let lanes = streamlet.describe().into_iter();
        lanes.map(move |lane| {
            let bytes = lane.groups.iter().map(|g| g.bytes).sum();
            (
                topic::partition_of(stream, streamlet.id(), lane.lane),
                bytes,
            )
        })
    });
    let mut sizes: Vec<_> = lanes.collect();
    sizes.sort_unstable();
    sizes
}
