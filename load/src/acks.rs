//! How late acknowledgements are.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::arrivals::{Latency, histogram};

/// Counts from when each record was due, apart for the time before and after a consumer began to
/// catch up.
#[derive(Debug)]
pub struct Acks {
    cold: Duration,
    begin: OnceLock<Instant>,
    busy_from: AtomicU64,
    quiet: Mutex<Histogram<u64>>,
    busy: Mutex<Histogram<u64>>,
}

impl Acks {
    /// Records that are due before `cold` do not count.
    #[must_use]
    pub fn new(cold: Duration) -> Self {
        Self {
            cold,
            begin: OnceLock::new(),
            busy_from: AtomicU64::new(u64::MAX),
            quiet: Mutex::new(histogram()),
            busy: Mutex::new(histogram()),
        }
    }

    /// Records are due from `begin` on; only its first call counts.
    pub fn begin(&self, begin: Instant) {
        let _ = self.begin.set(begin);
    }

    /// Records that are due from now on count as those of the busy time.
    pub(crate) fn busy(&self) {
        let elapsed = self.begin.get().map_or(Duration::ZERO, Instant::elapsed);
        self.busy_from.store(nanos(elapsed), Relaxed);
    }

    /// A record that was `due` so long after the beginning was acknowledged, just now.
    pub fn take(&self, due: Duration) {
        if let Some(begin) = self.begin.get() {
            self.take_after(due, begin.elapsed());
        }
    }

    fn take_after(&self, due: Duration, now: Duration) {
        if due < self.cold {
            return;
        }
        let busy = nanos(due) >= self.busy_from.load(Relaxed);
        let histogram = if busy { &self.busy } else { &self.quiet };
        let mut histogram = histogram.lock().unwrap_or_else(PoisonError::into_inner);
        histogram.saturating_record(nanos(now.saturating_sub(due)));
    }

    /// Before the busy time.
    pub fn quiet(&self) -> Option<Latency> {
        Latency::of(&self.quiet.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// In the busy time.
    pub(crate) fn when_busy(&self) -> Option<Latency> {
        Latency::of(&self.busy.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_time_is_kept_apart() {
        let acks = Acks::new(Duration::from_secs(1));
        let ms = Duration::from_millis;
        // The first second does not count.
        acks.take_after(ms(999), ms(5_000));
        acks.take_after(ms(1_000), ms(1_002));
        acks.busy_from.store(nanos(ms(2_000)), Relaxed);
        acks.take_after(ms(1_999), ms(2_001));
        acks.take_after(ms(2_000), ms(2_050));
        let (quiet, busy) = (acks.quiet().unwrap(), acks.when_busy().unwrap());
        assert_eq!((quiet.records, busy.records), (2, 1));
        assert!((quiet.max_us - 2_000.0).abs() < 10.0, "{quiet:?}");
        assert!((busy.max_us - 50_000.0).abs() < 100.0, "{busy:?}");
    }

    #[test]
    fn nothing_counts_before_the_beginning() {
        let acks = Acks::new(Duration::from_secs(1));
        acks.take(Duration::from_secs(2));
        assert_eq!(acks.quiet(), None);
    }
}
