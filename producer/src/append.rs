//! Taking records into batches: the fast path, and when a batch that is not full goes out.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kera_protocol::batch::{BatchBuilder, HEADER_BYTES, NewRecord};
use kera_protocol::partition::key_hash;
use parking_lot::MutexGuard;

use crate::delivery::BatchCell;
use crate::error::AppendError;
use crate::link::Flushes;
use crate::memory::next_size;
use crate::metrics::Counters;
use crate::record::Record;
use crate::shared::Shared;
use crate::slot::{OpenBatch, Slot, SlotState};

/// Slots that are looked at to find one that is not held up.
const LOOK_AT: usize = 64;

/// Without linger: how long a batch waits at most for its link to become idle.
const BUSY_PATIENCE: Duration = Duration::from_millis(5);

impl Shared {
    /// The fast path: one slot's lock, one encode, no allocation. `handle` makes the result out of the
    /// batch's cell, the record's index and its timestamp.
    #[inline]
    pub(crate) fn append<R>(
        &self,
        record: &Record<'_>,
        handle: impl Fn(&Arc<BatchCell>, u32, i64) -> R + Copy,
    ) -> Result<R, AppendError> {
        let hash = record.key.map(key_hash);
        loop {
            let shape = self.slots.shape();
            let index = match hash {
                // Both are below 2^32, and a short division is quicker.
                Some(hash) => (hash % shape.count as u32) as usize,
                None => self.sticky.load(Ordering::Relaxed),
            };
            let Some(slot) = self.slots.get(index) else {
                return Err(AppendError::Closed);
            };
            let mut state = slot.state.lock();
            if state.split.generation != shape.generation {
                drop(state);
                // The slots are changing hands: afterwards there is a new shape.
                drop(self.resplitting.lock());
                continue;
            }
            let new = NewRecord {
                key: record.key,
                value: record.value,
                headers: record.headers,
                timestamp: record
                    .timestamp
                    .unwrap_or_else(|| self.clock.load(Ordering::Relaxed)),
            };
            let bound = BatchBuilder::record_bound(&new);
            if let Some(open) = &mut state.open
                && open.builder.len() + bound <= open.room
                && let Ok(index) = open.builder.push(&new)
            {
                let result = handle(&open.cell, index, new.timestamp);
                if self.settings.linger.is_zero() {
                    self.send_if_idle(slot, state);
                }
                return Ok(result);
            }
            return self.append_slowly(slot, state, new, record, handle);
        }
    }

    /// Out of the fast path's way: what else an append may need.
    #[cold]
    #[inline(never)]
    fn append_slowly<'a, R>(
        &self,
        slot: &'a Slot,
        state: MutexGuard<'a, SlotState>,
        new: NewRecord<'_>,
        record: &Record<'_>,
        handle: impl Fn(&Arc<BatchCell>, u32, i64) -> R + Copy,
    ) -> Result<R, AppendError> {
        let stamp_now = record.timestamp.is_none();
        let bound = BatchBuilder::record_bound(&new);
        match self.append_to(slot, state, new, stamp_now, bound)? {
            Some((cell, index, timestamp)) => Ok(handle(&cell, index, timestamp)),
            None => self.append(record, handle),
        }
    }

    /// Opens, enlarges or replaces the open batch, then appends. `None` if the record has no key and
    /// its batch was full, or its lane is held up: it goes to the lane that is next now. A batch of its own
    /// behind the full one would be all alone once the linger is over.
    fn append_to<'a>(
        &self,
        slot: &'a Slot,
        mut state: MutexGuard<'a, SlotState>,
        mut new: NewRecord<'_>,
        stamp_now: bool,
        bound: usize,
    ) -> Result<Option<(Arc<BatchCell>, u32, i64)>, AppendError> {
        let mut to_flush = None;
        if state.open.is_none() && state.is_held_up() {
            match self.held_up(slot, state, new.key.is_none())? {
                Some(locked) => state = locked,
                None => return Ok(None),
            }
        }
        let result = loop {
            if let Some(open) = &mut state.open {
                let needed = open.builder.len() + bound;
                if needed > self.batch_bytes {
                    to_flush = self.seal(slot, &mut state).or(to_flush);
                    if new.key.is_none() && self.slots.shape().count > 1 {
                        break Ok(None);
                    }
                    continue;
                }
                let counted = next_size(open.counted, needed, self.batch_bytes);
                if counted > open.counted {
                    if !self.family.memory.reserve(counted - open.counted) {
                        break Err(AppendError::Full);
                    }
                    open.builder.reserve_total(counted);
                    open.counted = counted;
                }
                open.room = counted.min(self.batch_bytes);
            } else {
                if state.closed {
                    break Err(AppendError::Closed);
                }
                if let Some(error) = &state.failed {
                    break Err(AppendError::LaneFailed(error.clone()));
                }
                if let Some(transactional) = self.transactional()
                    && let Err(error) = transactional.check_open()
                {
                    break Err(error);
                }
                let bytes = HEADER_BYTES + bound;
                if bytes > self.record_bytes {
                    break Err(AppendError::TooLarge {
                        bytes,
                        limit: self.record_bytes,
                    });
                }
                // Without keys one batch is open at a time and about to be filled: were it to grow while
                // memory is short, it would wait for each step and go out half full.
                let whole = new.key.is_none();
                let memory = &self.family.memory;
                let Some((buffer, counted)) = memory.take(bytes, self.batch_bytes, whole) else {
                    break Err(AppendError::Full);
                };
                self.tick_clock();
                if stamp_now {
                    new.timestamp = self.clock.load(Ordering::Relaxed);
                }
                state.open = Some(OpenBatch {
                    builder: BatchBuilder::from_buffer(buffer),
                    cell: BatchCell::new(),
                    opened: Instant::now(),
                    counted,
                    room: counted.min(self.batch_bytes.max(bytes)),
                });
                self.watch(slot, &mut state);
            }
            let Some(open) = &mut state.open else {
                continue;
            };
            match open.builder.push(&new) {
                Ok(index) => {
                    let full = open.builder.len() >= self.batch_bytes;
                    let place = (open.cell.clone(), index, new.timestamp);
                    if full {
                        to_flush = self.seal(slot, &mut state).or(to_flush);
                    }
                    break Ok(Some(place));
                }
                Err(_) => {
                    break Err(AppendError::TooLarge {
                        bytes: bound,
                        limit: self.record_bytes,
                    });
                }
            }
        };
        if self.settings.linger.is_zero() && matches!(result, Ok(Some(_))) {
            self.send_if_idle(slot, state);
        } else {
            drop(state);
        }
        if let Some(connection) = to_flush {
            connection.flush();
        }
        if matches!(result, Err(AppendError::Full)) {
            Counters::add(&self.counters.appends_refused, 1);
            self.family.press();
        }
        result
    }

    /// Whether a record that would need a batch in a slot that is held up gets one. `None` if it may go
    /// elsewhere: it is the same to a record without a key.
    fn held_up<'a>(
        &self,
        slot: &'a Slot,
        state: MutexGuard<'a, SlotState>,
        keyless: bool,
    ) -> Result<Option<MutexGuard<'a, SlotState>>, AppendError> {
        if !keyless && !self.family.memory.is_scarce() {
            return Ok(Some(state));
        }
        drop(state);
        match self.next_that_runs(slot) {
            Some(next) if keyless => {
                self.sticky.store(next, Ordering::Relaxed);
                return Ok(None);
            }
            // The others' records are not to wait for this one. Memory comes back as they are acknowledged.
            Some(_) => {
                Counters::add(&self.counters.appends_refused, 1);
                return Err(AppendError::Full);
            }
            None => {}
        }
        let state = slot.state.lock();
        let still = state.split.generation == self.slots.shape().generation;
        Ok(still.then_some(state))
    }

    /// The next of the slots after `slot` that is not held up, if one of the first few is not. No slot is
    /// locked.
    fn next_that_runs(&self, slot: &Slot) -> Option<usize> {
        let count = self.slots.shape().count;
        let after = (1..count.min(LOOK_AT)).map(|step| (slot.index + step) % count);
        let mut running = after.filter(|index| {
            let other = self.slots.get(*index);
            let runs = |state: &SlotState| !state.is_held_up() && state.link.connection().is_some();
            other.is_some_and(|other| runs(&other.state.lock()))
        });
        running.next()
    }

    /// Without linger: sends the open batch if nothing is under way to its broker.
    fn send_if_idle(&self, slot: &Slot, mut state: MutexGuard<'_, SlotState>) {
        if state.open.is_some() && state.link.is_idle() {
            let to_flush = self.seal(slot, &mut state);
            drop(state);
            if let Some(connection) = to_flush {
                connection.flush();
            }
        }
    }

    fn watch(&self, slot: &Slot, state: &mut SlotState) {
        if let Some(open) = &state.open
            && !state.watched
        {
            state.watched = true;
            let due = open.opened + self.patience();
            self.watched.lock().push(Reverse((due, slot.index)));
        }
        if self.driver_asleep.load(Ordering::Relaxed) {
            self.wake_driver();
        }
    }

    /// After how long the background task sends an open batch. Without linger that is only for links
    /// that stay busy: an idle one is given its batches by the append or the reply that finds it so.
    fn patience(&self) -> Duration {
        if self.settings.linger.is_zero() {
            BUSY_PATIENCE
        } else {
            self.settings.linger
        }
    }

    /// Has open batches sent soon, since memory has run out.
    pub(crate) fn press(&self) {
        // Whoever pressed before the background task looks has woken it.
        if !self.pressed.swap(true, Ordering::AcqRel) {
            self.wake_driver();
        }
    }

    /// True if a batch is open somewhere.
    pub(crate) fn any_watched(&self) -> bool {
        !self.watched.lock().is_empty()
    }

    /// How long until the first batch is due that was opened and may still be open.
    pub(crate) fn until_due(&self) -> Option<Duration> {
        let watched = self.watched.lock();
        let Reverse((due, _)) = watched.peek()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Sends open batches that were due at `now`; all of them with `None`.
    pub(crate) fn send_due_batches(&self, now: Option<Instant>) {
        let mut due = Vec::new();
        {
            let mut watched = self.watched.lock();
            while let Some(Reverse((at, _))) = watched.peek()
                && now.is_none_or(|now| *at <= now)
            {
                due.extend(watched.pop().map(|Reverse((_, index))| index));
            }
        }
        let mut flushes = Flushes::default();
        for index in due {
            let Some(slot) = self.slots.get(index) else {
                continue;
            };
            let mut state = slot.state.lock();
            state.watched = false;
            let Some(open) = &state.open else {
                continue;
            };
            if now.is_none_or(|now| open.opened + self.patience() <= now) {
                flushes.add(self.seal(slot, &mut state));
            } else {
                self.watch(slot, &mut state);
            }
        }
        flushes.run();
    }

    /// Sends all open batches.
    pub(crate) fn send_open_batches(&self) {
        self.send_due_batches(None);
    }
}
