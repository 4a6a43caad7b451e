//! Where transactions ended, for as long as a failure may take their markers again.
//!
//! A marker counts once it is as durable as its stream's records, which a loss of power may take. Then its transaction is
//! open again in that partition, and nobody but its coordinator knows how it ended. So that is kept, with where the marker
//! ended, until the partition's owner has said that it stays. Nothing waits for that.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kera_protocol::ids::{Ordinal, StreamId};

use super::event::{MarkersWritten, StreamEnds};
use super::request::{Part, Partition};
use super::state::Transaction;

/// Kept for one id and one partition; the oldest goes first, and of what began before those that are left nobody knows any
/// more how it ended. Transactions in a row that ended the same way count once.
const MOST_OF_ONE: usize = 1_024;

/// The parts of a decided transaction that have their markers.
#[derive(Debug, Default)]
pub(crate) struct MarkedParts {
    /// The transaction's number.
    pub(super) number: u64,
    pub(super) parts: BTreeSet<Part>,
    /// Where markers end.
    pub(super) ends: BTreeMap<Partition, Ordinal>,
}

/// How transactions of a producer ended in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedBefore {
    /// The producer.
    pub producer: i64,
    /// The epoch of the batches of the last of them.
    pub epoch: i16,
    /// The epoch that its marker carries.
    pub epoch_after: i16,
    /// Its number.
    pub number: u64,
    /// Whether their records count.
    pub commit: bool,
    /// They began before this, where the last one's marker ended; each later transaction of the producer begins behind it.
    pub before: Ordinal,
}

/// What is kept of the transactions of an id that ended in a partition the same way, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    /// How the last of them ended.
    ended: EndedBefore,
    /// What began below this ended otherwise, or nobody knows how.
    after: Ordinal,
    /// False if there was no room to keep how they ended.
    is_known: bool,
}

impl Kept {
    /// Those of a kind, one after the other, are kept as one. How they ended does not tell apart what is not known.
    fn kind(&self) -> (i64, bool, bool) {
        let commit = self.ended.commit && self.is_known;
        (self.ended.producer, commit, self.is_known)
    }

    /// Whether its owner, of an earlier version, did not say where its marker ended.
    fn is_endless(&self) -> bool {
        !self.is_known && self.ended.before == self.after
    }
}

/// A transaction that is open in a partition, as its owner says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenThere {
    /// The producer.
    pub producer: i64,
    /// The epoch of its batches.
    pub epoch: i16,
    /// Its first record.
    pub first: Ordinal,
}

/// What a partition has open of what ended: it has lost the markers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// How these ended.
    pub ended: Vec<EndedBefore>,
    /// Of these nobody knows it any more.
    pub forgotten: Vec<OpenThere>,
}

/// All that is kept, by partition and transactional id, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Unsettled {
    ended: BTreeMap<Partition, BTreeMap<String, Vec<Kept>>>,
    /// Where something is kept of an id.
    partitions_of: BTreeMap<String, BTreeSet<Partition>>,
    count: usize,
}

impl Unsettled {
    /// How many are kept.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn partitions(&self) -> impl Iterator<Item = Partition> {
        self.ended.keys().copied()
    }

    /// How those ended that are open in a partition: it has lost their markers. One of which nobody knows any more how it
    /// ended never ends as a later one did.
    pub(crate) fn lost_in(&self, partition: Partition, open: &[OpenThere]) -> Lost {
        let open: HashMap<i64, &OpenThere> = open.iter().map(|one| (one.producer, one)).collect();
        let mut lost = Lost::default();
        for all in self
            .ended
            .get(&partition)
            .into_iter()
            .flat_map(BTreeMap::values)
        {
            let found = all.iter().find_map(|kept| {
                let ended = &kept.ended;
                let open = **open.get(&ended.producer)?;
                let is_lost = open.first < ended.before && open.epoch <= ended.epoch;
                is_lost.then_some((kept, open))
            });
            match found {
                Some((kept, open)) if kept.is_known && kept.after <= open.first => {
                    lost.ended.push(kept.ended);
                }
                Some((_, open)) => lost.forgotten.push(open),
                None => {}
            }
        }
        lost
    }

    /// What the producer of an id began in a partition before this has ended.
    pub(crate) fn ended_before(&self, id: &str, partition: Partition) -> Ordinal {
        let ended = self.ended.get(&partition).and_then(|by_id| by_id.get(id));
        let last = ended.and_then(|ended| ended.last());
        last.map_or(0, |last| last.ended.before)
    }

    /// Keeps how a transaction ended. False if an event says what makes no sense.
    pub(crate) fn add(&mut self, id: &str, written: &MarkersWritten) -> bool {
        let (Ok(epoch), Ok(epoch_after)) = (
            i16::try_from(written.epoch),
            i16::try_from(written.epoch_after),
        ) else {
            return false;
        };
        for of_stream in &written.streams {
            let Some(stream) = StreamId::from_slice(&of_stream.stream) else {
                return false;
            };
            // Builds that do not say it kept few, and told nobody of what they dropped.
            let says_after = of_stream.after.len() == of_stream.ends.len();
            let after = of_stream.after.iter().chain(std::iter::repeat(&0));
            let ends = of_stream.partitions.iter().zip(&of_stream.ends);
            for ((partition, before), after) in ends.zip(after) {
                let partition = (stream, *partition);
                let is_first = !self.keeps(id, partition);
                let ended = EndedBefore {
                    producer: written.producer,
                    epoch,
                    epoch_after,
                    number: written.number,
                    commit: written.commit,
                    before: *before,
                };
                let kept = Kept {
                    ended,
                    after: *after,
                    is_known: !written.forgotten && (says_after || !is_first),
                };
                self.put(id, partition, kept);
            }
        }
        true
    }

    /// Whether it takes room to keep only that one more transaction of an id has ended in a partition.
    pub(crate) fn takes_room(&self, id: &str, partition: Partition) -> bool {
        let by_id = self.ended.get(&partition);
        let last = by_id.and_then(|by_id| by_id.get(id)?.last());
        last.is_none_or(|last| last.is_known)
    }

    /// Whether anything is kept of an id in a partition.
    fn keeps(&self, id: &str, partition: Partition) -> bool {
        let by_id = self.ended.get(&partition);
        by_id.is_some_and(|by_id| by_id.contains_key(id))
    }

    fn put(&mut self, id: &str, partition: Partition, mut kept: Kept) {
        let by_id = self.ended.entry(partition).or_default();
        if !by_id.contains_key(id) {
            by_id.insert(id.to_owned(), Vec::new());
            let of_id = self.partitions_of.entry(id.to_owned()).or_default();
            of_id.insert(partition);
        }
        let Some(all) = by_id.get_mut(id) else { return };
        let Some(last) = all.last_mut() else {
            kept.ended.before = kept.ended.before.max(kept.after);
            all.push(kept);
            self.count += 1;
            return;
        };
        kept.after = kept.after.max(last.ended.before);
        kept.ended.before = kept.ended.before.max(kept.after);
        // What began before this end may be of the one before, of which nobody said where it ended.
        kept.is_known &= !last.is_endless();
        if last.kind() == kept.kind() {
            last.ended = kept.ended;
            return;
        }
        all.push(kept);
        match all.len() > MOST_OF_ONE {
            true => drop(all.remove(0)),
            false => self.count += 1,
        }
    }

    /// What ended below this in a partition stays, and need not be kept.
    pub(crate) fn settle(&mut self, partition: Partition, below: Ordinal) {
        let Some(by_id) = self.ended.get_mut(&partition) else {
            return;
        };
        let (partitions_of, count) = (&mut self.partitions_of, &mut self.count);
        by_id.retain(|id, all| {
            let before = all.len();
            // Nobody knows whether the marker of an endless one is below.
            let is_endless = |kept: &Kept| kept.is_endless() && below < Ordinal::MAX;
            all.retain(|kept| kept.ended.before > below || is_endless(kept));
            *count -= before - all.len();
            if all.is_empty()
                && let Some(of_id) = partitions_of.get_mut(id)
            {
                of_id.remove(&partition);
                if of_id.is_empty() {
                    partitions_of.remove(id);
                }
            }
            !all.is_empty()
        });
        if by_id.is_empty() {
            self.ended.remove(&partition);
        }
    }

    /// Forgets an id.
    pub(crate) fn forget(&mut self, id: &str) {
        for partition in self.partitions_of.remove(id).unwrap_or_default() {
            let Some(by_id) = self.ended.get_mut(&partition) else {
                continue;
            };
            self.count -= by_id.remove(id).map_or(0, |all| all.len());
            if by_id.is_empty() {
                self.ended.remove(&partition);
            }
        }
    }

    /// All of it by id, as events add it again.
    pub(crate) fn by_id(&self) -> BTreeMap<&str, Vec<MarkersWritten>> {
        let mut by_number: BTreeMap<(&str, u64, bool), MarkersWritten> = BTreeMap::new();
        for (partition, by_id) in &self.ended {
            for (id, all) in by_id {
                for kept in all {
                    let ended = &kept.ended;
                    let written = by_number.entry((id, ended.number, kept.is_known));
                    let written = written.or_insert_with(|| MarkersWritten {
                        producer: ended.producer,
                        epoch: ended.epoch.into(),
                        epoch_after: ended.epoch_after.into(),
                        number: ended.number,
                        commit: ended.commit,
                        streams: Vec::new(),
                        forgotten: !kept.is_known,
                    });
                    written.push(*partition, ended.before, kept.after);
                }
            }
        }
        let mut by_id: BTreeMap<&str, Vec<MarkersWritten>> = BTreeMap::new();
        for ((id, ..), written) in by_number {
            by_id.entry(id).or_default().push(written);
        }
        by_id
    }
}

impl MarkersWritten {
    /// Of a transaction that has ended, in these partitions. Without room only that it ended is kept, not how.
    pub(super) fn of(
        transaction: &Transaction,
        commit: bool,
        ends: &BTreeMap<Partition, Ordinal>,
        has_room: bool,
    ) -> Self {
        let (producer, epoch) = transaction.of_batches();
        let mut written = Self {
            producer,
            epoch: epoch.into(),
            epoch_after: transaction.of_markers().into(),
            number: transaction.number,
            commit,
            streams: Vec::new(),
            forgotten: !has_room,
        };
        for (partition, end) in ends {
            written.push(*partition, *end, 0);
        }
        written
    }

    /// Adds a partition; those of a stream follow each other.
    fn push(&mut self, (stream, partition): Partition, end: Ordinal, after: Ordinal) {
        let same = |last: &&mut StreamEnds| last.stream == stream.as_bytes();
        if let Some(last) = self.streams.last_mut().filter(same) {
            last.partitions.push(partition);
            last.ends.push(end);
            last.after.push(after);
            return;
        }
        self.streams.push(StreamEnds {
            stream: stream.as_bytes().to_vec(),
            partitions: vec![partition],
            ends: vec![end],
            after: vec![after],
        });
    }
}
