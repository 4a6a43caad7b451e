//! Records at a rate, whatever becomes of those before.

use std::time::{Duration, Instant};

/// Whoever is ahead of the rate waits at least this long and then sends all that is due: a shorter
/// wait would take a core away from the broker. What it adds counts as latency.
const LEAST: Duration = Duration::from_micros(200);

/// When each record of an open loop is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    begin: Instant,
    rate: u64,
}

impl Pace {
    pub(crate) fn new(begin: Instant, rate: u64) -> Self {
        Self { begin, rate }
    }

    /// How long after the beginning record `number` is due.
    pub(crate) fn due(&self, number: u64) -> Duration {
        let nanos = u128::from(number) * 1_000_000_000 / u128::from(self.rate.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// True if record `number` is due by now.
    pub(crate) fn is_due(&self, number: u64) -> bool {
        self.begin.elapsed() >= self.due(number)
    }

    /// Waits until record `number` is due.
    pub(crate) fn wait(&self, number: u64) {
        let due = self.due(number);
        loop {
            let left = due.saturating_sub(self.begin.elapsed());
            if left.is_zero() {
                return;
            }
            // May come back early.
            std::thread::park_timeout(left.max(LEAST));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_due_evenly() {
        let pace = Pace::new(Instant::now(), 1_000);
        assert_eq!(pace.due(0), Duration::ZERO);
        assert_eq!(pace.due(1_500), Duration::from_millis(1_500));
        assert!(pace.is_due(0) && !pace.is_due(1_000_000));
        pace.wait(1);
        assert!(pace.is_due(1));
    }
}
