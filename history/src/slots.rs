//! Which record each ordinal of a lane holds: 8 bytes per ordinal, in chunks, so that a jump of
//! 2^32 ordinals costs nothing.

use std::collections::BTreeMap;

use crate::event::Record;

const CHUNK: usize = 256;
const READ: u64 = 1 << 63;
const ACKED: u64 = 1 << 62;
const RECORD: u64 = ACKED - 1;
const SEQ_BITS: u32 = 42;

/// Producers in a history are numbered below this.
pub(crate) const MAX_PRODUCERS: u32 = 1 << 20;
/// A producer's records are numbered below this.
pub(crate) const MAX_SEQ: u64 = 1 << 40;

/// What is known to be at an ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// A record that was sent.
    Record(Record),
    /// Something that was never sent, or was altered.
    Foreign,
}

impl Holds {
    fn pack(self) -> u64 {
        match self {
            Self::Record(r) => (u64::from(r.producer) << SEQ_BITS | r.seq) + 1,
            Self::Foreign => RECORD,
        }
    }

    fn unpack(bits: u64) -> Option<Self> {
        match bits & RECORD {
            0 => None,
            RECORD => Some(Self::Foreign),
            packed => {
                let packed = packed - 1;
                Some(Self::Record(Record {
                    producer: (packed >> SEQ_BITS) as u32,
                    seq: packed & ((1 << SEQ_BITS) - 1),
                }))
            }
        }
    }
}

/// An ordinal with what it holds and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) holds: Holds,
    /// A reader saw it.
    pub(crate) read: bool,
    /// An acknowledgement said so.
    pub(crate) acked: bool,
}

impl Slot {
    fn pack(self) -> u64 {
        let mut bits = self.holds.pack();
        if self.read {
            bits |= READ;
        }
        if self.acked {
            bits |= ACKED;
        }
        bits
    }

    fn unpack(bits: u64) -> Option<Self> {
        Some(Self {
            holds: Holds::unpack(bits)?,
            read: bits & READ != 0,
            acked: bits & ACKED != 0,
        })
    }
}

/// The ordinals of one lane.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    chunks: BTreeMap<u64, Box<[u64; CHUNK]>>,
}

impl Slots {
    /// What the ordinal holds, if anything is known.
    pub(crate) fn get(&self, ordinal: u64) -> Option<Slot> {
        let chunk = self.chunks.get(&(ordinal / CHUNK as u64))?;
        Slot::unpack(chunk[(ordinal % CHUNK as u64) as usize])
    }

    /// Replaces what is known of the ordinal.
    pub(crate) fn set(&mut self, ordinal: u64, slot: Slot) {
        let chunk = self
            .chunks
            .entry(ordinal / CHUNK as u64)
            .or_insert_with(|| Box::new([0; CHUNK]));
        chunk[(ordinal % CHUNK as u64) as usize] = slot.pack();
    }

    /// The known ordinals in `start..end`, ascending.
    pub(crate) fn range(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, Slot)> + '_ {
        let bounds = if start < end {
            start / CHUNK as u64..end.div_ceil(CHUNK as u64)
        } else {
            0..0
        };
        self.chunks
            .range(bounds)
            .flat_map(|(&number, chunk)| {
                chunk.iter().enumerate().filter_map(move |(index, &bits)| {
                    Slot::unpack(bits).map(|slot| (number * CHUNK as u64 + index as u64, slot))
                })
            })
            .filter(move |(ordinal, _)| (start..end).contains(ordinal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_keep_what_they_are_given_across_jumps() {
        let mut slots = Slots::default();
        let biggest = Record {
            producer: MAX_PRODUCERS - 1,
            seq: MAX_SEQ - 1,
        };
        let kinds = [
            Holds::Record(Record {
                producer: 0,
                seq: 0,
            }),
            Holds::Record(biggest),
            Holds::Foreign,
        ];
        let ordinals = [0, 255, 256, 1 << 32, i64::MAX as u64];
        for (n, &ordinal) in ordinals.iter().enumerate() {
            let slot = Slot {
                holds: kinds[n % 3],
                read: n % 2 == 0,
                acked: n % 3 == 0,
            };
            assert_eq!(slots.get(ordinal), None);
            slots.set(ordinal, slot);
            assert_eq!(slots.get(ordinal), Some(slot));
        }
        let seen: Vec<u64> = slots.range(0, u64::MAX).map(|(o, _)| o).collect();
        assert_eq!(seen, ordinals);
        let seen: Vec<u64> = slots.range(255, 1 << 32).map(|(o, _)| o).collect();
        assert_eq!(seen, [255, 256]);
        assert_eq!(slots.range(5, 5).count(), 0);
    }
}
