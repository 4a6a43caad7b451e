//! The partitions of share groups that a broker serves.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use kera_coordinator::classic::shares::ShareConfig;
use kera_coordinator::share::{Holder, SharePartition, WrongState};
use kera_protocol::error::WireError;
use kera_protocol::ids::{Epoch, LaneId, StreamId};
use kera_replication::seldom::Seldom;
use kera_streamlet::Streamlet;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{Notify, OnceCell};

use crate::clock::now_ms;

/// Runs of records in flight, of all groups and partitions of a broker; each takes about 64 bytes. At the limit a
/// partition has no more than [`SPARED`] records in flight, so that no group takes the room of all others.
const MOST_RUNS: usize = 1_000_000;
/// Records of a partition for which there is room in any case: as few as may be set.
const SPARED: u64 = 100;

/// Why a share group is not served in a partition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The partition's owner, or the group's offsets, changed.
    #[error(
        "another broker serves the partition for the group by now, or its offsets were set; fetch again"
    )]
    Fenced,
    /// This broker does not own the lane any more.
    #[error("this broker does not own the partition; look for its leader")]
    NotOwner,
    /// There is no such group.
    #[error("there is no such share group; its members are to join it first")]
    NoGroup,
    /// There is no such partition.
    #[error("there is no such partition")]
    NoPartition,
    /// The coordinator keeps no more of the group.
    #[error("as much is kept of the group as may be; delete groups that are not needed")]
    Full,
    /// The member that acknowledges the record has not acquired it.
    #[error(transparent)]
    State(#[from] WrongState),
    /// The coordinator does not answer, or not yet.
    #[error("the group's coordinator cannot keep it: {0}")]
    Coordinator(WireError),
    /// It was not kept in time; it may be later.
    #[error("the group's coordinator did not keep it in time; it may still")]
    Late,
}

/// A group in a partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ShareKey {
    pub(super) group: Arc<str>,
    pub(super) stream: StreamId,
    pub(super) partition: u32,
}

/// What became of records, since the start.
#[derive(Debug, Default)]
pub struct ShareCounts {
    /// Acquired by a member.
    pub acquired: Counter,
    /// Accepted.
    pub accepted: Counter,
    /// Given back.
    pub released: Counter,
    /// Rejected.
    pub rejected: Counter,
    /// Renewed: their members are at work on them still.
    pub renewed: Counter,
    /// Partitions in which locks ended before their holders had said anything.
    pub expired: Counter,
    /// Given up, and in a dead-letter topic.
    pub dead_letters: Counter,
    /// Given up, and in no dead-letter topic, though there was to be one.
    pub unwritten_dead_letters: Counter,
}

/// The share groups' partitions that this broker serves.
#[derive(Debug, Default)]
pub struct Shares {
    pub(super) open: Mutex<HashMap<ShareKey, Arc<OwnedShare>>>,
    holders: AtomicU64,
    pub(super) runs: AtomicUsize,
    /// Dead letters that could not be written, as the log tells of them.
    pub(super) untold: Mutex<Seldom>,
    /// For operators.
    pub counts: ShareCounts,
}

impl Shares {
    /// A name for a session's locks, which no other has.
    pub fn new_holder(&self) -> Holder {
        self.holders.fetch_add(1, Ordering::Relaxed)
    }

    /// Groups' partitions that are served now.
    pub(crate) fn partitions(&self) -> usize {
        self.open.lock().len()
    }

    /// How many records of a partition may be in flight, where a group is to have so many.
    pub(super) fn most_in_flight(&self, wanted: u64) -> u64 {
        match self.runs.load(Ordering::Relaxed) < MOST_RUNS {
            true => wanted,
            false => wanted.min(SPARED),
        }
    }
}

/// Where a partition is served from.
#[derive(Clone)]
pub struct SharePlace {
    /// Its stream.
    pub stream: StreamId,
    /// Its number.
    pub partition: u32,
    /// The streamlet, which this broker owns.
    pub streamlet: Arc<Streamlet>,
    /// Its lane.
    pub lane: LaneId,
}

/// A group's partition, for as long as a session has a part in it or something is to be kept.
pub(super) struct OwnedShare {
    pub(super) key: ShareKey,
    pub(super) streamlet: Arc<Streamlet>,
    pub(super) lane: LaneId,
    pub(super) epoch: Epoch,
    /// Sessions, and who makes dead letters; from 0 on it changes under the lock of [`Shares::open`] alone.
    pub(super) users: AtomicUsize,
    pub(super) opened: OnceCell<Opened>,
    /// Something became available.
    pub(super) news: Notify,
    /// Something was kept, or never will be.
    pub(super) kept: Notify,
}

/// What its coordinator told, and what became of it since.
pub(super) struct Opened {
    pub(super) state_epoch: u64,
    /// What is set for the group, as it was last told.
    pub(super) config: ArcSwap<ShareConfig>,
    /// When that was asked for last,
    pub(super) asked_ms: AtomicU64,
    /// and how often,
    pub(super) asked: AtomicU64,
    /// by one at a time: an older answer overwrites no younger one.
    pub(super) asking: tokio::sync::Mutex<()>,
    pub(super) standing: Mutex<Standing>,
}

impl Opened {
    /// When locks end that are taken now. The millisecond that it is may be over at any moment: a lock ends no sooner than was
    /// promised.
    pub(super) fn locked_until(&self) -> u64 {
        now_ms().saturating_add(self.config.load().lock_ms() + 1)
    }
}

/// Who has what, and how much of it is kept.
pub(super) struct Standing {
    pub(super) partition: SharePartition,
    /// Counts changes that are to be kept,
    pub(super) version: u64,
    /// and which of them are.
    pub(super) kept: u64,
    /// Somebody is about it.
    pub(super) writing: bool,
    /// Somebody makes dead letters of what is given up.
    pub(super) burying: bool,
    /// It came to nothing; nothing is served any more.
    pub(super) ended: Option<ShareError>,
    /// Counted in [`Shares::runs`].
    pub(super) runs: usize,
}

impl std::fmt::Debug for OwnedShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnedShare")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_group_takes_the_room_of_all_others() {
        let shares = Shares::default();
        assert_eq!(shares.most_in_flight(2_000), 2_000);
        shares.runs.store(MOST_RUNS, Ordering::Relaxed);
        assert_eq!(shares.most_in_flight(2_000), SPARED);
    }
}
