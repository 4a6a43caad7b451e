//! How fast pins of a stream are made and moved by those who may read it and no more: each time all their positions are
//! written, and the metadata store keeps what was before for a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kera_protocol::ids::StreamId;
use parking_lot::Mutex;

/// Positions of a stream that may be set at once: those of all pins that it may have.
const BURST: u64 = kera_metadata::pin::MAX_PIN_POSITIONS as u64;
/// Positions of a stream that may be set in a second, in the long run.
const PER_SECOND: u64 = 10_000;
/// What a pin counts for at least: it has names as well.
const LEAST: u64 = 100;
/// Streams of which it is known at most when those at rest are forgotten.
const FORGET_AT: usize = 1_024;

/// How many positions of each stream were set at this broker lately.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<HashMap<StreamId, (Instant, u64)>>);

impl Pace {
    /// Counts a pin with so many positions.
    ///
    /// # Errors
    /// How long to wait, if there were too many lately.
    pub(crate) fn take(
        &self,
        stream: StreamId,
        positions: usize,
        now: Instant,
    ) -> Result<(), Duration> {
        let cost = (positions as u64).max(LEAST);
        let mut streams = self.0.lock();
        if streams.len() >= FORGET_AT {
            streams.retain(|_, (at, used)| left(*at, *used, now) > 0);
        }
        let (at, used) = streams.entry(stream).or_insert((now, 0));
        let present = left(*at, *used, now);
        let above = (present + cost).saturating_sub(BURST.max(cost));
        if above > 0 {
            return Err(Duration::from_millis((above * 1_000).div_ceil(PER_SECOND)));
        }
        (*at, *used) = (now, present + cost);
        Ok(())
    }
}

/// What of `used` at one time still counts at a later one.
fn left(at: Instant, used: u64, now: Instant) -> u64 {
    let passed = now.saturating_duration_since(at).as_millis();
    let gone = passed.saturating_mul(u128::from(PER_SECOND)) / 1_000;
    used.saturating_sub(u64::try_from(gone).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pins_may_be_set_at_once_and_then_so_many_positions_a_second() {
        let (pace, now) = (Pace::default(), Instant::now());
        let (one, other) = (StreamId::random(), StreamId::random());
        let all = usize::try_from(BURST).unwrap();
        pace.take(one, all / 2, now).unwrap();
        pace.take(one, all / 2, now).unwrap();
        let wait = pace.take(one, 20_000, now).unwrap_err();
        assert_eq!(wait, Duration::from_secs(2));
        pace.take(other, all, now).unwrap();
        let later = now + wait;
        pace.take(one, 20_000, later).unwrap();
        let least = pace.take(one, 0, later).unwrap_err();
        assert_eq!(least, Duration::from_millis(10));
        // One that has more than all together waits until nothing counts.
        let rested = later + Duration::from_secs(BURST / PER_SECOND);
        pace.take(one, 2 * all, rested).unwrap();
        assert!(pace.take(one, 1, rested).is_err());
    }

    #[test]
    fn streams_at_rest_are_forgotten() {
        let (pace, now) = (Pace::default(), Instant::now());
        for _ in 0..FORGET_AT {
            pace.take(StreamId::random(), 1, now).unwrap();
        }
        pace.take(StreamId::random(), 1, now + Duration::from_secs(1))
            .unwrap();
        assert_eq!(pace.0.lock().len(), 1);
    }
}
