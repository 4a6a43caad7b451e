//! Warnings that would come in thousands, told once in a while.

use std::time::{Duration, Instant};

/// Between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// When a line was written last, and how many were not since.
#[derive(Debug, Default)]
pub struct Seldom {
    last: Option<Instant>,
    untold: u64,
}

impl Seldom {
    /// No line was written yet.
    pub const fn new() -> Self {
        Self {
            last: None,
            untold: 0,
        }
    }

    /// Whether a line is due at `now`: how many were left out since the last one.
    pub fn due(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now < last + PAUSE) {
            self.untold += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_a_while_says_how_many_there_were() {
        let (mut seldom, begun) = (Seldom::default(), Instant::now());
        assert_eq!(seldom.due(begun), Some(0));
        for _ in 0..1000 {
            assert_eq!(seldom.due(begun + PAUSE / 2), None);
        }
        assert_eq!(seldom.due(begun + PAUSE), Some(1000));
        assert_eq!(seldom.due(begun + PAUSE * 3), Some(0));
    }
}
