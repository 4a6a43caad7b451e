//! Sets of byte ranges.

use std::ops::Range;

/// Disjoint ranges in ascending order; touching ones are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extents(Vec<Range<u64>>);

impl Extents {
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let from = self.0.partition_point(|known| known.end < range.start);
        let to = self.0.partition_point(|known| known.start <= range.end);
        let start = self
            .0
            .get(from)
            .filter(|_| from < to)
            .map_or(range.start, |first| first.start.min(range.start));
        let end = if from < to {
            self.0[to - 1].end.max(range.end)
        } else {
            range.end
        };
        self.0.splice(from..to, std::iter::once(start..end));
    }

    pub(super) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let from = self.0.partition_point(|known| known.end <= range.start);
        let to = self.0.partition_point(|known| known.start < range.end);
        if from >= to {
            return;
        }
        let before = self.0[from].start..range.start;
        let after = range.end..self.0[to - 1].end;
        self.0.splice(
            from..to,
            [before, after].into_iter().filter(|left| !left.is_empty()),
        );
    }

    /// Whether any byte of `range` is in the set.
    pub(super) fn touches(&self, range: &Range<u64>) -> bool {
        let at = self.0.partition_point(|known| known.end <= range.start);
        self.0.get(at).is_some_and(|known| known.start < range.end)
    }

    /// Where the set next begins at or after `offset`; `offset` itself if it is in the set.
    pub(super) fn next_from(&self, offset: u64) -> Option<u64> {
        let at = self.0.partition_point(|known| known.end <= offset);
        self.0.get(at).map(|known| known.start.max(offset))
    }

    /// The end of the extent that holds `offset`.
    pub(super) fn end_of(&self, offset: u64) -> Option<u64> {
        let at = self.0.partition_point(|known| known.end <= offset);
        self.0
            .get(at)
            .filter(|known| known.start <= offset)
            .map(|known| known.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u64),
        Remove(u64, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = (any::<bool>(), 0u64..40, 0u64..12).prop_map(|(insert, start, len)| {
            if insert {
                Step::Insert(start, start + len)
            } else {
                Step::Remove(start, start + len)
            }
        });
        prop::collection::vec(step, 0..40)
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_bytes(steps in steps()) {
            let mut extents = Extents::default();
            let mut bytes = [false; 64];
            for step in steps {
                match step {
                    Step::Insert(start, end) => {
                        extents.insert(start..end);
                        bytes[start as usize..end as usize].fill(true);
                    }
                    Step::Remove(start, end) => {
                        extents.remove(start..end);
                        bytes[start as usize..end as usize].fill(false);
                    }
                }
                for (at, known) in bytes.iter().enumerate() {
                    prop_assert_eq!(extents.touches(&(at as u64..at as u64 + 1)), *known);
                    let next = bytes.iter().skip(at).position(|b| *b).map(|n| (at + n) as u64);
                    prop_assert_eq!(extents.next_from(at as u64), next);
                    let end = known.then(|| (at + bytes[at..].iter().position(|b| !*b).unwrap_or(64 - at)) as u64);
                    prop_assert_eq!(extents.end_of(at as u64), end);
                }
                prop_assert!(extents.0.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
    }
}
