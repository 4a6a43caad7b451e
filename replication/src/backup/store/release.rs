//! Giving back the memory of open copies, buffer by buffer: what is on disk, and complete at its
//! primary as well, is only read any more.
//!
//! It is done when memory runs short, and not before: memory that stays with its copy until the group
//! ends is warm when the next copy takes it over, and fresh memory costs several times as much. Whole
//! buffers, since that is what is registered with a network card; where memory is short they are small.

use std::sync::Arc;
use std::time::Instant;

use super::ReplicaStore;
use super::buffers::Taking;
use crate::backup::copy::{Copy, Life, PAGE, failed};
use crate::transport::{Buffer, Refusal};

impl ReplicaStore {
    /// True if so much of the quota is used that copies keep no more than they must.
    pub(super) fn is_crowded(&self) -> bool {
        self.control.lock().used() > self.limits.memory_bytes / 2
    }

    /// Gives back what can be, of the open copies that were flushed since it was last tried; the bytes that
    /// became free. There may be very many copies, and as many who find no room.
    pub(super) fn release_all(&self) -> u64 {
        let copies: Vec<Arc<Copy>> = {
            let mut control = self.control.lock();
            let flushed = std::mem::take(&mut control.releasable);
            let copies = flushed.iter().filter_map(|id| control.copies.get(id));
            copies.cloned().collect()
        };
        let mut released = 0;
        for copy in copies {
            // One that is being flushed right now gives its own back afterwards.
            let Some(_turn) = copy.flushing.try_lock() else {
                continue;
            };
            match self.release(&copy) {
                Ok(bytes) => released += bytes,
                Err(refusal) => self.not_released(&copy, &refusal),
            }
        }
        released
    }

    /// Tells that a copy keeps its memory; it is tried again after its next flush.
    pub(super) fn not_released(&self, copy: &Copy, refusal: &Refusal) {
        if let Some(others) = self.unreleased.lock().due(Instant::now()) {
            tracing::warn!(copy = %copy.spec.copy, %refusal, others, "the memory of a replica on disk is not given back; nor of others since the last such line");
        }
    }

    /// Gives back the memory of the copy's buffers all of whose bytes are on disk and complete. To be
    /// called in the copy's turn to be flushed.
    pub(super) fn release(&self, copy: &Copy) -> Result<u64, Refusal> {
        let (to, keys) = {
            let state = copy.state.lock();
            let complete = state.mark.synced.min(state.confirmed);
            let below = |end: &u64| *end <= complete && end.is_multiple_of(PAGE);
            let ends = state.buffers.iter().map(Buffer::end);
            let to = ends.filter(below).max().unwrap_or(0);
            // Whatever is sealed goes to disk as a whole.
            if state.life != Life::Open || to <= state.released {
                return Ok(0);
            }
            let below = state.buffers.iter().filter(|b| b.address < to);
            let keys: Vec<_> = below.map(|buffer| buffer.key).collect();
            (to, keys)
        };
        // A card that could write there would keep the memory.
        self.forget_keys(Taking::WhenDone, &keys)?;
        let (before, buffers) = {
            let mut state = copy.state.lock();
            if state.life != Life::Open {
                return Ok(0);
            }
            // From now on nobody is given a buffer there.
            let kept = state.buffers.iter().filter(|b| b.address >= to);
            let kept = kept.copied().collect();
            let buffers = std::mem::replace(&mut state.buffers, kept);
            (std::mem::replace(&mut state.released, to), buffers)
        };
        let released = copy.memory.release(to);
        let mut state = copy.state.lock();
        let released = match released {
            Ok(released) => released,
            Err(error) => {
                state.released = before;
                let below = buffers.into_iter().filter(|b| b.address < to);
                state.buffers.splice(0..0, below);
                return Err(failed(error));
            }
        };
        state.reserved = state.reserved.saturating_sub(released);
        let all = state.reserved == 0;
        drop(state);
        self.give_back(released, all);
        Ok(released)
    }
}
