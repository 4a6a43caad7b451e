//! Positions that open transactions commit. They lie aside, and count once their transaction is committed.
//!
//! - **A lease has positions of one transaction at a time.** Until it ends, no other commit moves the lease.
//! - **A lease that ends meanwhile leaves them behind**: what lies below them stays held in its name, the rest is free. So
//!   the next member waits until it is known where it begins, and nothing is consumed twice.
//! - **They end with their transaction**, which the coordinator of the transaction tells: the group is part of it before
//!   the first position comes.

use std::collections::{BTreeMap, BTreeSet};

use kera_protocol::ids::Ordinal;
use kera_protocol::slices::SliceSet;
use kera_protocol::v1::Cursor;

use crate::event::{Body, PositionsSent, SentRecord};

/// What the open transactions of a group commit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SentPositions {
    /// By producer id: the number of its transaction, and the leases.
    by_producer: BTreeMap<i64, (u64, BTreeSet<u64>)>,
    by_lease: BTreeMap<u64, SentPosition>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SentPosition {
    pub(crate) producer: i64,
    pub(crate) lane: (u32, u32),
    /// Those of the lease, where the order of keys is kept.
    pub(crate) slices: SliceSet,
    /// Where the lease stands, or stood when it ended.
    pub(crate) from: Ordinal,
    pub(crate) next: Cursor,
}

impl SentPositions {
    pub(crate) fn of_lease(&self, lease: u64) -> Option<&SentPosition> {
        self.by_lease.get(&lease)
    }

    /// All positions, by lease.
    pub(crate) fn by_lease(&self) -> impl Iterator<Item = (u64, &SentPosition)> {
        self.by_lease.iter().map(|(lease, sent)| (*lease, sent))
    }

    /// Whether a lease has positions of this transaction, and which.
    pub(crate) fn of(&self, producer: i64, number: u64, lease: u64) -> Option<&SentPosition> {
        let sent = self.by_lease.get(&lease)?;
        (sent.producer == producer && self.number(producer) == Some(number)).then_some(sent)
    }

    /// Which transaction of a producer it is.
    pub(crate) fn number(&self, producer: i64) -> Option<u64> {
        self.by_producer.get(&producer).map(|(number, _)| *number)
    }

    /// Takes a position of a lease.
    pub(crate) fn put(&mut self, number: u64, lease: u64, position: SentPosition) {
        let of_producer = self.by_producer.entry(position.producer);
        let (_, leases) = of_producer.or_insert_with(|| (number, BTreeSet::new()));
        leases.insert(lease);
        self.by_lease.insert(lease, position);
    }

    /// A producer whose transaction commits positions of the group, if there is one.
    pub(crate) fn any_producer(&self) -> Option<i64> {
        self.by_producer.keys().next().copied()
    }

    /// Forgets a transaction; its leases.
    pub(crate) fn take(&mut self, producer: i64) -> Vec<(u64, SentPosition)> {
        let (_, leases) = self.by_producer.remove(&producer).unwrap_or_default();
        let leases = leases.into_iter();
        leases
            .filter_map(|lease| Some((lease, self.by_lease.remove(&lease)?)))
            .collect()
    }

    /// The events that build this, once leases are there, with so many positions in each.
    pub(crate) fn snapshot(&self, entries: usize) -> Vec<Body> {
        let mut bodies = Vec::new();
        for (producer, (number, leases)) in &self.by_producer {
            let all = leases.iter().filter_map(|lease| {
                let sent = self.by_lease.get(lease)?;
                Some(SentRecord {
                    lease: *lease,
                    next: Some(sent.next),
                    streamlet: sent.lane.0,
                    lane: sent.lane.1,
                    from: sent.from,
                    slices: sent.slices.bits(),
                })
            });
            let all: Vec<SentRecord> = all.collect();
            for positions in all.chunks(entries) {
                bodies.push(Body::PositionsSent(PositionsSent {
                    producer: *producer,
                    number: *number,
                    positions: positions.to_vec(),
                }));
            }
        }
        bodies
    }
}
