//! DescribeProducers: the idempotent producers that each partition remembers.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use kafka_protocol::messages::{
    DescribeProducersRequest, DescribeProducersResponse, ProducerId, TopicName,
};
use kera_broker::clock::now_ms;
use kera_streamlet::producers::ActiveProducer;

use crate::context::Ctx;
use crate::refusal::Refusal;
use crate::topic;

/// Stands for what there is not: a sequence, an open transaction, what is not told.
const NONE: i32 = -1;
/// Bytes of an answer about one partition, and about one producer, generously.
const PARTITION_BYTES: usize = 64;
const PRODUCER_BYTES: usize = 40;

/// The producers of each partition that is asked for. As with Kafka the partition's leader knows them.
pub(crate) async fn describe_producers(
    ctx: &Ctx,
    _version: i16,
    request: DescribeProducersRequest,
) -> DescribeProducersResponse {
    let mut topics = Vec::new();
    for asked in request.topics {
        let mut partitions = Vec::new();
        for index in asked.partition_indexes {
            let mut answer = PartitionResponse::default()
                .with_partition_index(index)
                .with_error_message(None);
            let found = active(ctx, &asked.name, index);
            let producers = found.as_ref().map_or(0, Vec::len);
            let bytes = PARTITION_BYTES + producers * PRODUCER_BYTES;
            match (ctx.has_room_for(bytes).await, found) {
                (true, Ok(active)) => {
                    answer.active_producers = active.into_iter().map(state).collect();
                }
                (_, Err(refusal)) => refuse(&mut answer, &refusal),
                (false, Ok(_)) => refuse(&mut answer, &Refusal::too_long()),
            }
            partitions.push(answer);
        }
        topics.push(
            TopicResponse::default()
                .with_name(asked.name)
                .with_partitions(partitions),
        );
    }
    DescribeProducersResponse::default().with_topics(topics)
}

fn refuse(answer: &mut PartitionResponse, refusal: &Refusal) {
    answer.error_code = refusal.code;
    answer.error_message = Some(refusal.text());
}

fn active(ctx: &Ctx, name: &TopicName, index: i32) -> Result<Vec<ActiveProducer>, Refusal> {
    ctx.check_topic(name)?;
    let stream = topic::shown(&ctx.shared, name).ok_or_else(|| Refusal::no_topic(name))?;
    let Some((streamlet, lane)) = topic::lane_of(&stream, index) else {
        let text = format!("the topic has no partition {index}");
        return Err(Refusal::new(ResponseError::UnknownTopicOrPartition, text));
    };
    if !topic::is_led_here(&ctx.shared, &streamlet) || !streamlet.is_recovered() {
        let text = "another broker leads the partition, or this one still recovers it";
        return Err(Refusal::new(ResponseError::NotLeaderOrFollower, text));
    }
    Ok(streamlet.active_producers(lane, now_ms()))
}

fn state(producer: ActiveProducer) -> ProducerState {
    ProducerState::default()
        .with_producer_id(ProducerId(producer.id))
        .with_producer_epoch(producer.epoch.into())
        .with_last_sequence(producer.last_sequence.unwrap_or(NONE))
        .with_last_timestamp(i64::try_from(producer.last_ms).unwrap_or(i64::MAX))
        .with_coordinator_epoch(NONE)
        .with_current_txn_start_offset(producer.open.map_or(NONE.into(), |first| {
            i64::try_from(first).unwrap_or(i64::MAX)
        }))
}
