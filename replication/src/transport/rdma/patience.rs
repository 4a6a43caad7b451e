//! How long to look for a completion before waiting to be told of it.
//!
//! Being told costs a trip through the kernel and a wake-up, tens of microseconds; looking costs the
//! processor. So a link looks only where completions have lately come that soon.

use std::time::{Duration, Instant};

/// One link's patience.
#[derive(Debug)]
pub(super) struct Patience {
    /// Never more than this.
    most: Duration,
    now: Duration,
    /// When it began to wait to be told.
    waiting: Option<Instant>,
}

impl Patience {
    /// None at first; `most` at most, zero to always wait to be told.
    pub(super) fn new(most: Duration) -> Self {
        Self {
            most,
            now: Duration::ZERO,
            waiting: None,
        }
    }

    /// How long to look now.
    pub(super) fn look_for(&self) -> Duration {
        self.now
    }

    /// It looked as long as that in vain.
    pub(super) fn in_vain(&mut self) {
        self.now /= 2;
        if self.now < Duration::from_micros(1) {
            self.now = Duration::ZERO;
        }
    }

    /// From now on it waits to be told.
    pub(super) fn waits(&mut self, now: Instant) {
        self.waiting.get_or_insert(now);
    }

    /// It was told: had it looked for so long, it would have seen it.
    pub(super) fn told(&mut self, now: Instant) {
        if let Some(began) = self.waiting.take()
            && now.saturating_duration_since(began) <= self.most
        {
            self.now = self.most;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_only_where_completions_come_soon() {
        let most = Duration::from_micros(20);
        let mut patience = Patience::new(most);
        let start = Instant::now();
        assert_eq!(patience.look_for(), Duration::ZERO);
        patience.waits(start);
        patience.told(start + Duration::from_millis(1));
        assert_eq!(patience.look_for(), Duration::ZERO, "that was long");
        patience.waits(start);
        patience.told(start + Duration::from_micros(12));
        assert_eq!(patience.look_for(), most);
        for _ in 0..5 {
            patience.in_vain();
        }
        assert_eq!(patience.look_for(), Duration::ZERO, "it has learnt");
        // Told without having waited says nothing.
        patience.told(start);
        assert_eq!(patience.look_for(), Duration::ZERO);
    }
}
