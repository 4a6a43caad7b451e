//! The streams there are: by name and by id, with their streamlets and who owns each.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use kera_metadata::{BatchCheck, LaneBy, StreamConfig, StreamRecord, TimestampType};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, Ordinal, StreamId, StreamletId};
use kera_streamlet::{BatchRules, Env, Settings, Streamlet, TrafficTotals};
use parking_lot::{Mutex, RwLock};

use crate::clock::now_ms;
use crate::data::directory::Owner;

/// A stream and its streamlets.
pub struct Stream {
    /// The record as last written.
    pub record: ArcSwap<StreamRecord>,
    /// Its streamlets.
    pub streamlets: Streamlets,
    /// What went in and out of streamlets here whose places others have taken.
    replaced_traffic: Mutex<TrafficTotals>,
    /// The recorded owner of each, by number.
    owners: ArcSwap<Vec<Owner>>,
    /// One change at a time: alter, delete.
    pub change: tokio::sync::Mutex<()>,
    /// The attempt to grow lanes for which those here were cut.
    growing: Mutex<Option<u64>>,
    /// Held while a new record is applied to the streamlets.
    altering: Mutex<()>,
    /// One pin is made or moved at a time.
    pub(crate) pinning: tokio::sync::Mutex<()>,
}

/// All streamlets of a stream, by number. One that another broker owns is there too, without lanes
/// ([`Streamlet::is_moved`]); when its owner changes another streamlet takes its place.
pub struct Streamlets(ArcSwap<Vec<Arc<Streamlet>>>);

impl Streamlets {
    fn new(streamlets: Vec<Arc<Streamlet>>) -> Self {
        Self(ArcSwap::from_pointee(streamlets))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.load().len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The one of this number.
    pub fn get(&self, number: usize) -> Option<Arc<Streamlet>> {
        self.0.load().get(number).cloned()
    }

    /// Each of them as it is now.
    pub fn iter(&self) -> std::vec::IntoIter<Arc<Streamlet>> {
        self.0.load().to_vec().into_iter()
    }

    /// Puts `streamlet` into the place of the one of its number, and returns that.
    fn put(&self, streamlet: Arc<Streamlet>) -> Option<Arc<Streamlet>> {
        let number = streamlet.id().0 as usize;
        let before = self.0.rcu(|all| {
            let mut all = all.to_vec();
            if let Some(slot) = all.get_mut(number) {
                *slot = streamlet.clone();
            }
            all
        });
        before.get(number).cloned()
    }
}

impl IntoIterator for &Streamlets {
    type Item = Arc<Streamlet>;
    type IntoIter = std::vec::IntoIter<Arc<Streamlet>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Stream {
    /// A stream of a record, its streamlets and their owners, all by number.
    pub fn new(
        record: StreamRecord,
        streamlets: Vec<Arc<Streamlet>>,
        owners: Vec<Owner>,
    ) -> Arc<Self> {
        Arc::new(Self {
            record: ArcSwap::from_pointee(record),
            streamlets: Streamlets::new(streamlets),
            replaced_traffic: Mutex::default(),
            owners: ArcSwap::from_pointee(owners),
            change: Default::default(),
            growing: Mutex::default(),
            altering: Mutex::default(),
            pinning: Default::default(),
        })
    }

    /// Its record was written, here or by another broker: settings change, lanes open. An older one
    /// changes nothing.
    pub(crate) fn altered(&self, record: StreamRecord) {
        // The change's own broker also hears of it from the store. One at a time: else the older of two
        // records could be stored last, and the second caller would return before the lanes are open.
        let _one = self.altering.lock();
        let before = self.record.load_full();
        if record.revision <= before.revision {
            return;
        }
        let record = Arc::new(record);
        let has_grown = record.lane_generations.len() > before.lane_generations.len();
        self.record.store(record.clone());
        for streamlet in &self.streamlets {
            let settings = settings_of(&record, streamlet.id());
            if has_grown {
                streamlet.finish_growth(&settings);
            }
            streamlet.alter(|s| *s = settings.clone(), now_ms());
        }
        if has_grown {
            *self.growing.lock() = None;
        }
    }

    /// Lanes here are to be cut for an attempt to grow them; false if they are for another.
    pub(crate) fn begin_growth(&self, attempt: u64) -> bool {
        let mut growing = self.growing.lock();
        let begins = growing.is_none();
        growing.get_or_insert(attempt);
        begins
    }

    /// True while lanes here are cut for `attempt`.
    pub(crate) fn is_growing(&self, attempt: u64) -> bool {
        *self.growing.lock() == Some(attempt)
    }

    /// The attempt is over; false if it was already.
    pub(crate) fn end_growth(&self, attempt: u64) -> bool {
        self.growing
            .lock()
            .take_if(|growing| *growing == attempt)
            .is_some()
    }

    /// Who is recorded to own a streamlet.
    pub fn owner(&self, streamlet: StreamletId) -> Option<Owner> {
        self.owners.load().get(streamlet.0 as usize).copied()
    }

    /// Who is recorded to own each streamlet, by number.
    pub fn owners(&self) -> Arc<Vec<Owner>> {
        self.owners.load_full()
    }

    /// Another owner is recorded.
    pub(crate) fn set_owner(&self, streamlet: StreamletId, owner: Owner) {
        self.owners.rcu(|owners| {
            let mut owners = owners.to_vec();
            if let Some(slot) = owners.get_mut(streamlet.0 as usize) {
                *slot = owner;
            }
            owners
        });
    }

    /// Puts `streamlet` into the place of the one of its number, and returns that.
    pub(crate) fn put(&self, streamlet: Arc<Streamlet>) -> Option<Arc<Streamlet>> {
        let mut traffic = self.replaced_traffic.lock();
        let replaced = self.streamlets.put(streamlet)?;
        *traffic = traffic.plus(&replaced.traffic().totals());
        Some(replaced)
    }

    /// What went in and out of the stream here since the broker started. It only grows, whatever streamlets come and go.
    pub(crate) fn traffic(&self) -> TrafficTotals {
        let replaced = self.replaced_traffic.lock();
        self.streamlets.iter().fold(*replaced, |sum, streamlet| {
            sum.plus(&streamlet.traffic().totals())
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
    pub fn streamlet(&self, id: StreamletId) -> Option<Arc<Streamlet>> {
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

/// A stream's settings as one of its streamlets takes them.
pub fn settings_of(record: &StreamRecord, streamlet: StreamletId) -> Settings {
    let config: &StreamConfig = &record.config;
    Settings {
        lanes: config.lanes_of(streamlet),
        uneven_partitions: config.uneven_partitions(),
        lane_generation: record.lane_generations.len() as u32 - 1,
        lane_by_key: config.lane_by == LaneBy::Key,
        segment_size: config.segment_size,
        segments_per_group: config.segments_per_group,
        ack: config.ack,
        max_batch_bytes: config.max_batch_bytes as usize,
        append_time: config.timestamp_type == TimestampType::Append,
        group_max_age_ms: group_max_age_ms(config),
        rules: BatchRules {
            internal: record.internal,
            full: config.validate == BatchCheck::Full,
            keyed: config.cleanup.compacts(),
            before_max_ms: config.timestamp_before_max_ms,
            after_max_ms: config.timestamp_after_max_ms,
        },
    }
}

/// How old a group that takes appends may get: no older than records may be that are not compacted.
fn group_max_age_ms(config: &StreamConfig) -> u64 {
    match (config.group_max_age_ms, config.max_compaction_lag_ms) {
        (age, lag) if lag == 0 || !config.cleanup.compacts() => age,
        (0, lag) => lag,
        (age, lag) => age.min(lag),
    }
}

/// Makes a streamlet's directory if it is missing: a broker may get a streamlet of which it never had a file.
///
/// # Errors
/// As [`make_dirs`], with the directory.
pub fn make_missing_dir(streamlet: &Arc<Streamlet>, env: &Env) -> std::io::Result<()> {
    let dir = streamlet.dir();
    if dir.is_dir() {
        return Ok(());
    }
    let made = make_dirs(std::slice::from_ref(streamlet), env);
    made.map_err(|error| {
        let text = format!("{} cannot be made: {error}", dir.display());
        std::io::Error::new(error.kind(), text)
    })
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
        let name = stream.name();
        // Another may have the name by now.
        if inner
            .by_name
            .get(&name)
            .is_some_and(|named| named.id() == id)
        {
            inner.by_name.remove(&name);
        }
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

    /// The stream of an id that came over the wire.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownStream`], or [`ErrorCode::InvalidArgument`] if it is no id.
    pub fn of_id(&self, id: &[u8]) -> Result<Arc<Stream>, WireError> {
        let id = stream_id(id)?;
        self.get(id).ok_or_else(|| unknown_id(id))
    }

    /// A streamlet.
    pub fn streamlet(&self, stream: StreamId, streamlet: StreamletId) -> Option<Arc<Streamlet>> {
        self.inner.read().by_id.get(&stream)?.streamlet(streamlet)
    }

    /// Every stream, sorted by name.
    pub fn all(&self) -> Vec<Arc<Stream>> {
        let mut streams: Vec<_> = self.inner.read().by_id.values().cloned().collect();
        streams.sort_by_cached_key(|s| s.name());
        streams
    }
}

/// The answer about an id that no stream has.
pub(crate) fn unknown_id(id: StreamId) -> WireError {
    let text = format!("no stream has id {id}; it may have been deleted: look its name up again");
    WireError::new(ErrorCode::UnknownStream, text)
}

/// The id of a stream as it came over the wire.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] if it is none.
pub fn stream_id(id: &[u8]) -> Result<StreamId, WireError> {
    StreamId::from_slice(id)
        .ok_or_else(|| WireError::new(ErrorCode::InvalidArgument, "stream id is not 16 bytes"))
}
