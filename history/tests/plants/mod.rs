//! Anomalies planted in clean histories: each makes one thing wrong and leaves the rest as it was.

mod calls;
mod leases;
mod records;

use std::collections::{BTreeMap, BTreeSet};

use kera_history::{AnomalyKind, Class, Entry, Event, Lane, Reader, Record};

use crate::model::{LONER, Rng};

/// A clean history, and the means to change it.
pub struct Plot {
    pub entries: Vec<Entry>,
    pub rng: Rng,
    spare: u64,
}

/// Something wrong to do to a history; false if it offers no opportunity.
pub type Plant = fn(&mut Plot) -> bool;

/// A plant, and what it must be caught as.
#[derive(Clone, Copy, Debug)]
pub struct Bug {
    pub name: &'static str,
    pub kind: AnomalyKind,
    /// None if it depends on what it finds, or if Jepsen has no name for it.
    pub class: Option<Class>,
    pub plant: Plant,
}

/// Every plant.
#[rustfmt::skip]
pub const PLANTS: &[Bug] = &[
    Bug { name: "lost", kind: AnomalyKind::Lost, class: Some(Class::LostWrite), plant: records::lost },
    Bug { name: "lost_unplaced", kind: AnomalyKind::Lost, class: None, plant: records::lost_unplaced },
    Bug { name: "never_read", kind: AnomalyKind::Lost, class: Some(Class::Unseen), plant: records::never_read },
    Bug { name: "stored_twice", kind: AnomalyKind::Duplicated, class: Some(Class::Duplicate), plant: records::stored_twice },
    Bug { name: "delivered_twice", kind: AnomalyKind::Duplicated, class: None, plant: records::delivered_twice },
    Bug { name: "delivered_after_commit", kind: AnomalyKind::Duplicated, class: Some(Class::NonmonotonicPoll), plant: leases::delivered_after_commit },
    Bug { name: "stored_out_of_order", kind: AnomalyKind::Reordered, class: None, plant: records::stored_out_of_order },
    Bug { name: "sent_out_of_order_in_one_call", kind: AnomalyKind::Reordered, class: Some(Class::IntNonmonotonicSend), plant: calls::sent_out_of_order_in_one_call },
    Bug { name: "sent_out_of_order_between_calls", kind: AnomalyKind::Reordered, class: Some(Class::NonmonotonicSend), plant: calls::sent_out_of_order_between_calls },
    Bug { name: "delivered_out_of_order", kind: AnomalyKind::Reordered, class: None, plant: records::delivered_out_of_order },
    Bug { name: "went_back_in_one_call", kind: AnomalyKind::Reordered, class: Some(Class::IntNonmonotonicPoll), plant: calls::went_back_in_one_call },
    Bug { name: "went_back_between_calls", kind: AnomalyKind::Reordered, class: Some(Class::NonmonotonicPoll), plant: calls::went_back_between_calls },
    Bug { name: "unseen", kind: AnomalyKind::Unseen, class: None, plant: records::unseen },
    Bug { name: "claimed_unseen", kind: AnomalyKind::Unseen, class: Some(Class::Unseen), plant: calls::claimed_unseen },
    Bug { name: "skipped_in_one_call", kind: AnomalyKind::Unseen, class: Some(Class::IntPollSkip), plant: calls::skipped_in_one_call },
    Bug { name: "skipped_between_calls", kind: AnomalyKind::Unseen, class: Some(Class::PollSkip), plant: calls::skipped_between_calls },
    Bug { name: "skipped_under_lease", kind: AnomalyKind::Skipped, class: None, plant: calls::skipped_under_lease },
    Bug { name: "altered", kind: AnomalyKind::Phantom, class: None, plant: records::altered },
    Bug { name: "never_sent", kind: AnomalyKind::Phantom, class: None, plant: records::never_sent },
    Bug { name: "acknowledged_unsent", kind: AnomalyKind::Phantom, class: None, plant: records::acknowledged_unsent },
    Bug { name: "stored_although_failed", kind: AnomalyKind::Phantom, class: None, plant: records::stored_although_failed },
    Bug { name: "misplaced", kind: AnomalyKind::Misplaced, class: None, plant: records::misplaced },
    Bug { name: "read_above_head", kind: AnomalyKind::AboveHead, class: None, plant: records::read_above_head },
    Bug { name: "head_fell", kind: AnomalyKind::AboveHead, class: None, plant: records::head_fell },
    Bug { name: "later_lost", kind: AnomalyKind::AboveHead, class: None, plant: records::later_lost },
    Bug { name: "read_below_start", kind: AnomalyKind::BelowStart, class: None, plant: records::read_below_start },
    Bug { name: "ordinal_reused", kind: AnomalyKind::OrdinalReused, class: Some(Class::InconsistentOffsets), plant: records::ordinal_reused },
    Bug { name: "acknowledged_elsewhere", kind: AnomalyKind::InconsistentOrdinal, class: Some(Class::InconsistentOffsets), plant: records::acknowledged_elsewhere },
    Bug { name: "acknowledged_twice", kind: AnomalyKind::AckedTwiceDifferently, class: Some(Class::InconsistentOffsets), plant: records::acknowledged_twice },
    Bug { name: "acknowledged_and_failed", kind: AnomalyKind::AckedTwiceDifferently, class: None, plant: records::acknowledged_and_failed },
    Bug { name: "leased_twice", kind: AnomalyKind::LeasedTwice, class: None, plant: leases::leased_twice },
    Bug { name: "one_lease_for_two", kind: AnomalyKind::LeasedTwice, class: None, plant: leases::one_lease_for_two },
    Bug { name: "outside_lease", kind: AnomalyKind::OutsideLease, class: None, plant: leases::outside_lease },
    Bug { name: "never_leased", kind: AnomalyKind::NeverLeased, class: None, plant: leases::never_leased },
    Bug { name: "commit_lowered", kind: AnomalyKind::CommitRegressed, class: None, plant: leases::commit_lowered },
    Bug { name: "committed_leased_again", kind: AnomalyKind::CommitRegressed, class: None, plant: leases::committed_leased_again },
    Bug { name: "commit_forgotten", kind: AnomalyKind::CommitRegressed, class: None, plant: leases::commit_forgotten },
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

    /// The deliveries to the consumer without a group, by lane, in the order in which they came, of
    /// what was not trimmed; each with the call that brought it.
    fn alone(&self) -> BTreeMap<Lane, Vec<(Delivery, usize)>> {
        let calls = self.calls(|event| match event {
            Event::Polled { consumer } => *consumer == LONER,
            _ => false,
        });
        let mut alone: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for d in self.kept_deliveries() {
            if d.reader == Reader::Consumer(LONER) {
                alone.entry(d.lane).or_default().push((d, calls[d.index]));
            }
        }
        alone
    }

    /// For each entry, how many before it begin a call.
    fn calls(&self, begins: impl Fn(&Event) -> bool) -> Vec<usize> {
        let mut count = 0;
        let number = |entry: &Entry| {
            count += usize::from(begins(&entry.event));
            count
        };
        self.entries.iter().map(number).collect()
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
