//! What is known of lanes in which markers may be lost again.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use kera_coordinator::transactions::Partition;
use kera_protocol::ids::{Epoch, Ordinal, StreamletId};
use parking_lot::Mutex;

/// A lane as one coordinator watches it: the coordinator's streamlet and epoch, and the partition.
pub(super) type Key = (StreamletId, Epoch, Partition);

/// What this broker's coordinators know of lanes whose markers may be lost again.
#[derive(Debug, Default)]
pub(super) struct Settling {
    pub(super) watched: Mutex<HashMap<Key, Watch>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    /// When nothing that had ended was open there.
    pub(super) whole: Option<Whole>,
    pub(super) next: Instant,
    pub(super) pause: Duration,
}

/// A lane that had all its markers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    /// Its owner's,
    pub(super) epoch: Epoch,
    /// and how often it had lost something under that.
    pub(super) failures: u64,
    /// Where it ended: some of the markers below may be new ones for those that were lost.
    pub(super) end: Ordinal,
    /// Its owner was asked then, or later.
    pub(super) asked: Instant,
}

impl Settling {
    /// A coordinator's transactions have markers in these partitions, whose owners were asked after `since`. A look that
    /// was under way meanwhile may have missed them.
    pub(super) fn marked(
        &self,
        (streamlet, epoch): (StreamletId, Epoch),
        partitions: &BTreeSet<Partition>,
        since: Instant,
    ) {
        let mut watched = self.watched.lock();
        for partition in partitions {
            let key = (streamlet, epoch, *partition);
            if let Some(watch) = watched.get_mut(&key)
                && watch.whole.is_some_and(|whole| whole.asked >= since)
            {
                watch.whole = None;
                watch.next = Instant::now();
            }
        }
    }
}
