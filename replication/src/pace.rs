//! How fast the jobs may go: so many bytes a second, unevenly, so that those of many brokers do not
//! fall into step.

use std::time::Duration;

use parking_lot::Mutex;

use crate::runtime::Runtime;

/// Longest pause after work that was slow, so that it goes on where everything always is.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A stretch of work that took a time is followed by a pause of so many times that.
const REST: u32 = 3;

/// A limit on bytes per second.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_second: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the next bytes may go, in the runtime's time.
    free_at: Duration,
    rng: u64,
}

impl Pace {
    /// So many bytes a second, at least one; the seed decides the unevenness.
    pub(crate) fn new(bytes_per_second: u64, seed: u64) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1),
            state: Mutex::new(State {
                free_at: Duration::ZERO,
                rng: seed,
            }),
        }
    }

    /// A time about as long as `time`: up to a quarter less or more.
    pub(crate) fn about(&self, time: Duration) -> Duration {
        let quarter = time.as_nanos() as u64 / 4;
        let draw = draw(&mut self.state.lock().rng) % (2 * quarter + 1);
        (time + Duration::from_nanos(draw)).saturating_sub(Duration::from_nanos(quarter))
    }

    /// Some time below `time`.
    pub(crate) fn within(&self, time: Duration) -> Duration {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(draw(&mut self.state.lock().rng) % nanos.max(1))
    }

    /// Work that was let in took `took`: several times as long nothing more is let in. So work
    /// that finds disks, network or processors busy leaves most of them to others, whatever the limit.
    pub(crate) fn took(&self, runtime: &dyn Runtime, took: Duration) {
        let pause = took.saturating_mul(REST).min(LONGEST_PAUSE);
        let mut state = self.state.lock();
        state.free_at = state.free_at.max(runtime.now() + pause);
    }

    /// Waits until `bytes` more may be copied. Always gives others a turn.
    pub(crate) async fn take(&self, runtime: &dyn Runtime, bytes: u64) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let cost = self.about(Duration::from_nanos(nanos as u64));
        let wait = {
            let mut state = self.state.lock();
            let now = runtime.now();
            // What was not used before is not saved up.
            let begin = state.free_at.max(now);
            state.free_at = begin + cost;
            begin - now
        };
        runtime.sleep(wait).await;
    }
}

/// splitmix64: the same for the same seed, everywhere and for ever.
pub(crate) fn draw(rng: &mut u64) -> u64 {
    *rng = rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *rng;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Faults;
    use crate::transport::sim::{Sim, Storm};

    #[test]
    fn bytes_take_their_time_and_unused_time_is_not_saved_up() {
        let sim = Sim::new(1, Storm::CALM, Faults::default());
        let clock = sim.runtime(None);
        let took = sim.run(async move {
            let pace = Pace::new(1000, 7);
            clock.sleep(Duration::from_secs(60)).await;
            let began = clock.now();
            for _ in 0..11 {
                pace.take(&*clock, 1000).await;
            }
            clock.now() - began
        });
        // The first goes at once, the others a second apart, more or less.
        let took = took.expect("it ends");
        assert!(took >= Duration::from_millis(7_500), "{took:?}");
        assert!(took <= Duration::from_millis(12_500), "{took:?}");
    }

    #[test]
    fn slow_work_is_followed_by_a_pause() {
        let sim = Sim::new(1, Storm::CALM, Faults::default());
        let clock = sim.runtime(None);
        let waited = sim.run(async move {
            let pace = Pace::new(u64::MAX, 7);
            let mut waited = Vec::new();
            for took in [10, 1_000, 60_000] {
                let took = Duration::from_millis(took);
                pace.take(&*clock, 1).await;
                pace.took(&*clock, took);
                let began = clock.now();
                pace.take(&*clock, 1).await;
                waited.push(clock.now() - began);
            }
            waited
        });
        let expected = [30, 3_000, 5_000].map(Duration::from_millis);
        assert_eq!(waited.expect("it ends"), expected);
    }

    #[test]
    fn waits_differ() {
        let pace = Pace::new(1, 3);
        let minute = Duration::from_secs(60);
        let waits: Vec<_> = (0..20).map(|_| pace.about(minute)).collect();
        assert!(
            waits.iter().all(|w| (45..=75).contains(&w.as_secs())),
            "{waits:?}"
        );
        assert!(waits.iter().any(|w| w.as_secs() < 55), "{waits:?}");
        assert!(waits.iter().any(|w| w.as_secs() > 65), "{waits:?}");
    }
}
