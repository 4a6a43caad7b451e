//! DeleteRecords: the log start of a partition moves up.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::delete_records_request::DeleteRecordsPartition;
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};
use kera_broker::admin;
use kera_broker::audit::Change;
use kera_broker::data::catalog::Stream;
use kera_protocol::ids::{LaneId, Ordinal, StreamletId};

use crate::context::Ctx;
use crate::refusal::Refusal;
use crate::{errors, topic};

/// The offset that stands for the high watermark.
const HIGH_WATERMARK: i64 = -1;

/// Makes what lies below an offset unreadable, also where that is inside a file or a batch.
pub(crate) async fn delete_records(
    ctx: &Ctx,
    _version: i16,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let mut topics = Vec::with_capacity(request.topics.len());
    for asked in request.topics {
        let stream = topic::named(&ctx.shared, &asked.name);
        let mut partitions = Vec::with_capacity(asked.partitions.len());
        let mut starts = Vec::new();
        for partition in &asked.partitions {
            ctx.pause().await;
            let (code, low) = match delete_below(ctx, stream.as_deref(), &asked.name, partition)
                .await
            {
                Ok(start) => {
                    starts.push(start);
                    (errors::NONE, i64::try_from(start.2).unwrap_or(i64::MAX))
                }
                Err(refusal) => {
                    tracing::debug!(topic = %asked.name.as_str(), partition = partition.partition_index, reason = %refusal.message, "records are not deleted");
                    (refusal.code, -1)
                }
            };
            partitions.push(
                DeleteRecordsPartitionResult::default()
                    .with_partition_index(partition.partition_index)
                    .with_low_watermark(low)
                    .with_error_code(code),
            );
        }
        if let Some(stream) = stream.as_ref().filter(|_| !starts.is_empty()) {
            admin::record_hurt_pins(&ctx.shared, stream, starts).await;
        }
        topics.push(
            DeleteRecordsTopicResult::default()
                .with_name(asked.name)
                .with_partitions(partitions),
        );
    }
    DeleteRecordsResponse::default().with_topics(topics)
}

/// Deletes in one partition; where the lane begins by now.
async fn delete_below(
    ctx: &Ctx,
    stream: Option<&Stream>,
    name: &str,
    asked: &DeleteRecordsPartition,
) -> Result<(StreamletId, LaneId, Ordinal), Refusal> {
    ctx.check_topic(name)?;
    let stream = stream.ok_or_else(|| Refusal::no_topic(name))?;
    let led = topic::lane_of(stream, asked.partition_index);
    if let Some((streamlet, _)) = &led
        && !topic::is_led_here(&ctx.shared, streamlet)
    {
        let text = "another broker leads the partition";
        return Err(Refusal::new(ResponseError::NotLeaderOrFollower, text));
    }
    let found =
        led.and_then(|(streamlet, lane)| Some((streamlet.lane_bounds(lane)?, streamlet, lane)));
    let ((_, head), streamlet, lane) = found.ok_or_else(|| Refusal::no_topic(name))?;
    let below = match asked.offset {
        HIGH_WATERMARK => head,
        offset => u64::try_from(offset)
            .ok()
            .filter(|offset| *offset <= head)
            .ok_or_else(|| {
                let text = format!("offset {offset} is above the high watermark {head}");
                Refusal::new(ResponseError::OffsetOutOfRange, text)
            })?,
    };
    let detail = format!("partition={} ordinal={below}", asked.partition_index);
    let attempt = ctx.attempt(Change::new("trim_stream", "stream", name, detail));
    let trimmed = admin::trim_lane(&streamlet, lane, below).await;
    attempt.end(trimmed.as_ref());
    Ok((streamlet.id(), lane, trimmed?.log_start))
}
