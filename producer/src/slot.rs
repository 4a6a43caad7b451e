//! One ordered sequence of batches: those of a lane, or of a streamlet whose owner picks the lane.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use kera_protocol::batch::{
    BatchBuilder, Compression, ProducerStamp, mark_transactional, next_sequence, write_stamp,
};
use kera_protocol::error::WireError;
use kera_rpc::StreamMeta;
use parking_lot::Mutex;

use crate::delivery::{BatchCell, Outcome, Targets};
use crate::error::ProduceError;
use crate::link::Link;

pub(crate) struct Slot {
    pub(crate) index: usize,
    pub(crate) streamlet: u32,
    /// `ANY_LANE` if the owner picks the lane.
    pub(crate) lane: u32,
    pub(crate) state: Mutex<SlotState>,
}

/// The idempotent producer that a slot's sequences belong to; `None` if not idempotent.
pub(crate) type Identity = Option<(i64, i16)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Batches are sent as they come.
    Running,
    /// A batch was not appended, or its fate is unknown: once all replies are in, those that are
    /// left are sent again, in order.
    Recovering,
    /// As recovering, but a new producer id is needed first.
    Renewing,
}

/// A batch that takes records.
pub(crate) struct OpenBatch {
    pub(crate) builder: BatchBuilder,
    pub(crate) cell: Arc<BatchCell>,
    pub(crate) opened: Instant,
    /// Bytes counted as used memory: the buffer's capacity.
    pub(crate) counted: usize,
    /// Bytes up to which records are added without further ado.
    pub(crate) room: usize,
}

/// A batch that is complete and has no sequence yet.
pub(crate) struct ReadyBatch {
    pub(crate) content: Content,
    pub(crate) records: u32,
    pub(crate) targets: Targets,
    pub(crate) deadline: Instant,
    pub(crate) counted: usize,
}

pub(crate) enum Content {
    /// Uncompressed: the checksum is computed once, when the sequence is known.
    Builder(BatchBuilder),
    /// Compressed on the thread that filled the batch.
    Encoded(BytesMut),
}

impl ReadyBatch {
    pub(crate) fn new(
        mut builder: BatchBuilder,
        targets: Targets,
        deadline: Instant,
        counted: usize,
        compression: Compression,
    ) -> Self {
        let records = builder.record_count();
        let content = if compression == Compression::None {
            Content::Builder(builder)
        } else {
            match builder.finish(compression, ProducerStamp::NONE) {
                Ok(bytes) => Content::Encoded(into_mut(bytes)),
                Err(_) => Content::Builder(builder),
            }
        };
        Self {
            content,
            records,
            targets,
            deadline,
            counted,
        }
    }

    fn encode(content: Content, stamp: ProducerStamp) -> Bytes {
        match content {
            Content::Builder(mut builder) => {
                builder.finish(Compression::None, stamp).unwrap_or_default()
            }
            Content::Encoded(mut bytes) => {
                write_stamp(&mut bytes, stamp);
                bytes.freeze()
            }
        }
    }
}

/// The bytes for changing; copied only if something still holds them.
fn into_mut(bytes: Bytes) -> BytesMut {
    bytes
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]))
}

/// Why a batch must be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// It may pass.
    Retry,
    /// Batches before it are missing, so it is not stored.
    Gap,
    /// It was built for an older number of lanes, and is not stored.
    Stale,
    /// The broker knows nothing of the producer's batches any more.
    UnknownProducer,
}

pub(crate) enum Status {
    Waiting,
    Again(Again),
    Done(Outcome),
}

/// A batch with a sequence, sent at least once or about to be.
pub(crate) struct SentBatch {
    pub(crate) bytes: Bytes,
    pub(crate) records: u32,
    pub(crate) base_sequence: i32,
    pub(crate) targets: Targets,
    pub(crate) deadline: Instant,
    pub(crate) counted: usize,
    /// Names this attempt.
    pub(crate) ticket: u32,
    pub(crate) status: Status,
    /// An attempt ended without an answer, or with one that leaves it open: the batch may be stored, now or
    /// later. Its sequence is then given to no other batch of the same producer epoch.
    pub(crate) uncertain: bool,
}

/// The lanes that records are split into, as requests name them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Split {
    /// Generation of lanes.
    pub(crate) generation: u32,
    /// How many there are in all; 0 where each streamlet has as many as the others.
    pub(crate) uneven_partitions: u32,
}

impl Split {
    pub(crate) fn of(meta: &StreamMeta) -> Self {
        Self {
            generation: meta.lane_generation,
            uneven_partitions: meta.uneven_partitions(),
        }
    }
}

pub(crate) struct SlotState {
    /// What the slot's batches are split by.
    pub(crate) split: Split,
    pub(crate) link: Arc<Link>,
    pub(crate) open: Option<OpenBatch>,
    pub(crate) queue: VecDeque<ReadyBatch>,
    pub(crate) in_flight: VecDeque<SentBatch>,
    /// Batches in flight whose answer is awaited.
    pub(crate) waiting: usize,
    pub(crate) mode: Mode,
    pub(crate) identity: Identity,
    /// Sequence of the next batch that gets one.
    pub(crate) next_sequence: i32,
    /// Sequence that the broker expects after all batches that are finished.
    pub(crate) resume_sequence: i32,
    /// A batch was given up that may or may not be stored: the broker may miss its sequences.
    pub(crate) broken: bool,
    /// A batch was refused for good: those after it need new sequences.
    pub(crate) renumber: bool,
    pub(crate) attempt: u32,
    pub(crate) not_before: Option<Instant>,
    pub(crate) last_error: Option<WireError>,
    /// When a batch was last acknowledged, by the clock of records.
    pub(crate) heard_ms: i64,
    pub(crate) failed: Option<ProduceError>,
    /// Why the first of the batches was given up that no flush has told of yet.
    pub(crate) given_up: Option<ProduceError>,
    pub(crate) closed: bool,
    pub(crate) next_ticket: u32,
    /// Whether the slot is among those whose open batch is watched, and that need attention.
    pub(crate) watched: bool,
    pub(crate) attention: bool,
}

/// A batch whose fate is known; told to its records after the slot's lock is released.
pub(crate) struct Finished {
    pub(crate) bytes: Bytes,
    pub(crate) records: u32,
    pub(crate) targets: Targets,
    pub(crate) counted: usize,
    pub(crate) outcome: Outcome,
}

impl Slot {
    pub(crate) fn new(
        index: usize,
        streamlet: u32,
        lane: u32,
        split: Split,
        link: Arc<Link>,
        identity: Identity,
    ) -> Self {
        Self {
            index,
            streamlet,
            lane,
            state: Mutex::new(SlotState {
                split,
                link,
                open: None,
                queue: VecDeque::new(),
                in_flight: VecDeque::new(),
                waiting: 0,
                mode: Mode::Running,
                identity,
                next_sequence: 0,
                resume_sequence: 0,
                broken: false,
                renumber: false,
                attempt: 0,
                not_before: None,
                last_error: None,
                heard_ms: 0,
                failed: None,
                given_up: None,
                closed: false,
                next_ticket: 0,
                watched: false,
                attention: false,
            }),
        }
    }
}

impl SlotState {
    /// True while what comes now must wait behind batches that are to be sent again, or for a connection.
    pub(crate) fn is_held_up(&self) -> bool {
        self.mode != Mode::Running || (!self.queue.is_empty() && self.in_flight.is_empty())
    }

    /// The stamp of the batch that starts at `sequence`.
    fn stamp(&self, sequence: i32) -> ProducerStamp {
        match self.identity {
            Some((producer_id, producer_epoch)) => ProducerStamp {
                producer_id,
                producer_epoch,
                base_sequence: sequence,
            },
            None => ProducerStamp::NONE,
        }
    }

    pub(crate) fn ticket(&mut self) -> u32 {
        self.next_ticket = self.next_ticket.wrapping_add(1);
        self.next_ticket
    }

    /// Gives the oldest ready batch its sequence; it is then the last in flight, not yet sent.
    pub(crate) fn promote(&mut self, transactional: bool) -> bool {
        let Some(ready) = self.queue.pop_front() else {
            return false;
        };
        let base_sequence = self.next_sequence;
        let mut bytes = ReadyBatch::encode(ready.content, self.stamp(base_sequence));
        if transactional {
            let mut marked = into_mut(bytes);
            mark_transactional(&mut marked);
            bytes = marked.freeze();
        }
        self.next_sequence = next_sequence(base_sequence, ready.records);
        self.in_flight.push_back(SentBatch {
            bytes,
            records: ready.records,
            base_sequence,
            targets: ready.targets,
            deadline: ready.deadline,
            counted: ready.counted,
            ticket: 0,
            status: Status::Again(Again::Retry),
            uncertain: false,
        });
        true
    }

    /// Takes batches off the front of those in flight whose fate is known.
    pub(crate) fn pop_done(&mut self, finished: &mut Vec<Finished>) {
        while let Some(front) = self.in_flight.front()
            && let Status::Done(_) = front.status
        {
            let Some(sent) = self.in_flight.pop_front() else {
                break;
            };
            let Status::Done(outcome) = sent.status else {
                break;
            };
            let after = next_sequence(sent.base_sequence, sent.records);
            match &outcome {
                Ok(_) => {
                    self.resume_sequence = after;
                    self.broken = false;
                }
                Err(error) if error.is_uncertain() => {
                    self.resume_sequence = after;
                    self.broken = true;
                }
                Err(_) => self.renumber = true,
            }
            let batch = Finished {
                bytes: sent.bytes,
                records: sent.records,
                targets: sent.targets,
                counted: sent.counted,
                outcome,
            };
            self.hand_on(batch, finished);
        }
        if self.in_flight.is_empty() {
            self.renumber = false;
            self.next_sequence = self.resume_sequence;
        }
    }

    /// True if an attempt at a batch in flight may yet arrive at the broker, or has.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.in_flight.iter().any(|sent| sent.uncertain)
    }

    /// Goes on with the next epoch of the producer, whose first batch fences what of this one may still
    /// be on its way. False if there is none.
    pub(crate) fn raise_epoch(&mut self) -> bool {
        let next = self
            .identity
            .and_then(|(id, epoch)| Some((id, epoch.checked_add(1)?)));
        if next.is_some() {
            self.begin_as(next);
        }
        next.is_some()
    }

    /// Starts the sequences anew, as those of `identity`.
    pub(crate) fn begin_as(&mut self, identity: Identity) {
        self.identity = identity;
        self.resume_sequence = 0;
        self.next_sequence = 0;
        self.broken = false;
    }

    /// Gives all batches in flight new sequences, from `self.resume_sequence` on. Only for batches
    /// that are not stored, and of an epoch in which none of them may have been sent before if one of
    /// them is uncertain.
    pub(crate) fn restamp(&mut self) {
        let mut sequence = self.resume_sequence;
        for index in 0..self.in_flight.len() {
            let stamp = self.stamp(sequence);
            let sent = &mut self.in_flight[index];
            let mut bytes = into_mut(std::mem::take(&mut sent.bytes));
            write_stamp(&mut bytes, stamp);
            sent.bytes = bytes.freeze();
            sent.base_sequence = sequence;
            sent.uncertain = false;
            sequence = next_sequence(sequence, sent.records);
        }
        self.next_sequence = sequence;
        self.renumber = false;
    }

    /// The streamlet has another owner: answers of the former one are not waited for any more. What it
    /// stored the new one has, and recognises.
    pub(crate) fn abandon_attempts(&mut self) {
        for sent in &mut self.in_flight {
            if let Status::Waiting = sent.status {
                sent.status = Status::Again(Again::Retry);
                sent.uncertain = true;
            }
        }
        self.waiting = 0;
    }

    /// Fails everything the slot holds.
    pub(crate) fn fail_all(&mut self, error: &ProduceError, finished: &mut Vec<Finished>) {
        for sent in std::mem::take(&mut self.in_flight) {
            let outcome = match sent.status {
                Status::Done(outcome) => outcome,
                Status::Waiting => Err(error.clone().of_batch(true)),
                Status::Again(_) => Err(error.clone().of_batch(sent.uncertain)),
            };
            let batch = Finished {
                bytes: sent.bytes,
                records: sent.records,
                targets: sent.targets,
                counted: sent.counted,
                outcome,
            };
            self.hand_on(batch, finished);
        }
        self.waiting = 0;
        let open = self.open.take().map(|open| ReadyBatch {
            records: open.builder.record_count(),
            content: Content::Builder(open.builder),
            targets: Targets::Whole(open.cell),
            deadline: open.opened,
            counted: open.counted,
        });
        for ready in std::mem::take(&mut self.queue).into_iter().chain(open) {
            self.hand_on(ready.finish(Err(error.clone())), finished);
        }
    }

    /// Gives up what is past its deadline.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        timeout: impl Fn(bool) -> ProduceError,
        finished: &mut Vec<Finished>,
    ) {
        while let Some(ready) = self.queue.pop_front_if(|ready| ready.deadline <= now) {
            self.hand_on(ready.finish(Err(timeout(false))), finished);
        }
        for sent in &mut self.in_flight {
            if sent.deadline > now {
                continue;
            }
            match sent.status {
                Status::Waiting => {
                    self.waiting -= 1;
                    sent.status = Status::Done(Err(timeout(true)));
                }
                Status::Again(_) => sent.status = Status::Done(Err(timeout(sent.uncertain))),
                Status::Done(_) => {}
            }
        }
        self.pop_done(finished);
    }

    /// Hands on a batch whose fate is known; that one was given up is kept for the next flush.
    pub(crate) fn hand_on(&mut self, batch: Finished, finished: &mut Vec<Finished>) {
        if let Err(error) = &batch.outcome {
            self.given_up.get_or_insert_with(|| error.clone());
        }
        finished.push(batch);
    }

    /// The cells of everything the slot holds.
    pub(crate) fn cells(&self, into: &mut Vec<Arc<BatchCell>>) {
        for sent in &self.in_flight {
            sent.targets.cells(into);
        }
        for ready in &self.queue {
            ready.targets.cells(into);
        }
        into.extend(self.open.iter().map(|open| open.cell.clone()));
    }
}

impl ReadyBatch {
    fn finish(self, outcome: Outcome) -> Finished {
        let bytes = match self.content {
            Content::Builder(_) => Bytes::new(),
            Content::Encoded(bytes) => bytes.freeze(),
        };
        Finished {
            bytes,
            records: self.records,
            targets: self.targets,
            counted: self.counted,
            outcome,
        }
    }
}
