//! What arrives, and how late it is.

use std::time::Duration;

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency told apart from longer ones.
const LONGEST: Duration = Duration::from_secs(600);
/// The stamp of records that only open the way.
const OPENING: u64 = u64::MAX;
const STAMP: usize = 8;

/// Percentiles, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Records counted.
    pub records: u64,
    /// The mean.
    pub mean_us: f64,
    /// Half of the records took no longer,
    pub p50_us: f64,
    /// nine in ten,
    pub p90_us: f64,
    /// 99 in 100,
    pub p99_us: f64,
    /// 999 in 1,000.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// Puts when the record was due into its value.
pub(crate) fn stamp(value: &mut [u8], due: Duration) {
    let nanos = u64::try_from(due.as_nanos()).unwrap_or(OPENING - 1);
    value[..STAMP].copy_from_slice(&nanos.to_le_bytes());
}

/// Marks the record as one that only opens the way.
pub(crate) fn stamp_opening(value: &mut [u8]) {
    value[..STAMP].copy_from_slice(&OPENING.to_le_bytes());
}

/// Counts from when each record was due, not from when it was sent: a stall counts for every record
/// that it held up (no coordinated omission).
pub(crate) struct Arrivals {
    /// Records that were due before this are not counted: connections and caches are cold.
    cold: Duration,
    histogram: Histogram<u64>,
    opened: u64,
    arrived: u64,
    bytes: u64,
}

impl Arrivals {
    pub(crate) fn new(cold: Duration) -> Self {
        Self {
            cold,
            histogram: histogram(),
            opened: 0,
            arrived: 0,
            bytes: 0,
        }
    }

    /// A record has arrived, `now` after the beginning.
    pub(crate) fn take_after(&mut self, value: &[u8], now: Duration) -> Result<()> {
        let Some(stamp) = value.first_chunk::<STAMP>() else {
            bail!("a record without a stamp arrived");
        };
        let stamp = u64::from_le_bytes(*stamp);
        if stamp == OPENING {
            self.opened += 1;
            return Ok(());
        }
        self.arrived += 1;
        let due = Duration::from_nanos(stamp);
        if due >= self.cold {
            let late = now.saturating_sub(due).as_nanos();
            let late = u64::try_from(late).unwrap_or(u64::MAX);
            self.histogram.saturating_record(late);
        }
        Ok(())
    }

    /// A record of so many bytes has arrived, whatever its stamp.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.arrived += 1;
        self.bytes += bytes as u64;
    }

    /// Records that only opened the way.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }

    /// Other records.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Bytes of those that were counted without a stamp.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes those of another along.
    pub(crate) fn merge(&mut self, other: &Self) -> Result<()> {
        self.opened += other.opened;
        self.arrived += other.arrived;
        self.bytes += other.bytes;
        Ok(self.histogram.add(&other.histogram)?)
    }

    /// `None` if no record counts.
    pub(crate) fn latency(&self) -> Option<Latency> {
        Latency::of(&self.histogram)
    }
}

/// A histogram of nanoseconds, to three digits, up to ten minutes.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    let longest = u64::try_from(LONGEST.as_nanos()).unwrap_or(u64::MAX);
    match Histogram::new_with_bounds(1_000, longest, 3) {
        Ok(histogram) => histogram,
        Err(error) => unreachable!("constant bounds: {error}"),
    }
}

impl Latency {
    /// Of a histogram of nanoseconds; `None` if it is empty.
    #[must_use]
    pub fn of(found: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| found.value_at_quantile(quantile) as f64 / 1e3;
        (!found.is_empty()).then(|| Self {
            records: found.len(),
            mean_us: found.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: found.max() as f64 / 1e3,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_counts_for_all_that_it_held_up() {
        let mut arrivals = Arrivals::new(Duration::from_secs(1));
        // One a millisecond; nothing arrives for 100 ms, then all at once.
        for number in 0..100 {
            let mut value = [0; 16];
            stamp(&mut value, Duration::from_millis(2_000 + number));
            arrivals
                .take_after(&value, Duration::from_millis(2_100))
                .unwrap();
        }
        let latency = arrivals.latency().unwrap();
        assert_eq!((latency.records, arrivals.arrived()), (100, 100));
        assert!((latency.p50_us - 51_000.0).abs() < 1_100.0, "{latency:?}");
        assert!((latency.max_us - 100_000.0).abs() < 200.0, "{latency:?}");
    }

    #[test]
    fn cold_records_and_those_that_open_the_way_do_not_count() {
        let second = Duration::from_secs(1);
        let mut arrivals = Arrivals::new(second);
        let mut value = [0; 8];
        stamp_opening(&mut value);
        arrivals.take_after(&value, second).unwrap();
        stamp(&mut value, Duration::from_millis(999));
        arrivals.take_after(&value, second).unwrap();
        assert_eq!((arrivals.opened(), arrivals.arrived()), (1, 1));
        assert_eq!(arrivals.latency(), None);
        assert!(arrivals.take_after(&[1, 2], second).is_err());
    }
}
