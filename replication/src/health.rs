//! Which backups to choose, learnt from the traffic there is anyway (Ambry's failure detection,
//! SIGMOD'16, section 4.2.1): failures within a window take a backup out of the choice, and after a
//! wait one question probes it, beside those that are asked to hold a group. A backup without room
//! is left out for the same wait. It never fences and never elects: a wrong guess costs a choice,
//! no record.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::ids::BrokerId;

/// When a backup counts as down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthLimits {
    /// So many failures without a success between them,
    pub failures: u32,
    /// all within this time.
    pub window: Duration,
    /// After this time it is probed once; so long a full one is left out.
    pub wait: Duration,
}

impl Default for HealthLimits {
    fn default() -> Self {
        Self {
            failures: 3,
            window: Duration::from_secs(10),
            wait: Duration::from_secs(5),
        }
    }
}

/// What traffic told of each backup. Times are the runtime's.
#[derive(Debug, Default)]
pub struct Health {
    limits: HealthLimits,
    backups: Mutex<BTreeMap<BrokerId, Seen>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Failures since the last success, and when the first of them was.
    failures: u32,
    since: Duration,
    /// Out of the choice, and when it may be probed.
    down_until: Option<Duration>,
    /// When it went out of the choice.
    down_since: Duration,
    /// It had no room, and when it may have some again.
    full_until: Option<Duration>,
    /// How long its last answer took, if that was long.
    slow: Option<Duration>,
}

/// Whom to ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Those that are up, as they came.
    pub up: Vec<BrokerId>,
    /// One that is down and has waited long enough: to be asked beside the others, and nobody else
    /// gets it until the wait has passed again.
    pub probe: Option<BrokerId>,
    /// All that are down; to be asked only if the others are not enough.
    pub down: Vec<BrokerId>,
}

impl Health {
    /// Nothing is known yet: all are up.
    pub fn new(limits: HealthLimits) -> Self {
        Self {
            limits,
            backups: Mutex::default(),
        }
    }

    /// A call, link or write to `backup` succeeded.
    pub fn success(&self, backup: BrokerId) {
        if let Some(seen) = self.backups.lock().get_mut(&backup) {
            *seen = Seen {
                full_until: seen.full_until,
                slow: seen.slow,
                ..Seen::default()
            };
        }
    }

    /// `backup` has answered a question that costs it nothing, and took so long; it is slow if that is
    /// longer than `brief`.
    pub fn answered(&self, backup: BrokerId, took: Duration, brief: Duration) {
        let slow = (took > brief).then_some(took);
        let mut backups = self.backups.lock();
        if slow.is_some() {
            backups.entry(backup).or_default().slow = slow;
        } else if let Some(seen) = backups.get_mut(&backup) {
            seen.slow = None;
        }
    }

    /// How long the last answer of `backup` took, if it is slow.
    pub fn slow(&self, backup: BrokerId) -> Option<Duration> {
        self.backups.lock().get(&backup)?.slow
    }

    /// A call, link or write to `backup` failed for want of an answer. Returns true if that took it
    /// out of the choice. A refusal is an answer, and no failure.
    pub fn failure(&self, backup: BrokerId, now: Duration) -> bool {
        let mut backups = self.backups.lock();
        let seen = backups.entry(backup).or_default();
        if seen.failures == 0 || now.saturating_sub(seen.since) > self.limits.window {
            (seen.failures, seen.since) = (0, now);
        }
        seen.failures += 1;
        let was_up = seen.down_until.is_none();
        if seen.failures >= self.limits.failures || !was_up {
            if was_up {
                seen.down_since = now;
            }
            seen.down_until = Some(now + self.limits.wait);
        }
        was_up && seen.down_until.is_some()
    }

    /// Nothing was heard of `backup` for as long as anybody waits: it is out of the choice at once.
    pub fn silent(&self, backup: BrokerId, now: Duration) {
        for _ in 0..self.limits.failures {
            if self.failure(backup, now) {
                break;
            }
        }
    }

    /// `backup` has no room: it is left out for the wait.
    pub fn full(&self, backup: BrokerId, now: Duration) {
        let mut backups = self.backups.lock();
        let seen = backups.entry(backup).or_default();
        if seen.full_until.is_none_or(|until| until <= now) {
            tracing::warn!(%backup, "the broker has no room for replicas: its log names the limit; raise it, or add a broker");
        }
        seen.full_until = Some(now + self.limits.wait);
    }

    /// True unless the backup is out of the choice because it does not answer.
    pub fn is_up(&self, backup: BrokerId) -> bool {
        let backups = self.backups.lock();
        backups.get(&backup).is_none_or(|s| s.down_until.is_none())
    }

    /// How long the backup has been out of the choice, if it is.
    pub fn down_for(&self, backup: BrokerId, now: Duration) -> Option<Duration> {
        let backups = self.backups.lock();
        let seen = backups.get(&backup)?;
        seen.down_until?;
        Some(now.saturating_sub(seen.down_since))
    }

    /// True if the backup had no room when it was last asked, within the wait.
    pub fn is_full(&self, backup: BrokerId, now: Duration) -> bool {
        let backups = self.backups.lock();
        let until = backups.get(&backup).and_then(|seen| seen.full_until);
        until.is_some_and(|until| now < until)
    }

    /// Which of `candidates` to ask, and in which order.
    pub fn order(&self, candidates: &[BrokerId], now: Duration) -> Order {
        let mut backups = self.backups.lock();
        let mut order = Order::default();
        for &candidate in candidates {
            let seen = backups.get(&candidate).copied().unwrap_or_default();
            if seen.full_until.is_some_and(|until| now < until) {
                continue;
            }
            match seen.down_until {
                None => order.up.push(candidate),
                Some(until) => {
                    order.down.push(candidate);
                    if until <= now && order.probe.is_none() {
                        order.probe = Some(candidate);
                    }
                }
            }
        }
        if let Some(seen) = order.probe.and_then(|probe| backups.get_mut(&probe)) {
            seen.down_until = Some(now + self.limits.wait);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: BrokerId = BrokerId(1);
    const B: BrokerId = BrokerId(2);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn failures_in_a_row_within_the_window_take_a_backup_out() {
        let health = Health::new(HealthLimits::default());
        assert!(!health.failure(A, at(0)));
        assert!(!health.failure(A, at(1)));
        health.success(A);
        assert!(!health.failure(A, at(2)), "a success between them");
        assert!(!health.failure(A, at(3)));
        assert!(!health.failure(A, at(30)), "too far apart");
        assert!(!health.failure(A, at(31)));
        assert!(health.failure(A, at(32)));
        assert!(!health.is_up(A));
        let order = health.order(&[A, B], at(33));
        assert_eq!(
            (order.up, order.probe, order.down),
            (vec![B], None, vec![A])
        );
        assert!(!health.failure(A, at(34)), "it is out already");
        assert_eq!(health.down_for(A, at(40)), Some(at(8)));
        health.success(A);
        assert_eq!(health.down_for(A, at(41)), None);
    }

    #[test]
    fn a_silent_backup_is_out_at_once() {
        let health = Health::new(HealthLimits::default());
        health.silent(A, at(0));
        assert!(!health.is_up(A) && health.is_up(B));
        assert_eq!(health.order(&[A, B], at(5)).probe, Some(A));
        health.success(A);
        assert!(health.is_up(A));
    }

    #[test]
    fn after_the_wait_there_is_one_probe() {
        let health = Health::new(HealthLimits::default());
        for second in 0..3 {
            health.failure(A, at(second));
        }
        assert_eq!(health.order(&[A, B], at(7)).probe, Some(A));
        assert_eq!(health.order(&[A, B], at(8)).probe, None, "one is enough");
        health.failure(A, at(8));
        assert_eq!(health.order(&[A, B], at(12)).probe, None);
        assert_eq!(health.order(&[A, B], at(13)).probe, Some(A));
        health.success(A);
        assert_eq!(health.order(&[A, B], at(14)).up, [A, B]);
    }

    #[test]
    fn who_answers_slowly_is_slow_until_it_answers_soon() {
        let health = Health::new(HealthLimits::default());
        let brief = Duration::from_millis(300);
        health.answered(A, brief, brief);
        assert_eq!(health.slow(A), None);
        health.answered(A, 2 * brief, brief);
        health.success(A);
        health.failure(A, at(1));
        assert_eq!((health.slow(A), health.slow(B)), (Some(2 * brief), None));
        health.answered(A, brief / 2, brief);
        assert_eq!(health.slow(A), None);
    }

    #[test]
    fn who_has_no_room_is_left_out_for_a_while() {
        let health = Health::new(HealthLimits::default());
        health.full(A, at(0));
        // An answer says that it lives, not that it has room.
        health.success(A);
        assert!(health.is_full(A, at(4)) && health.is_up(A));
        assert_eq!(health.order(&[A, B], at(4)).up, [B]);
        assert_eq!(health.order(&[A, B], at(5)).up, [A, B]);
    }
}
