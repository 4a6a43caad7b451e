//! Pumps: what makes appended bytes durable and moves the head.
//!
//! A `written` group is written by whoever takes its turn: an appender that has published tries the
//! turn, writes all that waits (its own bytes and others'), gives the turn back and looks again, so
//! that no range is left stranded. No hand-over to another thread, which would cost more than the
//! write. So is a `memory` group, once enough has gathered. `synced` groups are written by the
//! [`LocalWriter`] thread, many groups a round; it also takes over a turn that has gone on for too long.

use std::io::{self, IoSlice};

use kera_protocol::ids::{Incarnation, Ordinal};

use crate::group::{AckPolicy, Gate, Group};
use crate::io::direct::{DirectRange, DirectWriter};
use crate::io::{File, Io, rewrite};
use crate::layout::DurableMark;
use crate::place::Place;
use crate::scan::write_mark;
use crate::sync::{Arc, Ordering, TurnWait, Weak, pause};
use crate::window::Run;

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

/// Rounds an appender writes for others before it hands the file to the pump.
const TURN_ROUNDS: usize = 16;

impl Group {
    /// Writes what waits to the page cache, unless another is at it, and moves the lane's head.
    /// Call without holding any lock.
    pub fn write_out(&self) -> Turn {
        loop {
            if let Some(turn) = self.write_rounds(TURN_ROUNDS) {
                return turn;
            }
        }
    }

    /// As [`Self::write_out`] for at most `rounds`; `None` if more waits then. With the group complete, those
    /// behind it that waited for it are written too, one after the other: they may be very many.
    fn write_rounds(&self, rounds: usize) -> Option<Turn> {
        if self.gate() == Gate::Waits {
            self.open_by_writing();
        }
        let (turn, mut next) = self.write_own_rounds(rounds);
        while let Some(group) = next {
            next = group.write_what_waited();
        }
        turn
    }

    /// Writes this group alone; also the group that waited for it, if it is complete now.
    fn write_own_rounds(&self, rounds: usize) -> (Option<Turn>, Option<Arc<Self>>) {
        for _ in 0..rounds {
            if self.gate() != Gate::Open {
                // Whoever completes the group before takes our bytes along.
                return (Some(Turn::Taken), None);
            }
            // Both swaps release and acquire: a publisher that finds the turn taken is seen, with
            // what it published, by whoever gives the turn back and looks again below.
            if self.turn.swap(true, Ordering::AcqRel) {
                return (Some(Turn::Taken), None);
            }
            let (runs, to, failed) = self.unwritten();
            let mut outcome = if failed { Turn::Failed } else { Turn::Written };
            if !failed && !runs.is_empty() {
                match self.write_runs(&runs) {
                    Ok(()) => {
                        let mut window = self.window.lock();
                        window.written = to;
                        if window.let_go && window.end.address == to.address {
                            window.evict(0);
                        }
                    }
                    Err(error) => {
                        self.fail(&error);
                        outcome = Turn::Failed;
                    }
                }
            }
            self.turn.swap(false, Ordering::AcqRel);
            if outcome == Turn::Failed {
                return (Some(outcome), None);
            }
            if !runs.is_empty() {
                self.advance_head();
            }
            let window = self.window.lock();
            if window.written.address >= window.end.address {
                let next = window.is_frozen().then(|| window.after.upgrade()).flatten();
                return (Some(outcome), next);
            }
        }
        (None, None)
    }

    /// Writes what waits in the groups before this one, unless that is the pump's to do: the first of them that may
    /// be written, and then those that waited for it.
    fn open_by_writing(&self) {
        if let Some(first) = self.first_before_it()
            && !first.is_direct()
        {
            first.write_rounds(TURN_ROUNDS);
        }
    }

    /// The first of the groups before this one that is not complete. It waits for none.
    fn first_before_it(&self) -> Option<Arc<Self>> {
        let before = |group: &Self| group.before.get().and_then(Weak::upgrade);
        let mut first = before(self)?;
        while first.waits.load(Ordering::Acquire)
            && let Some(one) = before(&first)
            && !one.is_whole_in_file()
        {
            first = one;
        }
        Some(first)
    }

    /// The group before it is complete: writes what was held back, unless that is the pump's to do. The group
    /// that waited for this one, if it is complete now.
    fn write_what_waited(&self) -> Option<Arc<Self>> {
        let ours = self.policy() == AckPolicy::Written && !self.is_direct();
        if !ours || self.gate() != Gate::Open {
            return None;
        }
        loop {
            if let (Some(_), next) = self.write_own_rounds(TURN_ROUNDS) {
                return next;
            }
        }
    }

    fn unwritten(&self) -> (Vec<Run>, Place, bool) {
        let window = self.window.lock();
        (
            window.runs_from(window.written.address),
            window.end,
            window.failed.is_some(),
        )
    }

    fn write_runs(&self, runs: &[Run]) -> io::Result<()> {
        let file = self.file()?;
        for run in runs {
            let slices: Vec<IoSlice<'_>> = run
                .parts
                .iter()
                .map(|(chunk, range)| IoSlice::new(chunk.bytes(range.clone())))
                .collect();
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
        self.broken.store(true, Ordering::Release);
        if self.is_shipped() {
            // The other copies may be enough.
            self.advance_head();
        } else if let Some(head) = self.lane_head() {
            head.wake_all();
        }
    }

    /// Writes the durable mark if `written` or `synced` has moved since the last one. Only lengths
    /// whose completion was seen are ever marked.
    ///
    /// # Errors
    /// Whatever the store answers; the mark is only a check, so the caller may go on.
    pub fn write_mark(&self, incarnation: &Incarnation) -> io::Result<bool> {
        let mut marked = self.store.lock();
        let (written, synced) = {
            let window = self.window.lock();
            (window.written, window.synced)
        };
        if written.address == marked.written && synced.address == marked.synced {
            return Ok(false);
        }
        let mark = DurableMark {
            sequence: marked.sequence + 1,
            written: written.address,
            written_ordinal: written.ordinal,
            synced: synced.address,
            synced_ordinal: synced.ordinal,
            incarnation: *incarnation,
        };
        // Counted first: a slot that may be half written is not written again before the other.
        marked.sequence = mark.sequence;
        write_mark(self.file()?.as_ref(), &mark, self.spec.group_bytes())?;
        (marked.written, marked.synced) = (written.address, synced.address);
        Ok(true)
    }

    /// Syncs what is left of a group that was cut after a failure.
    ///
    /// # Errors
    /// Whatever the store answers; the group stays as it is.
    pub fn sync_good(&self) -> io::Result<()> {
        let _turn = self.store.lock();
        self.sync_written()
    }

    /// Brings what is written to the device. Where a sync may have failed on it before, it is written once more first,
    /// since Linux takes it for clean, and looked at: damage that this shows is there whatever is done, and readers are
    /// told of it.
    fn sync_written(&self) -> io::Result<()> {
        for _ in 0..SYNCED_AGAIN {
            let (from, to, unproven, doubts) = {
                let window = self.window.lock();
                (
                    window.synced,
                    window.written,
                    window.unproven,
                    window.doubts,
                )
            };
            if from.address >= to.address {
                return Ok(());
            }
            let file = self.file()?;
            let doubted = unproven.clamp(from.address, to.address);
            rewrite(file.as_ref(), from.address, doubted)?;
            write_back(file.as_ref(), doubted, to.address)?;
            file.sync_data()?;
            if from.address < doubted {
                self.report_damage(to);
            }
            let mut window = self.window.lock();
            if window.doubts == doubts {
                window.synced = to;
                return Ok(());
            }
        }
        Err(io::Error::other(
            "each sync of it was made doubtful by one of other files that failed beside it",
        ))
    }

    /// Says so if the file does not hold a group whole up to a place.
    fn report_damage(&self, to: Place) {
        if let Err(error) = self.check_file(to) {
            tracing::error!(
                file = %self.spec.path.display(), %error,
                "a group is damaged, perhaps by a sync that failed; reads of the damaged batch fail"
            );
        }
    }

    /// Writes what waits and syncs it to the device, whatever the policy. Not for a file that the
    /// pump writes ([`Self::is_direct`]): see [`LocalWriter::settle`].
    ///
    /// # Errors
    /// Whatever the store answers; after a failed sync the bytes count as lost, never as durable.
    pub fn sync(&self) -> io::Result<()> {
        let mut wait = TurnWait::default();
        while self.write_out() == Turn::Taken {
            if matches!(self.gate(), Gate::Shut | Gate::Unrecorded) {
                return Err(held_back());
            }
            wait.pause();
        }
        {
            // One at a time: the kernel reports a lost write once, and a second sync beside the
            // failed one would take the loss for a success.
            let _turn = self.store.lock();
            if let Some(error) = self.failure() {
                return Err(error);
            }
            if let Err(error) = self.sync_written() {
                self.fail(&error);
                return Err(error);
            }
        }
        self.advance_head();
        Ok(())
    }
}

/// Syncs of a group beside which others fail are made again so often.
const SYNCED_AGAIN: u32 = 8;
/// Bytes on their way to the device at once. A flush of all that waits would fill the device's queue while
/// it holds the pages it sends, and whoever appends to the last of them would wait for the queue.
const WRITTEN_BACK_AT_ONCE: u64 = 4 << 20;
/// What lies this near to the end is left to the sync, as somebody may be appending there.
const LEFT_TO_SYNC: u64 = 1 << 20;

/// Sends what lies between the two addresses to the device, but for the end, a little at a time.
fn write_back(file: &dyn File, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at + LEFT_TO_SYNC < to {
        let len = WRITTEN_BACK_AT_ONCE.min(to - LEFT_TO_SYNC - at);
        file.write_back(at, len)?;
        at += len;
    }
    Ok(())
}

/// Syncs what is written of many groups of one file system with one flush of it, which costs less
/// than one of each. Which of them a failure is about it does not tell, and the device may have dropped what
/// it held of any: then each must be synced by itself ([`Group::sync`]), which writes it once more. The same holds of
/// those that are returned after a success: a sync may have failed on them before.
///
/// # Errors
/// Whatever the store answers; nothing of the groups counts as synced by it.
pub fn sync_together(groups: &[Arc<Group>]) -> io::Result<Vec<Arc<Group>>> {
    let Some(first) = groups.first() else {
        return Ok(Vec::new());
    };
    let file = first.file()?;
    let seen = |group: &Arc<Group>| {
        let window = group.window.lock();
        (window.written, window.doubts)
    };
    let seen: Vec<(Place, u64)> = groups.iter().map(seen).collect();
    if let Err(error) = file.sync_file_system() {
        for group in groups {
            group.window.lock().doubt();
        }
        return Err(error);
    }
    let mut left = Vec::new();
    for (group, (to, doubts)) in groups.iter().zip(seen) {
        let mut window = group.window.lock();
        // A group that failed meanwhile, and may have been cut since, may have lost some of it.
        if window.failed.is_some() {
            continue;
        }
        if window.is_in_doubt() || window.doubts != doubts {
            left.push(group.clone());
        } else if window.synced.address < to.address {
            window.synced = to;
        }
    }
    Ok(left)
}

/// A thread's worth of pumping, for `synced` groups above all: takes every group that grew,
/// writes all their ranges as one submission, makes them durable with one flush, moves the heads.
/// So the cost of an acknowledgement does not grow with the number of groups.
pub struct LocalWriter {
    io: Arc<dyn Io>,
    direct: DirectWriter,
    queue: std::sync::Mutex<Queue>,
    ready: std::sync::Condvar,
}

#[derive(Default)]
struct Queue {
    groups: Vec<Arc<Group>>,
    stopping: bool,
}

/// Bytes of a recovered group written anew at once.
const HARDENED_AT_ONCE: usize = 1 << 20;

impl LocalWriter {
    /// A pump that writes through `io`. Nothing runs before [`Self::run`].
    pub fn new(io: Arc<dyn Io>) -> Arc<Self> {
        Arc::new(Self {
            direct: DirectWriter::new(io.clone()),
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
            self.round(groups);
        }
    }

    /// Pumps what is queued, in the caller's thread, until nothing is; for tests and for a stop.
    pub fn drain(&self) {
        loop {
            let groups = std::mem::take(&mut lock(&self.queue).groups);
            if groups.is_empty() {
                return;
            }
            self.round(groups);
        }
    }

    /// One round over `groups`; public so that tests can pump without a thread.
    pub fn round(&self, groups: Vec<Arc<Group>>) {
        let mut ranges = Vec::new();
        let mut owners = Vec::new();
        let mut waiting = Vec::new();
        for group in groups {
            // Cleared before looking: whoever publishes after this queues the group again.
            group.queued.swap(false, Ordering::AcqRel);
            match self.open_gate(&group) {
                Gate::Open => {}
                Gate::Waits => {
                    waiting.push(group);
                    continue;
                }
                Gate::Unrecorded | Gate::Shut => continue,
            }
            if !group.is_direct() {
                if group.policy() != AckPolicy::Synced {
                    group.write_out();
                } else if let Err(error) = group.sync() {
                    tracing::error!(group = ?group, %error, "syncing a group failed");
                }
                continue;
            }
            if group.turn.swap(true, Ordering::AcqRel) {
                if !owners.is_empty() {
                    // Nobody waits for a turn while holding others.
                    self.submit(&group);
                    continue;
                }
                let mut wait = TurnWait::default();
                while group.turn.swap(true, Ordering::AcqRel) {
                    wait.pause();
                }
            }
            match group.direct_ranges() {
                Ok((mut of_group, to)) if !of_group.is_empty() => {
                    owners.push((group, to, of_group.len()));
                    ranges.append(&mut of_group);
                }
                outcome => {
                    if let Err(error) = outcome {
                        group.fail(&error);
                    }
                    group.turn.swap(false, Ordering::AcqRel);
                    group.advance_head();
                }
            }
        }
        if !owners.is_empty() {
            self.write_direct(owners, ranges);
        }
        if !waiting.is_empty() {
            // Another thread may be at the groups before them.
            pause();
        }
        for group in waiting {
            self.submit(&group);
        }
    }

    /// Whether `group` may be written, after the group before it was given the chance to be completed.
    fn open_gate(&self, group: &Group) -> Gate {
        let gate = group.gate();
        if gate == Gate::Waits
            && let Some(before) = group.before.get().and_then(Weak::upgrade)
        {
            if before.is_direct() {
                self.submit(&before);
            } else {
                before.write_out();
                return group.gate();
            }
        }
        gate
    }

    fn write_direct(&self, owners: Vec<(Arc<Group>, Place, usize)>, ranges: Vec<DirectRange>) {
        let mut results = self.direct.write_and_sync(ranges).into_iter();
        for (group, to, count) in owners {
            let failed = results.by_ref().take(count).filter_map(Result::err).last();
            match failed {
                None => {
                    let mut window = group.window.lock();
                    window.written = to;
                    window.synced = to;
                }
                Some(error) => group.fail(&error),
            }
            group.turn.swap(false, Ordering::AcqRel);
            group.advance_head();
            let window = group.window.lock();
            let next = window.is_whole(true).then(|| window.after.upgrade());
            drop(window);
            let mut next = next.flatten();
            while let Some(group) = next {
                next = group.write_what_waited();
            }
        }
    }

    /// Makes everything published in `group` durable on the device, whichever way its file is
    /// written; waits for it.
    ///
    /// # Errors
    /// Why the group's writing ended.
    pub fn settle(&self, group: &Arc<Group>) -> io::Result<()> {
        if group.is_direct() {
            let mut wait = TurnWait::default();
            while group.gate() == Gate::Waits {
                // Unless the pump's thread does it.
                self.round(
                    group
                        .before
                        .get()
                        .and_then(Weak::upgrade)
                        .into_iter()
                        .collect(),
                );
                wait.pause();
            }
            if group.gate() != Gate::Open {
                return Err(held_back());
            }
            self.round(vec![group.clone()]);
            return group.failure().map_or(Ok(()), Err);
        }
        group.sync()
    }

    /// Writes what waits in `group`, or has the pump write it where only the pump may.
    pub fn write(&self, group: &Arc<Group>) {
        if group.is_direct() {
            self.submit(group);
        } else {
            group.write_out();
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
    /// What is to be written around the page cache, and how far that reaches; nothing for a group
    /// that failed. The turn is held.
    fn direct_ranges(&self) -> io::Result<(Vec<DirectRange>, Place)> {
        let (runs, to, failed) = self.unwritten();
        if failed {
            return Ok((Vec::new(), to));
        }
        // What was written by another way than a round.
        self.sync_written()?;
        if runs.is_empty() {
            return Ok((Vec::new(), to));
        }
        let file = self.file()?;
        let owned = |run: &Run| {
            run.parts
                .iter()
                .map(|(chunk, range)| chunk.slice(range.clone()))
                .collect()
        };
        Ok((
            runs.iter()
                .map(|run| DirectRange::new(file.clone(), run.address, owned(run)))
                .collect(),
            to,
        ))
    }

    /// Writes the bytes of a recovered group anew from where they are known to be synced, and syncs
    /// them. Merely to sync them would not do: if a sync had failed before the crash, the page cache
    /// shows bytes that the device does not have and that no later sync writes. They count as synced only if
    /// they are whole afterwards.
    ///
    /// # Errors
    /// Whatever the store answers; `InvalidData` if the file is not whole after that. It has to be scanned again then.
    pub fn harden(&self) -> io::Result<()> {
        let (end, from, spans) = {
            let window = self.window.lock();
            let mut spans = Vec::new();
            let mut at = window.synced.address;
            while at < window.end.address {
                let segment = at / window.segment_size;
                spans.push((at, window.end_of_segment(segment)));
                at = (segment + 1) * window.segment_size;
            }
            (window.end, window.synced, spans)
        };
        if from.address >= end.address {
            return Ok(());
        }
        let file = self.file()?;
        let writer = DirectWriter::new(self.io.clone());
        for (mut at, stop) in spans {
            while at < stop {
                let mut bytes = vec![0; HARDENED_AT_ONCE.min((stop - at) as usize)];
                let got = file.read_at(&mut bytes, at)?;
                if got < bytes.len() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let next = at + bytes.len() as u64;
                let range = DirectRange::new(file.clone(), at, vec![bytes.into()]);
                writer
                    .write_and_sync(vec![range])
                    .into_iter()
                    .collect::<io::Result<()>>()?;
                at = next;
            }
        }
        // A device may have stored something else, or the page cache have shown older bytes by then.
        self.check_file(end)?;
        self.window.lock().synced = end;
        Ok(())
    }

    /// True when so much waits to be written that memory is at stake.
    pub fn is_hungry(&self) -> bool {
        let window = self.window.lock();
        window.end.address - window.written.address > 4 * crate::pool::CHUNK_BYTES as u64
    }

    /// Says that the group grew to whoever makes it durable by its policy: the caller's own turn
    /// for `written` and `memory`, the pump for `synced`. Call without holding any lock.
    pub fn pump(self: &Arc<Self>, pump: &LocalWriter) {
        if self.is_shipped()
            && let Some(shipping) = self.shipping()
        {
            // First, so that others write while this file is written.
            shipping.grew();
        }
        match self.policy() {
            AckPolicy::Written if !self.is_direct() => {
                if self.write_rounds(TURN_ROUNDS).is_none() {
                    pump.submit(self);
                }
            }
            AckPolicy::Memory => {
                self.advance_head();
                if !self.is_hungry() && !self.is_frozen() {
                    return;
                }
                // Written here while the bytes are still in this core's cache: left to the pump's
                // thread they would be read back from memory, and the pool would grow to its limit
                // of cold pages. It measured half the CPU.
                if self.is_direct() || self.write_rounds(TURN_ROUNDS).is_none() {
                    pump.submit(self);
                }
            }
            AckPolicy::Written | AckPolicy::Synced => pump.submit(self),
        }
    }

    /// True if all of the group satisfies its policy up to `ordinal`.
    pub fn covers(&self, ordinal: Ordinal) -> bool {
        self.acknowledged().ordinal >= ordinal
    }
}

/// Why nothing is written of a group.
fn held_back() -> io::Error {
    io::Error::other("the group before it in its lane is not written whole, or not recorded")
}

fn lock(queue: &std::sync::Mutex<Queue>) -> std::sync::MutexGuard<'_, Queue> {
    queue
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
