//! What went in and out of a streamlet since this broker has served it, for people who look at rates.

use std::time::Duration;

use kera_log_segments::sync::{AtomicU64, Ordering};
use kera_protocol::batch::BatchHeader;

/// Acknowledgements are counted by the time that they took. These are the upper bounds of the counts in microseconds,
/// each included; the last count has none.
pub const LATENCY_BOUNDS_US: [u64; 8] =
    [100, 400, 1_600, 6_400, 25_600, 102_400, 409_600, 1_638_400];
const LATENCY_COUNTS: usize = LATENCY_BOUNDS_US.len() + 1;

/// Counters that only grow. Each is one addition per batch or reply.
#[derive(Debug, Default)]
pub struct Traffic {
    appended_records: AtomicU64,
    appended_bytes: AtomicU64,
    read_bytes: AtomicU64,
    latency_counts: [AtomicU64; LATENCY_COUNTS],
    latency_sum_us: AtomicU64,
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
    /// Acknowledgements by the time that they took: see [`LATENCY_BOUNDS_US`].
    pub latency_counts: [u64; LATENCY_COUNTS],
    /// The time that all of them took together, in microseconds.
    pub latency_sum_us: u64,
}

impl TrafficTotals {
    /// Both together.
    pub fn plus(self, more: &Self) -> Self {
        self.combined(more, u64::wrapping_add)
    }

    /// What has been counted since `before`, of the same counters.
    pub fn since(self, before: &Self) -> Self {
        self.combined(before, u64::saturating_sub)
    }

    fn combined(self, other: &Self, with: impl Fn(u64, u64) -> u64) -> Self {
        let mut latency_counts = self.latency_counts;
        for (count, other) in latency_counts.iter_mut().zip(other.latency_counts) {
            *count = with(*count, other);
        }
        Self {
            appended_records: with(self.appended_records, other.appended_records),
            appended_bytes: with(self.appended_bytes, other.appended_bytes),
            read_bytes: with(self.read_bytes, other.read_bytes),
            latency_counts,
            latency_sum_us: with(self.latency_sum_us, other.latency_sum_us),
        }
    }
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

    /// An append was acknowledged, so long after it had arrived.
    pub fn note_acknowledged(&self, after: Duration) {
        let us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        let at = LATENCY_BOUNDS_US.partition_point(|bound| *bound < us);
        self.latency_counts[at].fetch_add(1, Ordering::Relaxed);
        self.latency_sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// All of it so far.
    pub fn totals(&self) -> TrafficTotals {
        TrafficTotals {
            appended_records: self.appended_records.load(Ordering::Relaxed),
            appended_bytes: self.appended_bytes.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            latency_counts: std::array::from_fn(|at| {
                self.latency_counts[at].load(Ordering::Relaxed)
            }),
            latency_sum_us: self.latency_sum_us.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_counted_below_its_bound() {
        let traffic = Traffic::default();
        for us in [0, 100, 101, 1_638_400, 1_638_401] {
            traffic.note_acknowledged(Duration::from_micros(us));
        }
        traffic.note_acknowledged(Duration::from_secs(60));
        let totals = traffic.totals();
        assert_eq!(totals.latency_counts, [2, 1, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(totals.latency_sum_us, 3_277_002 + 60_000_000);
    }

    #[test]
    fn totals_are_added_and_compared_part_by_part() {
        let traffic = Traffic::default();
        traffic.note_read(7);
        traffic.note_acknowledged(Duration::from_micros(50));
        let before = traffic.totals();
        traffic.note_read(5);
        traffic.note_acknowledged(Duration::from_micros(200));
        let now = traffic.totals();
        let since = now.since(&before);
        assert_eq!((since.read_bytes, since.latency_sum_us), (5, 200));
        assert_eq!(since.latency_counts[..3], [0, 1, 0]);
        assert_eq!(before.plus(&since), now);
        // Counters of another streamlet, which began anew.
        assert_eq!(before.since(&now), TrafficTotals::default());
    }
}
