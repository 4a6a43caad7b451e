//! What one entity has used of a limit.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How much may be used at once after a pause: what is allowed in this time.
const BURST_SECONDS: f64 = 1.0;
/// Longest time that is calculated with.
const LONGEST: f64 = 1e9;

/// Tokens that come at a rate and are taken as they are used. They may be fewer than none: who takes more than there
/// are waits until the debt is worked off.
#[derive(Debug)]
pub(super) struct Bucket(Mutex<Level>);

/// Seconds that a debt takes at most, where all of it is worked off.
pub(super) const ANY_DEBT: f64 = f64::INFINITY;

#[derive(Debug)]
struct Level {
    /// Tokens a second.
    rate: f64,
    tokens: f64,
    at: Instant,
    /// Seconds that a debt takes at most.
    most_owed: f64,
}

impl Level {
    fn burst(&self) -> f64 {
        self.rate * BURST_SECONDS
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate).min(self.burst());
        self.at = self.at.max(now);
    }

    fn wait(&self) -> Duration {
        let seconds = (-self.tokens / self.rate).clamp(0.0, LONGEST);
        Duration::from_secs_f64(seconds)
    }
}

impl Bucket {
    /// A full one. What is owed beyond what comes in `most_owed` seconds is forgotten.
    pub(super) fn new(rate: f64, most_owed: f64, now: Instant) -> Self {
        let mut level = Level {
            rate,
            tokens: 0.0,
            at: now,
            most_owed,
        };
        level.tokens = level.burst();
        Self(Mutex::new(level))
    }

    /// Takes tokens, as many as there are or more: how long it takes until there is no debt.
    pub(super) fn charge(&self, amount: f64, now: Instant) -> Duration {
        let mut level = self.0.lock();
        level.fill(now);
        level.tokens = (level.tokens - amount).max(-level.rate * level.most_owed);
        level.wait()
    }

    /// How long it takes until there is no debt.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        let mut level = self.0.lock();
        level.fill(now);
        level.wait()
    }

    /// Another rate from now on; a debt stays, and is worked off at the new one.
    pub(super) fn set_rate(&self, rate: f64, now: Instant) {
        let mut level = self.0.lock();
        level.fill(now);
        level.rate = rate;
        level.tokens = level.tokens.min(level.burst());
    }

    /// What may be used at once.
    pub(super) fn burst(&self) -> f64 {
        self.0.lock().burst()
    }

    /// True if nothing of it is in use: a new one would be the same.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        let mut level = self.0.lock();
        level.fill(now);
        level.tokens >= level.burst()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_debt_is_worked_off_at_the_rate_and_a_pause_earns_one_burst() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let bucket = Bucket::new(1000.0, ANY_DEBT, begin);
        assert_eq!(bucket.charge(1000.0, begin), Duration::ZERO);
        assert_eq!(bucket.charge(500.0, begin), Duration::from_millis(500));
        assert_eq!(bucket.wait(at(200)), Duration::from_millis(300));
        assert_eq!(bucket.wait(at(500)), Duration::ZERO);
        // An hour later there is no more than one burst.
        assert_eq!(bucket.charge(3000.0, at(3_600_000)), Duration::from_secs(2));
        assert!(!bucket.is_full(at(3_600_000)));
        // Twice the rate: the debt is half as long.
        bucket.set_rate(2000.0, at(3_600_000));
        assert_eq!(bucket.wait(at(3_600_000)), Duration::from_secs(1));
        assert!(bucket.is_full(at(3_603_000)));
        // Time does not go back.
        assert_eq!(bucket.wait(begin), Duration::ZERO);
    }

    proptest! {
        /// Connections that share a bucket and wait as long as they are told use no more than the rate, one burst, and
        /// one request each.
        #[test]
        fn connections_that_wait_use_no_more_than_the_rate(
            requests in proptest::collection::vec((0..5_usize, 1..3_000_u32, 0..50_u64), 1..200),
        ) {
            let (rate, largest) = (1000.0, 3000.0);
            let begin = Instant::now();
            let bucket = Bucket::new(rate, ANY_DEBT, begin);
            let mut now = begin;
            let mut until = [begin; 5];
            let mut used = 0.0;
            for (connection, amount, pause) in requests {
                now = (now + Duration::from_millis(pause)).max(until[connection]);
                used += f64::from(amount);
                until[connection] = now + bucket.charge(amount.into(), now);
                let passed = now.duration_since(begin).as_secs_f64();
                let most = rate * passed + rate * BURST_SECONDS + 5.0 * largest;
                prop_assert!(used <= most + 1e-3, "{used} of {most}");
            }
        }
    }
}
