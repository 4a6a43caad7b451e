//! The judge of a compacted stream: what was written of each key, and what readers got of it.

use std::collections::BTreeMap;
use std::time::Duration;

use kera_history::Lane;
use parking_lot::Mutex;

/// Findings that are kept.
const MOST_FINDINGS: usize = 20;
/// Whoever read for longer may have come past a key while what deletes it went: a tombstone stays for at least as long
/// behind the last change of its lane's replicas.
const QUICK: Duration = Duration::from_secs(20);

/// A record that was written.
#[derive(Clone, Debug)]
struct Written {
    is_tombstone: bool,
    sent: Duration,
    /// Where it is.
    place: Option<(Lane, u64)>,
}

/// A record that was read: where, and which of its key's it says to be. A tombstone says nothing.
#[derive(Clone, Debug)]
struct Got {
    key: String,
    lane: Lane,
    ordinal: u64,
    said: Option<u64>,
}

/// One reader, from the beginning.
#[derive(Clone, Debug, Default)]
struct View {
    got: Vec<Got>,
    /// Where it was in the end.
    passed: BTreeMap<Lane, u64>,
    began: Duration,
    ended: Duration,
}

#[derive(Default)]
struct Book {
    /// What was written of each key, in order: one producer writes it.
    keys: BTreeMap<String, Vec<Written>>,
    views: BTreeMap<u32, View>,
}

/// All that was written to the compacted stream, and read of it.
#[derive(Default)]
pub struct Table(Mutex<Book>);

impl Table {
    /// A record of `key` is about to be sent; which of its key's it is.
    pub fn sends(&self, key: &str, is_tombstone: bool, now: Duration) -> u64 {
        let mut book = self.0.lock();
        let written = book.keys.entry(key.to_owned()).or_default();
        written.push(Written {
            is_tombstone,
            sent: now,
            place: None,
        });
        written.len() as u64 - 1
    }

    /// It is acknowledged.
    pub fn stored(&self, key: &str, number: u64, place: (Lane, u64)) {
        let mut book = self.0.lock();
        let written = book.keys.get_mut(key);
        if let Some(written) = written.and_then(|written| written.get_mut(number as usize)) {
            written.place = Some(place);
        }
    }

    pub fn begins(&self, reader: u32, now: Duration) {
        self.0.lock().views.entry(reader).or_default().began = now;
    }

    /// A reader got a record; `said` is what its value says to be.
    pub fn read(&self, reader: u32, key: String, (lane, ordinal): (Lane, u64), said: Option<u64>) {
        let mut book = self.0.lock();
        book.views.entry(reader).or_default().got.push(Got {
            key,
            lane,
            ordinal,
            said,
        });
    }

    /// A reader has come so far.
    pub fn passed(&self, reader: u32, lane: Lane, next: u64, now: Duration) {
        let mut book = self.0.lock();
        let view = book.views.entry(reader).or_default();
        view.passed.insert(lane, next);
        view.ended = now;
    }

    /// Records that were written, and those that a reader got.
    pub fn counts(&self, reader: u32) -> (usize, usize) {
        let book = self.0.lock();
        let got = book.views.get(&reader).map_or(0, |view| view.got.len());
        (book.keys.values().map(Vec::len).sum(), got)
    }

    /// What a reader lacks or has too much of who read everything when nobody wrote any more.
    pub fn lacks(&self, reader: u32) -> Vec<String> {
        let book = self.0.lock();
        let Some(view) = book.views.get(&reader) else {
            return vec![format!("reader {reader} of the table read nothing")];
        };
        let seen = last_of_each_key(view);
        let mut found = Vec::new();
        for (key, written) in &book.keys {
            let Some(newest) = written.last() else {
                continue;
            };
            let got = seen.get(key.as_str());
            let is_newest = got.is_some_and(|got| newest.place == Some((got.lane, got.ordinal)));
            let is_deleted = newest.is_tombstone && got.is_none();
            if !is_newest && !is_deleted {
                found.push(format!(
                    "of {} records of key {key} the last is {newest:?}, and reader {reader} got {got:?}",
                    written.len()
                ));
            }
        }
        found.truncate(MOST_FINDINGS);
        found
    }

    /// What cannot be true of what any reader got. All records have their places by now.
    pub fn findings(&self) -> Vec<String> {
        let book = self.0.lock();
        let mut found = Vec::new();
        for (reader, view) in &book.views {
            book.judge(*reader, view, &mut found);
        }
        found.truncate(MOST_FINDINGS);
        found
    }
}

fn last_of_each_key(view: &View) -> BTreeMap<&str, &Got> {
    view.got.iter().map(|got| (got.key.as_str(), got)).collect()
}

impl Book {
    fn judge(&self, reader: u32, view: &View, found: &mut Vec<String>) {
        let mut ordinals: BTreeMap<Lane, u64> = BTreeMap::new();
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        for got in &view.got {
            let Got {
                key, lane, ordinal, ..
            } = got;
            if let Some(before) = ordinals.insert(*lane, *ordinal)
                && before >= *ordinal
            {
                found.push(format!(
                    "reader {reader} got ordinal {ordinal} of lane {lane} after {before}"
                ));
            }
            let Some(number) = self.number_of(got) else {
                found.push(format!("reader {reader} got what nobody wrote: {got:?}"));
                continue;
            };
            if let Some(before) = numbers.insert(key, number)
                && before >= number
            {
                found.push(format!(
                    "reader {reader} got record {number} of key {key} after record {before}"
                ));
            }
        }
        if view.ended < view.began + QUICK {
            self.is_up_to_date(reader, view, found);
        }
    }

    /// Which of its key's a record is: that of its place, which must be what its value says.
    fn number_of(&self, got: &Got) -> Option<usize> {
        let written = self.keys.get(&got.key)?;
        let number = written
            .iter()
            .position(|written| written.place == Some((got.lane, got.ordinal)))?;
        let same = match got.said {
            Some(said) => said == number as u64 && !written[number].is_tombstone,
            None => written[number].is_tombstone,
        };
        same.then_some(number)
    }

    /// The newest record of each key that anybody had sent when somebody stopped reading: if it lies below where they came
    /// to, they got it. What was sent later took nothing from them.
    fn is_up_to_date(&self, reader: u32, view: &View, found: &mut Vec<String>) {
        let seen = last_of_each_key(view);
        for (key, written) in &self.keys {
            let mut latest_first = written.iter().rev();
            let newest = latest_first.find(|one| one.sent < view.ended);
            let Some(newest) = newest else {
                continue;
            };
            let Some((lane, ordinal)) = newest.place else {
                continue;
            };
            let passed = view.passed.get(&lane).copied().unwrap_or(0);
            if ordinal >= passed {
                continue;
            }
            let got = seen.get(key.as_str());
            // Whoever got nothing of a deleted key has nothing to be told of.
            if newest.is_tombstone && got.is_none() {
                continue;
            }
            if got.is_none_or(|got| got.ordinal != ordinal) {
                found.push(format!(
                    "reader {reader} came to ordinal {passed} of lane {lane} without the newest record of key {key} at {ordinal}; it got {got:?}"
                ));
            }
        }
    }
}
