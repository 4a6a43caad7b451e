//! Giving back the memory of open copies, segment by segment: what is on disk, and complete at its
//! primary as well, is only read any more.
//!
//! It is done when memory runs short, and not before: memory that stays with its copy until the group
//! ends is warm when the next copy takes it over, and fresh memory costs several times as much.

use std::sync::Arc;

use super::BackupStore;
use super::buffers::Taking;
use crate::backup::copy::{Copy, Life, failed};
use crate::transport::Refusal;

/// Memory is given back in these.
const PAGE: u64 = 4096;

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

    /// Gives back the memory of the copy's segments that are on disk and complete. To be called in
    /// the copy's turn to be flushed.
    pub(super) fn release(&self, copy: &Copy) -> Result<u64, Refusal> {
        let size = u64::from(copy.spec.segment_size);
        let (to, keys) = {
            let state = copy.state.lock();
            let complete = state.mark.synced.min(state.confirmed);
            let to = complete / size * size;
            // Whatever is sealed goes to disk as a whole.
            if state.life != Life::Open || !size.is_multiple_of(PAGE) || to <= state.released {
                return Ok(0);
            }
            let below = state.buffers.iter().filter(|b| b.address < to);
            let keys: Vec<_> = below.map(|buffer| buffer.key).collect();
            (to, keys)
        };
        // A card that could write there would keep the memory.
        self.forget_where(Taking::WhenDone, |key, _| keys.contains(key))?;
        let mut state = copy.state.lock();
        if state.life != Life::Open {
            return Ok(0);
        }
        let released = copy.memory.release(to).map_err(failed)?;
        state.released = to;
        state.buffers.retain(|buffer| buffer.address >= to);
        state.reserved = state.reserved.saturating_sub(released);
        drop(state);
        self.give_back(released);
        Ok(released)
    }
}
