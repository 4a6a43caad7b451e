//! What compaction leaves of one batch.
//!
//! A pass goes over a lane's records twice, in the order of their ordinals: first to find the newest of each key, then
//! to write what is left. Both times a [`Judge`] decides:
//!
//! * Of a key the newest record is left. Records of transactions that were aborted are not looked at, and go.
//! * A record without a value, a tombstone, is the newest of its key for a while: its batch gets a delete horizon when
//!   what it deletes has gone, in this pass, and after that time it goes itself. It stays if a batch below it could
//!   not be read, which may hold what it deletes.
//! * A transaction's marker stays as long as a batch of the transaction was there when the pass began, and then until
//!   its own horizon.
//! * A batch that cannot be read stays as it is.
//! * A record without a key stays: it was written before the stream was compacted.

use std::collections::HashSet;
use std::io::Result;

use kera_protocol::batch::{
    BatchHeader, MAX_BATCH_BYTES, MAX_DECOMPRESSED_BYTES, Records, rebuild, verify,
};
use kera_protocol::ids::Ordinal;

use super::newest::{ENTRY_BYTES, Newest, NewestOrdinals};

/// By what a pass judges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The time of the pass, in milliseconds.
    pub(crate) now_ms: i64,
    /// How long tombstones and markers are kept once they are all that is left.
    pub(crate) delete_retention_ms: u64,
    /// Nothing below is readable.
    pub(crate) log_start: Ordinal,
    /// Largest batch that can be written.
    pub(crate) largest: usize,
    /// Whether a batch may become longer: delete horizons make it so, and another encoder than its sender's may.
    pub(crate) may_grow: bool,
    /// Tombstones and markers stay in this pass, whatever their time: something older may still be read elsewhere.
    pub(crate) keeps_deleted: bool,
}

/// What is left of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// All of it, as it is.
    Whole,
    /// Some of its records, or all of them with a delete horizon.
    Part(Vec<u8>),
    /// Nothing.
    Nothing,
    /// It could not be read, and stays as it is.
    Unreadable,
}

/// Says whether a batch of a producer, at an ordinal, is of a transaction that was aborted.
pub(crate) type Aborted<'a> = &'a dyn Fn(i64, Ordinal) -> bool;

/// Judges the batches of a lane, one after the other.
pub(crate) struct Judge<'a> {
    rules: Rules,
    aborted: Aborted<'a>,
    /// Producers of whose transaction a batch was met and no marker yet.
    open: HashSet<i64>,
    /// A batch was met that could not be read.
    keeps_tombstones: bool,
    scratch: Vec<u8>,
    entries: Vec<[u8; ENTRY_BYTES]>,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(rules: Rules, aborted: Aborted<'a>) -> Self {
        Self {
            rules,
            aborted,
            open: HashSet::new(),
            keeps_tombstones: false,
            scratch: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Whether a batch's records count for nothing: a transaction was aborted.
    fn is_aborted(&self, header: &BatchHeader) -> bool {
        header.is_transactional()
            && !header.is_control()
            && (self.aborted)(header.producer_id, header.base_ordinal)
    }

    /// Tells `newest` of a batch's records. False if they cannot be read.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn note(
        &mut self,
        batch: &[u8],
        header: &BatchHeader,
        newest: &mut Newest,
    ) -> Result<bool> {
        if header.is_control() || header.record_count == 0 || self.is_aborted(header) {
            return Ok(true);
        }
        self.entries.clear();
        let Ok(records) = Records::open(batch, MAX_DECOMPRESSED_BYTES, &mut self.scratch) else {
            return Ok(false);
        };
        for record in records {
            let Ok(record) = record else {
                return Ok(false);
            };
            let ordinal = header.base_ordinal + u64::from(record.ordinal_delta);
            if let Some(key) = record.key
                && ordinal >= self.rules.log_start
            {
                self.entries.push(newest.entry(key, ordinal));
            }
        }
        newest.note(&self.entries)?;
        Ok(true)
    }

    /// What is left of a batch.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn judge(
        &mut self,
        batch: &[u8],
        header: &BatchHeader,
        newest: &mut NewestOrdinals,
    ) -> Result<Left> {
        if header.is_control() {
            return Ok(self.judge_marker(batch, header));
        }
        // Also of one below the log start: it may stay for its producer, without records.
        if header.is_transactional() {
            self.open.insert(header.producer_id);
        }
        if header.next_ordinal() <= self.rules.log_start {
            return Ok(Left::Nothing);
        }
        if header.record_count == 0 || self.is_aborted(header) {
            return Ok(Left::Nothing);
        }
        let left = self.judge_records(batch, header, newest)?;
        self.keeps_tombstones |= left == Left::Unreadable;
        Ok(left)
    }

    /// The time from which on what has no horizon yet may go.
    fn horizon(&self) -> i64 {
        let wait = i64::try_from(self.rules.delete_retention_ms).unwrap_or(i64::MAX);
        self.rules.now_ms.saturating_add(wait)
    }

    fn is_over(&self, header: &BatchHeader) -> bool {
        let horizon = header.delete_horizon();
        !self.rules.keeps_deleted && horizon.is_some_and(|horizon| horizon <= self.rules.now_ms)
    }

    fn judge_marker(&mut self, batch: &[u8], header: &BatchHeader) -> Left {
        let had_records = self.open.remove(&header.producer_id);
        if had_records {
            return Left::Whole;
        }
        if self.is_over(header) {
            return Left::Nothing;
        }
        if header.delete_horizon().is_some() || !self.rules.may_grow {
            return Left::Whole;
        }
        let horizon = self.horizon();
        let records = Records::open(batch, MAX_DECOMPRESSED_BYTES, &mut self.scratch);
        let Ok(mut records) = records else {
            return Left::Unreadable;
        };
        let mut kept = Vec::new();
        while let Some(record) = records.next_raw() {
            match record {
                Ok((_, raw)) => kept.push(raw),
                Err(_) => return Left::Unreadable,
            }
        }
        match rebuild(batch, &kept, header.max_timestamp, Some(horizon)) {
            Ok(bytes) => Left::Part(bytes),
            Err(_) => Left::Unreadable,
        }
    }

    fn judge_records(
        &mut self,
        batch: &[u8],
        header: &BatchHeader,
        newest: &mut NewestOrdinals,
    ) -> Result<Left> {
        let drops_tombstones = self.is_over(header) && !self.keeps_tombstones;
        let horizon = self.horizon();
        let records = Records::open(batch, MAX_DECOMPRESSED_BYTES, &mut self.scratch);
        let Ok(mut records) = records else {
            return Ok(Left::Unreadable);
        };
        let mut kept = Vec::new();
        let (mut has_tombstones, mut latest) = (false, i64::MIN);
        while let Some(record) = records.next_raw() {
            let Ok((record, raw)) = record else {
                return Ok(Left::Unreadable);
            };
            let ordinal = header.base_ordinal + u64::from(record.ordinal_delta);
            if ordinal < self.rules.log_start {
                continue;
            }
            if record.key.is_some() {
                if !newest.is_newest(ordinal)? {
                    continue;
                }
                if record.value.is_none() {
                    if drops_tombstones {
                        continue;
                    }
                    has_tombstones = true;
                }
            }
            latest = latest.max(record.timestamp);
            kept.push(raw);
        }
        if kept.is_empty() {
            return Ok(Left::Nothing);
        }
        let begins = has_tombstones && header.delete_horizon().is_none() && self.rules.may_grow;
        if kept.len() == header.record_count as usize && !begins {
            return Ok(Left::Whole);
        }
        let rebuilt = rebuild(batch, &kept, latest, begins.then_some(horizon));
        let most = match self.rules.may_grow {
            true => self.rules.largest,
            false => header.total_bytes,
        };
        match rebuilt {
            Ok(bytes) if bytes.len() <= most.min(MAX_BATCH_BYTES) => {
                debug_assert!(verify(&bytes).is_ok());
                Ok(Left::Part(bytes))
            }
            _ => Ok(Left::Unreadable),
        }
    }
}

#[cfg(all(test, not(kera_shuttle)))]
mod tests {
    use std::collections::{BTreeMap, HashMap, HashSet};
    use std::path::PathBuf;

    use kera_log_segments::io::Io;
    use kera_log_segments::io::fault::FaultIo;
    use kera_log_segments::sync::Arc;
    use kera_protocol::batch::{
        BatchBuilder, Compression, NewRecord, ProducerStamp, patch, write_stamp,
    };
    use kera_protocol::ids::Epoch;

    use super::super::newest::SpillFiles;
    use super::*;

    const TRANSACTIONAL: u8 = 0x10;
    const CONTROL: u8 = 0x20;
    const RETENTION: u64 = 100;

    /// A batch of a lane, and the transaction that it belongs to or ends.
    #[derive(Clone)]
    struct Stored {
        bytes: Vec<u8>,
        transaction: Option<usize>,
    }

    struct Lane {
        io: FaultIo,
        batches: Vec<Stored>,
        next: Ordinal,
        /// Producer and whether it was aborted, by transaction.
        transactions: Vec<(i64, bool)>,
        /// What a marker or tombstone waits for, by ordinal.
        horizons: HashMap<Ordinal, i64>,
        now: i64,
    }

    type KeyValue<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);
    type Shown = BTreeMap<Ordinal, (Option<Vec<u8>>, bool)>;

    impl Lane {
        fn new() -> Self {
            let io = FaultIo::new(1);
            io.create_dir_all(std::path::Path::new("/spill"))
                .expect("a directory");
            Self {
                io,
                batches: Vec::new(),
                next: 0,
                transactions: Vec::new(),
                horizons: HashMap::new(),
                now: 1000,
            }
        }

        fn append(
            &mut self,
            records: &[KeyValue<'_>],
            transaction: Option<usize>,
            is_marker: bool,
        ) {
            let mut builder = BatchBuilder::new();
            for (key, value) in records {
                let record = NewRecord {
                    key: *key,
                    value: *value,
                    timestamp: self.now,
                    ..NewRecord::default()
                };
                builder.push(&record).expect("room");
            }
            let stamp = ProducerStamp {
                producer_id: transaction.map_or(-1, |of| self.transactions[of].0),
                ..ProducerStamp::NONE
            };
            let bytes = builder.finish(Compression::None, stamp).expect("records");
            let mut bytes = bytes.to_vec();
            if transaction.is_some() {
                bytes[22] |= TRANSACTIONAL | if is_marker { CONTROL } else { 0 };
                write_stamp(&mut bytes, stamp);
            }
            patch(&mut bytes, self.next, Epoch(1));
            self.next += records.len() as u64;
            self.batches.push(Stored { bytes, transaction });
        }

        fn header(stored: &Stored) -> BatchHeader {
            BatchHeader::peek(&stored.bytes).expect("a header")
        }

        /// Records by ordinal; markers have no key here.
        fn shown(&self) -> Shown {
            let mut out = Shown::new();
            for stored in &self.batches {
                let header = Self::header(stored);
                let mut scratch = Vec::new();
                for record in Records::open(&stored.bytes, 1 << 20, &mut scratch).expect("whole") {
                    let record = record.expect("whole");
                    let ordinal = header.base_ordinal + u64::from(record.ordinal_delta);
                    let key = record.key.filter(|_| !header.is_control());
                    out.insert(ordinal, (key.map(<[u8]>::to_vec), record.value.is_some()));
                }
            }
            out
        }

        /// What a pass must leave, found in the most naive way.
        fn expected(&mut self) -> Shown {
            let mut shown = self.shown();
            let with_records: HashSet<_> = self
                .batches
                .iter()
                .filter(|stored| !Self::header(stored).is_control())
                .filter_map(|stored| stored.transaction)
                .collect();
            let mut newest = HashMap::new();
            for stored in &self.batches {
                let header = Self::header(stored);
                let ordinals = header.base_ordinal..header.next_ordinal();
                let is_aborted = stored.transaction.is_some_and(|of| self.transactions[of].1);
                if header.is_control() {
                    let waits = stored
                        .transaction
                        .is_some_and(|of| with_records.contains(&of));
                    let until = self.now + RETENTION as i64;
                    let base = header.base_ordinal;
                    if !waits && *self.horizons.entry(base).or_insert(until) <= self.now {
                        shown.remove(&base);
                    }
                } else if is_aborted {
                    shown.retain(|ordinal, _| !ordinals.contains(ordinal));
                } else {
                    for (ordinal, (key, _)) in shown.range(ordinals) {
                        newest.insert(key.clone(), *ordinal);
                    }
                }
            }
            let (horizons, now) = (&mut self.horizons, self.now);
            shown.retain(|ordinal, (key, has_value)| {
                let Some(at) = newest.get(key).filter(|_| key.is_some()) else {
                    return true;
                };
                let until = now + RETENTION as i64;
                at == ordinal && (*has_value || *horizons.entry(*ordinal).or_insert(until) > now)
            });
            shown
        }

        fn pass(&mut self) {
            let rules = Rules {
                now_ms: self.now,
                delete_retention_ms: RETENTION,
                log_start: 0,
                largest: 1 << 20,
                may_grow: true,
                keeps_deleted: false,
            };
            let aborted: HashSet<_> = self
                .batches
                .iter()
                .filter(|stored| stored.transaction.is_some_and(|of| self.transactions[of].1))
                .map(|stored| Self::header(stored).base_ordinal)
                .collect();
            let aborted = |_, ordinal| aborted.contains(&ordinal);
            let spill = SpillFiles {
                io: Arc::new(self.io.clone()),
                path: Arc::new(|number| PathBuf::from(format!("/spill/{number}"))),
                next: 0,
            };
            let mut newest = Newest::new(200, spill);
            let mut judge = Judge::new(rules, &aborted);
            for stored in &self.batches {
                let noted = judge.note(&stored.bytes, &Self::header(stored), &mut newest);
                assert!(noted.expect("room"));
            }
            let mut newest = newest.finish().expect("room");
            let mut judge = Judge::new(rules, &aborted);
            let mut left = Vec::new();
            for stored in &self.batches {
                let header = Self::header(stored);
                match judge
                    .judge(&stored.bytes, &header, &mut newest)
                    .expect("readable")
                {
                    Left::Whole => left.push(stored.clone()),
                    Left::Part(bytes) => left.push(Stored {
                        bytes,
                        ..stored.clone()
                    }),
                    Left::Nothing => {}
                    Left::Unreadable => panic!("{header:?} could not be read"),
                }
            }
            self.batches = left;
        }
    }

    #[test]
    fn transactions_and_tombstones_go_as_a_naive_model_says() {
        for seed in 1..200_u64 {
            let mut dice = seed;
            let mut below = |end: u64| {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                (dice >> 9) % end
            };
            let mut lane = Lane::new();
            let mut open: Vec<usize> = Vec::new();
            for _ in 0..80 {
                match below(8) {
                    0..=3 => {
                        let key = [b'a' + below(5) as u8];
                        let value = (below(3) > 0).then_some(&b"value"[..]);
                        let mut of = None;
                        if below(2) == 0 {
                            let producer = below(3) as i64;
                            let found =
                                open.iter().find(|of| lane.transactions[**of].0 == producer);
                            of = Some(found.copied().unwrap_or_else(|| {
                                lane.transactions.push((producer, below(2) == 0));
                                open.push(lane.transactions.len() - 1);
                                lane.transactions.len() - 1
                            }));
                        }
                        lane.append(&[(Some(&key), value), (Some(&key), value)], of, false);
                    }
                    4 if !open.is_empty() => {
                        let of = open.swap_remove(below(open.len() as u64) as usize);
                        lane.append(&[(Some(&[0, 0, 0, 1]), Some(&[0; 6]))], Some(of), true);
                    }
                    5 => lane.now += below(80) as i64,
                    // Nothing above the last stable offset is compacted.
                    6 if open.is_empty() => {
                        let expected = lane.expected();
                        lane.pass();
                        assert_eq!(lane.shown(), expected, "seed {seed}");
                    }
                    _ => {}
                }
            }
        }
    }
}
