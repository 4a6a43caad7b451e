//! What went in and out of a streamlet since this broker has served it, for people who look at rates.

use kera_log_segments::sync::{AtomicU64, Ordering};
use kera_protocol::batch::BatchHeader;

/// Counters that only grow. Each is one addition per batch or reply.
#[derive(Debug, Default)]
pub struct Traffic {
    appended_records: AtomicU64,
    appended_bytes: AtomicU64,
    read_bytes: AtomicU64,
}

/// What [`Traffic`] has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficTotals {
    /// Records appended; duplicates are not.
    pub appended_records: u64,
    /// Bytes of batches appended.
    pub appended_bytes: u64,
    /// Bytes of batches sent to readers.
    pub read_bytes: u64,
}

impl Traffic {
    pub(crate) fn note_appended(&self, header: &BatchHeader) {
        self.appended_records
            .fetch_add(header.ordinals(), Ordering::Relaxed);
        self.appended_bytes
            .fetch_add(header.total_bytes as u64, Ordering::Relaxed);
    }

    /// Bytes of batches were sent to a reader.
    pub fn note_read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// All of it so far.
    pub fn totals(&self) -> TrafficTotals {
        TrafficTotals {
            appended_records: self.appended_records.load(Ordering::Relaxed),
            appended_bytes: self.appended_bytes.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
        }
    }
}
