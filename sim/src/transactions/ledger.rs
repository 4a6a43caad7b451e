//! The judge of transactions: what was asked, what was read, and whether both can be true.

use std::collections::BTreeMap;

use kera_history::{Lane, Record};
use parking_lot::Mutex;

/// Findings that are kept.
const MOST_FINDINGS: usize = 20;

/// How a transaction ended, as far as whoever ended it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its producer left it, and nobody asked for a commit: it does not count.
    Left,
    Committed,
    Aborted,
    /// Nobody can tell: it counts as a whole or not at all.
    Unknown,
}

/// A record of a transaction.
struct Sent {
    record: Record,
    place: Option<(Lane, u64)>,
    is_read: bool,
}

struct Transaction {
    name: String,
    /// Somebody has asked for a commit that may succeed: from then on it may be read.
    may_count: bool,
    outcome: Outcome,
    records: Vec<Sent>,
}

/// One reader of everything.
#[derive(Default)]
struct ReaderView {
    /// Ordinals that it got, in order.
    read: BTreeMap<Lane, Vec<u64>>,
    /// Where it was in the end.
    passed: BTreeMap<Lane, u64>,
}

#[derive(Default)]
struct Book {
    transactions: Vec<Transaction>,
    /// The transaction of a record, and which of its records it is.
    of: BTreeMap<Record, (usize, usize)>,
    at: BTreeMap<(Lane, u64), Record>,
    readers: BTreeMap<u32, ReaderView>,
    findings: Vec<String>,
}

/// All transactions of a run.
#[derive(Default)]
pub struct Ledger(Mutex<Book>);

impl Ledger {
    /// A transaction begins, which nobody may read yet; its number.
    pub fn begin(&self, name: String) -> usize {
        let mut book = self.0.lock();
        book.transactions.push(Transaction {
            name,
            may_count: false,
            outcome: Outcome::Left,
            records: Vec::new(),
        });
        book.transactions.len() - 1
    }

    /// A record is about to be sent as part of it.
    pub fn sends(&self, transaction: usize, record: Record) {
        let mut book = self.0.lock();
        let records = &mut book.transactions[transaction].records;
        records.push(Sent {
            record,
            place: None,
            is_read: false,
        });
        let index = records.len() - 1;
        book.of.insert(record, (transaction, index));
    }

    /// A commit is about to be asked for.
    pub fn may_count(&self, transaction: usize) {
        self.0.lock().transactions[transaction].may_count = true;
    }

    pub fn ended(&self, transaction: usize, outcome: Outcome) {
        self.0.lock().transactions[transaction].outcome = outcome;
    }

    /// A record is acknowledged.
    pub fn stored(&self, record: Record, lane: Lane, ordinal: u64) {
        self.0.lock().place(record, lane, ordinal, "its producer");
    }

    /// A reader got a record.
    pub fn read(&self, reader: u32, lane: Lane, ordinal: u64, record: Option<Record>) {
        let mut book = self.0.lock();
        let book = &mut *book;
        let got = book.readers.entry(reader).or_default();
        let ordinals = got.read.entry(lane).or_default();
        if let Some(before) = ordinals.last()
            && *before >= ordinal
        {
            let text =
                format!("reader {reader} got ordinal {ordinal} of lane {lane} after {before}");
            book.complain(text);
            return;
        }
        ordinals.push(ordinal);
        let known = record.and_then(|record| Some((record, *book.of.get(&record)?)));
        let Some((record, (transaction, index))) = known else {
            return book.complain(format!(
                "reader {reader} got at ordinal {ordinal} of lane {lane} what nobody sent: {record:?}"
            ));
        };
        let of = &mut book.transactions[transaction];
        of.records[index].is_read = true;
        if !of.may_count {
            let text = format!(
                "reader {reader} got record {record} of {} at ordinal {ordinal} of lane {lane}, whose commit nobody has asked for ({:?})",
                of.name, of.outcome
            );
            book.complain(text);
        }
        book.place(record, lane, ordinal, &format!("reader {reader}"));
    }

    /// A reader has come so far.
    pub fn passed(&self, reader: u32, lane: Lane, next: u64) {
        let mut book = self.0.lock();
        book.readers
            .entry(reader)
            .or_default()
            .passed
            .insert(lane, next);
    }

    /// Whether a reader has got all that counts for certain.
    pub fn has_all(&self, reader: u32) -> bool {
        let book = self.0.lock();
        let committed = book
            .transactions
            .iter()
            .filter(|of| of.outcome == Outcome::Committed);
        committed
            .flat_map(|of| &of.records)
            .all(|sent| book.has(reader, sent))
    }

    /// How many ended so.
    pub fn count(&self, outcome: Outcome) -> usize {
        let book = self.0.lock();
        let all = book.transactions.iter();
        all.filter(|of| of.outcome == outcome).count()
    }

    /// What cannot be true. `last` has read everything.
    pub fn findings(&self, last: u32) -> Vec<String> {
        let mut book = self.0.lock();
        let mut more = Vec::new();
        for of in &book.transactions {
            let name = &of.name;
            let (got, missing): (Vec<&Sent>, _) =
                of.records.iter().partition(|sent| book.has(last, sent));
            match of.outcome {
                Outcome::Committed => {
                    more.extend(missing.first().map(|sent| {
                        format!(
                            "{} of {} records of {name}, which is committed, cannot be read, such as {} at {:?}",
                            missing.len(),
                            of.records.len(),
                            sent.record,
                            sent.place
                        )
                    }));
                }
                Outcome::Unknown if !got.is_empty() && !missing.is_empty() => {
                    more.push(format!(
                        "{} of {} records of {name} can be read, and the others not, such as {}",
                        got.len(),
                        of.records.len(),
                        missing[0].record
                    ));
                }
                Outcome::Unknown => {}
                Outcome::Aborted | Outcome::Left => {
                    let read = of.records.iter().find(|sent| sent.is_read);
                    more.extend(read.map(|sent| {
                        format!(
                            "somebody read record {} of {name}, which was aborted",
                            sent.record
                        )
                    }));
                }
            }
        }
        more.extend(book.came_past());
        more.extend(book.out_of_order());
        more.into_iter().for_each(|text| book.complain(text));
        std::mem::take(&mut book.findings)
    }
}

impl Book {
    fn complain(&mut self, text: String) {
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(format!("transactions: {text}"));
        }
    }

    fn has(&self, reader: u32, sent: &Sent) -> bool {
        let Some((lane, ordinal)) = sent.place else {
            return false;
        };
        let read = self
            .readers
            .get(&reader)
            .and_then(|reader| reader.read.get(&lane));
        read.is_some_and(|read| read.binary_search(&ordinal).is_ok())
    }

    /// A record has one place, and a place has one record.
    fn place(&mut self, record: Record, lane: Lane, ordinal: u64, who: &str) {
        let Some(&(transaction, index)) = self.of.get(&record) else {
            return;
        };
        let of = &mut self.transactions[transaction];
        let known = *of.records[index].place.get_or_insert((lane, ordinal));
        let other = *self.at.entry((lane, ordinal)).or_insert(record);
        if known != (lane, ordinal) {
            let text = format!(
                "record {record} of {} is at ordinal {} of lane {} and, as {who} says, at ordinal {ordinal} of lane {lane}",
                of.name, known.1, known.0
            );
            self.complain(text);
        }
        if other != record {
            self.complain(format!(
                "ordinal {ordinal} of lane {lane} has record {other} and, as {who} says, {record}"
            ));
        }
    }

    /// Committed records that a reader came past without getting them.
    fn came_past(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (number, reader) in &self.readers {
            let committed = self
                .transactions
                .iter()
                .filter(|of| of.outcome == Outcome::Committed);
            for (of, sent) in committed.flat_map(|of| of.records.iter().map(move |sent| (of, sent)))
            {
                let Some((lane, ordinal)) = sent.place else {
                    continue;
                };
                let passed = reader.passed.get(&lane).copied().unwrap_or(0);
                if ordinal < passed && !self.has(*number, sent) {
                    found.push(format!(
                        "reader {number} came to ordinal {passed} of lane {lane} without record {} of {} at {ordinal}",
                        sent.record, of.name
                    ));
                }
            }
        }
        found
    }

    /// Records of a producer that lie in a lane in another order than they were sent in.
    fn out_of_order(&self) -> Vec<String> {
        let mut last: BTreeMap<(u32, Lane), (u64, Record)> = BTreeMap::new();
        let mut found = Vec::new();
        for (record, (transaction, index)) in &self.of {
            let of = &self.transactions[*transaction];
            let Some((lane, ordinal)) = of.records[*index].place else {
                continue;
            };
            if of.outcome != Outcome::Committed {
                continue;
            }
            let before = last.insert((record.producer, lane), (ordinal, *record));
            if let Some((above, before)) = before.filter(|(before, _)| *before >= ordinal) {
                found.push(format!(
                    "record {record} is at ordinal {ordinal} of lane {lane}, and {before}, which was sent before, at {above}"
                ));
            }
        }
        found
    }
}
