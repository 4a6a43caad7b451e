//! Slices of a lane: its keys in 64 parts, for consumer groups that keep the order of keys and have more members than lanes.
//!
//! A key's slice is taken from the upper bits of the hash of which lanes take the remainder: it is the same in every
//! lane, however many there are, and the keys of each lane are in all slices.

use std::fmt;

use crate::ids::Ordinal;
use crate::partition::key_hash;

/// Slices of a lane.
pub const SLICES: u32 = 64;

/// The slice of a key.
pub fn slice_of_key(key: &[u8]) -> u32 {
    key_hash(key) >> 25
}

/// The slice of a record: by its key, or by its ordinal if it has none.
pub fn slice_of(key: Option<&[u8]>, ordinal: Ordinal) -> u32 {
    match key {
        Some(key) => slice_of_key(key),
        None => (ordinal % u64::from(SLICES)) as u32,
    }
}

/// A set of slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceSet(u64);

impl SliceSet {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// All of them.
    pub const ALL: Self = Self(u64::MAX);

    /// Bit n stands for slice n.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Bit n stands for slice n.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Just this slice.
    pub const fn one(slice: u32) -> Self {
        Self(1 << (slice % SLICES))
    }

    /// How many there are.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// True if there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether a slice is one of them.
    pub const fn contains(self, slice: u32) -> bool {
        self.0 & Self::one(slice).0 != 0
    }

    /// Those of either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those of both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that the other does not have.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The slices, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..SLICES).filter(move |slice| self.contains(*slice))
    }
}

impl FromIterator<u32> for SliceSet {
    fn from_iter<I: IntoIterator<Item = u32>>(slices: I) -> Self {
        let ones = slices.into_iter().map(Self::one);
        ones.fold(Self::NONE, Self::union)
    }
}

impl fmt::Display for SliceSet {
    /// As ranges: `0-15,40`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut slice = 0;
        while slice < SLICES {
            if !self.contains(slice) {
                slice += 1;
                continue;
            }
            let first = slice;
            while slice < SLICES && self.contains(slice) {
                slice += 1;
            }
            match slice - first {
                1 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{}", slice - 1)?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::lane_among;

    /// Members of a group share the keys of a lane evenly whatever number of lanes there is.
    #[test]
    fn the_keys_of_each_lane_are_in_all_slices() {
        for (streamlets, partitions) in [(1, 1), (1, 2), (2, 4), (3, 6), (7, 9), (4, 20), (8, 64)] {
            let mut counts = vec![0_u32; (partitions * SLICES) as usize];
            for number in 0..partitions * SLICES * 60 {
                let key = format!("customer-{number}");
                let (streamlet, lane) = lane_among(key.as_bytes(), streamlets, partitions);
                let partition = lane.0 * streamlets + streamlet.0;
                counts[(partition * SLICES + slice_of_key(key.as_bytes())) as usize] += 1;
            }
            // Each is to have 60, with a standard deviation of 8.
            let (least, most) = (counts.iter().min(), counts.iter().max());
            assert!(
                least > Some(&20) && most < Some(&100),
                "{least:?} to {most:?}"
            );
        }
    }

    #[test]
    fn records_without_a_key_go_round() {
        assert_eq!((slice_of(None, 0), slice_of(None, 65)), (0, 1));
        assert_eq!(slice_of(Some(b"abc"), 1), slice_of(Some(b"abc"), 2));
    }

    #[test]
    fn a_set_of_slices_is_told_by_ranges() {
        let set: SliceSet = (0..16).chain([40, 62, 63]).collect();
        assert_eq!(set.to_string(), "0-15,40,62-63");
        assert_eq!(
            (set.len(), SliceSet::ALL.to_string().as_str()),
            (19, "0-63")
        );
        assert_eq!(SliceSet::NONE.to_string(), "");
        assert_eq!(set.iter().collect::<SliceSet>(), set);
        assert_eq!(set.without(SliceSet::one(40)).len(), 18);
    }
}
