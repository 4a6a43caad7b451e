//! Pumps: what makes appended bytes durable and moves the head.
//!
//! A `written` group is written by whoever takes its turn: an appender that has published tries the
//! turn, writes all that waits (its own bytes and others'), gives the turn back and looks again, so
//! that no range is left stranded. No hand-over to another thread, which would cost more than the
//! write. `memory` and `synced` groups are written by the [`Pump`] thread, many groups a round.

use std::io::{self, IoSlice};
use std::time::Duration;

use kera_protocol::ids::Ordinal;

use crate::group::{AckPolicy, Group};
use crate::io::Io;
use crate::layout::{DurableMark, Uuid16};
use crate::sync::{Arc, Ordering};
use crate::window::{Place, Run};

/// Which store and which boot wrote the bytes: the life over which unsynced bytes survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Incarnation {
    /// Random id of the store directory.
    pub store_id: Uuid16,
    /// The machine's boot.
    pub boot_id: Uuid16,
}

/// What a turn at a file found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Everything published when the turn ended is in the file.
    Written,
    /// Another holds the turn and will take our bytes along.
    Taken,
    /// Writing failed; the group takes no more.
    Failed,
}

impl Group {
    /// Writes what waits to the page cache, unless another is at it, and moves the lane's head.
    /// Call without holding any lock.
    pub fn write_out(&self) -> Turn {
        let mut outcome = Turn::Written;
        loop {
            if self.turn.swap(true, Ordering::Acquire) {
                return Turn::Taken;
            }
            let (runs, to, failed) = self.unwritten();
            if failed {
                self.turn.store(false, Ordering::Release);
                return Turn::Failed;
            }
            if !runs.is_empty() {
                match self.write_runs(&runs) {
                    Ok(()) => self.window.lock().written = to,
                    Err(error) => {
                        self.fail(&error);
                        outcome = Turn::Failed;
                    }
                }
            }
            self.turn.store(false, Ordering::Release);
            if !runs.is_empty() {
                self.advance_head();
            }
            // Somebody may have published after we looked and been told that the turn was taken.
            let window = self.window.lock();
            if outcome == Turn::Failed || window.written.address >= window.end.address {
                return outcome;
            }
        }
    }

    fn unwritten(&self) -> (Vec<Run>, Place, bool) {
        let window = self.window.lock();
        (window.runs_from(window.written.address), window.end, window.failed.is_some())
    }

    fn write_runs(&self, runs: &[Run]) -> io::Result<()> {
        let file = self.file()?;
        for run in runs {
            let slices: Vec<IoSlice<'_>> =
                run.parts.iter().map(|(chunk, range)| IoSlice::new(chunk.bytes(range.clone()))).collect();
            file.write_vectored_at(&slices, run.address)?;
        }
        Ok(())
    }

    pub(crate) fn fail(&self, error: &io::Error) {
        tracing::error!(
            file = %self.spec.path.display(), %error,
            "writing a group failed; it ends at its last good byte and the lane goes on in a new one"
        );
        self.window.lock().failed = Some((error.kind(), error.raw_os_error()));
        if let Some(head) = self.lane_head() {
            head.wake_all();
        }
    }

    /// Writes the durable mark if `written` has moved since the last one. Only lengths whose
    /// completion was seen are ever marked.
    ///
    /// # Errors
    /// Whatever the store answers; the mark is only a check, so the caller may go on.
    pub fn write_mark(&self, incarnation: &Incarnation) -> io::Result<bool> {
        let (written, synced) = {
            let window = self.window.lock();
            (window.written, window.synced)
        };
        if written.address == self.marked.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mark = DurableMark {
            sequence: self.mark_sequence.fetch_add(1, Ordering::Relaxed) + 1,
            written: written.address,
            written_ordinal: written.ordinal,
            synced: synced.address,
            synced_ordinal: synced.ordinal,
            store_id: incarnation.store_id,
            boot_id: incarnation.boot_id,
        };
        let bytes = mark.encode();
        self.file()?.write_vectored_at(&[IoSlice::new(&bytes)], mark.slot_offset(self.spec.group_bytes()))?;
        self.marked.store(written.address, Ordering::Relaxed);
        Ok(true)
    }

    /// Writes what waits and syncs it to the device, whatever the policy.
    ///
    /// # Errors
    /// Whatever the store answers; after a failed sync the bytes count as lost, never as durable.
    pub fn sync(&self) -> io::Result<()> {
        while self.write_out() == Turn::Taken {
            std::thread::yield_now();
        }
        if let Some(error) = self.failure() {
            return Err(error);
        }
        let to = self.written();
        if self.synced().address < to.address {
            if let Err(error) = self.file()?.sync_data() {
                self.fail(&error);
                return Err(error);
            }
            let mut window = self.window.lock();
            if window.synced.address < to.address {
                window.synced = to;
            }
        }
        self.advance_head();
        Ok(())
    }
}

/// A thread's worth of pumping for `memory` and `synced` groups: takes every group that grew,
/// writes all their ranges as one submission, makes them durable with one flush, moves the heads.
/// So the cost of an acknowledgement does not grow with the number of groups.
pub struct Pump {
    io: Arc<dyn Io>,
    queue: std::sync::Mutex<Queue>,
    ready: std::sync::Condvar,
}

#[derive(Default)]
struct Queue {
    groups: Vec<Arc<Group>>,
    stopping: bool,
}

/// How long bytes of a `memory` group may wait for their write.
const MEMORY_DELAY: Duration = Duration::from_millis(20);

impl Pump {
    /// A pump that writes through `io`. Nothing runs before [`Self::run`].
    pub fn new(io: Arc<dyn Io>) -> Arc<Self> {
        Arc::new(Self {
            io,
            queue: Default::default(),
            ready: Default::default(),
        })
    }

    /// Says that a group grew. Cheap when it is queued already.
    pub fn submit(&self, group: &Arc<Group>) {
        if !group.queued.swap(true, Ordering::AcqRel) {
            let mut queue = lock(&self.queue);
            queue.groups.push(group.clone());
            drop(queue);
            self.ready.notify_one();
        }
    }

    /// Pumps until [`Self::stop`]; the body of the pump's thread.
    pub fn run(&self) {
        loop {
            let (groups, stopping) = {
                let mut queue = lock(&self.queue);
                while queue.groups.is_empty() && !queue.stopping {
                    queue = match self.ready.wait(queue) {
                        Ok(queue) => queue,
                        Err(poisoned) => poisoned.into_inner(),
                    };
                }
                (std::mem::take(&mut queue.groups), queue.stopping)
            };
            if groups.is_empty() && stopping {
                return;
            }
            let only_memory = groups.iter().all(|g| g.policy() == AckPolicy::Memory);
            self.round(groups);
            if only_memory && !stopping {
                // Nobody waits for these bytes; a short pause lets a round carry more of them.
                let queue = lock(&self.queue);
                let _unused = self.ready.wait_timeout_while(queue, MEMORY_DELAY, |q| {
                    !q.stopping && q.groups.iter().all(|g| g.policy() == AckPolicy::Memory && !g.is_hungry())
                });
            }
        }
    }

    /// One round over `groups`; public so that tests can pump without a thread.
    pub fn round(&self, groups: Vec<Arc<Group>>) {
        for group in groups {
            // Cleared before looking: whoever publishes after this queues the group again.
            group.queued.store(false, Ordering::Release);
            if group.policy() != AckPolicy::Synced {
                group.write_out();
            } else if let Err(error) = group.sync() {
                tracing::error!(group = ?group, %error, "syncing a group failed");
            }
        }
    }

    /// Ends [`Self::run`] once the queue is empty.
    pub fn stop(&self) {
        lock(&self.queue).stopping = true;
        self.ready.notify_all();
    }

    /// The engine underneath.
    pub fn io(&self) -> &Arc<dyn Io> {
        &self.io
    }
}

impl Group {
    /// True when so much waits to be written that memory is at stake.
    pub fn is_hungry(&self) -> bool {
        let window = self.window.lock();
        window.end.address - window.written.address > 4 * crate::pool::CHUNK_BYTES as u64
    }

    /// Says that the group grew to whoever makes it durable by its policy: the caller's own turn
    /// for `written`, the pump for the others. Call without holding any lock.
    pub fn pump(self: &Arc<Self>, pump: &Pump) {
        match self.policy() {
            AckPolicy::Written => {
                self.write_out();
            }
            AckPolicy::Memory => {
                self.advance_head();
                if self.is_hungry() || self.is_frozen() {
                    pump.submit(self);
                }
            }
            AckPolicy::Synced => pump.submit(self),
        }
    }

    /// True if all of the group satisfies its policy up to `ordinal`.
    pub fn covers(&self, ordinal: Ordinal) -> bool {
        self.acknowledged().ordinal >= ordinal
    }
}

fn lock(queue: &std::sync::Mutex<Queue>) -> std::sync::MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
