//! A set of ordinals, kept as disjoint ranges: tiny as long as it is mostly contiguous.

use std::collections::BTreeMap;

/// Ordinals as sorted, disjoint, non-touching half-open ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ends: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds `start..end`; nothing if it is empty.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        // Nearly every insertion extends the range just before it.
        if let Some((&before, &before_end)) = self.ends.range(..=start).next_back()
            && before_end >= start
        {
            if before_end >= end {
                return;
            }
            if self
                .ends
                .range(start.saturating_add(1)..=end)
                .next()
                .is_none()
            {
                self.ends.insert(before, end);
                return;
            }
        }
        let (mut start, mut end) = (start, end);
        while let Some((&other, &other_end)) = self.ends.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            start = start.min(other);
            end = end.max(other_end);
            self.ends.remove(&other);
        }
        self.ends.insert(start, end);
    }

    /// Adds one ordinal; false if it was there already.
    pub(crate) fn insert_one(&mut self, ordinal: u64) -> bool {
        if self.contains(ordinal) {
            return false;
        }
        self.insert(ordinal, ordinal.saturating_add(1));
        true
    }

    /// Whether the ordinal is in the set.
    pub(crate) fn contains(&self, ordinal: u64) -> bool {
        self.ends
            .range(..=ordinal)
            .next_back()
            .is_some_and(|(_, &end)| end > ordinal)
    }

    /// Takes `start..end` out.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        while let Some((&other, &other_end)) = self.ends.range(..end).next_back() {
            if other_end <= start {
                break;
            }
            self.ends.remove(&other);
            if other_end > end {
                self.ends.insert(end, other_end);
            }
            if other < start {
                self.ends.insert(other, start);
            }
        }
    }

    /// The first part of `start..end` that is in the set.
    pub(crate) fn first_overlap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        self.overlaps(start, end).next()
    }

    /// The parts of `start..end` that are in the set, ascending.
    pub(crate) fn overlaps(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let from = match self.ends.range(..=start).next_back() {
            Some((&before, &before_end)) if before_end > start => before,
            _ => start,
        };
        // An empty or inverted range must not reach BTreeMap::range, which panics on it.
        let bounds = if start < end { from..end } else { 0..0 };
        self.ends
            .range(bounds)
            .map(move |(&other, &other_end)| (other.max(start), other_end.min(end)))
    }

    /// All ranges, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ends.iter().map(|(&start, &end)| (start, end))
    }

    /// Takes everything that is in `other` out.
    pub(crate) fn subtract(&mut self, other: &RangeSet) {
        if other.ends.len() > self.ends.len() {
            // Few ranges here, many there: cut out only what overlaps.
            let cuts: Vec<_> = self
                .iter()
                .flat_map(|(start, end)| other.overlaps(start, end))
                .collect();
            for (start, end) in cuts {
                self.remove(start, end);
            }
        } else {
            for (start, end) in other.iter() {
                self.remove(start, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn ranges(set: &RangeSet) -> Vec<(u64, u64)> {
        set.iter().collect()
    }

    #[test]
    fn touching_ranges_merge() {
        let mut set = RangeSet::default();
        set.insert(0, 5);
        set.insert(10, 15);
        set.insert(5, 10);
        assert_eq!(ranges(&set), [(0, 15)]);
        set.insert(20, u64::MAX);
        set.insert(u64::MAX - 1, u64::MAX);
        assert_eq!(ranges(&set), [(0, 15), (20, u64::MAX)]);
        set.remove(3, 30);
        assert_eq!(ranges(&set), [(0, 3), (30, u64::MAX)]);
        assert_eq!(set.first_overlap(3, 30), None);
        assert_eq!(set.first_overlap(2, 40), Some((2, 3)));
        assert_eq!(set.first_overlap(40, 40), None);
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_set(steps in prop::collection::vec((0u8..3, 0u64..60, 0u64..20), 0..60)) {
            let mut set = RangeSet::default();
            let mut plain = BTreeSet::new();
            for (kind, start, len) in steps {
                match kind {
                    0 => {
                        set.insert(start, start + len);
                        plain.extend(start..start + len);
                    }
                    1 => {
                        set.remove(start, start + len);
                        plain.retain(|o| !(start..start + len).contains(o));
                    }
                    _ => prop_assert_eq!(set.insert_one(start), plain.insert(start)),
                }
                let flat: Vec<u64> = set.iter().flat_map(|(s, e)| s..e).collect();
                prop_assert_eq!(&flat, &plain.iter().copied().collect::<Vec<_>>());
                for pair in ranges(&set).windows(2) {
                    prop_assert!(pair[0].1 < pair[1].0);
                }
                let part: Vec<u64> = set.overlaps(start, start + len).flat_map(|(s, e)| s..e).collect();
                prop_assert_eq!(part, plain.range(start..start + len).copied().collect::<Vec<_>>());
            }
            let mut less = set.clone();
            let mut cut = RangeSet::default();
            cut.insert(3, 9);
            cut.insert(20, 21);
            cut.insert(40, 45);
            less.subtract(&cut);
            let flat: Vec<u64> = less.iter().flat_map(|(s, e)| s..e).collect();
            let wanted: Vec<u64> = plain.into_iter().filter(|o| !cut.contains(*o)).collect();
            prop_assert_eq!(flat, wanted);
        }
    }
}
