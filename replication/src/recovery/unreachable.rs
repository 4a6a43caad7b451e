//! Brokers that did not answer a moment ago. When a broker is gone, all of its streamlets are recovered
//! at once, and each would wait for it anew: one wait is enough for all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::ids::BrokerId;

/// What was found silent is not waited for again within this time.
const AGAIN: Duration = Duration::from_secs(1);

/// Who was silent, and until when that is believed. Times are the runtime's.
#[derive(Debug, Default)]
pub(crate) struct Silent(Mutex<BTreeMap<BrokerId, Duration>>);

impl Silent {
    /// True if it did not answer a moment ago. When that was longer ago, one caller is told no, so as to
    /// ask it again, and the others go on without it meanwhile.
    pub(crate) fn is_silent(&self, backup: BrokerId, now: Duration) -> bool {
        match self.0.lock().get_mut(&backup) {
            None => false,
            Some(until) if *until > now => true,
            Some(until) => {
                *until = now + AGAIN;
                false
            }
        }
    }

    /// It did not answer.
    pub(crate) fn note(&self, backup: BrokerId, now: Duration) {
        self.0.lock().insert(backup, now + AGAIN);
    }

    /// It answers.
    pub(crate) fn answered(&self, backup: BrokerId) {
        self.0.lock().remove(&backup);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_is_waited_for_by_one_at_a_time() {
        let (silent, gone) = (Silent::default(), BrokerId(3));
        let at = |ms| Duration::from_millis(ms);
        assert!(!silent.is_silent(gone, at(0)));
        silent.note(gone, at(10));
        assert!(silent.is_silent(gone, at(10)) && silent.is_silent(gone, at(1_009)));
        assert!(!silent.is_silent(BrokerId(2), at(20)));
        // One asks it again, the others do not wait for that.
        assert!(!silent.is_silent(gone, at(1_010)));
        assert!(silent.is_silent(gone, at(1_011)));
        silent.answered(gone);
        assert!(!silent.is_silent(gone, at(1_012)));
    }
}
