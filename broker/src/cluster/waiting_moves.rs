//! Replicas of this broker's groups that are to move, as of the last round of the jobs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Replicas that the last round found to move, and their bytes.
#[derive(Debug, Default)]
pub(super) struct WaitingMoves {
    bytes: AtomicU64,
    replicas: AtomicU64,
}

impl WaitingMoves {
    /// Bytes of copies of this broker's groups that are to move.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// These copies, and those that are one too many.
    pub(super) fn waiting_copies(&self) -> u64 {
        self.replicas.load(Ordering::Relaxed)
    }

    /// What a round has found.
    pub(super) fn set(&self, bytes: u64, replicas: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.replicas.store(replicas, Ordering::Relaxed);
    }
}
