//! The broker's clocks, and what a machine's clock that jumps may do to it: next to nothing.
//!
//! | clock | what goes by it |
//! |---|---|
//! | [`now_ms`] | sessions, leases of consumers, ages, idleness: whatever is a stretch of time |
//! | [`wall_ms`] | times that people and clients see: records stamped by the broker, when a stream was made |
//! | [`retention_ms`] | what is old enough to be deleted |
//!
//! All are milliseconds since 1970. Leases of brokers need none of them: they count monotonic time alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// Steps back of the machine's clock up to this are waited out: stamps stand still so long.
const WAITED_OUT_MS: u64 = 1_000;
/// A jump that is worth a line in the log.
const WORTH_TELLING_MS: u64 = 60_000;

/// The steady clock: the machine's time when the process first asked, and monotonic time since. It never
/// jumps, whatever becomes of the machine's clock, so that no session ends early and none lasts for ever.
pub fn now_ms() -> u64 {
    let (begun, wall) = *begun();
    wall + ms(begun.elapsed())
}

/// The machine's time, as it is. A step back of up to a second is waited out; after a longer one the
/// times go back with the machine's, as they do with Kafka.
pub fn wall_ms() -> u64 {
    static LATEST: AtomicU64 = AtomicU64::new(0);
    let wall = machine_ms();
    let stamp = |latest| Some(stamped(latest, wall));
    let latest = LATEST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, stamp);
    latest.map_or(wall, |latest| stamped(latest, wall))
}

/// The time that retention goes by: the machine's, but after a jump forward it follows at twice the speed
/// of time until it has caught up. So a clock that is wrong by hours deletes no more than what the same
/// stretch of time would have, and whoever sets it right again has lost next to nothing; a machine that
/// really slept so long gets there all the same.
pub fn retention_ms() -> u64 {
    static RETENTION: Mutex<Option<Follower>> = Mutex::new(None);
    let (begun, wall) = *begun();
    let mut follower = RETENTION.lock();
    let follower = follower.get_or_insert(Follower::new(wall));
    follower.at(ms(begun.elapsed()), machine_ms())
}

fn begun() -> &'static (Instant, u64) {
    static BEGUN: OnceLock<(Instant, u64)> = OnceLock::new();
    BEGUN.get_or_init(|| (Instant::now(), machine_ms()))
}

fn machine_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, ms)
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What is stamped at `wall` after `latest` was.
fn stamped(latest: u64, wall: u64) -> u64 {
    if wall < latest && latest - wall <= WAITED_OUT_MS {
        latest
    } else {
        wall
    }
}

/// Follows the machine's clock, forward never faster than twice the speed of time. Where the machine's clock
/// went back and comes back to where it was to be, it need not catch up.
#[derive(Debug)]
struct Follower {
    /// The machine's time at the beginning.
    begun: u64,
    /// Monotonic time of the last answer, and that answer.
    asked: u64,
    told: u64,
    /// It is behind, and the log says so.
    behind: bool,
}

impl Follower {
    fn new(wall: u64) -> Self {
        Self {
            begun: wall,
            asked: 0,
            told: wall,
            behind: false,
        }
    }

    /// The time at the monotonic time `since` the beginning, when the machine says `wall`.
    fn at(&mut self, since: u64, wall: u64) -> u64 {
        let fast = self.told + 2 * since.saturating_sub(self.asked);
        let most = fast.max(self.begun + since);
        self.asked = self.asked.max(since);
        self.told = wall.min(most);
        let by = wall - self.told;
        if !self.behind && by > WORTH_TELLING_MS {
            tracing::warn!(
                jumped_ms = by,
                "the machine's clock jumped forward; retention follows at twice the speed of time, so that a clock that is wrong deletes nothing at once: check the clock"
            );
        }
        self.behind = by > WORTH_TELLING_MS;
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    const BEGIN: u64 = 1_000_000 * HOUR;

    #[test]
    fn retention_keeps_to_a_clock_that_runs_well() {
        let mut clock = Follower::new(BEGIN);
        for since in [0, 5, 1_000, HOUR, 24 * HOUR] {
            assert_eq!(clock.at(since, BEGIN + since), BEGIN + since);
        }
    }

    #[test]
    fn a_jump_forward_is_followed_at_twice_the_speed_of_time() {
        let mut clock = Follower::new(BEGIN);
        clock.at(1_000, BEGIN + 1_000);
        let jumped = BEGIN + 6 * HOUR;
        assert_eq!(clock.at(2_000, jumped + 2_000), BEGIN + 3_000);
        assert!(clock.behind, "it is told");
        // Set right again: not a moment is lost.
        assert_eq!(clock.at(4_000, BEGIN + 4_000), BEGIN + 4_000);
        assert!(!clock.behind);
        // A jump that stays is believed in the end.
        let mut since = 4_000;
        for _ in 0..100 {
            since += HOUR / 10;
            clock.at(since, jumped + since);
        }
        assert_eq!(clock.at(since, jumped + since), jumped + since);
    }

    #[test]
    fn a_jump_back_is_followed_at_once_and_back_again_too() {
        let mut clock = Follower::new(BEGIN);
        assert_eq!(
            clock.at(1_000, BEGIN - 6 * HOUR),
            BEGIN - 6 * HOUR,
            "less is old"
        );
        assert_eq!(clock.at(2_000, BEGIN + 2_000), BEGIN + 2_000);
    }

    #[test]
    fn stamps_wait_out_small_steps_back_and_follow_large_ones() {
        assert_eq!(stamped(BEGIN, BEGIN + 1), BEGIN + 1);
        assert_eq!(stamped(BEGIN, BEGIN - 1), BEGIN);
        assert_eq!(stamped(BEGIN, BEGIN - WAITED_OUT_MS), BEGIN);
        let back = BEGIN - 6 * HOUR;
        assert_eq!(
            stamped(BEGIN, back),
            back,
            "they do not stand still for hours"
        );
    }

    #[test]
    fn the_steady_clock_begins_with_the_machine_s() {
        let (before, now) = (machine_ms(), now_ms());
        assert!(now.abs_diff(before) < HOUR, "{now} and {before}");
        assert!(now_ms() >= now);
    }
}
