//! A lane's memory of its idempotent producers, and the lane snapshot that carries it from group
//! to group.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::{Epoch, Ordinal};

use crate::transactions::{Grants, TransactionError, Unstable};

/// Batches remembered per producer and lane; a client may have as many in flight.
pub const REMEMBERED_BATCHES: usize = 16;
/// Epoch changes remembered; older ones fold into the oldest kept.
const REMEMBERED_EPOCHS: usize = 64;
/// What a lane writes that never had a transaction, so that brokers that know none read it.
const WITHOUT_TRANSACTIONS: u16 = 1;
/// With open transactions, and where the lane's first one began.
const WITH_TRANSACTIONS: u16 = 2;
/// In the byte that counts a producer's batches: its transaction is open, and where it began follows them.
const OPEN: u8 = 0x80;

/// What to do with a batch, by its producer's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Append it.
    Fresh,
    /// It is stored already, from this ordinal on: answer as the first time, once durable.
    Duplicate(Ordinal),
}

/// Why a batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// Batches are missing before this one.
    #[error("producer {producer} sent sequence {found}, {expected} should follow")]
    Gap {
        /// The producer.
        producer: i64,
        /// What should follow.
        expected: i32,
        /// What came.
        found: i32,
    },
    /// A newer instance of the producer has appended.
    #[error("producer {producer} has a newer instance of epoch {current}; this one has {found}")]
    Fenced {
        /// The producer.
        producer: i64,
        /// The newest epoch.
        current: i16,
        /// The batch's.
        found: i16,
    },
    /// Not its first batch, and nothing is known of the earlier ones.
    #[error("producer {producer} is not remembered here and begins at sequence {found}, not 0")]
    Unknown {
        /// The producer.
        producer: i64,
        /// What came.
        found: i32,
    },
    /// It was appended once, and its records are lost: no group holds their ordinals any more.
    #[error(
        "producer {producer} sent the batch with sequences {first} to {last} before; it is among ordinals that no broker has any more"
    )]
    Lost {
        /// The producer.
        producer: i64,
        /// The batch's first sequence.
        first: i32,
        /// Its last one.
        last: i32,
    },
    /// A new producer, and the lane cannot remember another one.
    #[error(
        "the lane remembers {limit} idempotent producers and has no room for producer {producer}: use fewer, raise producers.max_per_lane (a quarter of a segment holds them: see there), or wait until some have been silent for producers.expiry"
    )]
    TooMany {
        /// The producer.
        producer: i64,
        /// How many the lane can remember.
        limit: usize,
    },
    /// Its transaction.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
}

/// Why bytes are no lane snapshot that this build can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// A newer build's.
    #[error(
        "it is of version {found}, this broker knows up to {WITH_TRANSACTIONS}: run a newer broker"
    )]
    NewerVersion {
        /// The version.
        found: u16,
    },
    /// No snapshot.
    #[error("it is no lane snapshot")]
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remembered {
    base_sequence: i32,
    last_sequence: i32,
    /// [`LOST`] if no group holds it any more.
    base_ordinal: Ordinal,
}

/// Where a batch begins whose records are lost. No lane comes so far.
const LOST: Ordinal = Ordinal::MAX;

/// An idempotent producer that a lane remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveProducer {
    /// Its id.
    pub id: i64,
    /// Its newest instance's epoch.
    pub epoch: i16,
    /// The sequence of its last record; `None` if no batch of it is remembered.
    pub last_sequence: Option<i32>,
    /// When it last appended, by the broker's clock: milliseconds since 1970.
    pub last_ms: u64,
    /// Where its open transaction began.
    pub open: Option<Ordinal>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Producer {
    epoch: i16,
    last_ms: u64,
    batches: VecDeque<Remembered>,
    /// Where its open transaction began.
    open: Option<Ordinal>,
}

/// Everything a lane must carry over a roll. Bounded, and expiring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneState {
    producers: HashMap<i64, Producer>,
    /// Each epoch that wrote here and its first ordinal, oldest first.
    epochs: Vec<(Epoch, Ordinal)>,
    /// None was silent since before this, at the last look.
    silent_since: u64,
    /// Where the lane's first transaction began.
    transactional_from: Option<Ordinal>,
    /// Transactions that are open, or whose end may not be durable.
    unstable: Unstable,
    /// Of which transactions batches are taken. Not kept: a new owner asks the coordinators.
    grants: Grants,
}

/// Encoded bytes of a producer without its batches, of a batch, of an epoch, and of the rest.
const PRODUCER_BYTES: usize = 19;
const BATCH_BYTES: usize = 16;
const EPOCH_BYTES: usize = 12;
const FRAME_BYTES: usize = 10;
/// Likewise of an open transaction, and of where the lane's first one began.
const OPEN_BYTES: usize = 8;
const FROM_BYTES: usize = 8;
/// No lane takes more open transactions.
const MAX_OPEN: usize = 16_384;

impl Producer {
    fn encoded_bytes(&self) -> usize {
        let open = self.open.map_or(0, |_| OPEN_BYTES);
        PRODUCER_BYTES + self.batches.len() * BATCH_BYTES + open
    }
}

impl LaneState {
    /// Decides on a batch. Changes nothing.
    ///
    /// # Errors
    /// [`SequenceError`]; the batch must not be appended.
    pub fn check(&self, header: &BatchHeader) -> Result<Verdict, SequenceError> {
        if !header.is_idempotent() || header.is_control() {
            return Ok(Verdict::Fresh);
        }
        let producer = header.producer_id;
        let found = header.base_sequence;
        let Some(known) = self.producers.get(&producer) else {
            return if found == 0 {
                Ok(Verdict::Fresh)
            } else {
                Err(SequenceError::Unknown { producer, found })
            };
        };
        if header.producer_epoch < known.epoch {
            return Err(SequenceError::Fenced {
                producer,
                current: known.epoch,
                found: header.producer_epoch,
            });
        }
        if header.producer_epoch > known.epoch {
            return if found == 0 {
                Ok(Verdict::Fresh)
            } else {
                Err(SequenceError::Gap {
                    producer,
                    expected: 0,
                    found,
                })
            };
        }
        let last = header.last_sequence();
        if let Some(same) = known
            .batches
            .iter()
            .find(|b| b.base_sequence == found && b.last_sequence == last)
        {
            return match same.base_ordinal {
                LOST => Err(SequenceError::Lost {
                    producer,
                    first: found,
                    last,
                }),
                base => Ok(Verdict::Duplicate(base)),
            };
        }
        let expected = known
            .batches
            .back()
            .map_or(0, |b| next_sequence(b.last_sequence));
        if found == expected {
            Ok(Verdict::Fresh)
        } else {
            Err(SequenceError::Gap {
                producer,
                expected,
                found,
            })
        }
    }

    /// How many producers a lane snapshot of `max_bytes` has room for, each with its last batch.
    pub fn room(max_bytes: usize) -> usize {
        let rest = FRAME_BYTES
            + FROM_BYTES
            + REMEMBERED_EPOCHS * EPOCH_BYTES
            + Self::open_room(max_bytes) * OPEN_BYTES;
        max_bytes.saturating_sub(rest) / (PRODUCER_BYTES + BATCH_BYTES)
    }

    /// How many open transactions a lane snapshot of `max_bytes` has room for.
    pub fn open_room(max_bytes: usize) -> usize {
        (max_bytes / 128).min(MAX_OPEN)
    }

    /// Decides whether a batch that is fresh by its sequence may be of a transaction, or of none. No more
    /// transactions are open than a lane snapshot of `max_bytes` has room for.
    ///
    /// # Errors
    /// [`TransactionError`]; the batch must not be appended.
    pub fn check_transaction(
        &self,
        header: &BatchHeader,
        max_bytes: usize,
        now_ms: u64,
    ) -> Result<(), TransactionError> {
        let outside = !header.is_transactional() && self.unstable.open() == 0;
        if outside || !header.is_idempotent() || header.is_control() {
            return Ok(());
        }
        let producer = header.producer_id;
        let known = self.producers.get(&producer);
        let known = known.filter(|known| known.open.is_some());
        match (known, header.is_transactional()) {
            (None, false) => Ok(()),
            (Some(_), false) => Err(TransactionError::Open { producer }),
            // Its former transaction is being ended; or it was, and the lane has lost the marker since. No batch is added to
            // it, or one marker would decide about two transactions: its coordinator has the marker written again.
            (Some(known), true) => match known.open {
                Some(first) if known.epoch == header.producer_epoch => {
                    self.grants.check_open(header, first, now_ms)
                }
                _ => Err(TransactionError::Unverified { producer }),
            },
            (None, true) => {
                self.grants.check(header, now_ms)?;
                let limit = Self::open_room(max_bytes);
                // A lane may remember more producers than it would take today.
                let producers = self.producers.len() * (PRODUCER_BYTES + BATCH_BYTES);
                let fixed = FRAME_BYTES + FROM_BYTES + REMEMBERED_EPOCHS * EPOCH_BYTES;
                let open = self.unstable.open();
                if open >= limit || fixed + producers + (open + 1) * OPEN_BYTES > max_bytes {
                    return Err(TransactionError::TooManyOpen { producer, limit });
                }
                Ok(())
            }
        }
    }

    /// Of which transactions batches are taken.
    pub fn grants(&mut self) -> &mut Grants {
        &mut self.grants
    }

    /// Where a producer's open transaction began, and its epoch.
    pub fn open_transaction(&self, producer: i64) -> Option<(Ordinal, i16)> {
        let known = self.producers.get(&producer)?;
        Some((known.open?, known.epoch))
    }

    /// Open transactions: producer, epoch, and where it began; oldest first.
    pub fn open_transactions(&self) -> Vec<(i64, i16, Ordinal)> {
        let open = self.producers.iter();
        let open = open.filter_map(|(id, known)| Some((*id, known.epoch, known.open?)));
        let mut open: Vec<_> = open.collect();
        open.sort_unstable_by_key(|(_, _, first)| *first);
        open
    }

    /// The last stable ordinal: no transaction that has records below it is open, nor is the end of one not durable
    /// yet. `head` is the durable head.
    pub fn stable(&mut self, head: Ordinal) -> Ordinal {
        self.unstable.stable(head)
    }

    /// Where the lane's first transaction began, if it ever had one.
    pub fn transactional_from(&self) -> Option<Ordinal> {
        self.transactional_from
    }

    /// Whether a batch's producer is remembered, or can be: at most `limit` are, of which those silent since
    /// `before_ms` make room. None else is forgotten: whoever may still send a batch again must be known.
    ///
    /// # Errors
    /// [`SequenceError::TooMany`].
    pub fn admit(
        &mut self,
        header: &BatchHeader,
        limit: usize,
        before_ms: u64,
    ) -> Result<(), SequenceError> {
        let producer = header.producer_id;
        if self.producers.len() < limit
            || !header.is_idempotent()
            || self.producers.contains_key(&producer)
        {
            return Ok(());
        }
        if self.silent_since < before_ms {
            self.expire(before_ms);
        }
        if self.producers.len() < limit {
            return Ok(());
        }
        Err(SequenceError::TooMany { producer, limit })
    }

    /// Notes an appended batch.
    pub fn note(&mut self, header: &BatchHeader, now_ms: u64) {
        if self
            .epochs
            .last()
            .is_none_or(|(epoch, _)| *epoch < header.epoch)
        {
            self.epochs.push((header.epoch, header.base_ordinal));
            if self.epochs.len() > REMEMBERED_EPOCHS {
                self.epochs.remove(1);
            }
        }
        if !header.is_idempotent() {
            return;
        }
        let producer = self.producers.entry(header.producer_id).or_default();
        if producer.epoch != header.producer_epoch {
            producer.batches.clear();
            producer.epoch = header.producer_epoch;
        }
        producer.last_ms = now_ms;
        if header.is_control() {
            if let Some(first) = producer.open.take() {
                self.unstable.end(first, header.next_ordinal());
            }
            return;
        }
        if header.is_transactional() && producer.open.is_none() {
            producer.open = Some(header.base_ordinal);
            self.unstable.begin(header.base_ordinal);
            self.transactional_from.get_or_insert(header.base_ordinal);
        }
        if producer.batches.len() == REMEMBERED_BATCHES {
            producer.batches.pop_front();
        }
        producer.batches.push_back(Remembered {
            base_sequence: header.base_sequence,
            last_sequence: header.last_sequence(),
            base_ordinal: header.base_ordinal,
        });
    }

    /// Every transaction has ended.
    pub(crate) fn end_all(&mut self) {
        for producer in self.producers.values_mut() {
            producer.open = None;
        }
        self.unstable = Unstable::default();
    }

    /// Notes which remembered batches begin among ordinals that no group holds any more: who sends one of them again must not
    /// hear that it is stored. Returns how many were not known to be lost before.
    pub(crate) fn note_lost(&mut self, lost: &[Range<Ordinal>]) -> usize {
        let is_lost =
            |batch: &&mut Remembered| lost.iter().any(|at| at.contains(&batch.base_ordinal));
        let producers = self.producers.values_mut();
        let batches = producers.flat_map(|producer| producer.batches.iter_mut());
        let lost = batches.filter(is_lost);
        lost.map(|batch| batch.base_ordinal = LOST).count()
    }

    /// Forgets producers that have been silent since `before_ms`, and have no open transaction.
    pub fn expire(&mut self, before_ms: u64) {
        self.producers
            .retain(|_, p| p.last_ms >= before_ms || p.open.is_some());
        let last = self.producers.values().map(|p| p.last_ms);
        self.silent_since = last.min().unwrap_or(0);
    }

    /// When a producer that is remembered last appended, milliseconds since 1970.
    pub fn last_ms(&self, producer: i64) -> Option<u64> {
        self.producers.get(&producer).map(|p| p.last_ms)
    }

    /// Producers remembered.
    pub fn producers(&self) -> usize {
        self.producers.len()
    }

    /// Ids and epochs of the producers remembered.
    pub fn producer_epochs(&self) -> impl Iterator<Item = (i64, i16)> {
        self.producers.iter().map(|(id, p)| (*id, p.epoch))
    }

    /// The producers that are remembered and were not silent since `before_ms`, by id.
    pub fn active(&self, before_ms: u64) -> Vec<ActiveProducer> {
        let known = self
            .producers
            .iter()
            .filter(|(_, p)| p.last_ms >= before_ms || p.open.is_some());
        let mut active: Vec<_> = known
            .map(|(id, producer)| ActiveProducer {
                id: *id,
                epoch: producer.epoch,
                last_sequence: producer.batches.back().map(|b| b.last_sequence),
                last_ms: producer.last_ms,
                open: producer.open,
            })
            .collect();
        active.sort_unstable_by_key(|producer| producer.id);
        active
    }

    /// Each epoch that wrote in this lane and its first ordinal, oldest first.
    pub fn epochs(&self) -> &[(Epoch, Ordinal)] {
        &self.epochs
    }

    /// The lane snapshot: at most `max_bytes`, if it holds no more producers than there is [room](Self::room)
    /// for. Where all batches of all producers do not fit, older ones of the longest silent are left out: one of
    /// them that comes again is refused then, not stored twice.
    pub fn encode(&mut self, max_bytes: usize) -> Vec<u8> {
        let mut bytes = self.encoded_bytes();
        if bytes > max_bytes {
            let mut silent: Vec<_> = self.producers.values_mut().collect();
            silent.sort_unstable_by_key(|producer| producer.last_ms);
            for producer in silent {
                while bytes > max_bytes && producer.batches.len() > 1 {
                    producer.batches.pop_front();
                    bytes -= BATCH_BYTES;
                }
            }
        }
        self.encode_all()
    }

    fn encoded_bytes(&self) -> usize {
        FRAME_BYTES
            + self.transactional_from.map_or(0, |_| FROM_BYTES)
            + self.epochs.len() * EPOCH_BYTES
            + self
                .producers
                .values()
                .map(Producer::encoded_bytes)
                .sum::<usize>()
    }

    fn encode_all(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_bytes());
        let version = match self.transactional_from {
            Some(_) => WITH_TRANSACTIONS,
            None => WITHOUT_TRANSACTIONS,
        };
        out.extend_from_slice(&version.to_le_bytes());
        if let Some(from) = self.transactional_from {
            out.extend_from_slice(&from.to_le_bytes());
        }
        out.extend_from_slice(&(self.epochs.len() as u32).to_le_bytes());
        for (epoch, ordinal) in &self.epochs {
            out.extend_from_slice(&epoch.0.to_le_bytes());
            out.extend_from_slice(&ordinal.to_le_bytes());
        }
        out.extend_from_slice(&(self.producers.len() as u32).to_le_bytes());
        // Sorted, so that equal states are equal bytes.
        let mut ids: Vec<_> = self.producers.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let producer = &self.producers[&id];
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&producer.epoch.to_le_bytes());
            out.extend_from_slice(&producer.last_ms.to_le_bytes());
            let open = producer.open.map_or(0, |_| OPEN);
            out.push(producer.batches.len() as u8 | open);
            for batch in &producer.batches {
                out.extend_from_slice(&batch.base_sequence.to_le_bytes());
                out.extend_from_slice(&batch.last_sequence.to_le_bytes());
                out.extend_from_slice(&batch.base_ordinal.to_le_bytes());
            }
            if let Some(first) = producer.open {
                out.extend_from_slice(&first.to_le_bytes());
            }
        }
        out
    }

    /// Reads a snapshot back; no bytes are one of a lane that remembers nothing.
    ///
    /// # Errors
    /// [`SnapshotError`]: what the lane remembered is not known then, which is not the same as nothing.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let mut input = Input(bytes);
        let version = input.take().map(u16::from_le_bytes);
        match version.ok_or(SnapshotError::Malformed)? {
            WITHOUT_TRANSACTIONS => Self::decode_body(input, None),
            WITH_TRANSACTIONS => {
                let from = input.take().map(u64::from_le_bytes);
                from.and_then(|from| Self::decode_body(input, Some(from)))
            }
            found => return Err(SnapshotError::NewerVersion { found }),
        }
        .ok_or(SnapshotError::Malformed)
    }

    fn decode_body(mut input: Input<'_>, transactional_from: Option<Ordinal>) -> Option<Self> {
        let mut state = Self {
            transactional_from,
            ..Self::default()
        };
        for _ in 0..u32::from_le_bytes(input.take()?) {
            let epoch = Epoch(u32::from_le_bytes(input.take()?));
            state
                .epochs
                .push((epoch, u64::from_le_bytes(input.take()?)));
        }
        for _ in 0..u32::from_le_bytes(input.take()?) {
            let id = i64::from_le_bytes(input.take()?);
            let mut producer = Producer {
                epoch: i16::from_le_bytes(input.take()?),
                last_ms: u64::from_le_bytes(input.take()?),
                batches: VecDeque::new(),
                open: None,
            };
            let [count] = input.take()?;
            for _ in 0..count & !OPEN {
                producer.batches.push_back(Remembered {
                    base_sequence: i32::from_le_bytes(input.take()?),
                    last_sequence: i32::from_le_bytes(input.take()?),
                    base_ordinal: u64::from_le_bytes(input.take()?),
                });
            }
            if count & OPEN != 0 {
                let first = u64::from_le_bytes(input.take()?);
                producer.open = Some(first);
                state.unstable.begin(first);
            }
            state.producers.insert(id, producer);
        }
        Some(state)
    }
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
}

fn next_sequence(last: i32) -> i32 {
    if last == i32::MAX { 0 } else { last + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(
        producer: i64,
        epoch: i16,
        base_sequence: i32,
        records: u32,
        base_ordinal: u64,
    ) -> BatchHeader {
        BatchHeader {
            base_ordinal,
            total_bytes: 100,
            epoch: Epoch(1),
            crc: 0,
            attributes: 0,
            last_ordinal_delta: records - 1,
            base_timestamp: 0,
            max_timestamp: 0,
            producer_id: producer,
            producer_epoch: epoch,
            base_sequence,
            record_count: records,
        }
    }

    #[test]
    fn a_retry_is_recognised_and_a_gap_is_refused() {
        let mut state = LaneState::default();
        assert_eq!(state.check(&batch(7, 0, 0, 10, 0)), Ok(Verdict::Fresh));
        state.note(&batch(7, 0, 0, 10, 100), 1);
        assert_eq!(
            state.check(&batch(7, 0, 0, 10, 0)),
            Ok(Verdict::Duplicate(100))
        );
        assert_eq!(state.check(&batch(7, 0, 10, 5, 0)), Ok(Verdict::Fresh));
        assert_eq!(
            state.check(&batch(7, 0, 11, 5, 0)),
            Err(SequenceError::Gap {
                producer: 7,
                expected: 10,
                found: 11
            })
        );
        assert_eq!(
            state.check(&batch(8, 0, 3, 1, 0)),
            Err(SequenceError::Unknown {
                producer: 8,
                found: 3
            })
        );
        state.note(&batch(7, 1, 0, 1, 200), 1);
        assert!(matches!(
            state.check(&batch(7, 0, 10, 5, 0)),
            Err(SequenceError::Fenced { .. })
        ));
    }

    #[test]
    fn sequences_wrap_as_kafkas_do() {
        let mut state = LaneState::default();
        state.note(&batch(1, 0, i32::MAX - 1, 2, 0), 1);
        assert_eq!(state.check(&batch(1, 0, 0, 3, 0)), Ok(Verdict::Fresh));
    }

    #[test]
    fn at_the_limit_only_the_silent_make_room_and_a_new_producer_is_refused() {
        let mut state = LaneState::default();
        for id in 0..5 {
            let first = batch(id, 0, 0, 1, id as u64);
            assert_eq!(state.admit(&first, 5, 0), Ok(()));
            state.note(&first, id as u64);
        }
        let new = batch(9, 0, 0, 1, 0);
        let refused = Err(SequenceError::TooMany {
            producer: 9,
            limit: 5,
        });
        assert_eq!(state.admit(&new, 5, 0), refused);
        assert_eq!(state.admit(&batch(0, 0, 1, 1, 0), 5, 0), Ok(()), "known");
        assert_eq!(state.producers(), 5, "nobody is forgotten");
        assert_eq!(state.admit(&new, 5, 2), Ok(()), "two are silent");
        assert_eq!(state.producers(), 3);
        assert!(matches!(
            state.check(&batch(0, 0, 1, 1, 0)),
            Err(SequenceError::Unknown { .. })
        ));
        assert_eq!(state.check(&batch(4, 0, 1, 1, 0)), Ok(Verdict::Fresh));
        state.expire(4);
        assert_eq!(state.producers(), 1);
    }

    #[test]
    fn a_snapshot_knows_open_transactions_and_is_the_old_one_without() {
        let mut state = LaneState::default();
        state.note(&batch(7, 0, 0, 1, 0), 1);
        assert_eq!(
            state.encode(1 << 20)[..2],
            WITHOUT_TRANSACTIONS.to_le_bytes()
        );
        let transactional = BatchHeader {
            attributes: 0x10,
            ..batch(8, 3, 0, 5, 40)
        };
        state.note(&transactional, 1);
        let marker = BatchHeader {
            attributes: 0x30,
            base_sequence: -1,
            ..batch(8, 4, 0, 1, 60)
        };
        for open in [true, false] {
            let bytes = state.encode(1 << 20);
            assert_eq!(bytes[..2], WITH_TRANSACTIONS.to_le_bytes());
            assert_eq!(bytes.len(), state.encoded_bytes());
            let mut read = LaneState::decode(&bytes).expect("a snapshot");
            let expected = open.then_some((40, 3));
            assert_eq!(read.open_transaction(8), expected);
            assert_eq!(read.transactional_from(), Some(40));
            assert_eq!(read.stable(100), if open { 40 } else { 100 });
            for cut in 1..bytes.len() {
                let cut = LaneState::decode(&bytes[..cut]);
                assert_eq!(cut, Err(SnapshotError::Malformed));
            }
            state.note(&marker, 1);
        }
        // The end counts once it is durable, and its epoch fences the one before.
        assert_eq!((state.stable(60), state.stable(61)), (40, 61));
        assert!(matches!(
            state.check(&batch(8, 3, 5, 1, 0)),
            Err(SequenceError::Fenced { current: 4, .. })
        ));
        // What a newer build wrote is not nothing.
        let mut newer = state.encode(1 << 20);
        newer[0] = 3;
        let newer = LaneState::decode(&newer);
        assert_eq!(newer, Err(SnapshotError::NewerVersion { found: 3 }));
    }

    #[test]
    fn a_snapshot_round_trips_shrinks_to_its_bound_and_refuses_garbage() {
        let mut state = LaneState::default();
        for id in 0..100 {
            for n in 0..20 {
                state.note(&batch(id, 3, n, 1, n as u64), id as u64);
            }
        }
        let whole = state.encode(1 << 20);
        assert_eq!(LaneState::decode(&whole), Ok(state.clone()));
        for cut in [1, 5, whole.len() / 2, whole.len() - 1] {
            let cut = LaneState::decode(&whole[..cut]);
            assert_eq!(cut, Err(SnapshotError::Malformed));
        }
        assert_eq!(LaneState::decode(&[]), Ok(LaneState::default()));
        assert_eq!(whole.len(), state.encoded_bytes());
        // Older batches of the longest silent go first, and nobody's last one.
        let small = state.encode(10_000);
        assert!(small.len() <= 10_000 && small.len() > 10_000 - BATCH_BYTES);
        let mut small = LaneState::decode(&small).expect("a snapshot");
        assert_eq!(small.producers(), 100);
        for id in 0..100 {
            let last = small.check(&batch(id, 3, 19, 1, 0));
            assert_eq!(last, Ok(Verdict::Duplicate(19)), "producer {id}");
            assert_eq!(small.check(&batch(id, 3, 20, 1, 0)), Ok(Verdict::Fresh));
        }
        assert!(matches!(
            small.check(&batch(0, 3, 18, 1, 0)),
            Err(SequenceError::Gap { .. })
        ));
        assert_eq!(
            small.check(&batch(99, 3, 4, 1, 0)),
            Ok(Verdict::Duplicate(4))
        );
        // As many as there is room for fit, whatever they sent.
        let limit = 4096;
        let mut full = LaneState::default();
        for id in 0..LaneState::room(limit) as i64 {
            for n in 0..3 {
                full.note(&batch(id, 0, n, 1, n as u64), id as u64);
            }
        }
        assert!(full.encode(limit).len() <= limit);
        assert_eq!(full.producers(), LaneState::room(limit));
        assert_eq!(small.encode(usize::MAX).len(), small.encoded_bytes());
    }
}
