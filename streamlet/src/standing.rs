//! Whether a streamlet is served here.

use kera_log_segments::sync::{AtomicU8, Ordering};

/// Where a streamlet stands at this broker. A later one never goes back to an earlier one:
///
/// ```text
/// Recovering --> Serving --> Leaving --> Moved --> Deleted
/// ```
///
/// Each may be left out: a streamlet without replicas elsewhere begins as `Serving`, one that another broker owns
/// as `Moved`, and a stream may be deleted at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Standing {
    /// This broker owns it and has not recovered it from its replicas yet: nothing is read or appended.
    Recovering,
    /// It is read and appended to.
    Serving,
    /// It is about to be handed over: reads go on, nothing is appended any more, and what was appended may
    /// still become durable.
    Leaving,
    /// Another broker owns it, for good: should this broker own it again, another streamlet takes this one's
    /// place.
    Moved,
    /// Its stream is gone.
    Deleted,
}

const ALL: [Standing; 5] = [
    Standing::Recovering,
    Standing::Serving,
    Standing::Leaving,
    Standing::Moved,
    Standing::Deleted,
];

impl Standing {
    /// True once nothing is served any more.
    pub fn is_over(self) -> bool {
        self >= Self::Moved
    }
}

/// A standing that appends and reads look at without a lock.
#[derive(Debug)]
pub(crate) struct StandingCell(AtomicU8);

impl StandingCell {
    pub(crate) fn new(standing: Standing) -> Self {
        Self(AtomicU8::new(standing as u8))
    }

    pub(crate) fn get(&self) -> Standing {
        ALL[usize::from(self.0.load(Ordering::Acquire))]
    }

    /// Goes on to `next`, unless that or a later one is reached; what was before, if it was another.
    pub(crate) fn advance(&self, next: Standing) -> Option<Standing> {
        let before = self.0.fetch_max(next as u8, Ordering::AcqRel);
        (before < next as u8).then_some(ALL[usize::from(before)])
    }
}

#[cfg(all(test, not(kera_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_standing_only_goes_on() {
        for (index, standing) in ALL.into_iter().enumerate() {
            assert_eq!(standing as usize, index);
            for next in ALL {
                let cell = StandingCell::new(standing);
                let before = cell.advance(next);
                assert_eq!(before, (next > standing).then_some(standing));
                assert_eq!(cell.get(), standing.max(next));
            }
        }
        assert!(!Standing::Leaving.is_over() && Standing::Moved.is_over());
    }
}
