//! Giving back the memory of open copies, buffer by buffer: what is on disk, and complete at its
//! primary as well, is only read any more.
//!
//! It is done when memory runs short, and not before: memory that stays with its copy until the group
//! ends is warm when the next copy takes it over, and fresh memory costs several times as much. Whole
//! buffers, since that is what is registered with a network card; where memory is short they are small.

use std::sync::Arc;

use super::BackupStore;
use super::buffers::Taking;
use crate::backup::copy::{Copy, Life, PAGE, failed};
use crate::transport::{Buffer, Refusal};

impl BackupStore {
    /// True if so much of the quota is used that copies keep no more than they must.
    pub(super) fn is_crowded(&self) -> bool {
        self.control.lock().reserved > self.limits.memory_bytes / 2
    }

    /// Gives back what can be, of all open copies; the bytes that became free.
    pub(super) fn release_all(&self) -> u64 {
        let copies: Vec<Arc<Copy>> = self.control.lock().copies.values().cloned().collect();
        let mut released = 0;
        for copy in copies {
            // One that is being flushed right now gives its own back afterwards.
            let Some(_turn) = copy.flushing.try_lock() else {
                continue;
            };
            match self.release(&copy) {
                Ok(bytes) => released += bytes,
                Err(error) => {
                    tracing::warn!(copy = %copy.spec.copy, %error, "its memory is not given back");
                }
            }
        }
        released
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
        let mut state = copy.state.lock();
        if state.life != Life::Open {
            return Ok(0);
        }
        let released = copy.memory.release(to).map_err(failed)?;
        state.released = to;
        state.buffers.retain(|buffer| buffer.address >= to);
        state.reserved = state.reserved.saturating_sub(released);
        let all = state.reserved == 0;
        drop(state);
        self.give_back(released, all);
        Ok(released)
    }
}
