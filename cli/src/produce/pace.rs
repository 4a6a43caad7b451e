//! Keeping to a rate.

use std::time::{Duration, Instant};

/// Says how long to wait before the next record so that a rate is kept on the whole: what was
/// missed is caught up, at most a second of it.
#[derive(Debug)]
pub(crate) struct Pace {
    per_record: Duration,
    due: Instant,
}

/// More is not caught up: a stall must not become a flood.
const CATCH_UP: Duration = Duration::from_secs(1);
/// Shorter waits are saved up: timers are no finer.
const SHORTEST_WAIT: Duration = Duration::from_millis(2);

impl Pace {
    /// A pace of `rate` records a second from `now` on.
    pub(crate) fn new(rate: f64, now: Instant) -> Self {
        Self {
            per_record: Duration::from_secs_f64(1.0 / rate),
            due: now,
        }
    }

    /// Takes the next record's turn: how long to wait first.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Duration> {
        if now.saturating_duration_since(self.due) > CATCH_UP {
            self.due = now;
        }
        let wait = self.due.saturating_duration_since(now);
        self.due += self.per_record;
        (wait >= SHORTEST_WAIT).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_on_the_whole() {
        let start = Instant::now();
        let mut pace = Pace::new(1000.0, start);
        let mut now = start;
        for _ in 0..5000 {
            if let Some(wait) = pace.next(now) {
                now += wait;
            }
        }
        let taken = now - start;
        assert!(
            taken > Duration::from_millis(4990) && taken < Duration::from_millis(5001),
            "{taken:?}"
        );
    }

    #[test]
    fn a_stall_is_not_caught_up_for_ever() {
        let start = Instant::now();
        let mut pace = Pace::new(100.0, start);
        let later = start + Duration::from_secs(60);
        let without_wait = (0..1000).take_while(|_| pace.next(later).is_none()).count();
        assert!(without_wait < 110, "{without_wait}");
    }
}
