//! Answers that are kept for a while, so that those who ask often cost little.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::process::thread_cpu_time;

/// An answer counts as new for at least this long.
pub(crate) const FRESH: Duration = Duration::from_millis(900);
/// And for so many times as long as it took: to ask all the time takes half a percent of a core.
const TIMES: u32 = 200;
/// And for no longer than this.
const MOST: Duration = Duration::from_secs(30);

/// How long an answer is kept that took `cost` to make: of the processor, since to have been held up costs nothing.
pub(crate) fn kept_for(cost: Duration) -> Duration {
    cost.saturating_mul(TIMES).clamp(FRESH, MOST)
}

/// One answer, made anew when it is asked for and no longer new.
pub(crate) struct Paced<T>(Mutex<Option<(Instant, Arc<T>)>>);

impl<T> Default for Paced<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Paced<T> {
    /// The answer that is kept, or a new one. Who asks meanwhile waits for the same.
    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut kept = self.0.lock();
        let now = Instant::now();
        if let Some((until, answer)) = &*kept
            && now < *until
        {
            return answer.clone();
        }
        let before = thread_cpu_time();
        let answer = Arc::new(make());
        let cost = thread_cpu_time().saturating_sub(before);
        *kept = Some((Instant::now() + kept_for(cost), answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_long_is_kept_longer() {
        assert_eq!(kept_for(Duration::ZERO), FRESH);
        assert_eq!(kept_for(Duration::from_millis(10)), Duration::from_secs(2));
        assert_eq!(kept_for(Duration::from_secs(10)), MOST);
    }

    #[test]
    fn an_answer_is_made_once_for_all_who_ask_meanwhile() {
        let paced = Paced::default();
        let first = paced.get(|| 1);
        let second = paced.get(|| 2);
        assert_eq!((*first, *second), (1, 1));
    }

    #[test]
    fn what_was_held_up_is_kept_no_longer() {
        let paced = Paced::default();
        let (_sender, nobody_sends) = std::sync::mpsc::sync_channel::<()>(1);
        let waited = Duration::from_millis(200);
        paced.get(|| nobody_sends.recv_timeout(waited).is_err());
        let kept = paced.0.lock();
        let (until, was_held_up) = kept.as_ref().expect("it is kept");
        assert!(**was_held_up);
        let left = until.saturating_duration_since(Instant::now());
        assert!(left < MOST / 2, "it is kept for {left:?}");
    }
}
