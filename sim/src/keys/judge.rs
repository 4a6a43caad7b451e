//! The judge of a group that keeps the order of keys: what was written of each key, and who got what of it.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Findings that are kept.
const MOST_FINDINGS: usize = 20;

/// How far a key is.
#[derive(Debug, Default)]
struct Progress {
    /// Records that were written.
    written: u64,
    /// Below this commits were asked for,
    asked: u64,
    /// and acknowledged.
    settled: u64,
    /// The last record that was got under each lease.
    got: BTreeMap<u64, u64>,
}

#[derive(Debug, Default)]
struct Book {
    keys: BTreeMap<u64, Progress>,
    /// By lease, what was got under it and is not settled: by ordinal, a key and which of its records.
    leases: BTreeMap<u64, BTreeMap<u64, (u64, u64)>>,
    deliveries: u64,
    findings: Vec<String>,
}

/// All that was written to the stream, and got by members of the group.
#[derive(Default)]
pub struct Keys(Mutex<Book>);

impl Keys {
    /// A record of `key` is about to be sent; which of its key's it is.
    pub fn sends(&self, key: u64) -> u64 {
        let mut book = self.0.lock();
        let progress = book.keys.entry(key).or_default();
        progress.written += 1;
        progress.written - 1
    }

    /// A member got a record, at an ordinal of the lane of its lease.
    ///
    /// Under one lease each record follows the one before. The first one under a lease follows what its last holder
    /// committed, or somebody asked to have committed. False if that is not so.
    pub fn got(&self, lease: u64, ordinal: u64, key: u64, number: u64) -> bool {
        let mut book = self.0.lock();
        book.deliveries += 1;
        let progress = book.keys.entry(key).or_default();
        let last = progress.got.insert(lease, number);
        let wrong = match last {
            _ if number >= progress.written => Some("nobody wrote it".to_owned()),
            Some(last) if number == last + 1 => None,
            Some(last) => Some(format!("it came after {last} under the same lease")),
            None if number > progress.asked => Some(format!(
                "nobody asked for a commit of what is from {} on",
                progress.asked
            )),
            None if number < progress.settled => {
                Some(format!("what is below {} is committed", progress.settled))
            }
            None => None,
        };
        let is_right = wrong.is_none();
        if let Some(wrong) = wrong {
            book.findings.push(format!(
                "record {number} of key {key} came under lease {lease} at ordinal {ordinal}: {wrong}"
            ));
            book.findings.truncate(MOST_FINDINGS);
        }
        let of_lease = book.leases.entry(lease).or_default();
        of_lease.insert(ordinal, (key, number));
        is_right
    }

    /// A commit of what is below an ordinal is about to be asked for.
    pub fn asks(&self, lease: u64, next: u64) {
        let book = &mut *self.0.lock();
        let Some(of_lease) = book.leases.get(&lease) else {
            return;
        };
        for (key, number) in of_lease.range(..next).map(|(_, record)| record) {
            let progress = book.keys.entry(*key).or_default();
            progress.asked = progress.asked.max(number + 1);
        }
    }

    /// It is acknowledged.
    pub fn settles(&self, lease: u64, next: u64) {
        let book = &mut *self.0.lock();
        let Some(of_lease) = book.leases.get_mut(&lease) else {
            return;
        };
        let rest = of_lease.split_off(&next);
        for (key, number) in std::mem::replace(of_lease, rest).into_values() {
            let progress = book.keys.entry(key).or_default();
            progress.settled = progress.settled.max(number + 1);
        }
    }

    /// Records that are written, and not known to be committed.
    pub fn left(&self) -> u64 {
        let book = self.0.lock();
        let left = book.keys.values().map(|key| key.written - key.settled);
        left.sum()
    }

    /// Records that were written, and how often one was got.
    pub fn counts(&self) -> (u64, u64) {
        let book = self.0.lock();
        let written = book.keys.values().map(|key| key.written).sum();
        (written, book.deliveries)
    }

    /// What cannot be true.
    pub fn findings(&self) -> Vec<String> {
        self.0.lock().findings.clone()
    }
}
