//! WriteTxnMarkers: operators end what no coordinator knows, with Kafka's own tools.

use std::collections::HashMap;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{TopicName, WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use kera_broker::transactions::{Which, end_lost};
use kera_metadata::access::{CLUSTER_NAME, Kind, Operation};
use kera_protocol::error::{ErrorCode, WireError};

use crate::context::Ctx;
use crate::{errors, topic};

/// Bytes of an answer about one partition, and about a topic or a marker beside its name, generously.
const PARTITION_BYTES: usize = 8;
const NAME_BYTES: usize = 24;

/// A marker as it is asked for.
#[derive(Clone, Copy)]
struct Wanted {
    producer: i64,
    epoch: i16,
    commit: bool,
    coordinator_epoch: i32,
}

/// WriteTxnMarkers. What a coordinator knows it ends itself, and nobody else.
pub(crate) async fn write_markers(
    ctx: &Ctx,
    _version: i16,
    request: WriteTxnMarkersRequest,
) -> WriteTxnMarkersResponse {
    let is_allowed =
        ctx.may_cluster() || ctx.may_also(Operation::Alter, (Kind::Cluster, CLUSTER_NAME));
    let mut markers = Vec::with_capacity(request.markers.len());
    for asked in request.markers {
        let wanted = Wanted {
            producer: asked.producer_id.0,
            epoch: asked.producer_epoch,
            commit: asked.transaction_result,
            coordinator_epoch: asked.coordinator_epoch,
        };
        let mut topics = Vec::with_capacity(asked.topics.len());
        for of_topic in asked.topics {
            let partitions = of_topic.partition_indexes.len();
            let bytes = 2 * NAME_BYTES + of_topic.name.len() + partitions * PARTITION_BYTES;
            let has_room = ctx.has_room_for(bytes).await;
            // The same partition twice is ended once.
            let mut answers: HashMap<i32, i16> = HashMap::new();
            let mut results = Vec::with_capacity(partitions);
            for partition in of_topic.partition_indexes {
                let code = match (is_allowed, has_room, answers.get(&partition)) {
                    (false, ..) => ResponseError::ClusterAuthorizationFailed.code(),
                    (true, false, _) => ResponseError::PolicyViolation.code(),
                    (true, true, Some(code)) => *code,
                    (true, true, None) => {
                        ctx.pause().await;
                        let ended = end(ctx, wanted, &of_topic.name, partition).await;
                        ended.map_or_else(|error| error.code(), |()| errors::NONE)
                    }
                };
                answers.insert(partition, code);
                results.push(
                    WritableTxnMarkerPartitionResult::default()
                        .with_partition_index(partition)
                        .with_error_code(code),
                );
            }
            topics.push(
                WritableTxnMarkerTopicResult::default()
                    .with_name(of_topic.name)
                    .with_partitions(results),
            );
        }
        markers.push(
            WritableTxnMarkerResult::default()
                .with_producer_id(asked.producer_id)
                .with_topics(topics),
        );
    }
    WriteTxnMarkersResponse::default().with_markers(markers)
}

async fn end(
    ctx: &Ctx,
    wanted: Wanted,
    name: &TopicName,
    partition: i32,
) -> Result<(), ResponseError> {
    let found = topic::shown(&ctx.shared, name).and_then(|stream| {
        let (streamlet, lane) = topic::lane_of(&stream, partition)?;
        Some((stream.id(), streamlet, lane))
    });
    let (stream, streamlet, lane) = found.ok_or(ResponseError::UnknownTopicOrPartition)?;
    if !topic::is_led_here(&ctx.shared, &streamlet) || !streamlet.is_recovered() {
        return Err(ResponseError::NotLeaderOrFollower);
    }
    let open = streamlet.open_transactions(lane);
    let open = open.ok_or(ResponseError::NotLeaderOrFollower)?;
    let open = open.iter().find(|(id, ..)| *id == wanted.producer);
    match open {
        // Its marker is there.
        None => return Ok(()),
        Some((_, epoch, _)) if wanted.epoch < *epoch => {
            return Err(ResponseError::InvalidProducerEpoch);
        }
        Some(_) => {}
    }
    let which = Which {
        stream: Some(stream),
        partition: Some(partition.unsigned_abs()),
        producer: Some(wanted.producer),
    };
    let ended = end_lost(&ctx.shared, which, wanted.commit, wanted.coordinator_epoch).await;
    ended.map(drop).or_else(|error| refusal(&error))
}

fn refusal(error: &WireError) -> Result<(), ResponseError> {
    Err(match error.code {
        // It has ended meanwhile.
        ErrorCode::UnknownTransaction => return Ok(()),
        ErrorCode::InvalidArgument => ResponseError::InvalidTxnState,
        // Kafka's tools try these again.
        ErrorCode::CoordinatorLoading => ResponseError::BrokerNotAvailable,
        _ => ResponseError::NotLeaderOrFollower,
    })
}
