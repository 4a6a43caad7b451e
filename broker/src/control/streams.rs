//! The `Streams` service: creating, looking up, changing and deleting streams.

use std::ops::Range;
use std::sync::Arc;

use kera_metadata::{
    Compare, LaneBy, LaneGeneration, MetadataError, StreamConfig, StreamRecord, Transaction, Write,
    validate_stream_name,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, Ordinal, StreamletId};
use kera_protocol::v1;
use kera_rpc::v1::streams_server::Streams;
use kera_streamlet::{Located, Streamlet};
use parking_lot::Mutex;
use tonic::{Request, Response, Status};

use super::describe::{broker_description, stream_description, stream_info};
use super::status;
use crate::catalog::{Stream, settings_of};
use crate::clock::now_ms;
use crate::fetch::cursor;
use crate::start::Shared;

/// Bytes of a frame that are not its batch.
const FRAME_ALLOWANCE: u64 = 4096;
/// Producer ids taken from the metadata store at once.
const PRODUCER_ID_BLOCK: u64 = 1000;
/// Attempts to cut lanes while one of them is recovering.
const CUT_ATTEMPTS: usize = 200;

type Answer<T> = Result<Response<T>, Status>;

/// Serves streams.
pub struct StreamsService {
    shared: Arc<Shared>,
    producer_ids: Arc<Mutex<Range<u64>>>,
}

impl StreamsService {
    /// A service over the broker's catalog.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            producer_ids: Arc::default(),
        }
    }

    fn named(&self, name: &str) -> Result<Arc<Stream>, Status> {
        self.shared.catalog.named(name).ok_or_else(|| {
            status(WireError::new(
                ErrorCode::UnknownStream,
                format!("no stream is named \"{name}\"; see `kera stream list`, or create it"),
            ))
        })
    }

    /// A stream that users may change.
    fn changeable(&self, name: &str) -> Result<Arc<Stream>, Status> {
        let stream = self.named(name)?;
        if stream.record.load().internal {
            let text = format!("stream \"{name}\" is the broker's own and cannot be changed");
            return Err(status(WireError::new(ErrorCode::InvalidName, text)));
        }
        Ok(stream)
    }
}

/// Runs what waits for disk or metadata store where that does no harm.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, WireError> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome.map_err(status),
        Err(error) => {
            tracing::error!(%error, "a control call failed");
            Err(status(WireError::new(
                ErrorCode::Internal,
                "the call failed in the broker; see its log",
            )))
        }
    }
}

fn metadata_error(error: &MetadataError) -> WireError {
    WireError::new(error.code(), error.to_string())
}

#[tonic::async_trait]
impl Streams for StreamsService {
    async fn create_stream(
        &self,
        request: Request<v1::CreateStreamRequest>,
    ) -> Answer<v1::StreamInfo> {
        let request = request.into_inner();
        let shared = self.shared.clone();
        let info = blocking(move || {
            validate_stream_name(&request.name)?;
            let mut wire = request.config.unwrap_or_default();
            wire.max_batch_bytes = Some(max_batch_bytes(&shared, &wire)?);
            let config = StreamConfig::from_wire(&wire)?;
            let stream = create(&shared, StreamRecord::new(request.name, config, now_ms()))?;
            Ok(stream_info(&shared, &stream))
        });
        info.await.map(Response::new)
    }

    async fn list_streams(
        &self,
        request: Request<v1::ListStreamsRequest>,
    ) -> Answer<v1::ListStreamsResponse> {
        let internal = request.into_inner().include_internal;
        let streams = self.shared.catalog.all();
        let shown = streams
            .iter()
            .filter(|s| internal || !s.record.load().internal);
        let streams = shown.map(|s| stream_info(&self.shared, s)).collect();
        Ok(Response::new(v1::ListStreamsResponse { streams }))
    }

    async fn get_stream(&self, request: Request<v1::GetStreamRequest>) -> Answer<v1::StreamInfo> {
        let stream = self.named(&request.into_inner().name)?;
        Ok(Response::new(stream_info(&self.shared, &stream)))
    }

    async fn describe_stream(
        &self,
        request: Request<v1::DescribeStreamRequest>,
    ) -> Answer<v1::DescribeStreamResponse> {
        let stream = self.named(&request.into_inner().name)?;
        Ok(Response::new(stream_description(&self.shared, &stream)))
    }

    async fn alter_stream(
        &self,
        request: Request<v1::AlterStreamRequest>,
    ) -> Answer<v1::StreamInfo> {
        let request = request.into_inner();
        let stream = self.changeable(&request.name)?;
        let _one_at_a_time = stream.change.lock().await;
        let (shared, altered) = (self.shared.clone(), stream.clone());
        let info = blocking(move || {
            alter(&shared, &altered, &request.config.unwrap_or_default())?;
            Ok(stream_info(&shared, &altered))
        });
        info.await.map(Response::new)
    }

    async fn delete_stream(
        &self,
        request: Request<v1::DeleteStreamRequest>,
    ) -> Answer<v1::DeleteStreamResponse> {
        let stream = self.changeable(&request.into_inner().name)?;
        let _one_at_a_time = stream.change.lock().await;
        let (shared, deleted) = (self.shared.clone(), stream.clone());
        blocking(move || delete(&shared, &deleted)).await?;
        Ok(Response::new(v1::DeleteStreamResponse {}))
    }

    async fn trim_stream(
        &self,
        request: Request<v1::TrimStreamRequest>,
    ) -> Answer<v1::TrimStreamResponse> {
        let request = request.into_inner();
        let stream = self.changeable(&request.name)?;
        blocking(move || trim(&stream, &request))
            .await
            .map(Response::new)
    }

    async fn find_ordinals(
        &self,
        request: Request<v1::FindOrdinalsRequest>,
    ) -> Answer<v1::FindOrdinalsResponse> {
        let request = request.into_inner();
        let stream = self.named(&request.name)?;
        blocking(move || find(&stream, &request))
            .await
            .map(Response::new)
    }

    async fn init_producer(
        &self,
        request: Request<v1::InitProducerRequest>,
    ) -> Answer<v1::InitProducerResponse> {
        let name = request.into_inner().name;
        if !name.is_empty() {
            self.named(&name)?;
        }
        let (shared, ids) = (self.shared.clone(), self.producer_ids.clone());
        let producer_id = blocking(move || {
            let mut ids = ids.lock();
            if ids.is_empty() {
                *ids = shared
                    .metadata
                    .allocate_producer_ids(PRODUCER_ID_BLOCK)
                    .map_err(|e| metadata_error(&e))?;
            }
            ids.next()
                .ok_or_else(|| WireError::new(ErrorCode::Internal, "no producer ids are left"))
        });
        let producer_id = producer_id.await?;
        Ok(Response::new(v1::InitProducerResponse {
            producer_id,
            producer_epoch: 0,
        }))
    }

    async fn describe_broker(
        &self,
        _request: Request<v1::DescribeBrokerRequest>,
    ) -> Answer<v1::DescribeBrokerResponse> {
        Ok(Response::new(broker_description(&self.shared)))
    }
}

fn create(shared: &Arc<Shared>, record: StreamRecord) -> Result<Arc<Stream>, WireError> {
    shared.create_stream(record).map_err(|e| metadata_error(&e))
}

/// The largest batch of a stream to create or alter: what is asked for, if it fits a frame of this
/// broker, or the default cut to that.
fn max_batch_bytes(shared: &Shared, wire: &v1::StreamConfig) -> Result<u32, WireError> {
    let frame = shared
        .config
        .server
        .max_frame_bytes
        .saturating_sub(FRAME_ALLOWANCE);
    let limit = u32::try_from(frame).unwrap_or(u32::MAX);
    let Some(wanted) = wire.max_batch_bytes else {
        let segment = wire
            .segment_size
            .unwrap_or(StreamConfig::default().segment_size);
        return Ok(StreamConfig::default_max_batch_bytes(segment).min(limit));
    };
    if wanted <= limit {
        return Ok(wanted);
    }
    let text = format!(
        "max_batch_bytes {wanted} does not fit a frame of this broker, which carries batches of at most {limit} bytes; lower it or raise server.max_frame_bytes"
    );
    Err(WireError::new(ErrorCode::InvalidArgument, text))
}

fn alter(shared: &Shared, stream: &Stream, wire: &v1::StreamConfig) -> Result<(), WireError> {
    let old = stream.record.load_full();
    let mut new = (*old).clone();
    new.config = old.config.altered(wire)?;
    if wire.max_batch_bytes.is_some() {
        max_batch_bytes(shared, wire)?;
    }
    if new.config.lanes == old.config.lanes {
        write_record(shared, stream, &old, new)?;
    } else {
        grow(shared, stream, &old, new)?;
    }
    let settings = settings_of(&stream.record.load());
    for streamlet in &stream.streamlets {
        streamlet.alter(|s| *s = settings.clone());
    }
    Ok(())
}

/// Cuts the old lanes, records the boundaries, opens the new lanes.
fn grow(
    shared: &Shared,
    stream: &Stream,
    old: &StreamRecord,
    mut new: StreamRecord,
) -> Result<(), WireError> {
    let mut starts: Vec<(StreamletId, LaneId, Ordinal)> = Vec::new();
    for (index, streamlet) in stream.streamlets.iter().enumerate() {
        let Some(cuts) = cut(streamlet) else {
            stream.streamlets[..index]
                .iter()
                .for_each(|s| s.abort_growth());
            let text = format!(
                "a lane of stream {} could not make its records durable; try again",
                old.name
            );
            return Err(WireError::new(ErrorCode::StorageError, text));
        };
        if new.config.lane_by == LaneBy::Key {
            starts.extend(cuts.iter().map(|c| (streamlet.id(), c.lane, c.ordinal)));
        }
    }
    let lanes = new.config.lanes;
    new.lane_generations.push(LaneGeneration { lanes, starts });
    let generation = new.lane_generations.len() as u32 - 1;
    if let Err(error) = write_record(shared, stream, old, new) {
        stream.streamlets.iter().for_each(|s| s.abort_growth());
        return Err(error);
    }
    stream
        .streamlets
        .iter()
        .for_each(|s| s.finish_growth(lanes, generation));
    Ok(())
}

/// Cuts a streamlet's lanes and waits until all below the boundaries is durable: a failed write must
/// not put a lane's end below its recorded boundary.
fn cut(streamlet: &Streamlet) -> Option<Vec<kera_streamlet::LaneCut>> {
    let mut cuts = None;
    for _ in 0..CUT_ATTEMPTS {
        if cuts.is_none() {
            cuts = streamlet.cut_lanes();
        }
        if cuts
            .as_ref()
            .is_some_and(|cuts| streamlet.growth_settled(cuts))
        {
            return cuts;
        }
        // A repair or a sync is short; it needs no more than its turn at the disk.
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
    if cuts.is_some() {
        streamlet.abort_growth();
    }
    None
}

fn write_record(
    shared: &Shared,
    stream: &Stream,
    old: &StreamRecord,
    mut new: StreamRecord,
) -> Result<(), WireError> {
    let committed = shared
        .metadata
        .commit(Transaction::new(
            vec![Compare::StreamRevision {
                id: old.id,
                revision: old.revision,
            }],
            vec![Write::PutStream(new.clone())],
        ))
        .map_err(|e| metadata_error(&e))?;
    new.revision = committed.revision;
    stream.record.store(Arc::new(new));
    Ok(())
}

fn delete(shared: &Shared, stream: &Stream) -> Result<(), WireError> {
    let record = stream.record.load_full();
    shared
        .metadata
        .commit(Transaction::new(
            vec![Compare::StreamRevision {
                id: record.id,
                revision: record.revision,
            }],
            vec![Write::DeleteStream(record.id)],
        ))
        .map_err(|e| metadata_error(&e))?;
    shared.catalog.remove(record.id);
    stream.streamlets.iter().for_each(|s| s.mark_deleted());
    shared.recorder.forget_stream(record.id);
    let dir = shared.dir.streams().join(record.id.to_string());
    if let Err(error) = shared.env.io.remove_dir_all(&dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(dir = %dir.display(), %error, "files of a deleted stream are left; the next start removes them");
    }
    Ok(())
}

fn trim(
    stream: &Stream,
    request: &v1::TrimStreamRequest,
) -> Result<v1::TrimStreamResponse, WireError> {
    use v1::trim_stream_request::To;
    let to = request.to.as_ref().ok_or_else(|| {
        WireError::new(
            ErrorCode::InvalidArgument,
            "trim names no ordinal, time or \"everything\"; name one",
        )
    })?;
    if matches!(to, To::Ordinal(_)) && (request.streamlet.is_none() || request.lane.is_none()) {
        let text = "trim to an ordinal needs a streamlet and a lane: ordinals count within a lane";
        return Err(WireError::new(ErrorCode::InvalidArgument, text));
    }
    let mut response = v1::TrimStreamResponse::default();
    for (streamlet, lane) in lanes_of(stream, request.streamlet, request.lane)? {
        let ordinal = match to {
            To::Ordinal(ordinal) => *ordinal,
            To::Everything(_) => u64::MAX,
            To::TimestampMs(ms) => at_time(&streamlet, lane, *ms)?.ordinal,
        };
        let trimmed = streamlet
            .trim(lane, ordinal)
            .map_err(|e| WireError::new(ErrorCode::StorageError, e.to_string()))?;
        response.freed_bytes += trimmed.freed_bytes;
        response.lanes.push(v1::LaneStart {
            streamlet: streamlet.id().0,
            lane: lane.0,
            log_start: trimmed.log_start,
        });
    }
    Ok(response)
}

fn find(
    stream: &Stream,
    request: &v1::FindOrdinalsRequest,
) -> Result<v1::FindOrdinalsResponse, WireError> {
    use v1::find_ordinals_request::At;
    let at = request.at.as_ref().ok_or_else(|| {
        WireError::new(
            ErrorCode::InvalidArgument,
            "the request names no place; name earliest, latest, a time or an ordinal",
        )
    })?;
    let mut lanes = Vec::new();
    for (streamlet, lane) in lanes_of(stream, None, None)? {
        let Some((log_start, head)) = streamlet.lane_bounds(lane) else {
            continue;
        };
        let located = match at {
            At::Earliest(_) => Located {
                ordinal: log_start,
                at: None,
            },
            At::Latest(_) => Located {
                ordinal: head,
                at: None,
            },
            At::Ordinal(ordinal) => Located {
                ordinal: (*ordinal).clamp(log_start, head),
                at: None,
            },
            At::TimestampMs(ms) => at_time(&streamlet, lane, *ms)?,
        };
        lanes.push(v1::LaneCursor {
            streamlet: streamlet.id().0,
            lane: lane.0,
            cursor: Some(cursor(&located, streamlet.settings().segment_size)),
            head_ordinal: head,
            log_start,
        });
    }
    Ok(v1::FindOrdinalsResponse { lanes })
}

fn at_time(streamlet: &Streamlet, lane: LaneId, ms: u64) -> Result<Located, WireError> {
    streamlet
        .find_time(lane, i64::try_from(ms).unwrap_or(i64::MAX))
        .map_err(|error| WireError::new(ErrorCode::StorageError, error.to_string()))
}

/// The lanes that a request names: all, those of a streamlet, or one.
fn lanes_of(
    stream: &Stream,
    streamlet: Option<u32>,
    lane: Option<u32>,
) -> Result<Vec<(Arc<Streamlet>, LaneId)>, WireError> {
    let name = stream.name();
    let mut lanes = Vec::new();
    for found in &stream.streamlets {
        if streamlet.is_some_and(|s| s != found.id().0) {
            continue;
        }
        let count = found.settings().lanes;
        lanes.extend(
            (0..count)
                .filter(|l| lane.is_none_or(|wanted| wanted == *l))
                .map(|l| (found.clone(), LaneId(l))),
        );
    }
    if lanes.is_empty() {
        let (code, what) = match (streamlet, lane) {
            (Some(s), _) if s as usize >= stream.streamlets.len() => {
                (ErrorCode::UnknownStreamlet, format!("streamlet {s}"))
            }
            (_, lane) => (
                ErrorCode::UnknownLane,
                format!("lane {}", lane.unwrap_or(0)),
            ),
        };
        return Err(WireError::new(
            code,
            format!("stream \"{name}\" has no {what}; see `kera stream describe {name}`"),
        ));
    }
    Ok(lanes)
}
