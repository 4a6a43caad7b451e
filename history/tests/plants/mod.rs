//! Anomalies planted in clean histories: each makes one thing wrong and leaves the rest as it was.

mod leases;
mod records;

use std::collections::{BTreeMap, BTreeSet};

use kera_history::{AnomalyKind, Entry, Event, Lane, Reader, Record};

use crate::model::{LONER, Rng};

/// A clean history, and the means to change it.
pub struct Plot {
    pub entries: Vec<Entry>,
    pub rng: Rng,
    spare: u64,
}

/// Something wrong to do to a history; false if it offers no opportunity.
pub type Plant = fn(&mut Plot) -> bool;

/// Every plant, with its name and what it must be caught as.
pub const PLANTS: &[(&str, AnomalyKind, Plant)] = &[
    ("lost", AnomalyKind::Lost, records::lost),
    (
        "stored_twice",
        AnomalyKind::Duplicated,
        records::stored_twice,
    ),
    (
        "delivered_twice",
        AnomalyKind::Duplicated,
        records::delivered_twice,
    ),
    (
        "delivered_after_commit",
        AnomalyKind::Duplicated,
        leases::delivered_after_commit,
    ),
    (
        "stored_out_of_order",
        AnomalyKind::Reordered,
        records::stored_out_of_order,
    ),
    (
        "delivered_out_of_order",
        AnomalyKind::Reordered,
        records::delivered_out_of_order,
    ),
    ("unseen", AnomalyKind::Unseen, records::unseen),
    ("altered", AnomalyKind::Phantom, records::altered),
    ("never_sent", AnomalyKind::Phantom, records::never_sent),
    (
        "acknowledged_unsent",
        AnomalyKind::Phantom,
        records::acknowledged_unsent,
    ),
    (
        "stored_although_failed",
        AnomalyKind::Phantom,
        records::stored_although_failed,
    ),
    ("misplaced", AnomalyKind::Misplaced, records::misplaced),
    (
        "read_above_head",
        AnomalyKind::AboveHead,
        records::read_above_head,
    ),
    ("head_fell", AnomalyKind::AboveHead, records::head_fell),
    ("later_lost", AnomalyKind::AboveHead, records::later_lost),
    (
        "read_below_start",
        AnomalyKind::BelowStart,
        records::read_below_start,
    ),
    (
        "ordinal_reused",
        AnomalyKind::OrdinalReused,
        records::ordinal_reused,
    ),
    (
        "acknowledged_elsewhere",
        AnomalyKind::InconsistentOrdinal,
        records::acknowledged_elsewhere,
    ),
    (
        "acknowledged_twice",
        AnomalyKind::AckedTwiceDifferently,
        records::acknowledged_twice,
    ),
    (
        "acknowledged_and_failed",
        AnomalyKind::AckedTwiceDifferently,
        records::acknowledged_and_failed,
    ),
    (
        "leased_twice",
        AnomalyKind::LeasedTwice,
        leases::leased_twice,
    ),
    (
        "one_lease_for_two",
        AnomalyKind::LeasedTwice,
        leases::one_lease_for_two,
    ),
    (
        "outside_lease",
        AnomalyKind::OutsideLease,
        leases::outside_lease,
    ),
    (
        "never_leased",
        AnomalyKind::NeverLeased,
        leases::never_leased,
    ),
    (
        "commit_lowered",
        AnomalyKind::CommitRegressed,
        leases::commit_lowered,
    ),
    (
        "committed_leased_again",
        AnomalyKind::CommitRegressed,
        leases::committed_leased_again,
    ),
    (
        "commit_forgotten",
        AnomalyKind::CommitRegressed,
        leases::commit_forgotten,
    ),
];

/// A delivery, as the plants look at it.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    pub index: usize,
    pub reader: Reader,
    pub lane: Lane,
    pub ordinal: u64,
    pub record: Record,
}

impl Plot {
    pub fn new(entries: Vec<Entry>, seed: u64) -> Self {
        Self {
            entries,
            rng: Rng(seed),
            spare: 1,
        }
    }

    /// Time after everything else.
    fn end(&self) -> u64 {
        self.entries.last().map_or(0, |entry| entry.at + 1)
    }

    fn append(&mut self, event: Event) {
        let at = self.end();
        self.entries.push(Entry { at, event });
    }

    /// Inserts right after the entry at `index`; at most nine times after one.
    fn insert_after(&mut self, index: usize, event: Event) {
        let at = self.entries[index].at + self.spare;
        self.spare += 1;
        self.entries.insert(index + 1, Entry { at, event });
    }

    fn deliveries(&self) -> Vec<Delivery> {
        let delivery = |(index, entry): (usize, &Entry)| match entry.event {
            Event::Read {
                lease,
                lane,
                ordinal,
                record: Some(record),
                ..
            } => Some(Delivery {
                index,
                reader: lease.map_or(Reader::Consumer(LONER), |l| Reader::Group(l.group)),
                lane,
                ordinal,
                record,
            }),
            _ => None,
        };
        self.entries
            .iter()
            .enumerate()
            .filter_map(delivery)
            .collect()
    }

    /// Who read what, by place.
    fn readers(&self) -> BTreeMap<(Lane, u64), BTreeSet<Reader>> {
        let mut readers: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for d in self.deliveries() {
            readers
                .entry((d.lane, d.ordinal))
                .or_default()
                .insert(d.reader);
        }
        readers
    }

    /// Acknowledged records, with where.
    fn acked(&self) -> BTreeMap<Record, (Lane, u64)> {
        let ack = |entry: &Entry| match entry.event {
            Event::Ack {
                record,
                lane,
                ordinal,
            } => Some((record, (lane, ordinal))),
            _ => None,
        };
        self.entries.iter().filter_map(ack).collect()
    }

    fn log_starts(&self) -> BTreeMap<Lane, u64> {
        let trim = |entry: &Entry| match entry.event {
            Event::LogTrimmed { lane, start } => Some((lane, start)),
            _ => None,
        };
        self.entries.iter().filter_map(trim).collect()
    }

    /// The lanes' last known durable heads.
    fn heads(&self) -> BTreeMap<Lane, u64> {
        let head = |entry: &Entry| match entry.event {
            Event::HeadObserved { lane, head, .. } => Some((lane, head)),
            _ => None,
        };
        self.entries.iter().filter_map(head).collect()
    }

    /// Deliveries of what was not trimmed.
    fn kept_deliveries(&self) -> Vec<Delivery> {
        let starts = self.log_starts();
        let mut deliveries = self.deliveries();
        deliveries.retain(|d| starts.get(&d.lane).is_none_or(|start| d.ordinal >= *start));
        deliveries
    }
}
