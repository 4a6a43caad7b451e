//! What appending threads, the background task and the connections share about one stream.
//!
//! Locks are taken in this order: the family's members, re-splitting, a slot, then any of the small ones (links, watch
//! list, memory). Records are told their fate, and connections flushed, with none of them held.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::FrameKind;
use kera_protocol::ids::{ANY_LANE, StreamId, StreamletId};
use kera_protocol::partition::lanes_of;
use kera_protocol::v1;
use kera_rpc::{ConnectionError, DataConnection, RpcError, StreamMeta, random_u64};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::delivery::{BatchCell, Targets};
use crate::error::ProduceError;
use crate::event::Event;
use crate::family::{Family, MAX_SLOTS, Token};
use crate::link::Flushes;
use crate::metrics::Counters;
use crate::settings::Settings;
use crate::slot::{Finished, Identity, Mode, ReadyBatch, Slot, SlotState, Split, Status};
use crate::slots::{Shape, Slots};
use crate::transactional::Transactional;

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    /// What it has in common with producers of other streams.
    pub(crate) family: Arc<Family>,
    /// Its number among them.
    number: u32,
    /// Batches submitted and not answered.
    pub(crate) unanswered: Arc<AtomicUsize>,
    /// 16 bytes, as frames carry them.
    stream_id: Bytes,
    pub(crate) append_time: bool,
    /// The stream acknowledges in memory only, so that acknowledged batches may be gone after a
    /// crash of the broker.
    pub(crate) forgetful: bool,
    /// A slot's index is a key's hash modulo their number: slot `i` is lane `i / M` of streamlet
    /// `i % M`; if owners pick lanes, there is one slot per streamlet.
    pub(crate) slots: Slots,
    /// Held while slots change hands; appends that meet such a slot wait for it.
    pub(crate) resplitting: Mutex<()>,
    pub(crate) identity: Identity,
    pub(crate) counters: Counters,
    /// Bytes at which a batch is full.
    pub(crate) batch_bytes: usize,
    /// Bytes that a batch of one record may have.
    pub(crate) record_bytes: usize,
    /// Milliseconds since 1970, renewed with each batch and each tick of the background task.
    pub(crate) clock: AtomicI64,
    /// The slot that records without key go to.
    pub(crate) sticky: AtomicUsize,
    /// Slots with an open batch, by the time at which to look at it.
    pub(crate) watched: Mutex<BinaryHeap<Reverse<(Instant, usize)>>>,
    /// Slots that the background task must look after.
    pub(crate) attention: Mutex<Vec<usize>>,
    pub(crate) events: Mutex<Vec<Event>>,
    /// No batch gets a sequence: waiting for the answers that a re-split needs.
    pub(crate) paused: AtomicBool,
    pub(crate) stale: AtomicBool,
    pub(crate) want_meta: AtomicBool,
    /// What brokers said when the stream was last asked for, if this client may not see it: owners call it unknown then.
    pub(crate) hidden: Mutex<Option<WireError>>,
    /// Memory ran out: open batches are sent without waiting.
    pub(crate) pressed: AtomicBool,
    pub(crate) driver_asleep: AtomicBool,
    pub(crate) driver: Notify,
    pub(crate) ended: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        settings: Settings,
        meta: &StreamMeta,
        identity: Identity,
        family: Arc<Family>,
        (number, unanswered): (u32, Arc<AtomicUsize>),
    ) -> Self {
        let (batch_bytes, record_bytes) = largest(&settings, meta, family.max_frame_bytes);
        let shared = Self {
            slots: Slots::new(),
            settings,
            family,
            number,
            unanswered,
            stream_id: Bytes::copy_from_slice(meta.id.as_bytes()),
            append_time: meta.config.timestamp_type() == v1::TimestampType::Append,
            forgetful: meta.config.ack() == v1::AckPolicy::Memory,
            resplitting: Mutex::default(),
            identity,
            counters: Counters::default(),
            batch_bytes,
            record_bytes,
            clock: AtomicI64::new(now_ms()),
            sticky: AtomicUsize::new(0),
            watched: Mutex::default(),
            attention: Mutex::default(),
            events: Mutex::default(),
            paused: AtomicBool::new(false),
            stale: AtomicBool::new(false),
            want_meta: AtomicBool::new(false),
            hidden: Mutex::default(),
            pressed: AtomicBool::new(false),
            driver_asleep: AtomicBool::new(false),
            driver: Notify::new(),
            ended: AtomicBool::new(false),
        };
        let shape = shared.prepare_slots(meta);
        shared.slots.publish(shape);
        // Producers start in different lanes.
        let first = random_u64() as usize % shape.count.max(1);
        shared.sticky.store(first, Ordering::Relaxed);
        shared
    }

    pub(crate) fn transactional(&self) -> Option<&Transactional> {
        self.family.transactional.as_ref()
    }

    /// True if it appends to this stream, and has not ended.
    pub(crate) fn is_open_for(&self, stream: StreamId) -> bool {
        !self.ended.load(Ordering::SeqCst) && self.stream_id[..] == stream.as_bytes()[..]
    }

    /// Makes the slots that `meta` asks for, and tells how many there shall be.
    pub(crate) fn prepare_slots(&self, meta: &StreamMeta) -> Shape {
        let by_key = meta.lane_by == v1::LaneBy::Key;
        let count = match by_key {
            true => meta.partitions,
            false => meta.streamlets,
        };
        let count = count as usize;
        let identity = match self.transactional() {
            Some(transactional) => Some(transactional.identity()),
            None => self.identity,
        };
        self.slots.prepare(count, |index| {
            let streamlet = (index % meta.streamlets as usize) as u32;
            let lane = (index / meta.streamlets as usize) as u32;
            Slot::new(
                index,
                streamlet,
                match (by_key, identity) {
                    (true, _) => lane,
                    // The lanes of a transaction are known to its coordinator.
                    (false, Some((producer, _))) if self.transactional().is_some() => {
                        lane_for(producer, meta, streamlet)
                    }
                    (false, _) => ANY_LANE,
                },
                Split::of(meta),
                self.family.link(&meta.owners()[streamlet as usize]),
                identity,
            )
        });
        Shape {
            generation: meta.lane_generation,
            count,
        }
    }

    /// Refuses a stream of the same name that was created after this one was deleted.
    pub(crate) fn check_same_stream(&self, meta: &StreamMeta) -> Result<(), RpcError> {
        if self.stream_id[..] == meta.id.as_bytes()[..] {
            return Ok(());
        }
        let text = format!(
            "stream {} was deleted and created anew: open another producer",
            meta.name
        );
        Err(WireError::new(ErrorCode::UnknownStream, text).into())
    }

    pub(crate) fn tick_clock(&self) {
        self.clock.store(now_ms(), Ordering::Relaxed);
    }

    /// Tells the background task what a helper task of it brought about.
    pub(crate) fn post(&self, event: Event) {
        self.events.lock().push(event);
        self.wake_driver();
    }

    pub(crate) fn wake_driver(&self) {
        self.driver_asleep.store(false, Ordering::Relaxed);
        self.driver.notify_one();
    }

    /// Completes the open batch and sends what may be sent. Returns the connection to flush once the
    /// slot is unlocked.
    pub(crate) fn seal(&self, slot: &Slot, state: &mut SlotState) -> Option<Arc<DataConnection>> {
        if let Some(open) = state.open.take() {
            Counters::add(&self.counters.batches, 1);
            let records = u64::from(open.builder.record_count());
            Counters::add(&self.counters.records_batched, records);
            state.queue.push_back(ReadyBatch::new(
                open.builder,
                Targets::Whole(open.cell),
                open.opened + self.settings.deadline,
                open.counted,
                self.settings.compression,
            ));
            if self.sticky.load(Ordering::Relaxed) == slot.index {
                let next = (slot.index + 1) % self.slots.shape().count.max(1);
                self.sticky.store(next, Ordering::Relaxed);
            }
        }
        self.send(slot, state)
    }

    /// Gives ready batches their sequence and submits them, as far as the window reaches.
    pub(crate) fn send(&self, slot: &Slot, state: &mut SlotState) -> Option<Arc<DataConnection>> {
        if state.mode != Mode::Running
            || state.queue.is_empty()
            || state.in_flight.len() >= self.settings.in_flight_batches
            || self.paused.load(Ordering::Relaxed)
        {
            return None;
        }
        let transactional = self.transactional();
        let place = (self.number, slot.index);
        if transactional.is_some_and(|transactional| !transactional.may_send(place)) {
            self.wake_driver();
            return None;
        }
        let Some(connection) = state.link.connection() else {
            self.wake_driver();
            return None;
        };
        while state.in_flight.len() < self.settings.in_flight_batches
            && state.promote(transactional.is_some())
        {
            let last = state.in_flight.len() - 1;
            if let Err(error) = self.submit(slot, state, last, &connection) {
                state.last_error = Some(wire_error(&error));
                state.mode = Mode::Recovering;
                self.attend(slot, state);
                break;
            }
        }
        Some(connection)
    }

    /// Submits one batch that is in flight.
    pub(crate) fn submit(
        &self,
        slot: &Slot,
        state: &mut SlotState,
        index: usize,
        connection: &DataConnection,
    ) -> Result<(), ConnectionError> {
        let request = v1::AppendRequest {
            stream: self.stream_id.clone(),
            streamlet: slot.streamlet,
            lane: slot.lane,
            lane_generation: state.split.generation,
            partitions: state.split.uneven_partitions,
            transactional_id: match self.transactional() {
                Some(transactional) => transactional.id.clone(),
                None => String::new(),
            },
        };
        let ticket = state.ticket();
        let link = state.link.clone();
        let sent = &mut state.in_flight[index];
        let token = Token {
            member: self.number,
            slot: slot.index,
            ticket,
        };
        let token = token.packed();
        // Counted before, for the reply may come at once.
        link.in_flight.fetch_add(1, Ordering::SeqCst);
        self.unanswered.fetch_add(1, Ordering::SeqCst);
        let submitted = connection.submit(FrameKind::Append, &request, sent.bytes.clone(), token);
        if submitted.is_err() {
            link.in_flight.fetch_sub(1, Ordering::SeqCst);
            self.unanswered.fetch_sub(1, Ordering::SeqCst);
            return submitted;
        }
        sent.ticket = ticket;
        sent.status = Status::Waiting;
        Counters::add(&self.counters.bytes_sent, sent.bytes.len() as u64);
        state.waiting += 1;
        Ok(())
    }

    /// Puts the slot on the background task's list.
    pub(crate) fn attend(&self, slot: &Slot, state: &mut SlotState) {
        if !state.attention {
            state.attention = true;
            self.attention.lock().push(slot.index);
        }
        self.wake_driver();
    }

    /// Tells records their fate and takes back the memory.
    pub(crate) fn finish(&self, finished: Vec<Finished>) {
        for batch in finished {
            let records = u64::from(batch.records);
            match &batch.outcome {
                Ok(_) => Counters::add(&self.counters.records_acknowledged, records),
                Err(error) => {
                    tracing::debug!(%error, records, "batch given up");
                    Counters::add(&self.counters.records_failed, records);
                    if let Some(transactional) = self.transactional() {
                        transactional.fail(error);
                    }
                }
            }
            self.family.memory.give(batch.bytes, batch.counted);
            batch.targets.complete(&batch.outcome);
        }
        // It wakes appends for which too little has come back to be woken at once.
        if self.family.memory.owes_a_wake() && self.driver_asleep.load(Ordering::SeqCst) {
            self.wake_driver();
        }
    }

    /// The error of batches whose deadline has passed.
    pub(crate) fn timeout(&self, uncertain: bool, last: Option<&str>) -> ProduceError {
        ProduceError::Timeout {
            deadline: self.settings.deadline,
            uncertain,
            last: last.unwrap_or("the broker did not answer").to_owned(),
        }
    }

    /// Everything that is not acknowledged yet, and asks for it to be sent.
    pub(crate) fn outstanding(&self, close: bool) -> Vec<Arc<BatchCell>> {
        let _no_resplit = self.resplitting.lock();
        let mut cells = Vec::new();
        let mut flushes = Flushes::default();
        for slot in self.slots.iter() {
            let mut state = slot.state.lock();
            state.closed |= close;
            state.cells(&mut cells);
            flushes.add(self.seal(slot, &mut state));
        }
        drop(_no_resplit);
        flushes.run();
        cells
    }

    /// Why a batch was given up that nobody was told of by a flush yet; it is told once.
    pub(crate) fn take_given_up(&self) -> Option<ProduceError> {
        let _no_resplit = self.resplitting.lock();
        let mut first = None;
        for slot in self.slots.iter() {
            let error = slot.state.lock().given_up.take();
            first = first.or(error);
        }
        first
    }

    /// Adds the lanes of slots with batches to the transaction, in a task of its own.
    pub(crate) fn tend_transaction(self: &Arc<Self>) {
        let Some(transactional) = self.transactional() else {
            return;
        };
        let wanted = transactional.take_wanted(self.number);
        if wanted.is_empty() {
            return;
        }
        let slots = wanted.iter().filter_map(|index| self.slots.get(*index));
        let lanes = slots.map(|slot| v1::LaneOfTransaction {
            streamlet: slot.streamlet,
            lane: slot.lane,
        });
        let streams = vec![v1::LanesOfTransaction {
            stream: self.stream_id.clone(),
            lanes: lanes.collect(),
        }];
        let (shared, identity) = (self.clone(), transactional.identity());
        tokio::spawn(async move {
            if let Some(transactional) = shared.transactional() {
                let client = &shared.family.client;
                let added = transactional.add(client, identity, streams).await;
                shared.post(Event::Added(identity, wanted, added));
            }
        });
    }

    /// Lanes are part of the transaction from now on, or the broker refuses that.
    pub(crate) fn added(
        &self,
        identity: (i64, i16),
        slots: &[usize],
        added: Result<u64, RpcError>,
    ) {
        let Some(transactional) = self.transactional() else {
            return;
        };
        let given = added.as_ref().ok().copied();
        if let Some(other) = transactional.added(identity, self.number, slots, given) {
            return self.family.transaction_was_ended(other);
        }
        let refused = match added {
            Err(RpcError::Broker(error)) if !error.code.is_retryable() => {
                Some(ProduceError::Refused(error))
            }
            Err(error) => {
                tracing::debug!(%error, "lanes are not part of the transaction yet");
                None
            }
            Ok(_) => None,
        };
        let mut flushes = Flushes::default();
        let mut finished = Vec::new();
        for slot in slots.iter().filter_map(|index| self.slots.get(*index)) {
            let mut state = slot.state.lock();
            if state.identity != Some(identity) {
                continue;
            }
            match &refused {
                Some(error) => state.fail_all(error, &mut finished),
                None => flushes.add(self.send(slot, &mut state)),
            }
        }
        self.finish(finished);
        flushes.run();
    }

    /// Gives up all batches, open ones as well.
    pub(crate) fn fail_all(&self, error: &ProduceError) {
        let mut finished = Vec::new();
        {
            let _no_resplit = self.resplitting.lock();
            for slot in self.slots.iter() {
                let mut state = slot.state.lock();
                state.fail_all(error, &mut finished);
                state.mode = Mode::Running;
            }
        }
        self.finish(finished);
    }

    /// Goes on under another epoch: nothing is in flight.
    pub(crate) fn go_on_as(&self, identity: (i64, i16)) {
        let _no_resplit = self.resplitting.lock();
        for slot in self.slots.iter() {
            let mut state = slot.state.lock();
            state.begin_as(Some(identity));
            state.renumber = false;
            state.attempt = 0;
            state.not_before = None;
            state.last_error = None;
        }
    }

    /// Ends everything at once: what is not acknowledged fails.
    pub(crate) fn end(&self) {
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut finished = Vec::new();
        {
            let _no_resplit = self.resplitting.lock();
            for slot in self.slots.iter() {
                let mut state = slot.state.lock();
                state.closed = true;
                state.fail_all(&ProduceError::Closed, &mut finished);
            }
        }
        self.finish(finished);
        self.family.leave();
        self.family.memory.wake();
        self.wake_driver();
    }
}

/// The lane of a streamlet that a transactional producer appends to, where lanes are not chosen by key.
fn lane_for(producer: i64, meta: &StreamMeta, streamlet: u32) -> u32 {
    let lanes = lanes_of(StreamletId(streamlet), meta.streamlets, meta.partitions).max(1);
    (producer.unsigned_abs() % u64::from(lanes)) as u32
}

/// Bytes at which a batch is full, and those that a batch of one record may have.
pub(crate) fn largest(
    settings: &Settings,
    meta: &StreamMeta,
    max_frame_bytes: usize,
) -> (usize, usize) {
    // What a frame's prefix and header take at most.
    let frame_bytes = max_frame_bytes.saturating_sub(256);
    let record_bytes = meta
        .max_batch_bytes
        .min(frame_bytes)
        .min(settings.memory_limit);
    (settings.batch_bytes.min(record_bytes), record_bytes)
}

/// Refuses streams of more lanes than a producer keeps state for.
pub(crate) fn check_slots(meta: &StreamMeta) -> Result<(), RpcError> {
    let slots = u64::from(meta.partitions);
    if slots > MAX_SLOTS {
        let name = &meta.name;
        return Err(RpcError::BadAnswer(format!(
            "stream {name}: {slots} lanes are more than the {MAX_SLOTS} a producer can serve"
        )));
    }
    Ok(())
}

pub(crate) fn wire_error(error: &ConnectionError) -> WireError {
    match error {
        ConnectionError::GoAway { error, .. } => error.clone(),
        other => WireError::new(ErrorCode::Timeout, other.to_string()),
    }
}

fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as i64)
}
