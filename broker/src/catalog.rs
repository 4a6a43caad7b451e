//! The streams this broker serves: by name and by id, with their streamlets.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use kera_log_segments::group::AckPolicy;
use kera_metadata::{LaneBy, StreamConfig, StreamRecord, TimestampType};
use kera_protocol::ids::{LaneId, Ordinal, StreamId, StreamletId};
use kera_streamlet::{Env, Settings, Streamlet};
use parking_lot::RwLock;

/// A stream and its streamlets.
pub struct Stream {
    /// The record as last written.
    pub record: ArcSwap<StreamRecord>,
    /// Its streamlets, by number.
    pub streamlets: Vec<Arc<Streamlet>>,
    /// One change at a time: alter, delete.
    pub change: tokio::sync::Mutex<()>,
}

impl Stream {
    /// A stream of a record and its streamlets, which must be in order.
    pub fn new(record: StreamRecord, streamlets: Vec<Arc<Streamlet>>) -> Arc<Self> {
        Arc::new(Self {
            record: ArcSwap::from_pointee(record),
            streamlets,
            change: Default::default(),
        })
    }

    /// Its id.
    pub fn id(&self) -> StreamId {
        self.record.load().id
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.record.load().name.clone()
    }

    /// A streamlet of it.
    pub fn streamlet(&self, id: StreamletId) -> Option<&Arc<Streamlet>> {
        self.streamlets.get(id.0 as usize)
    }

    /// The number of its lane generation in force.
    pub fn lane_generation(&self) -> u32 {
        self.record.load().lane_generations.len() as u32 - 1
    }

    /// Where `generation` ended in a lane: the first ordinal of the next one in it. `None` if it is
    /// the last, or the lane did not exist in it, or lanes have no boundaries.
    pub fn generation_end(
        &self,
        streamlet: StreamletId,
        lane: LaneId,
        generation: u32,
    ) -> Option<Ordinal> {
        let record = self.record.load();
        let next = record.lane_generations.get(generation as usize + 1)?;
        next.starts
            .iter()
            .find(|(s, l, _)| *s == streamlet && *l == lane)
            .map(|(_, _, ordinal)| *ordinal)
    }
}

/// A stream's settings as its streamlets take them.
pub fn settings_of(record: &StreamRecord) -> Settings {
    let config: &StreamConfig = &record.config;
    Settings {
        lanes: config.lanes,
        lane_generation: record.lane_generations.len() as u32 - 1,
        lane_by_key: config.lane_by == LaneBy::Key,
        segment_size: config.segment_size,
        segments_per_group: config.segments_per_group,
        ack: match config.ack {
            kera_metadata::AckPolicy::Memory => AckPolicy::Memory,
            kera_metadata::AckPolicy::Written => AckPolicy::Written,
            kera_metadata::AckPolicy::Synced => AckPolicy::Synced,
        },
        max_batch_bytes: config.max_batch_bytes as usize,
        append_time: config.timestamp_type == TimestampType::Append,
        group_max_age_ms: config.group_max_age_ms,
    }
}

/// Makes the directories of a stream's streamlets, durably: files made in them later are found again
/// after a power loss.
///
/// # Errors
/// The store's.
pub fn make_dirs(streamlets: &[Arc<Streamlet>], env: &Env) -> std::io::Result<()> {
    for streamlet in streamlets {
        env.io.create_dir_all(&streamlet.dir())?;
    }
    if let Some(stream) = streamlets
        .first()
        .and_then(|s| s.dir().parent().map(Path::to_path_buf))
    {
        env.io.sync_dir(&stream)?;
        env.io.sync_dir(&env.root)?;
    }
    Ok(())
}

/// All streams.
#[derive(Default)]
pub struct Catalog {
    inner: RwLock<Inner>,
}

#[derive(Default)]
struct Inner {
    by_name: HashMap<String, Arc<Stream>>,
    by_id: HashMap<StreamId, Arc<Stream>>,
}

impl Catalog {
    /// Adds a stream.
    pub fn insert(&self, stream: Arc<Stream>) {
        let mut inner = self.inner.write();
        inner.by_name.insert(stream.name(), stream.clone());
        inner.by_id.insert(stream.id(), stream);
    }

    /// Removes a stream.
    pub fn remove(&self, id: StreamId) -> Option<Arc<Stream>> {
        let mut inner = self.inner.write();
        let stream = inner.by_id.remove(&id)?;
        inner.by_name.remove(&stream.name());
        Some(stream)
    }

    /// The stream of a name.
    pub fn named(&self, name: &str) -> Option<Arc<Stream>> {
        self.inner.read().by_name.get(name).cloned()
    }

    /// The stream of an id.
    pub fn get(&self, id: StreamId) -> Option<Arc<Stream>> {
        self.inner.read().by_id.get(&id).cloned()
    }

    /// A streamlet.
    pub fn streamlet(&self, stream: StreamId, streamlet: StreamletId) -> Option<Arc<Streamlet>> {
        self.inner
            .read()
            .by_id
            .get(&stream)?
            .streamlet(streamlet)
            .cloned()
    }

    /// Every stream, sorted by name.
    pub fn all(&self) -> Vec<Arc<Stream>> {
        let mut streams: Vec<_> = self.inner.read().by_id.values().cloned().collect();
        streams.sort_by_cached_key(|s| s.name());
        streams
    }
}
