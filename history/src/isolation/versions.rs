//! Who appended what, and in which order.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Operation, Outcome, Phenomenon, Transaction};

/// Where a value comes from.
#[derive(Clone, Copy, Debug)]
struct Writer {
    transaction: usize,
    /// Nothing of the same transaction follows it in its list.
    is_last: bool,
}

/// The versions of all lists.
pub(super) struct Versions {
    writers: BTreeMap<(u32, u64), Writer>,
    /// The longest state of each list that a committed transaction saw.
    orders: BTreeMap<u32, Vec<u64>>,
    /// Numbers of transactions that count.
    committed: BTreeSet<usize>,
    /// Those of them that appended to a list what is not in its longest state.
    unread: BTreeMap<u32, BTreeSet<usize>>,
}

impl Versions {
    pub(super) fn of(history: &[Transaction], findings: &mut Vec<Finding>) -> Self {
        let mut versions = Self {
            writers: writers(history, findings),
            orders: BTreeMap::new(),
            committed: BTreeSet::new(),
            unread: BTreeMap::new(),
        };
        versions.find_committed(history);
        for number in versions.committed.clone() {
            versions.look_at(number, &history[number], findings);
        }
        versions.find_unread();
        versions
    }

    /// The transactions that count, by number.
    pub(super) fn committed<'a>(
        &'a self,
        history: &'a [Transaction],
    ) -> impl Iterator<Item = (usize, &'a Transaction)> {
        self.committed
            .iter()
            .map(|number| (*number, &history[*number]))
    }

    /// The order of a list, as far as it was seen.
    pub(super) fn orders(&self) -> impl Iterator<Item = (u32, &[u64])> {
        self.orders.iter().map(|(list, order)| (*list, &order[..]))
    }

    /// Who appended a value, if that counts.
    pub(super) fn writer(&self, list: u32, value: u64) -> Option<usize> {
        let writer = self.writers.get(&(list, value))?;
        let transaction = writer.transaction;
        self.committed.contains(&transaction).then_some(transaction)
    }

    /// Who appended to a list what nobody has read: behind all that was read, in an order that nobody knows.
    pub(super) fn unread(&self, list: u32) -> impl Iterator<Item = usize> {
        self.unread.get(&list).into_iter().flatten().copied()
    }

    /// Whether that is the longest state of a list that somebody saw.
    pub(super) fn is_longest(&self, list: u32, values: &[u64]) -> bool {
        let longest = self.orders.get(&list);
        longest.is_some_and(|longest| longest == values)
    }

    /// What follows the first `length` values of a list.
    pub(super) fn after(&self, list: u32, length: usize) -> Option<u64> {
        self.orders.get(&list)?.get(length).copied()
    }

    /// Of the transactions whose end nobody knows those count that others have read of.
    fn find_committed(&mut self, history: &[Transaction]) {
        let mut open: Vec<usize> = Vec::new();
        for (number, transaction) in history.iter().enumerate() {
            if transaction.outcome == Outcome::Committed {
                open.push(number);
            }
        }
        while let Some(number) = open.pop() {
            if !self.committed.insert(number) {
                continue;
            }
            for operation in &history[number].operations {
                let Operation::Read { list, values } = operation else {
                    continue;
                };
                let seen = values
                    .iter()
                    .filter_map(|value| self.writers.get(&(*list, *value)));
                open.extend(
                    seen.map(|writer| writer.transaction)
                        .filter(|seen| history[*seen].outcome == Outcome::Unknown),
                );
            }
        }
    }

    fn find_unread(&mut self) {
        let read = self.orders.iter();
        let read = read.flat_map(|(list, order)| order.iter().map(|value| (*list, *value)));
        let read: BTreeSet<(u32, u64)> = read.collect();
        for (place, writer) in &self.writers {
            if !read.contains(place) && self.committed.contains(&writer.transaction) {
                let of_list = self.unread.entry(place.0).or_default();
                of_list.insert(writer.transaction);
            }
        }
    }

    fn look_at(&mut self, number: usize, transaction: &Transaction, findings: &mut Vec<Finding>) {
        let mut own: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for operation in &transaction.operations {
            match operation {
                Operation::Append { list, value } => own.entry(*list).or_default().push(*value),
                Operation::Read { list, values } => {
                    let own = own.get(list).map_or(&[][..], Vec::as_slice);
                    self.look_at_read(number, *list, values, own, findings);
                }
            }
        }
    }

    fn look_at_read(
        &mut self,
        number: usize,
        list: u32,
        values: &[u64],
        own: &[u64],
        findings: &mut Vec<Finding>,
    ) {
        let mut complain = |phenomenon, other: Option<usize>| {
            findings.push(Finding {
                phenomenon,
                transactions: other.into_iter().chain([number]).collect(),
                list: Some(list),
            });
        };
        let distinct: BTreeSet<&u64> = values.iter().collect();
        if distinct.len() < values.len() {
            complain(Phenomenon::Duplicate, None);
            return;
        }
        if !values.ends_with(own) {
            complain(Phenomenon::OwnWriteMissing, None);
        }
        for (at, value) in values.iter().enumerate() {
            let Some(writer) = self.writers.get(&(list, *value)) else {
                complain(Phenomenon::Phantom, None);
                continue;
            };
            if writer.transaction == number {
                continue;
            }
            let other = Some(writer.transaction);
            if !self.committed.contains(&writer.transaction) {
                complain(Phenomenon::AbortedRead, other);
            }
            if at + 1 == values.len() && !writer.is_last {
                complain(Phenomenon::IntermediateRead, other);
            }
        }
        let order = self.orders.entry(list).or_default();
        let (short, long) = match order.len() < values.len() {
            true => (&order[..], values),
            false => (values, &order[..]),
        };
        if !long.starts_with(short) {
            complain(Phenomenon::Incompatible, None);
        } else if order.len() < values.len() {
            *order = values.to_vec();
        }
    }
}

fn writers(history: &[Transaction], findings: &mut Vec<Finding>) -> BTreeMap<(u32, u64), Writer> {
    let mut writers: BTreeMap<(u32, u64), Writer> = BTreeMap::new();
    for (number, transaction) in history.iter().enumerate() {
        let mut last: BTreeMap<u32, u64> = BTreeMap::new();
        for operation in &transaction.operations {
            let Operation::Append { list, value } = operation else {
                continue;
            };
            if let Some(before) = last.insert(*list, *value)
                && let Some(writer) = writers.get_mut(&(*list, before))
            {
                writer.is_last = false;
            }
            let writer = Writer {
                transaction: number,
                is_last: true,
            };
            if let Some(other) = writers.insert((*list, *value), writer) {
                findings.push(Finding {
                    phenomenon: Phenomenon::Duplicate,
                    transactions: vec![other.transaction, number],
                    list: Some(*list),
                });
            }
        }
    }
    writers
}
