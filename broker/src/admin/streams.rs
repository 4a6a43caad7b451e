//! Creating, altering and deleting streams.

use std::sync::Arc;

use kera_metadata::{
    Compare, Conflict, LaneBy, LaneGeneration, StreamConfig, StreamRecord, Transaction, Write,
    validate_stream_name,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, Ordinal, StreamletId};
use kera_protocol::v1;
use kera_streamlet::Streamlet;

use super::{blocking, metadata_error};
use crate::catalog::{Stream, settings_of};
use crate::clock::now_ms;
use crate::start::Shared;

/// Bytes of a frame that are not its batch.
const FRAME_ALLOWANCE: u64 = 4096;
/// Attempts to cut lanes while one of them is recovering.
const CUT_ATTEMPTS: usize = 200;

/// Creates a stream; settings left out are the defaults.
///
/// # Errors
/// [`ErrorCode::StreamExists`] if the name is taken, [`ErrorCode::InvalidName`],
/// [`ErrorCode::InvalidArgument`], or what the metadata store answers.
pub async fn create_stream(
    shared: &Arc<Shared>,
    name: &str,
    config: &v1::StreamConfig,
) -> Result<Arc<Stream>, WireError> {
    let config = new_config(shared, name, config)?;
    let (shared, name) = (shared.clone(), name.to_string());
    blocking(move || {
        shared
            .create_stream(StreamRecord::new(name, config, now_ms()))
            .map_err(|e| metadata_error(&e))
    })
    .await
}

/// The settings that [`create_stream`] would give a stream; creates nothing.
///
/// # Errors
/// As of [`create_stream`].
pub fn new_config(
    shared: &Shared,
    name: &str,
    config: &v1::StreamConfig,
) -> Result<StreamConfig, WireError> {
    validate_stream_name(name)?;
    let mut wire = *config;
    wire.max_batch_bytes = Some(max_batch_bytes(shared, &wire)?);
    let config = StreamConfig::from_wire(&wire)?;
    if shared.catalog.named(name).is_some() {
        let name = name.to_owned();
        return Err(metadata_error(&Conflict::StreamExists { name }.into()));
    }
    Ok(config)
}

/// Changes a stream's settings: those that are left out stay. Raising the number of lanes cuts the old
/// lanes and opens the new ones. One change of a stream happens at a time.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] for a value that is illegal or fixed at creation,
/// [`ErrorCode::InvalidName`] for a stream of the broker's own, or what the metadata store answers.
pub async fn alter_stream(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    config: &v1::StreamConfig,
) -> Result<(), WireError> {
    super::changeable(stream)?;
    let _one_at_a_time = stream.change.lock().await;
    let (shared, stream, config) = (shared.clone(), stream.clone(), *config);
    blocking(move || alter(&shared, &stream, &config)).await
}

/// The settings that [`alter_stream`] would give a stream; changes nothing.
///
/// # Errors
/// As of [`alter_stream`].
pub fn altered_config(
    shared: &Shared,
    stream: &Stream,
    config: &v1::StreamConfig,
) -> Result<StreamConfig, WireError> {
    super::changeable(stream)?;
    if config.max_batch_bytes.is_some() {
        max_batch_bytes(shared, config)?;
    }
    stream.record.load().config.altered(config)
}

/// Deletes a stream with all its records.
///
/// # Errors
/// [`ErrorCode::InvalidName`] for a stream of the broker's own, or what the metadata store answers.
pub async fn delete_stream(shared: &Arc<Shared>, stream: &Arc<Stream>) -> Result<(), WireError> {
    super::changeable(stream)?;
    let _one_at_a_time = stream.change.lock().await;
    let (shared, stream) = (shared.clone(), stream.clone());
    blocking(move || delete(&shared, &stream)).await
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
    new.config = altered_config(shared, stream, wire)?;
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
