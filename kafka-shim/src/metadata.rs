//! Metadata and DescribeTopicPartitions: which topics there are, with their partitions.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, MetadataRequest,
    MetadataResponse, TopicName,
};
use kera_broker::coordination::hear_of;
use kera_broker::data::catalog::Stream;
use kera_metadata::validate_stream_name;
use tokio::time::Instant;
use uuid::Uuid;

use crate::access;
use crate::brokers::{self, Endpoint, Leader, NOBODY, leaders};
use crate::context::Ctx;
use crate::refusal::{Refusal, text};
use crate::topic_config::Wanted;
use crate::{errors, topic, topics};

/// First version in which every topic carries its id.
const IDS_FROM: i16 = 10;
/// First version in which topics may be asked for by their id.
const BY_ID_FROM: i16 = 12;
/// Partitions of one answer to DescribeTopicPartitions, whatever the client would take.
const MAX_DESCRIBED_PARTITIONS: i32 = 2000;

/// What a partition takes in a reply, and each of its replicas, which is listed twice.
const PARTITION_BYTES: usize = 36;
const REPLICA_BYTES: usize = 8;

/// Topics that one Metadata request may create: those behind are unknown until they are asked for
/// again, or created as topics are.
const MAX_CREATED: usize = 100;

/// Longest wait of one Metadata request for news of topics that other brokers have just created.
const HEAR_WITHIN: Duration = Duration::from_secs(2);

/// Brokers, and the topics that are asked for. Creates topics where client and broker allow it.
pub(crate) async fn metadata(
    ctx: &Ctx,
    version: i16,
    request: MetadataRequest,
) -> MetadataResponse {
    let brokers = brokers::endpoints(ctx);
    let mut topics = Vec::new();
    match request.topics {
        Some(asked) if version > 0 || !asked.is_empty() => {
            let create =
                request.allow_auto_topic_creation && ctx.shared.live().kafka.auto_create_topics;
            // Asked for twice it is answered once: an answer grows with topics, not with requests.
            let mut seen = HashSet::new();
            let hear_by = Instant::now() + HEAR_WITHIN;
            for one in asked {
                if seen.insert((one.topic_id, one.name.clone())) {
                    let create = create && seen.len() <= MAX_CREATED;
                    let topic = asked_topic(ctx, version, &brokers, one, create, hear_by);
                    topics.push(topic.await);
                }
            }
        }
        _ => {
            for stream in listed(ctx) {
                topics.push(topic_of(ctx, version, &brokers, &stream).await);
            }
        }
    }
    let brokers = brokers.into_iter().map(|broker| {
        MetadataResponseBroker::default()
            .with_node_id(broker.id)
            .with_host(broker.host)
            .with_port(broker.port)
            .with_rack(broker.rack.filter(|_| version >= 1))
    });
    if request.include_topic_authorized_operations {
        for topic in topics.iter_mut().filter(|t| t.error_code == errors::NONE) {
            let name = topic.name.as_ref().map_or("", |name| name.as_str());
            topic.topic_authorized_operations = ctx.rights_to_topic(name);
        }
    }
    let mut response = MetadataResponse::default()
        .with_brokers(brokers.collect())
        .with_topics(topics);
    if version >= 1 {
        response.controller_id = brokers::controller(ctx);
    }
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = ctx.rights_to_cluster();
    }
    if version >= 2 {
        response.cluster_id = Some(text(ctx.shared.cluster_id()));
    }
    response
}

/// As [`topic::visible`], and the internal topic, as far as the client may see them.
fn listed(ctx: &Ctx) -> Vec<Arc<Stream>> {
    let mut streams = topic::visible(&ctx.shared);
    streams.extend(topic::shown(&ctx.shared, topic::OFFSETS_TOPIC));
    streams.retain(|stream| ctx.sees_topic(&topic::name_of(stream)));
    streams
}

async fn asked_topic(
    ctx: &Ctx,
    version: i16,
    brokers: &[Endpoint],
    asked: MetadataRequestTopic,
    create: bool,
    hear_by: Instant,
) -> MetadataResponseTopic {
    let failed = |code: i16| {
        let mut topic = MetadataResponseTopic::default()
            .with_error_code(code)
            .with_name(asked.name.clone());
        if version < BY_ID_FROM && topic.name.is_none() {
            topic.name = Some(TopicName::default());
        }
        if version >= IDS_FROM {
            topic.topic_id = asked.topic_id;
        }
        topic
    };
    let Some(name) = &asked.name else {
        if version < BY_ID_FROM || asked.topic_id == Uuid::nil() {
            return failed(ResponseError::InvalidRequest.code());
        }
        return match topic::shown_with_id(&ctx.shared, asked.topic_id) {
            Some(stream) if ctx.may_topic(&topic::name_of(&stream)) => {
                topic_of(ctx, version, brokers, &stream).await
            }
            _ => failed(ResponseError::UnknownTopicId.code()),
        };
    };
    if !ctx.may_topic(name) {
        return failed(access::topic_code());
    }
    if let Some(stream) = topic::shown(&ctx.shared, name) {
        return topic_of(ctx, version, brokers, &stream).await;
    }
    if validate_stream_name(name).is_err() {
        return failed(ResponseError::InvalidTopicException.code());
    }
    if !create || topic::is_kafkas_own(name) {
        return failed(ResponseError::UnknownTopicOrPartition.code());
    }
    if !ctx.may_create(name) {
        return failed(access::topic_code());
    }
    let partitions = ctx.default_partitions();
    match topics::create(ctx, name, partitions, &Wanted::default()).await {
        Ok(stream) => topic_of(ctx, version, brokers, &stream).await,
        Err(refusal) => {
            if refusal.code == ResponseError::TopicAlreadyExists.code() {
                // Another client was faster, at another broker perhaps, of which this one hears soon.
                let heard = tokio::time::timeout_at(hear_by, hear_of(&ctx.shared, name)).await;
                return match (heard, topic::named(&ctx.shared, name)) {
                    (_, Some(stream)) => topic_of(ctx, version, brokers, &stream).await,
                    // It is no topic.
                    (Ok(Some(_)), None) => failed(refusal.code),
                    // Clients ask again.
                    (_, None) => failed(ResponseError::LeaderNotAvailable.code()),
                };
            }
            tracing::warn!(topic = %name.as_str(), reason = %refusal.message, "a topic could not be created for a client that asked for it");
            failed(refusal.code)
        }
    }
}

async fn topic_of(
    ctx: &Ctx,
    version: i16,
    brokers: &[Endpoint],
    stream: &Stream,
) -> MetadataResponseTopic {
    let partition = |leader: Leader| {
        let mut found = MetadataResponsePartition::default()
            .with_error_code(code_of(&leader))
            .with_partition_index(leader.partition)
            .with_leader_id(leader.id)
            .with_replica_nodes(leader.replicas.clone())
            .with_isr_nodes(leader.in_sync.clone());
        if version >= 5 {
            found.offline_replicas = leader.offline();
        }
        if version >= 7 {
            found.leader_epoch = leader.epoch;
        }
        found
    };
    let name = topic::name_of(stream);
    let replicas = stream.record.load().config.replicas as usize;
    let each = PARTITION_BYTES + replicas * REPLICA_BYTES;
    let bytes = name.len() + PARTITION_BYTES + topic::partitions(stream) as usize * each;
    let mut topic = MetadataResponseTopic::default().with_name(Some(TopicName(text(name))));
    if ctx.has_room_for(bytes).await {
        topic.partitions = leaders(ctx, brokers, stream).map(partition).collect();
    } else {
        topic.error_code = ResponseError::PolicyViolation.code();
    }
    if version >= 1 {
        topic.is_internal = topic::is_internal(stream);
    }
    if version >= IDS_FROM {
        topic.topic_id = topic::id_of(stream);
    }
    topic
}

/// Kafka's number for a partition whose owner is away: clients look again.
fn code_of(leader: &Leader) -> i16 {
    match leader.id {
        NOBODY => ResponseError::LeaderNotAvailable.code(),
        _ => errors::NONE,
    }
}

/// Topics with their partitions, page by page.
pub(crate) async fn describe_topic_partitions(
    ctx: &Ctx,
    _version: i16,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let brokers = brokers::endpoints(ctx);
    let mut names: Vec<String> = if request.topics.is_empty() {
        listed(ctx).iter().map(|s| topic::name_of(s)).collect()
    } else {
        let asked = request.topics.iter();
        asked.map(|t| t.name.as_str().to_owned()).collect()
    };
    names.sort_unstable();
    names.dedup();
    let mut first_partition = 0;
    if let Some(cursor) = &request.cursor {
        let from = cursor.topic_name.as_str();
        names.retain(|name| name.as_str() >= from);
        if names.first().is_some_and(|name| name == from) {
            first_partition = cursor.partition_index.max(0);
        }
    }
    let limit = request.response_partition_limit;
    let mut room = limit.clamp(1, MAX_DESCRIBED_PARTITIONS) as usize;
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in names {
        let from = std::mem::take(&mut first_partition);
        let cursor = |partition| {
            let name = TopicName(text(name.clone()));
            Cursor::default()
                .with_topic_name(name)
                .with_partition_index(partition)
        };
        if room == 0 {
            response.next_cursor = Some(cursor(from));
            break;
        }
        let mut topic = DescribeTopicPartitionsResponseTopic::default()
            .with_name(Some(TopicName(text(name.clone()))));
        if !ctx.may_topic(&name) {
            topic.error_code = access::topic_code();
            response.topics.push(topic);
            room -= 1;
            continue;
        }
        let Some(stream) = topic::shown(&ctx.shared, &name) else {
            topic.error_code = match validate_stream_name(&name) {
                Ok(()) => Refusal::no_topic(&name).code,
                Err(_) => ResponseError::InvalidTopicException.code(),
            };
            response.topics.push(topic);
            // It counts as well, so that an answer is bounded.
            room -= 1;
            continue;
        };
        topic.topic_id = topic::id_of(&stream);
        topic.is_internal = topic::is_internal(&stream);
        topic.topic_authorized_operations = ctx.rights_to_topic(&name);
        let mut partitions = leaders(ctx, &brokers, &stream).skip(from as usize);
        topic.partitions = partitions.by_ref().take(room).map(described).collect();
        room -= topic.partitions.len();
        response.topics.push(topic);
        if let Some(next) = partitions.next() {
            response.next_cursor = Some(cursor(next.partition));
            break;
        }
    }
    response
}

fn described(leader: Leader) -> DescribeTopicPartitionsResponsePartition {
    DescribeTopicPartitionsResponsePartition::default()
        .with_error_code(code_of(&leader))
        .with_partition_index(leader.partition)
        .with_leader_id(leader.id)
        .with_leader_epoch(leader.epoch)
        .with_replica_nodes(leader.replicas.clone())
        .with_isr_nodes(leader.in_sync.clone())
        .with_offline_replicas(leader.offline())
        .with_eligible_leader_replicas(Some(Vec::new()))
        .with_last_known_elr(Some(Vec::new()))
}
