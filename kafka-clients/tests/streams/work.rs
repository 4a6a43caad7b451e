//! What the application reads, and what must come of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use serde_json::json;

use crate::common::records::unhex;
use crate::common::{NewRecord, Read, Session, until};

pub const PARTITIONS: i32 = 3;
const LINES: usize = 20;
const WORDS_OF_A_LINE: usize = 4;
/// How many words a chunk has.
pub const WORDS: usize = LINES * WORDS_OF_A_LINE;
/// Different words.
const VOCABULARY: usize = 23;
/// Records of a chunk on either side of the join.
const PAIRS: usize = 10;
const KEYS: usize = 3;
/// The join's window, on either side.
const WINDOW_MS: i64 = 500;
/// Words that are sent ahead of the last one that was counted.
const AHEAD: usize = 4 * WORDS;

/// Which topic is which; the application is named alike.
pub fn topic(application: &str, what: &str) -> String {
    format!("{application}-{what}")
}

/// Input, and output that is judged as it is read.
pub struct Work {
    client: Session,
    application: String,
    /// The time of the first record on the left.
    begin: i64,
    lines: usize,
    pairs: usize,
    counts: BTreeMap<String, u64>,
    counted: usize,
    joined: BTreeSet<(usize, usize)>,
}

impl Work {
    /// The topics are there.
    pub fn new(mut client: Session, application: &str) -> Self {
        client.producer("p", json!({"linger_ms": 2}));
        for what in ["counted", "joined"] {
            client.consumer(what, json!({"isolation": "read_committed"}));
            let partitions: Vec<i32> = (0..PARTITIONS).collect();
            let topic = topic(application, what);
            client.assign(what, &topic, &partitions, json!("beginning"));
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            client,
            application: application.to_owned(),
            begin: now.expect("a time after 1970").as_millis() as i64,
            lines: 0,
            pairs: 0,
            counts: BTreeMap::new(),
            counted: 0,
            joined: BTreeSet::new(),
        }
    }

    fn send_chunk(&mut self) {
        let word = |n: usize| format!("word{}", (n * n + n / 3) % VOCABULARY);
        let line = |n: usize| {
            let words = n * WORDS_OF_A_LINE..(n + 1) * WORDS_OF_A_LINE;
            let text: Vec<String> = words.map(word).collect();
            NewRecord::new(&n.to_string(), &text.join(" "))
        };
        let lines: Vec<_> = (self.lines..self.lines + LINES).map(line).collect();
        self.lines += LINES;
        let pairs = self.pairs..self.pairs + PAIRS;
        self.pairs += PAIRS;
        let side = |name: &str, time: fn(usize) -> i64| -> Vec<NewRecord> {
            let record = |n: usize| NewRecord::new(&key(n), &format!("{name}{n}"));
            let records = pairs.clone();
            records
                .map(|n| record(n).at(self.begin + time(n)))
                .collect()
        };
        let (left, right) = (side("l", left_time), side("r", right_time));
        for (what, records) in [("lines", lines), ("left", left), ("right", right)] {
            let topic = topic(&self.application, what);
            self.client.send("p", &topic, &records);
        }
    }

    fn sent_words(&self) -> usize {
        self.lines * WORDS_OF_A_LINE
    }

    /// How many words were counted.
    pub fn counted(&self) -> usize {
        self.counted
    }

    /// Sends what there is room for, and reads what there is. `None` if nothing came.
    fn step(&mut self, send: bool) -> Option<()> {
        if send && self.sent_words() - self.counted <= AHEAD {
            self.send_chunk();
        }
        let before = self.counted + self.joined.len();
        // Errors of the time without a broker pass.
        if let Ok(polled) = self.client.try_poll("counted", 100) {
            polled.records.iter().for_each(|read| self.count(read));
        }
        let (counted, sent) = (self.counted, self.sent_words());
        assert!(
            counted <= sent,
            "{counted} words were counted of {sent} that were sent"
        );
        if let Ok(polled) = self.client.try_poll("joined", 0) {
            polled.records.iter().for_each(|read| self.join(read));
        }
        (self.counted + self.joined.len() > before).then_some(())
    }

    /// Sends and reads until `words` more were counted; `look` is called after each step.
    pub fn advance(&mut self, words: usize, look: impl Fn()) {
        let goal = self.counted + words;
        while self.counted < goal {
            until("words are counted", || {
                look();
                self.step(true)
            });
        }
    }

    /// Each word has the counts 1, 2, 3 in order: another one tells of an input that was lost, or counted twice.
    fn count(&mut self, read: &Read) {
        let word = text(read.key.as_deref());
        let count: u64 = read.text().parse().expect("a count");
        let last = self.counts.entry(word.clone()).or_default();
        let place = read.place();
        assert_eq!(
            count,
            *last + 1,
            "{word} at {place:?}: {count} after {last}, when {} words were counted",
            self.counted
        );
        *last = count;
        self.counted += 1;
    }

    fn join(&mut self, read: &Read) {
        let text = read.text();
        let pair = text.split_once('+').and_then(|(left, right)| {
            let left: usize = left.strip_prefix('l')?.parse().ok()?;
            Some((left, right.strip_prefix('r')?.parse().ok()?))
        });
        let (left, right) = pair.unwrap_or_else(|| panic!("{text} is no pair"));
        assert!(
            self.pairs > left.max(right) && belong(left, right),
            "{text} is no pair of the input"
        );
        let place = read.place();
        let new = self.joined.insert((left, right));
        assert!(new, "{text} came twice, at {place:?} for the second time");
    }

    /// Reads the rest, and whether there is more than that.
    pub fn finish(&mut self, look: impl Fn()) {
        let sent = 0..self.pairs;
        let near = |left: usize| left.saturating_sub(8)..(left + 9).min(self.pairs);
        let pairs = sent.flat_map(|left| near(left).map(move |right| (left, right)));
        let pairs: BTreeSet<_> = pairs
            .filter(|(left, right)| belong(*left, *right))
            .collect();
        let whole =
            |work: &Self| work.counted >= work.sent_words() && work.joined.len() >= pairs.len();
        while !whole(self) {
            until("the rest is counted and joined", || {
                look();
                self.step(false)
            });
        }
        let mut quiet = 0;
        while quiet < 5 {
            quiet = self.step(false).map_or(quiet + 1, |()| 0);
        }
        assert_eq!(self.counted, self.sent_words(), "each word is counted once");
        assert_eq!(self.joined, pairs, "each pair is there once");
    }
}

fn text(hex: Option<&str>) -> String {
    let bytes = unhex(hex.expect("the record has a key"));
    String::from_utf8(bytes).expect("the key is text")
}

fn key(n: usize) -> String {
    format!("key{}", n % KEYS)
}

fn left_time(n: usize) -> i64 {
    n as i64 * 150
}

fn right_time(n: usize) -> i64 {
    n as i64 * 150 + 40 * (n as i64 % 5)
}

/// Whether a record on the left has a result with one on the right.
fn belong(left: usize, right: usize) -> bool {
    key(left) == key(right) && (left_time(left) - right_time(right)).abs() <= WINDOW_MS
}
