//! Records of a group that an operator has given up, as they are whole on no replica.

use std::ops::Range;

use kera_protocol::ids::Ordinal;

/// Most stretches that [`LostRecords`] names.
pub const MAX_LOST_STRETCHES: usize = 256;

/// Stretches of ordinals, in order. Two that touch are one. Of more than [`MAX_LOST_STRETCHES`] the two that lie nearest
/// to each other become one, with what lies between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostRecords(Vec<Range<Ordinal>>);

impl LostRecords {
    /// Adds a stretch; an empty one changes nothing.
    pub fn add(&mut self, stretch: Range<Ordinal>) {
        if stretch.is_empty() {
            return;
        }
        let (mut from, mut to) = (stretch.start, stretch.end);
        // Those that touch it lie side by side.
        let first = self.0.partition_point(|one| one.end < from);
        let behind = self.0.partition_point(|one| one.start <= to);
        for one in self.0.drain(first..behind) {
            (from, to) = (from.min(one.start), to.max(one.end));
        }
        self.0.insert(first, from..to);
        if self.0.len() > MAX_LOST_STRETCHES {
            self.join_nearest();
        }
    }

    fn join_nearest(&mut self) {
        let between = self.0.windows(2).map(|pair| pair[1].start - pair[0].end);
        let nearest = between.enumerate().min_by_key(|(_, ordinals)| *ordinals);
        if let Some((at, _)) = nearest {
            let next = self.0.remove(at + 1);
            self.0[at].end = next.end;
        }
    }

    /// Whether all of these ordinals are among them.
    pub fn covers(&self, ordinals: &Range<Ordinal>) -> bool {
        let at = self.0.partition_point(|one| one.end < ordinals.end);
        let one = self.0.get(at);
        ordinals.is_empty() || one.is_some_and(|one| one.start <= ordinals.start)
    }

    /// True if nothing was given up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In order.
    pub fn stretches(&self) -> &[Range<Ordinal>] {
        &self.0
    }
}

impl Extend<Range<Ordinal>> for LostRecords {
    fn extend<T: IntoIterator<Item = Range<Ordinal>>>(&mut self, stretches: T) {
        stretches.into_iter().for_each(|one| self.add(one));
    }
}

impl FromIterator<Range<Ordinal>> for LostRecords {
    fn from_iter<T: IntoIterator<Item = Range<Ordinal>>>(stretches: T) -> Self {
        let mut lost = Self::default();
        lost.extend(stretches);
        lost
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn stretches_that_touch_are_one() {
        for (added, wanted) in [
            (vec![(4, 5), (9, 12)], vec![(4, 5), (9, 12)]),
            (vec![(9, 12), (4, 5)], vec![(4, 5), (9, 12)]),
            (vec![(4, 5), (5, 6)], vec![(4, 6)]),
            (vec![(5, 6), (4, 5)], vec![(4, 6)]),
            (vec![(4, 5), (9, 12), (5, 9)], vec![(4, 12)]),
            (vec![(4, 5), (7, 8), (9, 12), (3, 10)], vec![(3, 12)]),
            (vec![(4, 12), (5, 6)], vec![(4, 12)]),
            (vec![(7, 7)], vec![]),
        ] {
            let lost: LostRecords = added.iter().map(|(from, to)| *from..*to).collect();
            let stretches = lost.stretches().iter().map(|one| (one.start, one.end));
            assert_eq!(stretches.collect::<Vec<_>>(), wanted, "{added:?}");
        }
    }

    /// Against a set of ordinals.
    #[test]
    fn what_is_covered_is_what_was_added() {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for _ in 0..200 {
            let (mut lost, mut known) = (LostRecords::default(), BTreeSet::new());
            for _ in 0..8 {
                let from = next(40);
                let to = from + next(6);
                lost.add(from..to);
                known.extend(from..to);
            }
            let stretches = lost.stretches();
            assert!(stretches.windows(2).all(|two| two[0].end < two[1].start));
            for from in 0..50 {
                for to in from..50 {
                    let all = (from..to).all(|ordinal| known.contains(&ordinal));
                    assert_eq!(lost.covers(&(from..to)), all, "{from} to {to}: {lost:?}");
                }
            }
        }
    }

    #[test]
    fn of_too_many_the_nearest_are_joined() {
        let most = MAX_LOST_STRETCHES as u64;
        let mut lost: LostRecords = (0..most).map(|at| 10 * at..10 * at + 1).collect();
        assert_eq!(lost.stretches().len(), MAX_LOST_STRETCHES);
        lost.add(24..25);
        assert_eq!(lost.stretches().len(), MAX_LOST_STRETCHES);
        assert_eq!(lost.stretches()[2], 20..25);
        assert!(!lost.covers(&(10..12)) && lost.covers(&(20..25)));
    }
}
