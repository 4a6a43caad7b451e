//! Splitting waiting records anew after the stream's lanes have grown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use kera_protocol::batch::{
    BatchBuilder, Compression, Header, MAX_BATCH_BYTES, NewRecord, ProducerStamp, Records,
};
use kera_protocol::partition::key_hash;
use kera_rpc::StreamMeta;

use crate::delivery::{BatchCell, Targets};
use crate::error::ProduceError;
use crate::link::Flushes;
use crate::metrics::Counters;
use crate::shared::Shared;
use crate::slot::{Again, Content, Finished, Mode, ReadyBatch, SlotState, Split, Status};

/// A batch taken out of its slot.
struct Taken {
    slot: usize,
    bytes: Bytes,
    records: u32,
    targets: Targets,
    deadline: Instant,
    counted: usize,
}

/// A batch that is being filled for its new slot.
struct Part {
    builder: BatchBuilder,
    records: Vec<(Arc<BatchCell>, u32)>,
    deadline: Instant,
}

impl Shared {
    /// True if no batch that has a sequence is stored, nor will be under the lanes that are known: the rest
    /// was answered.
    pub(crate) fn is_quiet(&self) -> bool {
        self.slots.iter().all(|slot| {
            let state = slot.state.lock();
            let front = state.in_flight.front().map(|sent| &sent.status);
            // Nothing behind a refused batch can have been stored.
            let refused = matches!(front, Some(Status::Again(Again::Stale)));
            state.waiting == 0
                && state.mode != Mode::Renewing
                && (refused
                    || state.in_flight.iter().all(|sent| match sent.status {
                        Status::Again(Again::Stale | Again::Gap) => true,
                        Status::Again(_) => !sent.uncertain,
                        Status::Done(_) => true,
                        Status::Waiting => false,
                    }))
        })
    }

    /// Moves every waiting record to its slot among the lanes of `meta`. Records of a key keep their
    /// order, because all of them come from one slot and go to one.
    pub(crate) fn resplit(&self, meta: &StreamMeta) {
        let mut flushes = Flushes::default();
        let mut finished = Vec::new();
        {
            let _lock = self.resplitting.lock();
            let old = self.slots.shape();
            let new = self.prepare_slots(meta);
            tracing::info!(
                stream = %self.settings.stream,
                generation = meta.lane_generation,
                slots = new.count,
                "lanes have grown, waiting records are split anew"
            );
            let mut taken = Vec::new();
            let mut closed = false;
            for slot in self.slots.first(old.count) {
                let mut state = slot.state.lock();
                state.split = Split::of(meta);
                closed |= state.closed;
                self.take(slot.index, &mut state, &mut taken, &mut finished);
            }
            for slot in self.slots.first(new.count).skip(old.count) {
                let mut state = slot.state.lock();
                state.split = Split::of(meta);
                state.closed = closed;
                if let Some(owner) = meta.owners().get(slot.streamlet as usize) {
                    state.link = self.family.link(owner);
                }
            }
            for (index, batches) in self.split(taken, new.count, &mut finished) {
                if let Some(slot) = self.slots.get(index) {
                    slot.state.lock().queue.extend(batches);
                }
            }
            self.slots.publish(new);
            Counters::add(&self.counters.resplits, 1);
            self.paused.store(false, Ordering::SeqCst);
        }
        self.finish(finished);
        for slot in self.slots.iter() {
            let mut state = slot.state.lock();
            flushes.add(self.send(slot, &mut state));
        }
        flushes.run();
    }

    /// Goes on with the lanes as they were: an owner refused batches for lanes that have not grown, as
    /// far as is known. They are about to, or will not after all, or it is the owner that has not heard.
    pub(crate) fn stay_split(&self) {
        self.paused.store(false, Ordering::SeqCst);
        for slot in self.slots.iter() {
            let mut state = slot.state.lock();
            for sent in &mut state.in_flight {
                // What follows a refused batch misses it.
                if let Status::Again(why @ (Again::Stale | Again::Gap)) = &mut sent.status {
                    *why = Again::Retry;
                }
            }
            self.attend(slot, &mut state);
        }
    }

    fn take(
        &self,
        slot: usize,
        state: &mut SlotState,
        taken: &mut Vec<Taken>,
        finished: &mut Vec<Finished>,
    ) {
        state.pop_done(finished);
        let uncertain = state.is_uncertain();
        if uncertain && self.transactional().is_some() {
            self.fail_transaction(state, finished);
        }
        for sent in std::mem::take(&mut state.in_flight) {
            if let Status::Done(outcome) = sent.status {
                let batch = Finished {
                    bytes: sent.bytes,
                    records: sent.records,
                    targets: sent.targets,
                    counted: sent.counted,
                    outcome,
                };
                state.hand_on(batch, finished);
                continue;
            }
            taken.push(Taken {
                slot,
                bytes: sent.bytes,
                records: sent.records,
                targets: sent.targets,
                deadline: sent.deadline,
                counted: sent.counted,
            });
        }
        let open = state.open.take().map(|open| {
            Counters::add(&self.counters.batches, 1);
            let records = open.builder.record_count();
            Counters::add(&self.counters.records_batched, u64::from(records));
            ReadyBatch::new(
                open.builder,
                Targets::Whole(open.cell),
                open.opened + self.settings.deadline,
                open.counted,
                Compression::None,
            )
        });
        for ready in state.queue.drain(..).chain(open) {
            let bytes = match ready.content {
                Content::Builder(mut builder) => builder
                    .finish(Compression::None, ProducerStamp::NONE)
                    .unwrap_or_default(),
                Content::Encoded(bytes) => bytes.freeze(),
            };
            taken.push(Taken {
                slot,
                bytes,
                records: ready.records,
                targets: ready.targets,
                deadline: ready.deadline,
                counted: ready.counted,
            });
        }
        // What is gone from here was never stored: the broker still expects this sequence. Attempts that
        // are still on their way would be taken for batches that get it now; where the epoch cannot be
        // raised, the lanes that they were split by still have them refused.
        state.next_sequence = state.resume_sequence;
        if uncertain && self.transactional().is_none() {
            state.raise_epoch();
        }
        state.renumber = false;
        state.mode = Mode::Running;
        state.attempt = 0;
        state.not_before = None;
    }

    fn split(
        &self,
        taken: Vec<Taken>,
        slots: usize,
        finished: &mut Vec<Finished>,
    ) -> BTreeMap<usize, Vec<ReadyBatch>> {
        let mut parts: BTreeMap<usize, Part> = BTreeMap::new();
        let mut ready: BTreeMap<usize, Vec<ReadyBatch>> = BTreeMap::new();
        let mut scratch = Vec::new();
        for batch in taken {
            let result = self.split_one(&batch, slots, &mut scratch, &mut parts, &mut ready);
            match result {
                // The records live on in other batches.
                Ok(()) => self.family.memory.release(batch.counted),
                Err(error) => {
                    let slot = batch.slot;
                    let batch = Finished {
                        bytes: batch.bytes,
                        records: batch.records,
                        targets: batch.targets,
                        counted: batch.counted,
                        outcome: Err(error),
                    };
                    match self.slots.get(slot) {
                        Some(slot) => slot.state.lock().hand_on(batch, finished),
                        None => finished.push(batch),
                    }
                }
            }
        }
        for (index, part) in parts {
            ready.entry(index).or_default().push(self.close_part(part));
        }
        ready
    }

    fn split_one(
        &self,
        batch: &Taken,
        slots: usize,
        scratch: &mut Vec<u8>,
        parts: &mut BTreeMap<usize, Part>,
        ready: &mut BTreeMap<usize, Vec<ReadyBatch>>,
    ) -> Result<(), ProduceError> {
        // These are bytes that this producer encoded: an error here is a defect, told as one.
        let broken = |error: kera_protocol::batch::BatchError| {
            ProduceError::Refused(kera_protocol::error::WireError::new(
                kera_protocol::error::ErrorCode::Internal,
                format!("batch cannot be split for grown lanes: {error}"),
            ))
        };
        let records = Records::open(&batch.bytes, MAX_BATCH_BYTES, scratch).map_err(broken)?;
        let mut headers: Vec<Header<'_>> = Vec::new();
        for (index, record) in records.enumerate() {
            let record = record.map_err(broken)?;
            let target = match record.key {
                Some(key) => key_hash(key) as usize % slots,
                None => batch.slot,
            };
            let Some(cell) = batch.targets.split_off(index as u32, batch.records) else {
                continue;
            };
            headers.clear();
            headers.extend(record.headers());
            let new = NewRecord {
                key: record.key,
                value: record.value,
                headers: &headers,
                timestamp: record.timestamp,
            };
            let bound = BatchBuilder::record_bound(&new);
            if let Some(part) = parts.get(&target)
                && part.builder.len() + bound > self.batch_bytes
                && let Some(part) = parts.remove(&target)
            {
                ready.entry(target).or_default().push(self.close_part(part));
            }
            let part = parts.entry(target).or_insert_with(|| Part {
                builder: BatchBuilder::new(),
                records: Vec::new(),
                deadline: batch.deadline,
            });
            part.builder.push(&new).map_err(broken)?;
            part.records.push(cell);
            part.deadline = part.deadline.min(batch.deadline);
        }
        Ok(())
    }

    fn close_part(&self, part: Part) -> ReadyBatch {
        let counted = part.builder.len();
        self.family.memory.force(counted);
        ReadyBatch::new(
            part.builder,
            Targets::Each(part.records),
            part.deadline,
            counted,
            self.settings.compression,
        )
    }
}
