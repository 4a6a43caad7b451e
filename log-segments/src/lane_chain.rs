//! Which of a lane's recorded groups count after a crash, and where the lane goes on: the same rules for an owner's
//! own files and for replicas. A group counts if it begins where the one before ends. Where records that somebody saw
//! may be missing, the next whole group counts wherever it begins; without one the ordinals jump, so that none is
//! used twice.

use crate::spec::MAX_GROUP_ORDINALS;
use kera_protocol::ids::Ordinal;

/// A lane as its groups are looked at, oldest first.
#[derive(Clone, Debug)]
pub struct LaneChain {
    /// Nothing below is in the lane.
    start: Ordinal,
    /// Where the next group must begin; unknown before the first.
    expected: Option<Ordinal>,
    /// Why records may be missing from the end on, if they may.
    lost: Option<&'static str>,
    /// Groups since the last one whose place is known: each may have held as many records as a group can.
    left_out: u64,
}

impl LaneChain {
    /// A lane that has nothing below `start`; its first group begins where that is `expected`, if that is known.
    pub fn new(start: Ordinal, expected: Option<Ordinal>) -> Self {
        Self {
            start,
            expected,
            lost: None,
            left_out: 0,
        }
    }

    /// Where the lane ends so far.
    pub fn end(&self) -> Ordinal {
        self.expected.unwrap_or(self.start).max(self.start)
    }

    /// Why records that had been shown may be missing from there on, if they may.
    pub fn lost(&self) -> Option<&'static str> {
        self.lost
    }

    /// Whether a group that begins at `first` counts. What lies between the last group and the lane's start may have
    /// been trimmed.
    pub fn continues(&self, first: Ordinal) -> bool {
        let is_above = first > self.end();
        first >= self.expected.unwrap_or(0) && (!is_above || self.lost.is_some())
    }

    /// What is left out where the lane goes on at `to`.
    pub fn gap(&self, to: Ordinal) -> Option<(Ordinal, Ordinal)> {
        let from = self.end();
        (self.lost.is_some() && to > from).then_some((from, to))
    }

    /// The lane goes on at `to`, and a group is there.
    pub fn go_on(&mut self, to: Ordinal) {
        self.counts(to, None);
    }

    /// A group counts up to `end`, and records behind that may be `lost`.
    pub fn counts(&mut self, end: Ordinal, lost: Option<&'static str>) {
        (self.expected, self.lost, self.left_out) = (Some(end), lost, 0);
    }

    /// Records may be missing from the end on, if they were not before.
    pub fn loses(&mut self, reason: Option<&'static str>) {
        self.lost = self.lost.or(reason);
    }

    /// Nothing is left of a recorded group of which something may have been shown. One that follows begins at the
    /// end; where records are missing before it, nobody knows where it began.
    pub fn is_gone(&mut self, reason: &'static str) {
        match self.lost {
            None => self.lost = Some(reason),
            Some(_) => self.leaves_out(),
        }
    }

    /// A recorded group does not count, and nobody knows where it began.
    pub fn leaves_out(&mut self) {
        self.left_out += 1;
    }

    /// Where new records begin.
    pub fn next_ordinal(&self) -> Ordinal {
        let jump = MAX_GROUP_ORDINALS.saturating_mul(1 + self.left_out);
        match self.lost {
            Some(_) => self.end().saturating_add(jump),
            None => self.end(),
        }
    }
}

#[cfg(all(test, not(kera_shuttle)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A group as it was written, and what is left of it.
    #[derive(Clone, Copy, Debug)]
    struct Written {
        records: u64,
        /// Those of them that are left; the rest was shown and is gone.
        left: u64,
        /// Nothing says where it began.
        is_gone: bool,
    }

    fn written() -> impl Strategy<Value = Written> {
        (0..20_u64, 0..20_u64, any::<bool>()).prop_map(|(records, left, is_gone)| Written {
            records,
            left: left.min(records),
            is_gone,
        })
    }

    proptest! {
        #[test]
        fn what_is_left_counts_and_no_ordinal_is_used_twice(
            start in 0..100_u64,
            lane in proptest::collection::vec(written(), 0..8),
        ) {
            let mut chain = LaneChain::new(start, Some(start));
            let mut first = start;
            let mut gaps = Vec::new();
            for group in &lane {
                let end = first + group.records;
                let lost = (group.left < group.records).then_some("gone");
                if group.is_gone && group.records > 0 {
                    chain.is_gone("gone");
                } else if group.is_gone {
                    chain.leaves_out();
                } else {
                    prop_assert!(chain.continues(first), "{chain:?} at {first}");
                    gaps.extend(chain.gap(first));
                    chain.go_on(first);
                    chain.counts(first + group.left, lost);
                }
                first = end;
            }
            let next = chain.next_ordinal();
            gaps.extend(chain.gap(next));
            prop_assert!(next >= first, "{next} was given to a record: all below {first} were");
            // Each ordinal that was lost lies in a gap, and none that is left.
            let in_gap = |ordinal| gaps.iter().any(|(from, to)| (*from..*to).contains(&ordinal));
            let mut at = start;
            for group in &lane {
                let left = if group.is_gone { 0 } else { group.left };
                for ordinal in at..at + group.records {
                    prop_assert_eq!(in_gap(ordinal), ordinal >= at + left, "{}", ordinal);
                }
                at += group.records;
            }
        }
    }

    #[test]
    fn what_does_not_follow_does_not_count() {
        let mut chain = LaneChain::new(0, Some(0));
        assert!(chain.continues(0) && !chain.continues(1));
        chain.counts(10, None);
        assert!(!chain.continues(9) && chain.continues(10) && !chain.continues(11));
        assert_eq!((chain.next_ordinal(), chain.gap(12)), (10, None));
        chain.counts(10, Some("its file was cut"));
        assert!(!chain.continues(9) && chain.continues(10) && chain.continues(11));
        assert_eq!(chain.gap(12), Some((10, 12)));
        chain.leaves_out();
        assert_eq!(chain.next_ordinal(), 10 + 2 * MAX_GROUP_ORDINALS);
        // Trimmed up to 100: a group that begins below and is still there counts.
        let chain = LaneChain::new(100, None);
        assert!(chain.continues(90) && chain.continues(100) && !chain.continues(101));
    }
}
