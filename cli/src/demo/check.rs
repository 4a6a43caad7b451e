//! Every record is accounted for, exactly.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One bit for each record of each producer, set by any consumer.
pub(super) struct Processed {
    producers: Vec<Box<[AtomicU64]>>,
    limits: Vec<u64>,
}

impl Processed {
    /// Room for `records` of each of `producers`.
    pub(super) fn new(producers: usize, records: u64) -> Self {
        let words = usize::try_from(records.div_ceil(64)).unwrap_or(usize::MAX);
        let bits = || (0..words).map(|_| AtomicU64::new(0)).collect();
        Self {
            producers: (0..producers).map(|_| bits()).collect(),
            limits: vec![records; producers],
        }
    }

    /// Marks a record: true if it is the first time, none if there can be no such record.
    pub(super) fn mark(&self, producer: usize, sequence: u64) -> Option<bool> {
        if sequence >= *self.limits.get(producer)? {
            return None;
        }
        let word = &self.producers[producer][(sequence / 64) as usize];
        let bit = 1 << (sequence % 64);
        Some(word.fetch_or(bit, Relaxed) & bit == 0)
    }

    /// How many records of all producers are marked.
    pub(super) fn count(&self) -> u64 {
        let words = self.producers.iter().flat_map(|words| words.iter());
        words
            .map(|word| u64::from(word.load(Relaxed).count_ones()))
            .sum()
    }
}

/// Reads the lane once more, from its first record to its last, and compares.
pub(super) struct Audit {
    sent: Vec<u64>,
    seen: Processed,
    next: Vec<u64>,
    next_ordinal: Option<u64>,
    verdict: Verdict,
}

/// What the audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Records that were acknowledged.
    pub sent: u64,
    /// Acknowledged, but not in the stream.
    pub lost: u64,
    /// In the stream more than once.
    pub duplicated: u64,
    /// In the stream behind a later record of the same producer.
    pub out_of_order: u64,
    /// In the stream, but never sent.
    pub phantom: u64,
    /// Ordinals that did not rise.
    pub bad_ordinals: u64,
}

impl Verdict {
    /// True if nothing is wrong.
    pub(super) fn is_clean(&self) -> bool {
        self.lost + self.duplicated + self.out_of_order + self.phantom + self.bad_ordinals == 0
    }
}

impl Audit {
    /// An audit of producers that each sent so many records, numbered from 0.
    pub(super) fn new(sent: Vec<u64>) -> Self {
        let most = sent.iter().copied().max().unwrap_or(0);
        Self {
            seen: Processed::new(sent.len(), most),
            next: vec![0; sent.len()],
            next_ordinal: None,
            verdict: Verdict {
                sent: sent.iter().sum(),
                ..Verdict::default()
            },
            sent,
        }
    }

    /// Takes the lane's next record.
    pub(super) fn record(&mut self, ordinal: u64, identity: Option<(usize, u64)>) {
        if self.next_ordinal.is_some_and(|next| ordinal < next) {
            self.verdict.bad_ordinals += 1;
        }
        self.next_ordinal = Some(ordinal + 1);
        let known = identity.filter(|(producer, sequence)| {
            self.sent.get(*producer).is_some_and(|sent| sequence < sent)
        });
        let Some((producer, sequence)) = known else {
            self.verdict.phantom += 1;
            return;
        };
        if self.seen.mark(producer, sequence) != Some(true) {
            self.verdict.duplicated += 1;
        } else if sequence < self.next[producer] {
            self.verdict.out_of_order += 1;
        }
        self.next[producer] = self.next[producer].max(sequence + 1);
    }

    /// The least ordinal that the next record may have.
    pub(super) fn next_ordinal(&self) -> u64 {
        self.next_ordinal.unwrap_or(0)
    }

    /// The verdict, once the lane was read to its end.
    pub(super) fn finish(mut self) -> Verdict {
        self.verdict.lost = self.verdict.sent - self.seen.count();
        self.verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit(records: &[(usize, u64)]) -> Verdict {
        let mut audit = Audit::new(vec![3, 2]);
        for (ordinal, identity) in records.iter().enumerate() {
            audit.record(ordinal as u64, Some(*identity));
        }
        audit.finish()
    }

    const ALL: [(usize, u64); 5] = [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)];

    #[test]
    fn nothing_wrong() {
        let verdict = audit(&ALL);
        assert!(verdict.is_clean(), "{verdict:?}");
        assert_eq!(verdict.sent, 5);
    }

    #[test]
    fn each_anomaly_is_seen_and_only_it() {
        let clean = audit(&ALL);
        let lost = audit(&ALL[..4]);
        assert_eq!(
            lost,
            Verdict {
                lost: 1,
                ..clean.clone()
            }
        );
        let duplicated = audit(&[(0, 0), (0, 0), (1, 0), (0, 1), (0, 2), (1, 1)]);
        assert_eq!(
            duplicated,
            Verdict {
                duplicated: 1,
                ..clean.clone()
            }
        );
        let swapped = audit(&[(0, 1), (0, 0), (1, 0), (0, 2), (1, 1)]);
        assert_eq!(
            swapped,
            Verdict {
                out_of_order: 1,
                ..clean.clone()
            }
        );
        let phantom = audit(&[(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (1, 2)]);
        assert_eq!(
            phantom,
            Verdict {
                phantom: 1,
                ..clean.clone()
            }
        );
        let mut back = Audit::new(vec![2]);
        back.record(5, Some((0, 0)));
        back.record(5, Some((0, 1)));
        assert_eq!(back.finish().bad_ordinals, 1);
        let mut foreign = Audit::new(vec![0]);
        foreign.record(0, None);
        assert_eq!(foreign.finish().phantom, 1);
    }

    #[test]
    fn marks_are_exact() {
        let processed = Processed::new(2, 100);
        assert_eq!(processed.mark(0, 64), Some(true));
        assert_eq!(processed.mark(0, 64), Some(false));
        assert_eq!(processed.mark(1, 64), Some(true));
        assert_eq!(processed.mark(0, 100), None);
        assert_eq!(processed.mark(2, 0), None);
        assert_eq!(processed.count(), 2);
    }
}
