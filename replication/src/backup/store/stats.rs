//! What a store holds and was asked, counted for people and metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ReplicaStore;
use crate::transport::{CopyState, Refusal};

/// A store as it is now. What is counted begins at 0 with each start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Bytes of shared memory that the store may take.
    pub memory_bytes: u64,
    /// Bytes that it has taken: what copies have reserved, and their records and the seals.
    pub memory_used_bytes: u64,
    /// Those of them that records and seals take.
    pub memory_overhead_bytes: u64,
    /// Copies that a primary may write.
    pub copies_open: u64,
    /// Copies that only a recovery may write.
    pub copies_sealed: u64,
    /// Copies of closed groups, which are on disk where there is one.
    pub copies_flushed: u64,
    /// Seals carried out, each of one streamlet.
    pub seals: u64,
    /// Requests refused for want of room.
    pub refused_no_room: u64,
    /// Requests refused because a newer owner has sealed.
    pub refused_sealed: u64,
    /// Requests refused for any other reason.
    pub refused_other: u64,
    /// Directories that the start could not make out.
    pub unreadable_dirs: u64,
}

impl StoreStats {
    /// All copies.
    pub fn copies(&self) -> u64 {
        self.copies_open + self.copies_sealed + self.copies_flushed
    }
}

/// What was asked.
#[derive(Debug, Default)]
pub(super) struct Asked {
    seals: AtomicU64,
    no_room: AtomicU64,
    sealed: AtomicU64,
    other: AtomicU64,
}

impl Asked {
    pub(super) fn sealed(&self, streamlets: usize) {
        self.seals.fetch_add(streamlets as u64, Ordering::Relaxed);
    }

    pub(super) fn note<T>(&self, answered: &Result<T, Refusal>) {
        let counter = match answered {
            Ok(_) => return,
            Err(Refusal::NoRoom { .. }) => &self.no_room,
            Err(Refusal::Sealed { .. }) => &self.sealed,
            Err(_) => &self.other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl ReplicaStore {
    /// What the store holds and was asked. Looks at every copy.
    pub fn stats(&self) -> StoreStats {
        let (copies, used, besides): (Vec<Arc<_>>, u64, u64) = {
            let control = self.control.lock();
            let copies = control.copies.values().cloned().collect();
            (copies, control.used(), control.besides())
        };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut out = StoreStats {
            memory_bytes: self.limits.memory_bytes,
            memory_used_bytes: used,
            memory_overhead_bytes: besides,
            seals: count(&self.asked.seals),
            refused_no_room: count(&self.asked.no_room),
            refused_sealed: count(&self.asked.sealed),
            refused_other: count(&self.asked.other),
            unreadable_dirs: self.hidden.len() as u64,
            ..StoreStats::default()
        };
        for copy in copies {
            match copy.info().state {
                CopyState::Open => out.copies_open += 1,
                CopyState::Sealed => out.copies_sealed += 1,
                CopyState::Flushed => out.copies_flushed += 1,
            }
        }
        out
    }
}
