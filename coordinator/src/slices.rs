//! A group's progress in one lane by slices, where it keeps the order of keys: an ordinal per slice, and who has which.

use std::collections::BTreeMap;

use kera_protocol::ids::Ordinal;
use kera_protocol::slices::{SLICES, SliceSet};
use kera_protocol::v1::Cursor;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LaneSlices {
    /// Everything of the slice below is consumed.
    positions: Box<[Ordinal; SLICES as usize]>,
    /// Where the last commit ended.
    hint: Option<Cursor>,
    /// Slices by lease; also those of a lease that has ended and whose position an open transaction commits.
    holders: BTreeMap<u64, SliceSet>,
}

impl Default for LaneSlices {
    fn default() -> Self {
        Self {
            positions: Box::new([0; SLICES as usize]),
            hint: None,
            holders: BTreeMap::new(),
        }
    }
}

impl LaneSlices {
    pub(crate) fn position(&self, slice: u32) -> Ordinal {
        self.positions[(slice % SLICES) as usize]
    }

    /// Where the last of these slices stands; the highest ordinal if there is none.
    pub(crate) fn low_of(&self, slices: SliceSet) -> Ordinal {
        let positions = slices.iter().map(|slice| self.position(slice));
        positions.min().unwrap_or(Ordinal::MAX)
    }

    /// Where the last of all slices stands.
    pub(crate) fn low(&self) -> Ordinal {
        self.low_of(SliceSet::ALL)
    }

    /// True if all slices stand at one ordinal, and nobody has any.
    pub(crate) fn is_at(&self, ordinal: Ordinal) -> bool {
        self.holders.is_empty() && self.positions.iter().all(|at| *at == ordinal)
    }

    /// A cursor at an ordinal, with a hint if one is known.
    pub(crate) fn cursor(&self, ordinal: Ordinal) -> Cursor {
        let hint = self.hint.filter(|hint| hint.ordinal == ordinal);
        hint.unwrap_or(Cursor {
            ordinal,
            ..Cursor::default()
        })
    }

    pub(crate) fn hint(&self) -> Option<Cursor> {
        self.hint
    }

    /// How far above the lowest each slice stands; empty if they stand at one ordinal.
    pub(crate) fn offsets(&self) -> Vec<u64> {
        let low = self.low();
        match self.positions.iter().all(|at| *at == low) {
            true => Vec::new(),
            false => self.positions.iter().map(|at| at - low).collect(),
        }
    }

    /// Starts anew; see [`offsets`](Self::offsets). Nobody has any slice.
    pub(crate) fn set(&mut self, low: Ordinal, hint: Option<Cursor>, offsets: &[u64]) {
        *self = Self {
            hint,
            ..Self::default()
        };
        for (slice, at) in self.positions.iter_mut().enumerate() {
            let offset = offsets.get(slice).copied().unwrap_or(0);
            *at = low.saturating_add(offset);
        }
    }

    /// Slices that somebody has, or that wait for a transaction.
    pub(crate) fn held(&self) -> SliceSet {
        let sets = self.holders.values();
        sets.fold(SliceSet::NONE, |all, set| all.union(*set))
    }

    /// Gives slices to a lease. False, and nothing changes, if one of them is not free.
    pub(crate) fn hold(&mut self, lease: u64, slices: SliceSet) -> bool {
        let free = self.held().intersection(slices).is_empty();
        if free && !slices.is_empty() {
            self.holders.insert(lease, slices);
        }
        free
    }

    /// Everything of a lease's slices below an ordinal is consumed.
    pub(crate) fn commit(&mut self, lease: u64, to: Cursor) {
        let slices = self.holders.get(&lease).copied().unwrap_or_default();
        for slice in slices.iter() {
            let at = &mut self.positions[slice as usize];
            *at = to.ordinal.max(*at);
        }
        if to.has_hint {
            self.hint = Some(to);
        }
    }

    /// What a lease had is free.
    pub(crate) fn release(&mut self, lease: u64) {
        self.holders.remove(&lease);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(ordinal: Ordinal) -> Cursor {
        Cursor {
            ordinal,
            has_hint: true,
            ..Cursor::default()
        }
    }

    #[test]
    fn a_slice_has_one_holder_and_goes_only_forward() {
        let mut lane = LaneSlices::default();
        let (low, high) = (SliceSet::from_bits(0xff), SliceSet::from_bits(0xff00));
        assert!(lane.hold(1, low) && !lane.hold(2, SliceSet::one(7)) && lane.hold(2, high));
        lane.commit(1, to(10));
        lane.commit(1, to(4));
        lane.commit(3, to(90));
        assert_eq!((lane.low_of(low), lane.low(), lane.position(8)), (10, 0, 0));
        assert_eq!(lane.held().len(), 16);
        lane.release(1);
        assert!(lane.hold(3, low) && !lane.is_at(0));
        assert_eq!(lane.low_of(SliceSet::NONE), Ordinal::MAX);
    }

    #[test]
    fn what_is_told_of_a_lane_builds_it_again() {
        let mut lane = LaneSlices::default();
        assert!(lane.offsets().is_empty());
        lane.hold(1, SliceSet::from_bits(6));
        lane.commit(1, to(10));
        lane.release(1);
        let mut again = LaneSlices::default();
        again.set(lane.low(), lane.hint(), &lane.offsets());
        assert_eq!(again, lane);
        assert_eq!((lane.cursor(10), lane.cursor(0).has_hint), (to(10), false));
        again.set(5, None, &[]);
        assert!(again.is_at(5) && !again.is_at(6));
    }
}
