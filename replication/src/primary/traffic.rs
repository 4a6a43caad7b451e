//! What goes to one backup, counted for people and metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::replica_set::ReplicaSet;
use crate::ids::CopyId;

/// Counters of a shipper. They grow while the process runs.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    shipped: AtomicU64,
    in_flight: AtomicU64,
    lost: AtomicU64,
    flush_rounds: AtomicU64,
    flushed_groups: AtomicU64,
    flush_micros: AtomicU64,
    /// The open groups that have a copy at the backup, and its number in their sets.
    groups: Mutex<BTreeMap<CopyId, (Weak<ReplicaSet>, usize)>>,
}

/// What goes from this primary to one backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerTraffic {
    /// Bytes that were seen to be in its memory since this process started.
    pub shipped_bytes: u64,
    /// Bytes handed to the link, and not yet seen to be there.
    pub in_flight_bytes: u64,
    /// Bytes of open groups that are not there yet, those in flight included.
    pub lag_bytes: u64,
    /// Open groups with a copy there.
    pub open_groups: u64,
    /// Copies of open groups that were given up since this process started.
    pub lost_copies: u64,
    /// Flush rounds that ended since this process started,
    pub flush_rounds: u64,
    /// the groups in all of them,
    pub flushed_groups: u64,
    /// and how long they took together.
    pub flush_time: Duration,
}

impl Traffic {
    pub(super) fn joined(&self, set: &Arc<ReplicaSet>, index: usize) {
        let mut groups = self.groups.lock();
        groups.insert(set.id(), (Arc::downgrade(set), index));
    }

    pub(super) fn left(&self, copy: &CopyId) {
        self.groups.lock().remove(copy);
    }

    pub(super) fn lost(&self, copy: &CopyId) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        self.left(copy);
    }

    pub(super) fn shipped(&self, bytes: u64) {
        self.shipped.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A flush round of so many groups has ended.
    pub(super) fn flushed(&self, groups: usize, took: Duration) {
        let micros = took.as_micros().try_into().unwrap_or(u64::MAX);
        self.flush_rounds.fetch_add(1, Ordering::Relaxed);
        self.flushed_groups
            .fetch_add(groups as u64, Ordering::Relaxed);
        self.flush_micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub(super) fn set_in_flight(&self, bytes: u64) {
        self.in_flight.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> PeerTraffic {
        let sets: Vec<_> = self.groups.lock().values().cloned().collect();
        let mut out = PeerTraffic {
            shipped_bytes: self.shipped.load(Ordering::Relaxed),
            in_flight_bytes: self.in_flight.load(Ordering::Relaxed),
            lost_copies: self.lost.load(Ordering::Relaxed),
            flush_rounds: self.flush_rounds.load(Ordering::Relaxed),
            flushed_groups: self.flushed_groups.load(Ordering::Relaxed),
            flush_time: Duration::from_micros(self.flush_micros.load(Ordering::Relaxed)),
            ..PeerTraffic::default()
        };
        for (set, index) in sets {
            if let Some(set) = set.upgrade() {
                out.open_groups += 1;
                out.lag_bytes += set.missing_at(index);
            }
        }
        out
    }
}
