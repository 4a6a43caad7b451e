//! The table of slots. It only grows, so that the fast path reads it without taking part in any
//! reference count.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::slot::Slot;

/// Chunk `k` holds `2^k` slots, from index `2^k - 1` on.
const CHUNKS: usize = 32;

/// How many slots are in use, and by which generation of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) generation: u32,
    pub(crate) count: usize,
}

pub(crate) struct Slots {
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    /// Both parts of the shape in one, so that they are read together.
    shape: AtomicU64,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            shape: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn shape(&self) -> Shape {
        let shape = self.shape.load(Ordering::Acquire);
        Shape {
            generation: (shape >> 32) as u32,
            count: shape as u32 as usize,
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Slot> {
        let place = index + 1;
        let chunk = place.ilog2() as usize;
        self.chunks.get(chunk)?.get()?.get(place - (1 << chunk))
    }

    /// The slots in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.first(self.shape().count)
    }

    /// The first `count` slots, in use or prepared.
    pub(crate) fn first(&self, count: usize) -> impl Iterator<Item = &Slot> {
        (0..count).filter_map(|index| self.get(index))
    }

    /// Makes slots so that there are `count` at least.
    pub(crate) fn prepare(&self, count: usize, make: impl Fn(usize) -> Slot) {
        for (chunk, place) in self.chunks.iter().enumerate() {
            let first = (1 << chunk) - 1;
            if first >= count {
                break;
            }
            place.get_or_init(|| (first..first * 2 + 1).map(&make).collect());
        }
    }

    /// Puts the first `shape.count` slots, which are prepared, to use.
    pub(crate) fn publish(&self, shape: Shape) {
        let packed = u64::from(shape.generation) << 32 | shape.count as u64;
        self.shape.store(packed, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Link;
    use crate::slot::Split;

    #[test]
    fn slots_keep_their_place_when_there_are_more() {
        let slots = Slots::new();
        let link = Link::new("a:1");
        let make = |index| Slot::new(index, 0, 0, Split::default(), link.clone(), None);
        assert!(slots.get(0).is_none());
        for count in [1, 2, 3, 7, 8, 1_000] {
            slots.prepare(count, make);
            slots.publish(Shape {
                generation: 1,
                count,
            });
            let found: Vec<usize> = slots.iter().map(|slot| slot.index).collect();
            assert_eq!(found, (0..count).collect::<Vec<_>>());
        }
    }
}
