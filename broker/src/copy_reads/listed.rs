//! Closed groups and their copies as the metadata store lists them, for a moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_metadata::{GroupRecord, GroupState, Image, MetadataStore};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, Ordinal, StreamId, StreamletId, StreamletKey};
use parking_lot::Mutex;

use crate::fault_rules::Rule;

/// What was read is believed for so long: a closed group's bytes never change, and a copy that is not
/// listed any more is not served for longer than this.
const BELIEVED: Duration = Duration::from_secs(1);
/// What is younger is not read anew, whoever misses something in it.
const JUST_NOW: Duration = Duration::from_millis(100);
/// Streamlets remembered.
const STREAMLETS: usize = 256;

/// A lane's closed groups.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// The first ordinal still stored.
    pub(crate) log_start: Ordinal,
    /// Those with records, by ordinal.
    pub(crate) groups: Vec<GroupRecord>,
}

/// For tests that are to notice: an open group, as if it were closed where some of it has come.
fn pretend_closed(group: &mut GroupRecord) {
    group.state = GroupState::Closed;
    group.length = 32 << 10;
    group.first_ordinal.get_or_insert_default();
    (group.end_ordinal, group.next_ordinal) = (Ordinal::MAX, Ordinal::MAX);
}

/// A streamlet's closed groups.
#[derive(Debug)]
pub(crate) struct Known {
    read_at: Instant,
    lanes: BTreeMap<LaneId, Lane>,
}

impl Known {
    fn of(image: Image, read_at: Instant) -> Self {
        let mut lanes: BTreeMap<LaneId, Lane> = BTreeMap::new();
        for mut group in image.groups {
            if Rule::OpenCopyServed.is_broken() && group.state == GroupState::Open {
                pretend_closed(&mut group);
            }
            if group.holds_records() {
                lanes.entry(group.lane).or_default().groups.push(group);
            }
        }
        for lane in lanes.values_mut() {
            lane.groups
                .sort_unstable_by_key(|group| (group.end_ordinal, group.group));
            let first = lane.groups.first().and_then(|group| group.first_ordinal);
            lane.log_start = first.unwrap_or_default();
        }
        for start in image.lane_starts {
            if let Some(lane) = lanes.get_mut(&start.key.lane) {
                lane.log_start = lane.log_start.max(start.ordinal);
            }
        }
        Self { read_at, lanes }
    }

    /// A lane; `None` if it has no closed group.
    pub(crate) fn lane(&self, lane: LaneId) -> Option<&Lane> {
        self.lanes.get(&lane)
    }
}

/// Streamlets' closed groups, as they were read lately.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    known: Mutex<HashMap<StreamletKey, Arc<Known>>>,
}

impl Listed {
    /// Forgets what is still believed of a streamlet, unless it was read just now. True if it was
    /// forgotten: the next look may find more.
    pub(crate) fn forget(&self, stream: StreamId, streamlet: StreamletId) -> bool {
        let key = StreamletKey { stream, streamlet };
        let mut all = self.known.lock();
        let age = all.get(&key).map(|known| known.read_at.elapsed());
        let outlived = age.is_some_and(|age| (JUST_NOW..BELIEVED).contains(&age));
        if outlived {
            all.remove(&key);
        }
        outlived
    }

    /// A streamlet's closed groups, no older than a second. Waits for the store.
    pub(crate) fn of(
        &self,
        store: &dyn MetadataStore,
        stream: StreamId,
        streamlet: StreamletId,
    ) -> Result<Arc<Known>, WireError> {
        let key = StreamletKey { stream, streamlet };
        let now = Instant::now();
        let is_fresh = |known: &Arc<Known>| now.duration_since(known.read_at) < BELIEVED;
        if let Some(known) = self.known.lock().get(&key).filter(|known| is_fresh(known)) {
            return Ok(known.clone());
        }
        let image = match store.load_streamlet(stream, streamlet) {
            Ok(image) => image,
            Err(error) => {
                let text = format!(
                    "the metadata store does not say now which replicas are this broker's: {error}; read from the owner"
                );
                return Err(WireError::new(ErrorCode::NotOwner, text));
            }
        };
        let known = Arc::new(Known::of(image, now));
        let mut all = self.known.lock();
        if all.len() >= STREAMLETS {
            all.retain(|_, known| is_fresh(known));
            if all.len() >= STREAMLETS {
                all.clear();
            }
        }
        all.insert(key, known.clone());
        Ok(known)
    }
}
