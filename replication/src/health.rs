//! Which backups to choose, learnt from the traffic there is anyway (Ambry's failure detection,
//! SIGMOD'16, section 4.2.1): failures within a window take a backup out of the choice, after a wait
//! one group probes it. It never fences and never elects: a wrong guess costs a choice, no record.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::ids::BackupId;

/// When a backup counts as down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthLimits {
    /// So many failures without a success between them,
    pub failures: u32,
    /// all within this time.
    pub window: Duration,
    /// After this time one choice may try it again.
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
    backups: Mutex<BTreeMap<BackupId, Seen>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Failures since the last success, and when the first of them was.
    failures: u32,
    since: Duration,
    /// Out of the choice, and when it may be probed.
    down_until: Option<Duration>,
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
    pub fn success(&self, backup: BackupId) {
        if let Some(seen) = self.backups.lock().get_mut(&backup) {
            *seen = Seen::default();
        }
    }

    /// A call, link or write to `backup` failed for want of an answer. Returns true if that took it
    /// out of the choice. A refusal is an answer, and no failure.
    pub fn failure(&self, backup: BackupId, now: Duration) -> bool {
        let mut backups = self.backups.lock();
        let seen = backups.entry(backup).or_default();
        if seen.failures == 0 || now.saturating_sub(seen.since) > self.limits.window {
            (seen.failures, seen.since) = (0, now);
        }
        seen.failures += 1;
        let was_up = seen.down_until.is_none();
        if seen.failures >= self.limits.failures || !was_up {
            seen.down_until = Some(now + self.limits.wait);
        }
        was_up && seen.down_until.is_some()
    }

    /// True unless the backup is out of the choice.
    pub fn is_up(&self, backup: BackupId) -> bool {
        let backups = self.backups.lock();
        backups.get(&backup).is_none_or(|s| s.down_until.is_none())
    }

    /// `candidates` in the order in which to try them: those that are up as they came, then one that
    /// is down and has waited long enough. Choosing that one is its probe: nobody else gets it until
    /// the wait has passed again.
    pub fn order(&self, candidates: &[BackupId], now: Duration) -> Vec<BackupId> {
        let mut backups = self.backups.lock();
        let (mut order, mut probe) = (Vec::new(), None);
        for &candidate in candidates {
            match backups.get(&candidate).and_then(|seen| seen.down_until) {
                None => order.push(candidate),
                Some(until) if until <= now && probe.is_none() => probe = Some(candidate),
                Some(_) => {}
            }
        }
        if let Some(candidate) = probe {
            if let Some(seen) = backups.get_mut(&candidate) {
                seen.down_until = Some(now + self.limits.wait);
            }
            order.push(candidate);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: BackupId = BackupId(1);
    const B: BackupId = BackupId(2);

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
        assert_eq!(health.order(&[A, B], at(33)), [B]);
    }

    #[test]
    fn after_the_wait_there_is_one_probe() {
        let health = Health::new(HealthLimits::default());
        for second in 0..3 {
            health.failure(A, at(second));
        }
        assert_eq!(health.order(&[A, B], at(7)), [B, A], "the probe comes last");
        assert_eq!(health.order(&[A, B], at(8)), [B], "one is enough");
        health.failure(A, at(8));
        assert_eq!(health.order(&[A, B], at(12)), [B]);
        assert_eq!(health.order(&[A, B], at(13)), [B, A]);
        health.success(A);
        assert_eq!(health.order(&[A, B], at(14)), [A, B]);
    }
}
