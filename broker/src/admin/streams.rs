//! Creating, altering and deleting streams.

use std::sync::Arc;

use kera_log_segments::group::AckPolicy;
use kera_metadata::{
    Compare, Conflict, Feature, Key, MetadataError, MetadataStore, StreamConfig, StreamRecord,
    Transaction, Write, validate_stream_name,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::StreamId;
use kera_protocol::v1;

use super::growth::grow;
use crate::clock::wall_ms;
use crate::data::catalog::Stream;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error, to_its_end};
use crate::transactions;

/// Attempts to change a stream whose record others write at the same time.
const ATTEMPTS: u32 = 8;
/// Bytes of a frame that are not its batch.
const FRAME_ALLOWANCE: u64 = 4096;

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
            .create_stream(StreamRecord::new(name, config, wall_ms()))
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
    wire.replicas = wire.replicas.or_else(|| usual_copies(shared, &wire));
    let config = StreamConfig::from_wire(&wire)?;
    check_version(shared, &config)?;
    check_copies(shared, name, &config)?;
    if shared.data.catalog.named(name).is_some() {
        let name = name.to_owned();
        return Err(metadata_error(&Conflict::StreamExists { name }.into()));
    }
    Ok(config)
}

/// Most copies of a stream whose creator names no number.
const USUAL_COPIES: usize = 3;

/// The copies of a stream whose creator names no number, if that is not one: where brokers share a store a
/// stream outlives a broker, unless whoever made it wants speed above all (`memory`).
fn usual_copies(shared: &Shared, wire: &v1::StreamConfig) -> Option<u32> {
    let clustered = shared.clustered.as_ref()?;
    let most = clustered.peers.most_copies().min(USUAL_COPIES);
    let possible = wire.ack != Some(v1::AckPolicy::Memory as i32);
    (possible && most > 1).then_some(most as u32)
}

/// Refuses a stream that would never get its copies.
fn check_copies(shared: &Shared, name: &str, config: &StreamConfig) -> Result<(), WireError> {
    if !config.is_replicated() {
        return Ok(());
    }
    let possible = match &shared.clustered {
        Some(clustered) => clustered.peers.check_copies(config.replicas),
        None => Err(format!(
            "{} replicas need other brokers, and this one works alone; set cluster.broker_id and cluster.store (`kera cluster import` takes its streams along), or leave --replicas out",
            config.replicas
        )),
    };
    possible.map_err(|text| {
        WireError::new(ErrorCode::InvalidArgument, format!("stream {name}: {text}"))
    })
}

/// Changes a stream's settings: those that are left out stay. Raising the number of lanes cuts the old
/// lanes and opens the new ones. One change of a stream happens at a time.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] for a value that is illegal or fixed at creation, or `ack = memory` while transactions are
/// open, [`ErrorCode::InvalidName`] for a stream of the broker's own, or what the metadata store answers.
pub async fn alter_stream(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    config: &v1::StreamConfig,
) -> Result<(), WireError> {
    super::changeable(stream)?;
    let (shared, stream, config) = (shared.clone(), stream.clone(), *config);
    // A client may disconnect while lanes are cut. They must not stay cut.
    to_its_end(async move { alter(&shared, &stream, &config).await }).await
}

async fn alter(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    config: &v1::StreamConfig,
) -> Result<(), WireError> {
    let _one_at_a_time = stream.change.lock().await;
    for _ in 1..ATTEMPTS {
        let known = stream.record.load().revision;
        let outcome = alter_once(shared, stream, config).await;
        if !matches!(&outcome, Err(error) if error.code == ErrorCode::Overloaded) {
            return outcome;
        }
        let (of, again) = (shared.clone(), stream.clone());
        blocking(move || look_again(&of, &again)).await?;
        if stream.record.load().revision == known {
            return outcome;
        }
    }
    alter_once(shared, stream, config).await
}

/// Takes a stream's record as it is in the store, which may not have been heard of yet.
fn look_again(shared: &Shared, stream: &Stream) -> Result<(), WireError> {
    let found = shared.metadata.stream(stream.id());
    if let Some(found) = found.map_err(|e| metadata_error(&e))? {
        stream.altered(found);
    }
    Ok(())
}

async fn alter_once(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    config: &v1::StreamConfig,
) -> Result<(), WireError> {
    let old = stream.record.load_full();
    let mut new = (*old).clone();
    new.config = altered_config(shared, stream, config)?;
    if new.config.ack == AckPolicy::Memory && old.config.ack != AckPolicy::Memory {
        transactions::lost::check_none_open(shared, stream).await?;
    }
    if new.config.partitions() != old.config.partitions() {
        return grow(shared, stream, old, new).await;
    }
    let (shared, stream) = (shared.clone(), stream.clone());
    blocking(move || write_record(&shared, &stream, &old, new)).await
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
    let altered = stream.record.load().config.altered(config)?;
    check_version(shared, &altered)?;
    Ok(altered)
}

/// Refuses what some broker of the cluster may not be able to read.
fn check_version(shared: &Shared, config: &StreamConfig) -> Result<(), WireError> {
    match config.cleanup.compacts() {
        true => shared.require(Feature::Compaction),
        false => Ok(()),
    }
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

fn write_record(
    shared: &Shared,
    stream: &Stream,
    old: &StreamRecord,
    mut new: StreamRecord,
) -> Result<(), WireError> {
    let committed = shared
        .metadata
        .commit(Transaction::new(
            vec![Compare::revision(Key::Stream(old.id), old.revision)],
            vec![Write::PutStream(new.clone())],
        ))
        .map_err(|e| metadata_error(&e))?;
    new.revision = committed.revision;
    stream.altered(new);
    Ok(())
}

fn delete(shared: &Shared, stream: &Stream) -> Result<(), WireError> {
    let record = stream.record.load_full();
    let clustered = shared.clustered.as_ref();
    let clustered = clustered.filter(|_| record.config.is_replicated());
    if let Some(clustered) = clustered {
        clustered.replicated.deleting(record.id);
    }
    if let Err(error) = shared.dir.deleting(record.id) {
        // A full disk is no reason to keep a stream.
        tracing::warn!(stream = %record.id, %error, "the deletion cannot be remembered; should the broker end now, the stream's files are set aside at the next start");
    }
    delete_record(&*shared.metadata, record.id, record.revision)?;
    drop_stream(shared, stream);
    if let Some(clustered) = clustered {
        clustered.replicated.forget(record.id);
    }
    Ok(())
}

/// Deletes a stream's record. Others may write it meanwhile, as a broker does that makes a pin: then it is tried again.
fn delete_record(
    store: &dyn MetadataStore,
    id: StreamId,
    mut revision: u64,
) -> Result<(), WireError> {
    for _ in 1..ATTEMPTS {
        let Err(error) = delete_record_of(store, id, revision) else {
            return Ok(());
        };
        let found = match &error {
            MetadataError::Conflict(_) => store.stream(id).map_err(|e| metadata_error(&e))?,
            _ => None,
        };
        match found {
            Some(found) if found.revision != revision => revision = found.revision,
            _ => return Err(metadata_error(&error)),
        }
    }
    delete_record_of(store, id, revision).map_err(|e| metadata_error(&e))
}

fn delete_record_of(
    store: &dyn MetadataStore,
    id: StreamId,
    revision: u64,
) -> Result<(), MetadataError> {
    let unchanged = Compare::revision(Key::Stream(id), revision);
    let delete = Transaction::new(vec![unchanged], vec![Write::DeleteStream(id)]);
    store.commit(delete).map(drop)
}

/// Gives up everything of a stream that is deleted, here or by another broker.
pub(crate) fn drop_stream(shared: &Shared, stream: &Stream) {
    let record = stream.record.load_full();
    shared.data.catalog.remove(record.id);
    stream.streamlets.iter().for_each(|s| s.mark_deleted());
    shared.recorder.forget_stream(record.id);
    if let Some(clustered) = &shared.clustered {
        clustered.replicated.end(record.id);
    }
    let dir = shared.dir.streams().join(record.id.to_string());
    match shared.data.env.io.remove_dir_all(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(dir = %dir.display(), %error, "files of a deleted stream are left; the next start removes them");
        }
        _ => shared.dir.deleted(record.id),
    }
}

#[cfg(test)]
mod tests {
    use kera_metadata::MemoryStore;

    use super::*;

    #[test]
    fn a_stream_is_deleted_also_while_somebody_writes_its_record_as_it_is() {
        let store = MemoryStore::new();
        let record = StreamRecord::new("clicks", StreamConfig::default(), 1);
        let known = store.create_stream(record, 0).unwrap().0;
        let unchanged = Compare::revision(Key::Stream(known.id), known.revision);
        let touch = Transaction::new(vec![unchanged], vec![Write::PutStream(known.clone())]);
        store.commit(touch).unwrap();
        delete_record(&store, known.id, known.revision).unwrap();
        assert_eq!(store.stream(known.id).unwrap(), None);
        let gone = delete_record(&store, known.id, known.revision).unwrap_err();
        assert_eq!(gone.code, ErrorCode::UnknownStream);
    }
}
