//! What became of every record sent: 12 bytes each, in vectors indexed by the producer's own
//! numbers.

use std::collections::HashMap;

use crate::event::Record;
use crate::slots::{MAX_PRODUCERS, MAX_SEQ};

const LANE_BITS: u32 = 26;
const LANE: u32 = (1 << LANE_BITS) - 1;
const NO_PLACE: u64 = u64::MAX;
/// A producer may leave so many of its numbers out between two sends.
const MAX_SKIP: u64 = 1 << 20;

/// Was sent.
pub(crate) const SENT: u32 = 1 << 26;
/// Was acknowledged.
pub(crate) const ACKED: u32 = 1 << 27;
/// Was read by someone.
pub(crate) const READ: u32 = 1 << 28;
/// Was said not to be stored.
pub(crate) const FAILED: u32 = 1 << 29;
/// May have been stored, says its producer.
pub(crate) const UNKNOWN: u32 = 1 << 30;

/// Lanes are interned below this.
pub(crate) const MAX_LANES: usize = 1 << LANE_BITS;

#[derive(Debug, Default)]
struct Producer {
    // The flags above, and the interned lane: before the record has a place, the lane it was sent to.
    meta: Vec<u32>,
    ordinals: Vec<u64>,
}

/// The table of all records sent.
#[derive(Debug, Default)]
pub(crate) struct Records {
    producers: Vec<Producer>,
}

impl Records {
    /// Adds a record that is about to be sent, with the interned lane it is sent to. The error
    /// says why the record's numbers cannot be right.
    pub(crate) fn send(&mut self, record: Record, lane: u32) -> Result<(), String> {
        if record.producer >= MAX_PRODUCERS || record.seq >= MAX_SEQ {
            return Err(format!("record {record} has a number that is out of range"));
        }
        let index = record.producer as usize;
        if index >= self.producers.len() {
            self.producers.resize_with(index + 1, Producer::default);
        }
        let producer = &mut self.producers[index];
        let len = producer.meta.len() as u64;
        if record.seq < len {
            let meta = &mut producer.meta[record.seq as usize];
            if *meta & SENT != 0 {
                return Err(format!(
                    "record {record} is sent twice; give a re-send a number of its own"
                ));
            }
            *meta = SENT | lane;
            return Ok(());
        }
        if record.seq - len > MAX_SKIP {
            return Err(format!(
                "record {record} follows {len} records of its producer; number them densely from 0"
            ));
        }
        producer.meta.resize(record.seq as usize, 0);
        producer.ordinals.resize(record.seq as usize, NO_PLACE);
        producer.meta.push(SENT | lane);
        producer.ordinals.push(NO_PLACE);
        Ok(())
    }

    fn meta(&self, record: Record) -> u32 {
        self.producers
            .get(record.producer as usize)
            .and_then(|p| p.meta.get(usize::try_from(record.seq).ok()?))
            .copied()
            .unwrap_or(0)
    }

    /// Whether the record has the flag.
    pub(crate) fn has(&self, record: Record, flag: u32) -> bool {
        self.meta(record) & flag != 0
    }

    /// Sets a flag of a record that was sent; nothing for others.
    pub(crate) fn mark(&mut self, record: Record, flag: u32) {
        if self.has(record, SENT) {
            self.producers[record.producer as usize].meta[record.seq as usize] |= flag;
        }
    }

    /// The interned lane the record was sent to, or that holds it.
    pub(crate) fn lane(&self, record: Record) -> u32 {
        self.meta(record) & LANE
    }

    /// Where the record is: as acknowledged if it was, else where it was read first.
    pub(crate) fn place(&self, record: Record) -> Option<(u32, u64)> {
        let meta = self.meta(record);
        if meta & SENT == 0 {
            return None;
        }
        let ordinal = self.producers[record.producer as usize].ordinals[record.seq as usize];
        (ordinal != NO_PLACE).then_some((meta & LANE, ordinal))
    }

    /// Sets the place of a record that was sent; nothing for others.
    pub(crate) fn set_place(&mut self, record: Record, lane: u32, ordinal: u64) {
        if self.has(record, SENT) {
            let producer = &mut self.producers[record.producer as usize];
            let meta = &mut producer.meta[record.seq as usize];
            *meta = *meta & !LANE | lane;
            producer.ordinals[record.seq as usize] = ordinal;
        }
    }

    /// How many records each producer has sent so far; its numbers are below that.
    pub(crate) fn sent(&self) -> HashMap<u32, u64> {
        let counts = self.producers.iter().map(|p| p.meta.len() as u64);
        (0..).zip(counts).collect()
    }

    /// The number of the next record of a producer that numbers them densely.
    pub(crate) fn next(&self, producer: u32) -> u64 {
        let known = self.producers.get(producer as usize);
        known.map_or(0, |producer| producer.meta.len() as u64)
    }

    /// Every record sent, with its flags.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Record, u32)> + '_ {
        self.producers
            .iter()
            .enumerate()
            .flat_map(|(index, producer)| {
                producer
                    .meta
                    .iter()
                    .enumerate()
                    .filter(|(_, meta)| **meta & SENT != 0)
                    .map(move |(seq, &meta)| {
                        let record = Record {
                            producer: index as u32,
                            seq: seq as u64,
                        };
                        (record, meta)
                    })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_must_be_dense_and_unique() {
        let mut records = Records::default();
        let record = |seq| Record { producer: 2, seq };
        records.send(record(0), 7).unwrap();
        records.send(record(2), 7).unwrap();
        records.send(record(1), 8).unwrap();
        assert!(records.send(record(1), 7).unwrap_err().contains("2:1"));
        assert!(records.send(record(5_000_000), 7).is_err());
        assert!(records.send(record(MAX_SEQ), 7).is_err());
        assert!(
            records
                .send(
                    Record {
                        producer: MAX_PRODUCERS,
                        seq: 0
                    },
                    7
                )
                .is_err()
        );
        assert!(!records.has(record(u64::MAX), SENT));
        records.set_place(record(2), 9, 77);
        records.mark(record(2), ACKED);
        assert_eq!(records.place(record(2)), Some((9, 77)));
        assert_eq!(records.lane(record(1)), 8);
        assert_eq!(records.place(record(1)), None);
        assert_eq!(records.iter().count(), 3);
    }
}
