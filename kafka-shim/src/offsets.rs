//! ListOffsets and OffsetForLeaderEpoch: where in a partition a time, an end or an epoch is.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{
    ListOffsetsRequest, ListOffsetsResponse, OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
};
use kera_broker::data::catalog::Stream;
use kera_protocol::ids::{Epoch, LaneId, Ordinal};
use kera_streamlet::{LaneReadError, RecordAt, SearchWork, Streamlet};
use tokio::sync::Semaphore;

use crate::access;
use crate::context::Ctx;
use crate::{errors, topic};

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
/// First version of ListOffsets with epochs in its answer.
const EPOCHS_FROM: i16 = 4;
/// First version of ListOffsets with an isolation level, and the one that sees only what is committed.
const ISOLATION_FROM: i16 = 2;
const READ_COMMITTED: i8 = 1;
/// Nothing: no offset, no time, no epoch.
const UNDEFINED: i32 = -1;

/// How long a new owner is given to recover a partition, and how often that is looked at.
const RECOVERED_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// Searches by time at once: each may decompress a batch.
static SEARCHES: Semaphore = Semaphore::const_new(2);
/// Those of requests that had [`MUCH_SEARCHED`] decoded already: they do not take the others' turns.
static LONG_SEARCHES: Semaphore = Semaphore::const_new(1);
const MUCH_SEARCHED: usize = 64 << 20;

/// A place that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    offset: i64,
    timestamp: i64,
    epoch: i32,
}

const NOTHING: Found = Found {
    offset: UNDEFINED as i64,
    timestamp: UNDEFINED as i64,
    epoch: UNDEFINED,
};

/// The offsets of ends and times. Who reads only what is committed sees what lies below the last stable offset.
pub(crate) async fn list_offsets(
    ctx: &Ctx,
    version: i16,
    request: ListOffsetsRequest,
) -> ListOffsetsResponse {
    let committed = version >= ISOLATION_FROM && request.isolation_level == READ_COMMITTED;
    let mut topics = Vec::with_capacity(request.topics.len());
    // Bytes that were decoded for the request.
    let mut searched = 0;
    for asked in request.topics {
        let sees = ctx.may_topic(&asked.name);
        let stream = topic::shown(&ctx.shared, &asked.name);
        let mut seen = HashSet::new();
        let mut partitions = Vec::with_capacity(asked.partitions.len());
        for partition in &asked.partitions {
            ctx.pause().await;
            let found = if !sees {
                Err(ResponseError::TopicAuthorizationFailed)
            } else if seen.insert(partition.partition_index) {
                {
                    let found = place(ctx, stream.as_deref(), version, partition, &mut searched);
                    stable(ctx, stream.as_deref(), partition, committed, found.await)
                }
            } else {
                Err(ResponseError::InvalidRequest)
            };
            let (code, found) = match found {
                Ok(found) => (errors::NONE, found),
                Err(error) => (error.code(), NOTHING),
            };
            let mut answer = ListOffsetsPartitionResponse::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code)
                .with_offset(found.offset)
                .with_timestamp(found.timestamp);
            if version >= EPOCHS_FROM {
                answer.leader_epoch = found.epoch;
            }
            partitions.push(answer);
        }
        topics.push(
            ListOffsetsTopicResponse::default()
                .with_name(asked.name)
                .with_partitions(partitions),
        );
    }
    ListOffsetsResponse::default().with_topics(topics)
}

/// What a reader of what is committed sees of an offset that was found.
fn stable(
    ctx: &Ctx,
    stream: Option<&Stream>,
    asked: &ListOffsetsPartition,
    committed: bool,
    found: Result<Found, ResponseError>,
) -> Result<Found, ResponseError> {
    let found = found?;
    if !committed || found == NOTHING {
        return Ok(found);
    }
    let partition = asked.partition_index;
    let (streamlet, lane) = leader(ctx, stream, partition, asked.current_leader_epoch)?;
    // Not known while the lane is put in order after a failed write.
    let stable = streamlet
        .stable(lane)
        .ok_or(ResponseError::LeaderNotAvailable)?;
    Ok(match asked.timestamp {
        LATEST => {
            // What an open transaction began with may have been trimmed.
            let start = streamlet.lane_bounds(lane).map_or(0, |(start, _)| start);
            Found {
                offset: found.offset.min(offset(stable.max(start))),
                ..found
            }
        }
        EARLIEST | EARLIEST_LOCAL => found,
        _ if found.offset < offset(stable) => found,
        _ => NOTHING,
    })
}

async fn place(
    ctx: &Ctx,
    stream: Option<&Stream>,
    version: i16,
    asked: &ListOffsetsPartition,
    searched: &mut usize,
) -> Result<Found, ResponseError> {
    let (streamlet, lane) = recovered(
        ctx,
        stream,
        asked.partition_index,
        asked.current_leader_epoch,
    )
    .await?;
    let (start, head) = streamlet
        .lane_bounds(lane)
        .ok_or(ResponseError::UnknownTopicOrPartition)?;
    let end = |ordinal, epoch: Option<Epoch>| Found {
        offset: offset(ordinal),
        timestamp: UNDEFINED.into(),
        epoch: epoch.unwrap_or_else(|| streamlet.epoch()).0 as i32,
    };
    match asked.timestamp {
        LATEST => Ok(end(head, None)),
        EARLIEST => Ok(end(start, streamlet.epoch_at(lane, start))),
        MAX_TIMESTAMP if version >= 7 => {
            let latest = |s: &Streamlet, lane, work: &mut _| s.latest_record(lane, work);
            search(&streamlet, lane, searched, latest).await
        }
        EARLIEST_LOCAL if version >= 8 => Ok(end(start, streamlet.epoch_at(lane, start))),
        // There is no other storage, so nothing was moved there.
        LATEST_TIERED if version >= 9 => Ok(NOTHING),
        time if time >= 0 => {
            let first = move |s: &Streamlet, lane, work: &mut _| s.record_at_time(lane, time, work);
            search(&streamlet, lane, searched, first).await
        }
        _ => Err(ResponseError::UnsupportedVersion),
    }
}

/// Searches records by time, where waiting for the disk does no harm.
async fn search(
    streamlet: &Arc<Streamlet>,
    lane: LaneId,
    searched: &mut usize,
    look: impl FnOnce(&Streamlet, LaneId, &mut SearchWork) -> Result<Option<RecordAt>, LaneReadError>
    + Send
    + 'static,
) -> Result<Found, ResponseError> {
    let turns = match *searched {
        ..MUCH_SEARCHED => &SEARCHES,
        _ => &LONG_SEARCHES,
    };
    let _turn = turns.acquire().await;
    let target = streamlet.clone();
    let found = tokio::task::spawn_blocking(move || {
        let mut work = SearchWork::default();
        let found = look(&target, lane, &mut work);
        found.map(|found| (found, work.done()))
    });
    let found = found.await.map(|found| {
        found.map(|(found, done)| {
            *searched += done;
            found
        })
    });
    match found {
        Ok(Ok(None)) => Ok(NOTHING),
        Ok(Ok(Some(record))) => Ok(Found {
            offset: offset(record.ordinal),
            timestamp: record.timestamp,
            epoch: record.epoch.0 as i32,
        }),
        Ok(Err(error)) => {
            if matches!(
                error,
                LaneReadError::Deleted | LaneReadError::UnknownLane { .. }
            ) {
                return Err(ResponseError::UnknownTopicOrPartition);
            }
            tracing::warn!(stream = %streamlet.stream(), %lane, %error, "a time could not be searched");
            Err(ResponseError::KafkaStorageError)
        }
        Err(error) => {
            tracing::error!(%error, "searching a time failed");
            Err(ResponseError::UnknownServerError)
        }
    }
}

/// As [`leader`], and a broker that has only just become the owner is given time to find out where the
/// partition ends: it may be the client's first question after a failover.
async fn recovered(
    ctx: &Ctx,
    stream: Option<&Stream>,
    partition: i32,
    epoch: i32,
) -> Result<(Arc<Streamlet>, LaneId), ResponseError> {
    let deadline = tokio::time::Instant::now() + RECOVERED_WITHIN;
    loop {
        match leader(ctx, stream, partition, epoch) {
            Err(ResponseError::LeaderNotAvailable) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(LOOK).await;
            }
            found => return found,
        }
    }
}

/// The partition's streamlet and lane, if the client knows its epoch or does not care.
fn leader(
    ctx: &Ctx,
    stream: Option<&Stream>,
    partition: i32,
    epoch: i32,
) -> Result<(Arc<Streamlet>, LaneId), ResponseError> {
    let (streamlet, lane) = stream
        .and_then(|stream| topic::lane_of(stream, partition))
        .ok_or(ResponseError::UnknownTopicOrPartition)?;
    if !topic::is_led_here(&ctx.shared, &streamlet) {
        return Err(ResponseError::NotLeaderOrFollower);
    }
    if !streamlet.is_recovered() {
        // Where it ends is not known yet.
        return Err(ResponseError::LeaderNotAvailable);
    }
    let present = streamlet.epoch().0 as i32;
    match epoch {
        ..0 => Ok((streamlet, lane)),
        epoch if epoch < present => Err(ResponseError::FencedLeaderEpoch),
        epoch if epoch > present => Err(ResponseError::UnknownLeaderEpoch),
        _ => Ok((streamlet, lane)),
    }
}

fn offset(ordinal: Ordinal) -> i64 {
    i64::try_from(ordinal).unwrap_or(i64::MAX)
}

/// Where epochs end, for consumers that were away over a change of epoch.
pub(crate) async fn offset_for_leader_epoch(
    ctx: &Ctx,
    _version: i16,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let topics = request.topics.into_iter().map(|asked| {
        let sees = ctx.may_topic(&asked.topic);
        let stream = topic::named(&ctx.shared, &asked.topic);
        let ends = asked.partitions.iter();
        let ends = ends.map(|partition| match sees {
            true => epoch_end(ctx, stream.as_deref(), partition),
            false => undefined(partition).with_error_code(access::topic_code()),
        });
        let ends = ends.collect();
        OffsetForLeaderTopicResult::default()
            .with_topic(asked.topic)
            .with_partitions(ends)
    });
    OffsetForLeaderEpochResponse::default().with_topics(topics.collect())
}

fn undefined(asked: &OffsetForLeaderPartition) -> EpochEndOffset {
    EpochEndOffset::default()
        .with_partition(asked.partition)
        .with_leader_epoch(UNDEFINED)
        .with_end_offset(UNDEFINED.into())
}

fn epoch_end(
    ctx: &Ctx,
    stream: Option<&Stream>,
    asked: &OffsetForLeaderPartition,
) -> EpochEndOffset {
    let answer = undefined(asked);
    let (streamlet, lane) = match leader(ctx, stream, asked.partition, asked.current_leader_epoch) {
        Ok(found) => found,
        Err(error) => return answer.with_error_code(error.code()),
    };
    // One above the present is answered as undefined, as in Kafka.
    let end = u32::try_from(asked.leader_epoch)
        .ok()
        .and_then(|epoch| streamlet.epoch_end(lane, Epoch(epoch)));
    match end {
        Some(end) => answer
            .with_leader_epoch(end.epoch.0 as i32)
            .with_end_offset(offset(end.end)),
        None => answer,
    }
}
