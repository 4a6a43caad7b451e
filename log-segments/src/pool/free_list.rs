//! Which chunks are free: a stack of warm ones, then those whose memory was given back, then those
//! never used.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// Chunks given back per turn of the lock: keeps takers from waiting behind a sweep of gigabytes.
const SWEEP_CHUNKS: usize = 64;

pub(super) struct FreeList {
    chunks: u32,
    used: AtomicU32,
    state: Mutex<State>,
}

struct State {
    /// Free chunks that still hold memory; the last was freed last and is taken first.
    warm: Vec<u32>,
    /// The least height `warm` has had since the last sweep: everything below it was not used.
    low_water: usize,
    /// Free chunks whose memory was given back.
    cold: Vec<u32>,
    /// The lowest chunk never handed out.
    fresh: u32,
    /// Those who wait in turn, by ticket.
    queue: BTreeMap<u64, Waker>,
    next_ticket: u64,
    /// Those who only want to hear that a chunk came back.
    listeners: Vec<Waker>,
}

impl State {
    fn pop(&mut self, chunks: u32) -> Option<u32> {
        if let Some(index) = self.warm.pop() {
            self.low_water = self.low_water.min(self.warm.len());
            return Some(index);
        }
        if let Some(index) = self.cold.pop() {
            return Some(index);
        }
        (self.fresh < chunks).then(|| {
            self.fresh += 1;
            self.fresh - 1
        })
    }

    fn any_free(&self, chunks: u32) -> bool {
        !self.warm.is_empty() || !self.cold.is_empty() || self.fresh < chunks
    }

    /// Who is to be woken now that `freed` chunks came back.
    fn wakers(&mut self, freed: usize) -> Vec<Waker> {
        let mut wakers = std::mem::take(&mut self.listeners);
        for _ in 0..freed {
            match self.queue.pop_first() {
                Some((_, waker)) => wakers.push(waker),
                None => break,
            }
        }
        wakers
    }
}

impl FreeList {
    pub(super) fn new(chunks: u32) -> Self {
        Self {
            chunks,
            used: AtomicU32::new(0),
            state: Mutex::new(State {
                warm: Vec::new(),
                low_water: 0,
                cold: Vec::new(),
                fresh: 0,
                queue: BTreeMap::new(),
                next_ticket: 0,
                listeners: Vec::new(),
            }),
        }
    }

    pub(super) fn take(&self) -> Option<u32> {
        let index = self.state.lock().pop(self.chunks)?;
        self.used.fetch_add(1, Ordering::Relaxed);
        Some(index)
    }

    /// Puts a chunk back and wakes whoever waits for it.
    pub(super) fn put(&self, index: u32) {
        self.used.fetch_sub(1, Ordering::Relaxed);
        let wakers = {
            let mut state = self.state.lock();
            state.warm.push(index);
            state.wakers(1)
        };
        // Outside the lock: a waker may run its task's drop code, which may free chunks.
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn warm(&self) -> usize {
        self.state.lock().warm.len()
    }

    pub(super) fn on_free(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if state.any_free(self.chunks) {
            return false;
        }
        if !state.listeners.iter().any(|known| known.will_wake(waker)) {
            state.listeners.push(waker.clone());
        }
        true
    }

    /// Takes a chunk or queues `waker` under `ticket`, which is drawn on the first call.
    pub(super) fn take_or_queue(&self, ticket: &mut Option<u64>, waker: &Waker) -> Option<u32> {
        let mut state = self.state.lock();
        if let Some(index) = state.pop(self.chunks) {
            if let Some(ticket) = ticket.take() {
                state.queue.remove(&ticket);
            }
            drop(state);
            self.used.fetch_add(1, Ordering::Relaxed);
            return Some(index);
        }
        let ticket = *ticket.get_or_insert_with(|| {
            state.next_ticket += 1;
            state.next_ticket
        });
        state.queue.insert(ticket, waker.clone());
        None
    }

    /// Leaves the queue; if this ticket had been woken for a chunk, the next in line is woken.
    pub(super) fn leave(&self, ticket: u64) {
        let next = {
            let mut state = self.state.lock();
            if state.queue.remove(&ticket).is_some() || !state.any_free(self.chunks) {
                return;
            }
            state.queue.pop_first()
        };
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }

    /// Calls `give_back` for runs of chunks that were not used since the last call; returns how
    /// many chunks that were.
    pub(super) fn give_back_idle(&self, give_back: impl Fn(Range<u32>)) -> usize {
        let mut left = self.state.lock().low_water;
        let mut given = 0;
        while left > 0 {
            let mut idle: Vec<u32> = {
                let mut state = self.state.lock();
                // Takers may have dug below what was idle when this sweep began.
                let count = state.low_water.min(left).min(SWEEP_CHUNKS);
                if count == 0 {
                    break;
                }
                state.low_water -= count;
                state.warm.drain(..count).collect()
            };
            idle.sort_unstable();
            for run in idle.chunk_by(|a, b| a + 1 == *b) {
                give_back(run[0]..run[0] + run.len() as u32);
            }
            left -= idle.len();
            given += idle.len();
            // Descending, so that the lowest addresses are used first again.
            idle.reverse();
            let wakers = {
                let mut state = self.state.lock();
                let freed = idle.len();
                state.cold.append(&mut idle);
                // While they were on the way they counted as taken: somebody may wait for them.
                state.wakers(freed)
            };
            wakers.into_iter().for_each(Waker::wake);
        }
        let mut state = self.state.lock();
        state.low_water = state.warm.len();
        given
    }
}
